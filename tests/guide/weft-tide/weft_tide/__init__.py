"""Weft for tide: a target. What it contributes stands in `plugin.py`."""
