"""Sizes of an exported program: sympy's formulas over its symbols as Weft's over the graph's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import sympy
import torch

from weft import dtypes as dt
from weft.expr import nodes as e
from weft.expr.nodes import Expr
from weft.tensor.language import Dim, as_dim
from weft_frontend.operands import Unsupported

COMPARISONS: dict[str, Callable[[Any, Any], Expr]] = {
    "Equality": e.eq,
    "Unequality": e.ne,
    "StrictLessThan": e.lt,
    "LessThan": e.le,
    "StrictGreaterThan": lambda a, b: e.lt(b, a),
    "GreaterThan": lambda a, b: e.le(b, a),
}


def formula(expression: Any, symbols: Mapping[str, Dim]) -> Expr:
    """A sympy formula of sizes as Weft's.

    Args:
        symbols: what stands for each of its symbols, by name, and for formulas of them, as sympy prints them.

    Raises:
        Unsupported: a function in it is none of integers, or a symbol has no value.
    """

    def of(x: Any) -> Expr:
        return formula(x, symbols)

    if expression in (sympy.true, sympy.false):
        return e.const(bool(expression))
    if expression.is_Integer:
        return e.const(int(expression), dt.int64)
    known = symbols.get(str(expression))  # a whole formula may be an input
    if known is not None:
        return e.wrap(known, dt.int64)
    if expression.is_Symbol:
        raise Unsupported(f"a size '{expression.name}' that no input determines")
    name, arguments = type(expression).__name__, expression.args
    if name == "Add":
        return reduce(e.add, map(of, arguments))
    if name == "Mul":
        return reduce(e.mul, map(of, arguments))
    if name in ("Pow", "PowByNatural"):
        base, power = arguments
        if power.is_Integer and 0 < int(power) <= 16:
            return reduce(e.mul, [of(base)] * int(power))
    if name in ("FloorDiv", "CleanDiv"):
        return e.floordiv(of(arguments[0]), of(arguments[1]))
    if name == "CeilDiv":
        return e.ceildiv(of(arguments[0]), of(arguments[1]))
    if name in ("Mod", "PythonMod"):
        return e.floormod(of(arguments[0]), of(arguments[1]))
    if name in ("Max", "Min"):
        return reduce(e.maximum if name == "Max" else e.minimum, map(of, arguments))
    if name == "Abs":
        return e.maximum(of(arguments[0]), 0 - of(arguments[0]))
    if name in COMPARISONS:
        return COMPARISONS[name](of(arguments[0]), of(arguments[1]))
    if name in ("And", "Or"):
        return reduce(e.and_ if name == "And" else e.or_, map(of, arguments))
    if name == "Not":
        return e.not_(of(arguments[0]))
    if name == "Identity":
        return of(arguments[0])
    if name == "Where":
        return e.select(of(arguments[0]), of(arguments[1]), of(arguments[2]))
    raise Unsupported(f"the formula {expression} of sizes")


def size(value: Any, symbols: Mapping[str, Dim]) -> Dim:
    """A size, an int or a SymInt, as a dimension."""
    if isinstance(value, torch.SymInt):
        return as_dim(formula(value.node.expr, symbols))
    return int(value)


def sizes_of_no_tensor(placeholders: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The inputs that are sizes and do not follow from those of the tensors among the inputs: a tensor says what a
    symbol is if this alone is one of its sizes."""
    fakes = [n.meta.get("val") for n in placeholders]
    sizes = [d for f in fakes if isinstance(f, torch.Tensor) for d in f.shape if isinstance(d, torch.SymInt)]
    known = {d.node.expr for d in sizes if d.node.expr.is_Symbol}
    found = []
    for node, fake in zip(placeholders, fakes):
        if isinstance(fake, torch.SymInt) and fake.node.expr not in known and not fake.node.expr.free_symbols <= known:
            known.add(fake.node.expr)
            found.append(node)
    return found


__all__ = ["formula", "size", "sizes_of_no_tensor"]
