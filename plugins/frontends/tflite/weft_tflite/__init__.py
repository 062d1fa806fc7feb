"""Weft's TensorFlow Lite frontend."""
