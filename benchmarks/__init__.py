"""Weft and its peers, side by side, on eight architectures."""
