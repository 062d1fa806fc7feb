"""Turns the iterations of vectorized loops into lanes of vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.errors import LoopError
from weft.expr.nodes import (
    Add,
    And,
    Broadcast,
    Call,
    Const,
    Expr,
    Le,
    Lt,
    Mul,
    Or,
    Ramp,
    Select,
    Sub,
    Var,
    add,
    all_of,
    and_,
    floordiv,
    lt,
    maximum,
    minimum,
    mul,
    not_,
    or_,
    select,
    sub,
    walk,
)
from weft.expr.ranges import Range, range_of
from weft.loop.nodes import (
    TRUE,
    Allocate,
    AtomicUpdate,
    Block,
    Buffer,
    Evaluate,
    For,
    If,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Seq,
    Stmt,
    Store,
    While,
    int64,
    int_const,
    seq,
    stmt_children,
    walk_stmts,
    with_stmt_children,
)
from weft.loop.passes.copies import Names, if_stmt
from weft.loop.passes.guard_loads import in_bounds
from weft.loop.passes.simplify import holds


class _Declined(Exception):
    """The loop cannot be vectorized; the text says why."""


def _note_range(stmt: Stmt, ranges: dict[str, Range]) -> None:
    """Adds what values the variable of a loop or a definition has; names are unique in a Program."""
    if isinstance(stmt, For):
        last = range_of(stmt.extent, ranges).hi
        ranges[stmt.var.name] = Range(0, None if last is None else last - 1)
    elif isinstance(stmt, Let) and stmt.var.dtype.is_integer and stmt.var.dtype.lanes == 1:
        ranges[stmt.var.name] = range_of(stmt.value, ranges)


@dataclass
class _Mask:
    """The lanes that are active: the condition per lane, and whether any holds (None: not known as a formula)."""

    lanes: Expr
    some: Expr | None


def vectorize_loops(program: Program) -> Program:
    """For(vectorized, n) becomes statements on n lanes: Ramp, Broadcast, vector Load and Store, masks for conditions.

    Of nested vectorized loops the innermost becomes vectors, the others unrolled loops. A loop that cannot be
    vectorized becomes serial and keeps the reason in its annotation vectorize_declined.

    Raises:
        LoopError: all lanes store different values to one address.
    """
    if not any(isinstance(s, For) and s.kind == "vectorized" for s in walk_stmts(program.body)):
        return program
    names = Names.of(program)

    ranges: dict[str, Range] = {d.name: Range(0, None) for d in program.dims}

    def visit(stmt: Stmt) -> Stmt:
        _note_range(stmt, ranges)
        if isinstance(stmt, For) and stmt.kind == "vectorized":
            lanes = int_const(stmt.extent)
            if any(isinstance(s, For) and s.kind == "vectorized" for s in walk_stmts(stmt.body)):
                return replace(stmt, kind="unrolled" if lanes is not None else "serial", body=visit(stmt.body))
            try:
                if lanes is None:
                    raise _Declined(f"the extent {stmt.extent} is not constant")
                if lanes == 1:
                    raise _Declined("one lane is no vector")
                return _Lanes(stmt.var, lanes, names, ranges).stmt(stmt.body, None)
            except _Declined as reason:
                return replace(
                    stmt, kind="serial", annotations=(*stmt.annotations, ("vectorize_declined", str(reason)))
                )
        children = stmt_children(stmt)
        if not children:
            return stmt
        new = tuple(visit(c) for c in children)
        return with_stmt_children(stmt, new) if any(n is not c for n, c in zip(new, children)) else stmt

    return program.with_body(visit(program.body))


class _Lanes:
    """Turns the body of one loop into statements on vectors. A formula that is the same in all lanes stays scalar."""

    def __init__(self, var: Var, lanes: int, names: Names, ranges: dict[str, Range]) -> None:
        self.var, self.lanes, self.names, self.ranges = var, lanes, names, ranges
        self.values: dict[str, Expr] = {var.name: Ramp(Const(0, var.dtype), Const(1, var.dtype), lanes)}
        self.buffers: dict[str, Buffer] = {}

    # -- formulas
    def wide(self, e: Expr) -> Expr:
        return e if e.dtype.lanes == self.lanes else Broadcast(e, self.lanes)

    def expr(self, e: Expr, mask: _Mask | None) -> Expr:
        if isinstance(e, Var):
            return self.values.get(e.name, e)
        if isinstance(e, Load):
            return self.load(e, mask)
        if isinstance(e, (Ramp, Broadcast)) or e.dtype.lanes > 1:
            raise _Declined("its body holds vectors already")
        if isinstance(e, Select):
            cond = self.expr(e.cond, mask)
            return select(cond, self.expr(e.a, mask), self.expr(e.b, mask))
        children = e.children()
        if not children:
            return e
        new = tuple(self.expr(c, mask) for c in children)
        if all(n is c for n, c in zip(new, children)):
            return e
        if any(n.dtype.lanes > 1 for n in new):
            if isinstance(e, IntrinsicCall):
                raise _Declined(f"the intrinsic {e.name} has no vector form")
            if isinstance(e, Call):
                new = tuple(self.wide(n) for n in new)
            if isinstance(e, Sub) and isinstance(new[1], Ramp) and new[0].dtype.lanes == 1:
                ramp = new[1]
                return Ramp(sub(new[0], ramp.base), sub(Const(0, ramp.stride.dtype), ramp.stride), self.lanes)
            if isinstance(e, Sub) and isinstance(new[0], Ramp) and isinstance(new[1], Ramp):
                return self.ramp(sub(new[0].base, new[1].base), sub(new[0].stride, new[1].stride))
            if isinstance(e, (Add, Mul)) and e.dtype.is_integer and isinstance(result := e.with_children(new), Ramp):
                return self.ramp(result.base, result.stride)
        return e.with_children(new)

    def ramp(self, base: Expr, stride: Expr) -> Expr:
        return base if int_const(stride) == 0 else Ramp(base, stride, self.lanes)

    def load(self, e: Load, mask: _Mask | None) -> Expr:
        # Loads in an index lie under the mask, whatever becomes of this one.
        indices = self.indices(e.buffer, tuple(self.expr(i, mask) for i in e.indices))
        predicate = None if e.predicate is None else self.expr(e.predicate, mask)
        if mask is not None and in_bounds(e, self.ranges):
            mask = None  # such as padding: what the other lanes read is not used
        buffer = self.buffers.get(e.buffer.name, e.buffer)
        varies = any(i.dtype.lanes > 1 for i in indices)
        if not varies and (predicate is None or predicate.dtype.lanes == 1):
            # One address for all lanes. Under a mask some lane is active: an If around the statement sees to that where
            # it is known; else the load is made per lane, because it might fault when no lane is.
            if mask is None or mask.some is not None:
                return Load(buffer, indices, predicate)
        elif not varies and predicate is not None and (mask is None or mask.some is not None):
            some = _some(predicate, self.lanes)
            if some is not None:
                # Lanes without predicate must still give zero.
                zero = Const(0, e.dtype)
                return select(
                    predicate,
                    Broadcast(Load(buffer, indices, None if some == TRUE else some), self.lanes),
                    Broadcast(zero, self.lanes),
                )
        if mask is not None:
            predicate = mask.lanes if predicate is None else and_(self.wide(predicate), mask.lanes)
        wide = tuple(self.wide(i) for i in indices)
        return Load(buffer, wide, None if predicate is None else self.wide(predicate))

    def indices(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """A buffer allocated inside the loop has an element per lane."""
        if buffer.name not in self.buffers:
            return indices
        lane = self.values[self.var.name]
        return (*indices[:-1], add(mul(indices[-1], self.lanes), lane))

    # -- statements
    def stmt(self, s: Stmt, mask: _Mask | None) -> Stmt:
        _note_range(s, self.ranges)
        match s:
            case Seq():
                return seq(*(self.stmt(c, mask) for c in s.stmts))
            case Store():
                return self.store(s, mask)
            case Let():
                value = self.expr(s.value, mask)
                var = s.var
                if value.dtype.lanes > 1:
                    var = Var(s.var.name, s.var.dtype.with_lanes(self.lanes))
                    self.values[s.var.name] = var
                return Let(var, value, self.stmt(s.body, mask))
            case If():
                return self.condition(s, mask)
            case For():
                extent = self.expr(s.extent, mask)
                if extent.dtype.lanes > 1:
                    raise _Declined(f"the extent of the loop '{s.var.name}' inside differs between lanes")
                return replace(s, extent=extent, body=self.stmt(s.body, mask))
            case While():
                cond = self.expr(s.cond, mask)
                if cond.dtype.lanes > 1 or (mask is not None and mask.some is None):
                    raise _Declined("a while loop inside runs differently in each lane")
                return While(cond, self.stmt(s.body, mask))
            case Allocate():
                shape = s.buffer.shape
                if not shape:
                    raise _Declined(f"the buffer '{s.buffer.name}' inside has no dimension")
                if any(self.expr(d, mask).dtype.lanes > 1 for d in shape):
                    raise _Declined(f"the shape of the buffer '{s.buffer.name}' inside differs between lanes")
                self.buffers[s.buffer.name] = replace(s.buffer, shape=(*shape[:-1], mul(shape[-1], self.lanes)))
                return Allocate(self.buffers[s.buffer.name], self.stmt(s.body, mask))
            case AtomicUpdate():
                raise _Declined(f"an atomic update of '{s.buffer.name}' inside")
            case Evaluate():
                raise _Declined(f"the intrinsic {s.call.name} has no vector form")
            case Block():
                raise _Declined(f"the block '{s.name}' is not lowered")
        raise _Declined(f"a {type(s).__name__} inside")

    def store(self, s: Store, mask: _Mask | None) -> Stmt:
        indices = self.indices(s.buffer, tuple(self.expr(i, mask) for i in s.indices))
        predicate = None if s.predicate is None else self.expr(s.predicate, mask)
        if s.predicate is not None and predicate is not None and predicate.dtype.lanes > 1:
            # As an If around the store.
            return self.condition(If(s.predicate, replace(s, predicate=None)), mask)
        value = self.expr(s.value, mask)
        buffer = self.buffers.get(s.buffer.name, s.buffer)
        if all(i.dtype.lanes == 1 for i in indices):
            if any(isinstance(n, Load) and n.buffer.name == s.buffer.name for n in walk(s.value)):
                raise _Declined(f"'{s.buffer.name}' is accumulated over the lanes")
            if value.dtype.lanes > 1:
                raise LoopError(
                    f"vectorize_loops: all lanes of loop '{self.var.name}' store to one element of '{s.buffer.name}'",
                    where=str(s),
                    why=f"the index does not vary with '{self.var.name}', the value does",
                    hint="vectorize a loop over the elements of the output, or make the loop serial",
                )
            if mask is not None and mask.some is None:
                raise _Declined(
                    f"a store to one element of '{s.buffer.name}' under a condition that differs between lanes"
                )
            return Store(buffer, indices, value, predicate)
        if mask is not None:
            predicate = mask.lanes if predicate is None else and_(self.wide(predicate), mask.lanes)
        return Store(
            buffer,
            tuple(self.wide(i) for i in indices),
            self.wide(value),
            None if predicate is None else self.wide(predicate),
        )

    def condition(self, s: If, mask: _Mask | None) -> Stmt:
        cond = self.expr(s.cond, mask)
        if isinstance(cond, And) and s.orelse is None and isinstance(s.cond, And):
            # The part that is the same in all lanes stays an If.
            same = [p for p in holds(s.cond) if self.expr(p, mask).dtype.lanes == 1]
            if same:
                vary = all_of(p for p in holds(s.cond) if self.expr(p, mask).dtype.lanes > 1)
                return If(all_of(self.expr(p, mask) for p in same), self.condition(If(vary, s.then), mask))
        if cond.dtype.lanes == 1:
            return If(cond, self.stmt(s.then, mask), None if s.orelse is None else self.stmt(s.orelse, mask))
        some = _some(cond, self.lanes) if mask is None else None
        bound: Var | None = None
        if any(isinstance(n, Load) for n in walk(cond)) or s.orelse is not None:
            # The condition is read once: the branches may change what it reads.
            bound = Var(self.names.fresh("mask"), cond.dtype)
            given, cond = cond, bound
        then = self.stmt(s.then, _Mask(cond if mask is None else and_(mask.lanes, cond), some))
        result = then if some is None else if_stmt(some, then)
        if s.orelse is not None:
            opposite = not_(cond)
            missing = _some(not_(given if bound is not None else cond), self.lanes) if mask is None else None
            other = self.stmt(s.orelse, _Mask(opposite if mask is None else and_(mask.lanes, opposite), missing))
            result = seq(result, other if missing is None else if_stmt(missing, other))
        return Let(bound, given, result) if bound is not None else result


def _interval(cond: Expr, lanes: int) -> tuple[Expr, Expr] | None:
    """The lanes [first, last) where a conjunction of comparisons that are linear in the lane holds."""
    if isinstance(cond, And):
        first, second = _interval(cond.a, lanes), _interval(cond.b, lanes)
        return None if first is None or second is None else (maximum(first[0], second[0]), minimum(first[1], second[1]))
    if not isinstance(cond, (Lt, Le)) or not cond.a.dtype.is_integer:
        return None

    def line(e: Expr) -> tuple[Expr, int] | None:
        if isinstance(e, Ramp):
            stride = int_const(e.stride)
            return None if stride is None else (e.base, stride)
        return (e.value, 0) if isinstance(e, Broadcast) else None

    a, b = line(cond.a), line(cond.b)
    if a is None or b is None:
        return None
    base, slope = sub(b[0], a[0]), b[1] - a[1]  # base + slope*lane >= 0 (or > 0)
    if isinstance(cond, Lt):
        base = sub(base, 1)
    if slope == 0 or base.dtype.name != "int64":
        return None
    if slope > 0:
        return floordiv(add(sub(int64(0), base), slope - 1), slope), int64(lanes)
    return int64(0), add(floordiv(base, -slope), 1)


def _some(cond: Expr, lanes: int) -> Expr | None:
    """Whether any lane of a vector condition is true, as a scalar formula; None if there is none."""
    if isinstance(cond, Or):
        a, b = _some(cond.a, lanes), _some(cond.b, lanes)
        return None if a is None or b is None else or_(a, b)
    same = [p.value for p in holds(cond) if isinstance(p, Broadcast)]
    vary = [p for p in holds(cond) if not isinstance(p, Broadcast)]
    if vary:
        found = _interval(all_of(vary), lanes)
        if found is None:
            return None
        same.append(lt(maximum(found[0], int64(0)), minimum(found[1], int64(lanes))))
    return all_of(same)
