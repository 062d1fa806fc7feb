"""Exponentials, logarithms, trigonometry, elementwise."""

from __future__ import annotations

from dataclasses import dataclass

from weft_ops.elementwise import Function


@dataclass(frozen=True)
class Exp(Function):
    """e to the x."""

    function = "exp"


@dataclass(frozen=True)
class Expm1(Function):
    """e^x - 1, precise near 0."""

    function = "expm1"


@dataclass(frozen=True)
class Log(Function):
    """The natural logarithm; NaN for negatives, -∞ at 0."""

    function = "log"
    between = (0.1, 9.0)


@dataclass(frozen=True)
class Log1p(Function):
    """log(1 + x), precise near 0."""

    function = "log1p"
    between = (-0.9, 9.0)


@dataclass(frozen=True)
class Erf(Function):
    """The error function."""

    function = "erf"


@dataclass(frozen=True)
class Sin(Function):
    """The sine."""

    function = "sin"


@dataclass(frozen=True)
class Cos(Function):
    """The cosine."""

    function = "cos"


@dataclass(frozen=True)
class Tan(Function):
    """The tangent."""

    function = "tan"
    between = (-1.4, 1.4)


@dataclass(frozen=True)
class Asin(Function):
    """The arcsine; NaN beyond ±1."""

    function = "asin"
    between = (-1.0, 1.0)


@dataclass(frozen=True)
class Acos(Function):
    """The arccosine; NaN beyond ±1."""

    function = "acos"
    between = (-1.0, 1.0)


@dataclass(frozen=True)
class Atan(Function):
    """The arctangent."""

    function = "atan"


@dataclass(frozen=True)
class Sinh(Function):
    """The hyperbolic sine."""

    function = "sinh"


@dataclass(frozen=True)
class Cosh(Function):
    """The hyperbolic cosine."""

    function = "cosh"


@dataclass(frozen=True)
class Asinh(Function):
    """The inverse hyperbolic sine."""

    function = "asinh"


@dataclass(frozen=True)
class Acosh(Function):
    """The inverse hyperbolic cosine; NaN below 1."""

    function = "acosh"
    between = (1.0, 9.0)


@dataclass(frozen=True)
class Atanh(Function):
    """The inverse hyperbolic tangent; NaN beyond ±1."""

    function = "atanh"
    between = (-0.9, 0.9)


__all__ = [
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Expm1",
    "Log",
    "Log1p",
    "Sin",
    "Sinh",
    "Tan",
]
