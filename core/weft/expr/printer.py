"""Formulas as text: `print_expr(e)`. What it prints, `parser` reads back to the same formula.

Nodes of layers above (Read, Reduce, Load, IntrinsicCall) are printed by what they are called and carry, so that this
module imports no layer above; a layer with a node of another shape registers it: `@node_text.register`.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache, singledispatch
from typing import Any

from weft.dtypes import DType
from weft.errors import ExprError
from weft.expr.nodes import Binary, Bitcast, Broadcast, Call, Cast, Const, Expr, Not, Ramp, Select, Var

OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, ATOM = range(11)
INFIX: dict[str, tuple[int, str]] = {
    "or": (OR, " or "), "and": (AND, " and "), "<": (COMPARE, " < "), "<=": (COMPARE, " <= "), "==": (COMPARE, " == "),
    "!=": (COMPARE, " != "),
    "|": (BIT_OR, " | "), "^": (BIT_XOR, " ^ "), "&": (BIT_AND, " & "), "<<": (SHIFT, " << "), ">>": (SHIFT, " >> "),
    "+": (SUM, " + "),
    "-": (SUM, " - "), "*": (PRODUCT, "*"), "/": (PRODUCT, "/"), "//": (PRODUCT, "//"), "%": (PRODUCT, "%"),
}  # fmt: skip
"""Symbol → precedence and how it is spaced; every other binary node prints as a call: min(a, b), truncdiv(a, b)."""

SUFFIXES: dict[str, str] = {
    "float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3fn",
    "float8_e4m3fnuz": "f8_e4m3fnuz",
    "float8_e5m2": "f8_e5m2", "float8_e5m2fnuz": "f8_e5m2fnuz", "float8_e8m0fnu": "f8_e8m0fnu",
    "float4_e2m1fn": "f4_e2m1fn",
    "int2": "i2", "int4": "i4", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint2": "u2", "uint4": "u4", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
NAME = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
RESERVED = re.compile(r"true|false|and|or|not|(?:inf|nan)(?:" + "|".join(SUFFIXES.values()) + ")")


def print_name(name: str) -> str:
    """`name` as the parser reads it: in backquotes if it is no plain identifier."""
    return name if NAME.fullmatch(name) and not RESERVED.fullmatch(name) else f"`{name}`"


@lru_cache(maxsize=4096)
def _float_digits(text: str, dtype: DType) -> str:
    value = float(text)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    for digits in range(1, 18):
        short = f"{value:.{digits}g}"
        if repr(Const(float(short), dtype).value) == text:
            break
    return short if "." in short or "e" in short else short + ".0"


def print_const(e: Const) -> str:
    """The literal: `3`, `3i32`, `1.5f32`, `-inff16`, `true`, `complex64(1.0, 0.0)`."""
    dtype = e.dtype
    if dtype.is_bool:
        return "true" if e.value else "false"
    if dtype.name == "int64":
        return str(e.value)
    if dtype.is_integer:
        return f"{e.value}{SUFFIXES[dtype.name]}"
    if dtype.is_float:
        return _float_digits(repr(e.value), dtype.scalar) + SUFFIXES[dtype.name]
    if dtype.kind == "complex":
        return f"{dtype}({e.value.real!r}, {e.value.imag!r})"
    raise ExprError(f"a constant of dtype {dtype} has no text")


def print_expr(e: Expr) -> str:
    """`e` as text with the fewest parentheses: `(i*16 + j)//4`.

    Raises:
        ExprError: a node that no layer has taught to print, or a constant without a literal form.
    """
    return _text(e, OR)


def _text(e: Expr, at_least: int) -> str:
    """`e`, in parentheses if it binds weaker than `at_least`."""
    if isinstance(e, Var):
        return print_name(e.name)
    if isinstance(e, Const):
        return print_const(e)
    if isinstance(e, Binary):
        infix = INFIX.get(e.symbol)
        if infix is None:
            return f"{e.symbol}({_text(e.a, OR)}, {_text(e.b, OR)})"
        level, symbol = infix
        # Comparisons do not chain, so both of their sides must bind tighter.
        text = _text(e.a, level + (level == COMPARE)) + symbol + _text(e.b, level + 1)
        return f"({text})" if level < at_least else text
    if isinstance(e, Not):
        text = "not " + _text(e.a, NOT)
        return f"({text})" if at_least > NOT else text
    return node_text(e)


def _join(items: Any) -> str:
    return ", ".join(_text(i, OR) for i in items)


@singledispatch
def node_text(e: Any) -> str:
    """The text of a node that is no operator symbol; other layers may register their nodes."""
    kind = type(e).__name__
    if kind == "Read":
        return f"{print_name(e.tensor.name)}[{_join(e.indices)}]"
    if kind == "Load":
        predicate = "" if e.predicate is None else f"; {_text(e.predicate, OR)}"
        return f"{print_name(e.buffer.name)}[{_join(e.indices)}{predicate}]"
    if kind == "IntrinsicCall":
        return f"@{e.name}({_join(e.args)}) -> {e.dtype}"
    if kind == "Reduce":
        axes = ", ".join(f"{print_name(a.var.name)}: {a.extent}" for a in e.axes)
        pick = f"[{e.index}]" if len(e.values) > 1 else ""
        return f"{e.reducer.name}({_join(e.values)}; axis={axes}){pick}"
    raise ExprError(
        f"a node of type {kind} has no text", hint="register its text: @weft.expr.printer.node_text.register"
    )


@node_text.register
def _select(e: Select) -> str:
    return f"select({_join((e.cond, e.a, e.b))})"


@node_text.register
def _cast(e: Cast) -> str:
    return f"{e.dtype}({_text(e.value, OR)})"


@node_text.register
def _bitcast(e: Bitcast) -> str:
    return f"bitcast({e.dtype}, {_text(e.value, OR)})"


@node_text.register
def _call(e: Call) -> str:
    return f"{e.name}({_join(e.args)})"


@node_text.register
def _ramp(e: Ramp) -> str:
    return f"ramp({_join((e.base, e.stride))}, {e.lanes})"


@node_text.register
def _broadcast(e: Broadcast) -> str:
    return f"broadcast({_text(e.value, OR)}, {e.lanes})"
