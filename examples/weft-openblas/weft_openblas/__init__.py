"""Weft for OpenBLAS: matrix products by a library. What it contributes stands in `plugin.py`."""
