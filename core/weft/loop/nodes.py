"""The loop IR.

    Program := name, inputs: Buffer*, outputs: Buffer*, dims: Var*, body: Stmt
    Stmt    := Seq(stmts) | For(var, extent, kind, body, annotations) | While(cond, body) | If(cond, then, orelse)
             | Let(var, value, body) | Allocate(buffer, body) | Store(buffer, indices, value, predicate)
             | AtomicUpdate(buffer, indices, reducer, value) | Evaluate(intrinsic call) | Block
    Block   := name, iters, bindings, predicate, init, body, opaque reads and writes
    Expr    += Load(buffer, indices, predicate) | IntrinsicCall(name, args)

Loops run from 0 to extent - 1. In one Program every loop variable, let variable, block and buffer has a name of its
own: schedule primitives, traces and errors refer to them by name.

A Block is one perfect nest seen as a unit: its iteration variables take the values of `bindings` (formulas over the
loops around it); where `predicate` holds, `init` runs at the first step of the block's reduction (all reduce iterators
0), then `body`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, Literal, TypeAlias

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import LoopError
from weft.expr.nodes import Const, Expr, ExprLike, Var, const, substitute, transform, wrap

LoopKind: TypeAlias = str
"""One of LOOP_KINDS, or `unit.NAME`: iterations on the units of a machine's level NAME (`weft.machine.Level`)."""
IterKind: TypeAlias = Literal["spatial", "reduce", "scan"]
"""What an iterator of a block runs over: elements of the result, terms of a reduction, or steps of a scan."""
LOOP_KINDS: tuple[str, ...] = (
    "serial", "parallel", "vectorized", "unrolled",
    "blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z",
)  # fmt: skip
"""Kinds of loops that every Program may have; those of the second row are of grids."""
UNIT = "unit."
"""Prefix of the kinds of loops over units of a machine."""
TRUE = Const(True, dt.bool_)
"""The constant True."""
PREFETCH = "prefetch"
"""The intrinsic prefetch(buffer[index], locality): the element will be read soon. It has no meaning, but the element
must exist."""


@dataclass(frozen=True)
class Buffer:
    """Row-major storage. `scope` names a memory of the target ("global", "local", "register", "shared", a vendor's); it
    begins there at a multiple of `align` bytes, as far as the machine declares that it may (`Machine.alignment`)."""

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    scope: str = "global"
    align: int = 64

    def __getitem__(self, indices: Any) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(wrap(i, dt.int64) for i in items))

    def __str__(self) -> str:
        return self.name


def level_of(kind: LoopKind) -> str | None:
    """The level of a machine whose units run the iterations of a loop of this kind: "array" of "unit.array"; None of
    other kinds."""
    return kind[len(UNIT) :] if kind.startswith(UNIT) and len(kind) > len(UNIT) else None


def is_loop_kind(kind: LoopKind) -> bool:
    """Whether there is such a kind of loop."""
    return kind in LOOP_KINDS or level_of(kind) is not None


def buffer(name: str, shape: Any, dtype: object, scope: str = "global") -> Buffer:
    """A Buffer; dimensions may be ints."""
    return Buffer(name, tuple(wrap(d, dt.int64) for d in shape), dt.dtype(dtype), scope)


class Load(Expr):
    """One element of a buffer, or a vector of them where an index is a vector. Lanes where `predicate` is false give
    zero."""

    __slots__ = ("buffer", "indices", "predicate")
    fields = ("buffer", "indices", "predicate")

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...], predicate: Expr | None = None) -> None:
        if len(indices) != len(buffer.shape):
            raise LoopError(f"buffer '{buffer.name}' has {len(buffer.shape)} dimension(s), indexed with {len(indices)}")
        self.buffer, self.indices, self.predicate = buffer, indices, predicate
        lanes = max((i.dtype.lanes for i in indices), default=1)
        self.dtype = buffer.dtype.with_lanes(max(lanes, buffer.dtype.lanes))

    def children(self) -> tuple[Expr, ...]:
        return self.indices if self.predicate is None else (*self.indices, self.predicate)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        if self.predicate is None:
            return Load(self.buffer, children)
        return Load(self.buffer, children[:-1], children[-1])


class IntrinsicCall(Expr):
    """A target's instruction: `name` of `weft.loop.intrinsics`, possibly with effects. dtype handle if it has no
    value."""

    __slots__ = ("args", "name")
    fields = ("name", "args", "dtype")

    def __init__(self, name: str, args: tuple[Expr, ...], dtype: DType = dt.handle) -> None:
        self.name, self.args, self.dtype = name, args, dtype

    def children(self) -> tuple[Expr, ...]:
        return self.args

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return IntrinsicCall(self.name, children, self.dtype)


class Stmt:
    """A statement."""

    def __str__(self) -> str:
        from weft.loop.printer import print_stmt

        return print_stmt(self)


@dataclass(frozen=True, repr=False)
class Seq(Stmt):
    """Statements in order."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, repr=False)
class For(Stmt):
    """for var in 0 … extent - 1. A parallel loop's iterations are independent, so are those of a `unit.NAME`; a
    vectorized one's run as lanes."""

    var: Var
    extent: Expr
    body: Stmt
    kind: LoopKind = "serial"
    annotations: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, repr=False)
class While(Stmt):
    """`body` as long as `cond`, which is evaluated before each iteration, is true."""

    cond: Expr
    body: Stmt


@dataclass(frozen=True, repr=False)
class If(Stmt):
    """`then` if `cond` is true, else `orelse`, if there is one."""

    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(frozen=True, repr=False)
class Let(Stmt):
    """`value` evaluated once, here, under the name `var` inside `body`."""

    var: Var
    value: Expr
    body: Stmt


@dataclass(frozen=True, repr=False)
class Allocate(Stmt):
    """`buffer` exists inside `body`; its elements are undefined until stored."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, repr=False)
class Store(Stmt):
    """buffer[indices] = value, in the lanes (or at all) where `predicate` holds."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    predicate: Expr | None = None


@dataclass(frozen=True, repr=False)
class AtomicUpdate(Stmt):
    """buffer[indices] = op(buffer[indices], value) as one step; op is add, min, max."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    op: Literal["add", "min", "max"]
    value: Expr


@dataclass(frozen=True)
class Region:
    """A box of a buffer: per dimension, first index and extent."""

    buffer: Buffer
    ranges: tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True, repr=False)
class Evaluate(Stmt):
    """A call for its effect. `within`: of buffers of which it gets an address, the box that it stays in; it may use all
    of others."""

    call: IntrinsicCall
    within: tuple[Region, ...] = ()


@dataclass(frozen=True)
class BlockIter:
    """An iteration variable of a block over 0 … extent - 1. "scan" iterators run in order."""

    var: Var
    extent: Expr
    kind: IterKind = "spatial"


@dataclass(frozen=True, repr=False)
class Block(Stmt):
    """See the module. `reads`/`writes` are given only where the body does not show them (opaque, tensorized); else
    derived.

    `annotations` carry facts for schedule rules, ("role", …) and ("part_of", …), and names for people, ("op", operator
    name), ("algorithm", …), by which no rule decides.
    """

    name: str
    iters: tuple[BlockIter, ...]
    bindings: tuple[Expr, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr = TRUE
    reads: tuple[Region, ...] | None = None
    writes: tuple[Region, ...] | None = None
    annotations: tuple[tuple[str, int | str], ...] = ()

    def annotation(self, key: str) -> int | str | None:
        return dict(self.annotations).get(key)


@dataclass(frozen=True, repr=False)
class Program:
    """A kernel before code: `inputs` are only read, `outputs` written; `dims` are the symbols used in shapes and
    formulas.

    `aliases` lists (output index, input index) pairs that may be the same memory (in place).
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    dims: tuple[Var, ...]
    body: Stmt
    aliases: tuple[tuple[int, int], ...] = ()

    @property
    def params(self) -> tuple[Buffer, ...]:
        return (*self.inputs, *self.outputs)

    def with_body(self, body: Stmt) -> Program:
        return replace(self, body=body)

    def __str__(self) -> str:
        from weft.loop.printer import print_program

        return print_program(self)


# -- traversal --------------------------------------------------------------------------------------------------------


def stmt_children(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside `stmt` (a block's init before its body)."""
    if isinstance(stmt, Seq):
        return stmt.stmts
    if isinstance(stmt, (For, While, Let, Allocate)):
        return (stmt.body,)
    if isinstance(stmt, If):
        return (stmt.then,) if stmt.orelse is None else (stmt.then, stmt.orelse)
    if isinstance(stmt, Block):
        return (stmt.body,) if stmt.init is None else (stmt.init, stmt.body)
    return ()


def stmt_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """The formulas directly in `stmt`, not those of inner statements."""
    match stmt:
        case For():
            return (stmt.extent,)
        case While() | If():
            return (stmt.cond,)
        case Let():
            return (stmt.value,)
        case Allocate():
            return stmt.buffer.shape
        case Store():
            return (
                (*stmt.indices, stmt.value) if stmt.predicate is None else (*stmt.indices, stmt.value, stmt.predicate)
            )
        case AtomicUpdate():
            return (*stmt.indices, stmt.value)
        case Evaluate():
            return (stmt.call,)
        case Block():
            regions = [x for r in (*(stmt.reads or ()), *(stmt.writes or ())) for lo, n in r.ranges for x in (lo, n)]
            return (*(i.extent for i in stmt.iters), *stmt.bindings, stmt.predicate, *regions)
    return ()


def with_stmt_children(stmt: Stmt, children: tuple[Stmt, ...]) -> Stmt:
    """The same statement over other inner statements; a Seq is flattened."""
    if isinstance(stmt, Seq):
        return seq(*children)
    if isinstance(stmt, For):
        return For(stmt.var, stmt.extent, children[0], stmt.kind, stmt.annotations)
    if isinstance(stmt, Let):
        return Let(stmt.var, stmt.value, children[0])
    if isinstance(stmt, Allocate):
        return Allocate(stmt.buffer, children[0])
    if isinstance(stmt, While):
        return While(stmt.cond, children[0])
    if isinstance(stmt, If):
        return replace(stmt, then=children[0], orelse=children[1] if len(children) > 1 else None)
    if isinstance(stmt, Block):
        return replace(stmt, body=children[-1], init=children[0] if len(children) > 1 else None)
    return stmt


def map_stmt_exprs(stmt: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """`stmt` with `f` applied to each formula directly in it (whole formulas; inner statements untouched); itself if
    none changed."""
    match stmt:
        case Store():
            predicate = None if stmt.predicate is None else f(stmt.predicate)
            indices, value = tuple([f(i) for i in stmt.indices]), f(stmt.value)
            if value is stmt.value and predicate is stmt.predicate and all(map(is_, indices, stmt.indices)):
                return stmt
            return Store(stmt.buffer, indices, value, predicate)
        case For():
            extent = f(stmt.extent)
            return stmt if extent is stmt.extent else For(stmt.var, extent, stmt.body, stmt.kind, stmt.annotations)
        case While() | If():
            cond = f(stmt.cond)
            return stmt if cond is stmt.cond else replace(stmt, cond=cond)
        case Let():
            value = f(stmt.value)
            return stmt if value is stmt.value else Let(stmt.var, value, stmt.body)
        case Allocate():
            shape = tuple([f(d) for d in stmt.buffer.shape])
            return (
                stmt
                if all(map(is_, shape, stmt.buffer.shape))
                else Allocate(replace(stmt.buffer, shape=shape), stmt.body)
            )
        case AtomicUpdate():
            return replace(stmt, indices=tuple(f(i) for i in stmt.indices), value=f(stmt.value))
        case Evaluate():
            call = f(stmt.call)
            assert isinstance(call, IntrinsicCall)
            return Evaluate(call, tuple(_map_region(r, f) for r in stmt.within))
        case Block():
            iters = tuple([BlockIter(i.var, f(i.extent), i.kind) for i in stmt.iters])

            def region(r: Region) -> Region:
                return _map_region(r, f)

            reads = None if stmt.reads is None else tuple(region(r) for r in stmt.reads)
            writes = None if stmt.writes is None else tuple(region(r) for r in stmt.writes)
            return replace(
                stmt,
                iters=iters,
                bindings=tuple(f(b) for b in stmt.bindings),
                predicate=f(stmt.predicate),
                reads=reads,
                writes=writes,
            )
    return stmt


def _map_region(r: Region, f: Callable[[Expr], Expr]) -> Region:
    return Region(r.buffer, tuple((f(lo), f(n)) for lo, n in r.ranges))


def walk_stmts(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement of `stmt`, parents first, in program order."""
    stack = [stmt]
    while stack:
        s = stack.pop()
        yield s
        children = stmt_children(s)
        if children:
            stack.extend(children[::-1])


def transform_stmts(stmt: Stmt, rule: Callable[[Stmt], Stmt | None]) -> Stmt:
    """Rewrites statements bottom-up; None keeps the statement."""
    children = stmt_children(stmt)
    if children:
        new = tuple([transform_stmts(c, rule) for c in children])
        if not all(map(is_, new, children)):
            stmt = with_stmt_children(stmt, new)
    result = rule(stmt)
    return stmt if result is None else result


def map_exprs(stmt: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """Every whole formula in `stmt` and below, through `f`."""
    return transform_stmts(stmt, lambda s: map_stmt_exprs(s, f))


def substitute_stmt(stmt: Stmt, values: Mapping[str, ExprLike]) -> Stmt:
    """Variables replaced by name in every formula. Names are unique in a Program, so nothing is captured."""
    return map_exprs(stmt, lambda x: substitute(x, values)) if values else stmt


def replace_buffers(stmt: Stmt, buffers: Mapping[str, Buffer]) -> Stmt:
    """Loads, stores, allocations and regions of the named buffers moved to others of the same rank."""

    def load(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer.name in buffers:
            return Load(buffers[node.buffer.name], node.indices, node.predicate)
        return None

    def move(regions: tuple[Region, ...] | None) -> tuple[Region, ...] | None:
        return (
            None if regions is None else tuple(replace(r, buffer=buffers.get(r.buffer.name, r.buffer)) for r in regions)
        )

    def rule(s: Stmt) -> Stmt | None:
        s = map_stmt_exprs(s, lambda x: transform(x, load))
        if isinstance(s, (Store, AtomicUpdate, Allocate)) and s.buffer.name in buffers:
            return replace(s, buffer=buffers[s.buffer.name])
        if isinstance(s, Block) and (s.reads is not None or s.writes is not None):
            return replace(s, reads=move(s.reads), writes=move(s.writes))
        return replace(s, within=move(s.within) or ()) if isinstance(s, Evaluate) and s.within else s

    return transform_stmts(stmt, rule)


def seq(*stmts: Stmt) -> Stmt:
    """The statements one after another; nested sequences flattened, one statement alone stands for itself."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Seq) else (s,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def int_const(expr: Expr) -> int | None:
    """The value of an integer constant, else None."""
    return int(expr.value) if isinstance(expr, Const) and expr.dtype.is_integer else None


def int64(value: int) -> Const:
    """The int64 constant `value`."""
    return const(value, dt.int64)


__all__ = [n for n in dir() if not n.startswith("_") and n not in ("annotations", "field", "is_")]
