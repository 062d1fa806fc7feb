"""The operators, as MXNet 1.9 defines them where a model is not trained."""

from __future__ import annotations

from weft_mxnet.converters import elementwise, movement, normalization, recurrent, reduction, windows

__all__ = ["elementwise", "movement", "normalization", "recurrent", "reduction", "windows"]
