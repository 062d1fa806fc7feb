"""Weft's Core ML frontend."""
