"""Computes indices in 32 bits if ranges prove that they suffice, for machines that are several times as fast with 32
bits as with 64."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from weft import dtypes as dt
from weft.dtypes import DType
from weft.expr import nodes as ex
from weft.expr.nodes import Expr, Var
from weft.expr.ranges import Range, range_of
from weft.loop.grids import BLOCK_AXES
from weft.loop.nodes import (
    For,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    map_stmt_exprs,
    stmt_children,
    with_stmt_children,
)
from weft.loop.passes.hoist_invariants import summands

LEAST, MOST = -(1 << 31), (1 << 31) - 1
_SAME = (ex.FloorDiv, ex.FloorMod, ex.TruncDiv, ex.TruncMod, ex.Min, ex.Max, ex.Mul)
_COMPARED = (ex.Lt, ex.Le, ex.Eq, ex.Ne)


def narrow_indices(program: Program) -> Program:
    """Makes int64 loops, Lets and formulas int32 where no value that they take needs more; sums of both kinds add up
    what is narrow first.

    Indices, extents, conditions and Lets only: what buffers hold, and what intrinsics get, has the dtype that it had.
    Buffers have one dimension. No grid has more groups along an axis than an int32 counts.

    for i in n { for t in 64 threadIdx.x { y[i*64 + t] = x[i*64 + t%8] } }
    →   for i in n { for t as int32 in 64i32 threadIdx.x { y[i*64 + int64(t)] = x[i*64 + int64(t%8i32)] } }
    """
    return program.with_body(_Narrower({d.name: Range(0, None) for d in program.dims}).stmt(program.body))


def _fits(known: Range) -> bool:
    return known.lo is not None and known.hi is not None and known.lo >= LEAST and known.hi <= MOST


@dataclass
class _Narrower:
    ranges: dict[str, Range]
    vars: dict[str, Var] = field(default_factory=dict)
    memo: dict[Expr, Expr] = field(default_factory=dict)

    # -- statements

    def stmt(self, s: Stmt) -> Stmt:
        match s:
            case For():
                known = range_of(s.extent, self.ranges)
                extent = self.narrow(s.extent)
                if s.kind in BLOCK_AXES and s.var.dtype == dt.int64 and extent.dtype == dt.int64:
                    known, extent = Range(0, MOST), ex.cast_to(extent, dt.int32)
                self.ranges[s.var.name] = Range(0, None if known.hi is None else max(0, known.hi - 1))
                if s.var.dtype == dt.int64 and extent.dtype == dt.int32:
                    self.vars[s.var.name] = Var(s.var.name, dt.int32)
                    return replace(s, var=self.vars[s.var.name], extent=extent, body=self.stmt(s.body))
                return replace(s, extent=self.wide(extent, s.var.dtype), body=self.stmt(s.body))
            case Let():
                if s.var.dtype.is_integer and s.var.dtype.lanes == 1:
                    self.ranges[s.var.name] = range_of(s.value, self.ranges)
                value = self.narrow(s.value)
                if s.var.dtype == dt.int64 and value.dtype == dt.int32:
                    self.vars[s.var.name] = Var(s.var.name, dt.int32)
                    return Let(self.vars[s.var.name], value, self.stmt(s.body))
                return Let(s.var, value, self.stmt(s.body))
            case Store():
                predicate = None if s.predicate is None else self.narrow(s.predicate)
                return Store(s.buffer, tuple(self.narrow(i) for i in s.indices), self.kept(s.value), predicate)
        s = map_stmt_exprs(s, self.kept)
        children = stmt_children(s)
        return with_stmt_children(s, tuple(self.stmt(c) for c in children)) if children else s

    # -- formulas

    def kept(self, e: Expr) -> Expr:
        """The formula in the dtype that it had."""
        return self.wide(self.narrow(e), e.dtype)

    def narrow(self, e: Expr) -> Expr:
        """The formula, of int32 in place of int64 where it fits."""
        found = self.memo.get(e)
        if found is None:
            found = self.memo[e] = self._narrow(e)
        return found

    def _narrow(self, e: Expr) -> Expr:
        if isinstance(e, Var):
            return self.vars.get(e.name, e)
        if isinstance(e, Load):
            return Load(
                e.buffer,
                tuple(self.narrow(i) for i in e.indices),
                None if e.predicate is None else self.narrow(e.predicate),
            )
        if isinstance(e, _COMPARED) and e.a.dtype.scalar == dt.int64:
            a, b = self._alike(e.a, e.b)
            return ex.BUILDERS[type(e)](a, b)
        if isinstance(e, ex.Cast) and e.dtype.scalar != dt.int64:
            return ex.cast_to(self.narrow(e.value), e.dtype.scalar)
        if e.dtype.scalar != dt.int64:
            return self._rebuilt(e)
        fits = _fits(range_of(e, self.ranges))
        match e:
            case ex.Const() if fits and e.dtype.lanes == 1:
                return ex.Const(e.value, dt.int32)
            case ex.Add() | ex.Sub() if e.dtype.lanes == 1:
                return self._sum(e, fits)
            case ex.Ramp():
                base, stride = self._alike(e.base, e.stride)
                if base.dtype == dt.int32 and not fits:
                    base, stride = self.wide(base, dt.int64), self.wide(stride, dt.int64)
                return ex.Ramp(base, stride, e.lanes)
            case ex.Broadcast():
                return ex.Broadcast(self.narrow(e.value), e.lanes)
            case ex.Select():
                a, b = self._alike(e.a, e.b)
                return ex.select(self.narrow(e.cond), a, b)
            case ex.Cast() if e.dtype.lanes == 1 and fits and e.value.dtype.is_integer:
                return ex.cast_to(self.kept(e.value), dt.int32)
            case ex.Binary() if isinstance(e, (*_SAME, ex.Add, ex.Sub)):
                a, b = self._alike(e.a, e.b)
                if a.dtype.scalar == dt.int32 and not fits:
                    a, b = self.wide(a, e.dtype), self.wide(b, e.dtype)
                result = ex.BUILDERS[type(e)](a, b)
                return (
                    ex.cast_to(result, dt.int32) if fits and result.dtype == dt.int64 else result
                )  # a remainder of what is wide
        return self._rebuilt(e)

    def _rebuilt(self, e: Expr) -> Expr:
        """The node over operands of the dtypes that they had."""
        children = e.children()
        new = tuple(
            self.narrow(c) if isinstance(e, IntrinsicCall) and isinstance(c, Load) else self.kept(c) for c in children
        )
        return e.with_children(new) if any(n is not c for n, c in zip(new, children)) else e

    def _alike(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Both of int32, or both of int64."""
        x, y = self.narrow(a), self.narrow(b)
        return (x, y) if x.dtype == y.dtype else (self.wide(x, a.dtype), self.wide(y, b.dtype))

    def _sum(self, e: Expr, fits: bool) -> Expr:
        """What is narrow added up first, the rest to it."""
        terms, constant = summands(e)
        new = [(self.narrow(t), plus) for t, plus in terms]
        narrow = [(t, plus) for t, plus in new if t.dtype == dt.int32]
        wide = [(t, plus) for t, plus in new if t.dtype != dt.int32]
        # Each partial sum must fit, in whatever order they are added.
        reach = [range_of(t, self.ranges) for (t, _), (n, _) in zip(terms, new) if n.dtype == dt.int32]
        most = sum(max(abs(r.lo or 0), abs(r.hi or 0)) for r in reach) + abs(constant)
        if most > MOST or (fits and wide):
            wide, narrow = [(self.wide(t, dt.int64), plus) for t, plus in new], []
        total: Expr = ex.Const(0, dt.int32 if narrow else dt.int64)
        if narrow:
            for t, plus in sorted(narrow, key=lambda x: not x[1]):
                total = ex.add(total, t) if plus else ex.sub(total, t)
            total = ex.add(total, ex.Const(constant, dt.int32))
            if not wide:
                return total
            total, constant = ex.cast_to(total, dt.int64), 0
            if all(plus for _, plus in wide[:1]):
                first, *wide = wide
                total = ex.add(first[0], total)
        for t, plus in sorted(wide, key=lambda x: not x[1]):
            total = ex.add(total, t) if plus else ex.sub(total, t)
        return ex.add(total, ex.Const(constant, dt.int64))

    def wide(self, e: Expr, d: DType) -> Expr:
        """The formula as one of `d`. A conversion to int32 falls away with this one if it loses nothing: one of the
        model's own may."""
        if e.dtype == d:
            return e
        if isinstance(e, ex.Cast) and e.value.dtype == d and _fits(range_of(e.value, self.ranges)):
            return e.value
        return ex.cast_to(e, d.scalar)
