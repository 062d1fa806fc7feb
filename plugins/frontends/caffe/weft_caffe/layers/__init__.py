"""The layers: each as Caffe's own documentation and reference implementation define it, at the phase TEST."""

from __future__ import annotations

from weft_caffe.layers import elementwise, movement, normalization, windows

__all__ = ["elementwise", "movement", "normalization", "windows"]
