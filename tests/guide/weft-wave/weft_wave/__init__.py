"""Weft for wave: a target. What it contributes stands in `plugin.py`."""
