"""Loop pass of the profile for microcontrollers: the call that sums and the call that scales the sums become one.

    @dot_rows(a[i], s, b[0], c[0], m, p, q)
    @rescale_rows(c[0], t[0], f[0], r[0], z, -128, 127, y[j], m, 2p)
    → @dot_bytes(a[i], s, b[0], t[0], f[0], r[0], z, y[j], m, p, q)

So sums stay in registers, and what scales the results of two rows is read once. It is done where nothing else uses the
sums, whose buffer then goes, and where results reach from -128 to 127, for which the processor has an instruction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from weft.expr.nodes import Const, Expr, mul, walk
from weft.expr.simplify import simplify
from weft.loop.nodes import (
    Allocate,
    Evaluate,
    IntrinsicCall,
    Load,
    Program,
    Seq,
    Stmt,
    int64,
    int_const,
    seq,
    stmt_children,
    stmt_exprs,
    walk_stmts,
    with_stmt_children,
)

Join = Callable[[Sequence[Expr], Sequence[Expr]], IntrinsicCall | None]
"""Arguments of two calls → what does both, if something does."""


def joined_calls(program: Program) -> Program:
    """Afterwards no sums of `dot_rows` are in memory that only `rescale_rows` reads, for results of 8 bits."""
    uses = Counter(x.buffer.name for s in walk_stmts(program.body) for e in stmt_exprs(s) for x in loads(e))
    kept = {b.name for b in (*program.inputs, *program.outputs)}
    found: Counter[str] = Counter()

    def rule(s: Stmt, taken: frozenset[str] | None) -> Stmt:
        """`taken`: buffers of which all uses are calls to be joined; None: these are only counted."""
        if isinstance(s, Seq):
            result: list[Stmt] = []
            for inner in s.stmts:
                pair = joined(result[-1], inner) if result else None
                if pair is None:
                    result.append(rule(inner, taken))
                    continue
                name, call = pair
                if taken is None:
                    found[name] += 2
                if taken is not None and name in taken:
                    result[-1] = Evaluate(call)
                else:
                    result.append(inner)
            return seq(*result)
        children = stmt_children(s)
        s = with_stmt_children(s, tuple(rule(c, taken) for c in children)) if children else s
        return s.body if isinstance(s, Allocate) and s.buffer.name in (taken or ()) else s

    rule(program.body, None)
    taken = frozenset(n for n, count in found.items() if count == uses[n] and n not in kept)
    return program.with_body(rule(program.body, taken)) if taken else program


def loads(e: Expr) -> list[Load]:
    return [x for x in walk(e) if isinstance(x, Load)]


def joined(first: Stmt, second: Stmt) -> tuple[str, IntrinsicCall] | None:
    """The buffer of sums and the one call for two statements that follow each other."""
    if not (isinstance(first, Evaluate) and isinstance(second, Evaluate)):
        return None
    join = JOINS.get((first.call.name, second.call.name))
    if join is None:
        return None
    sums = second.call.args[0]
    call = join(first.call.args, second.call.args)
    return (sums.buffer.name, call) if call is not None and isinstance(sums, Load) else None


def _rows(first: Sequence[Expr], second: Sequence[Expr]) -> IntrinsicCall | None:
    a, stride, b, c, rows, pairs, quads = first
    x, term, multiplier, right, zero, low, high, y, m, n = second
    same = x == c and m == rows and simplify(mul(pairs, int64(2))) == simplify(n)
    if not same or not whole_range(low, high):
        return None
    return IntrinsicCall("dot_bytes", (a, stride, b, term, multiplier, right, zero, y, rows, pairs, quads))


def _planes(first: Sequence[Expr], second: Sequence[Expr]) -> IntrinsicCall | None:
    *picture, c0, c1, c2, c3, planes, rows, columns, high, wide = first
    *x, term, multiplier, right, zero, least, most, y0, y1, y2, y3, p, m, n = second
    if x != [c0, c1, c2, c3] or (p, m, n) != (planes, rows, columns) or not whole_range(least, most):
        return None
    scales = (term, multiplier, right, zero)
    counts = (planes, rows, columns, high, wide)
    return IntrinsicCall("planes_bytes", (*picture, *scales, y0, y1, y2, y3, *counts))


def whole_range(low: Expr, high: Expr) -> bool:
    """Whether results are limited by their type alone."""
    return isinstance(low, Const) and isinstance(high, Const) and (int_const(low), int_const(high)) == (-128, 127)


JOINS: dict[tuple[str, str], Join] = {
    ("dot_rows", "rescale_rows"): _rows,
    ("dot_planes", "rescale_planes"): _planes,
}

__all__ = ["joined_calls"]
