"""The operators: each as Caffe2's documentation and CPU implementation define it."""

from __future__ import annotations

from weft_caffe2.converters import elementwise, fills, movement, normalization, reduction, windows

__all__ = ["elementwise", "fills", "movement", "normalization", "reduction", "windows"]
