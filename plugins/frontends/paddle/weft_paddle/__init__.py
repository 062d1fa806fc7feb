"""Weft's frontend for PaddlePaddle."""
