"""Weft's frontend for Caffe."""
