"""Weft's frontend for MXNet."""
