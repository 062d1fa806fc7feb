"""Weft's frontend for Caffe2."""
