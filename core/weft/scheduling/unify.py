"""Matching of formulas: the ways in which a formula of a block is the meaning of an instruction."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TypeAlias

from weft.expr.nodes import Add, And, BitAnd, BitOr, BitXor, Call, Const, Eq, Expr, Max, Min, Mul, Ne, Or, Var
from weft.loop.nodes import Load
from weft.tensor.language import Read

_COMMUTATIVE = (Add, Mul, BitAnd, BitOr, BitXor, And, Or, Eq, Ne)

Pair: TypeAlias = tuple[Expr, Expr]
"""A leaf of the meaning (a Read or an axis) and what stands in its place in the block."""


def leaves(e: Expr) -> Iterator[Expr]:
    """All nodes of a formula, itself first."""
    stack = [e]
    while stack:
        n = stack.pop()
        yield n
        stack.extend(n.children())


def unify(p: Expr, e: Expr, pairs: tuple[Pair, ...], numbers: Container[int]) -> Iterator[tuple[Pair, ...]]:
    """Every way in which the formula `e` is `p` with elements of buffers (constants, of tensors in `numbers`) in the
    place of reads, and indices in the place of axes.
    """
    if p.dtype != e.dtype:
        return
    if isinstance(p, Read):
        if (isinstance(e, Load) and e.predicate is None) or (isinstance(e, Const) and id(p.tensor) in numbers):
            yield (*pairs, (p, e))
    elif isinstance(p, Var):
        yield (*pairs, (p, e))
    elif isinstance(p, Const):
        if p == e:
            yield pairs
    elif (
        type(p) is type(e)
        and len(p.children()) == len(e.children())
        and not (isinstance(p, Call) and isinstance(e, Call) and p.name != e.name)
    ):
        swaps = isinstance(p, _COMMUTATIVE) or (isinstance(p, (Min, Max)) and p.dtype.is_integer)
        for order in [e.children(), e.children()[::-1]] if swaps else [e.children()]:
            found = iter([pairs])
            for a, b in zip(p.children(), order):
                found = iter([more for known in found for more in unify(a, b, known, numbers)])
            yield from found


def variables_outside_loads(e: Expr) -> Iterator[Expr]:
    """The variables of a formula, but for those in places of what it loads."""
    if isinstance(e, Var):
        yield e
    elif not isinstance(e, Load):
        for c in e.children():
            yield from variables_outside_loads(c)
