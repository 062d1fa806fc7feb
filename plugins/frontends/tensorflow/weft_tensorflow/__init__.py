"""Weft's TensorFlow frontend: SavedModels and frozen graphs, read without TensorFlow."""
