"""Checks of every well-formed Program, at every stage: `verify(program)` raises a LoopError about the first
violation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from weft import dtypes as dt
from weft.errors import LoopError, nearest
from weft.expr.nodes import Expr, Var, walk
from weft.loop.nodes import (
    LOOP_KINDS,
    PREFETCH,
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
    Region,
    Seq,
    Stmt,
    Store,
    While,
    int_const,
    is_loop_kind,
    stmt_exprs,
    walk_stmts,
)
from weft.loop.printer import excerpt, print_buffer


def verify(program: Program) -> None:
    """Checks names, definitions before uses, ranks, dtypes, blocks, what may be stored to, and races as far as they are
    certain.

    - Loop and let variables and dims have a name of their own; so has every block, and every buffer. Iterators of
      blocks side by side may share names. A block's body uses its iterators, dims, lets and loops inside it, not the
      loops around it: those are
      bound.
    - Inputs are never stored to; register buffers are allocated, never parameters.
    - An output that may be the memory of an input has its dtype and shape.
    - A vectorized loop has a constant extent. An iteration of a loop that is parallel, vectorized or bound to groups,
      threads or units may not certainly store to an element that every other iteration stores to.

    Raises:
        LoopError: the first violation, with the program marked.
    """
    _Verifier(program).program()


@dataclass
class _Race:
    """A loop with concurrent iterations, and the accesses in it."""

    loop: For
    varying: set[str]  # variables that may differ between its iterations
    stored: set[str]  # buffers whose elements may change while it runs
    private: set[str] = field(default_factory=set)  # buffers allocated inside
    guarded: int = 0  # conditions around that may hold in one iteration only


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.p = program
        self.variables: dict[str, Var] = {}
        self.names: set[str] = set()  # of loops, lets and dims, ever
        self.iterators: set[str] = set()  # of blocks, ever
        self.blocks: set[str] = set()
        self.buffers: dict[str, Buffer] = {}
        self.buffer_names: set[str] = set()
        self.hidden: dict[str, str] = {}  # loop variable → the block inside of it whose body may not use it
        self.loop_names = {s.var.name for s in walk_stmts(program.body) if isinstance(s, For)}
        self.races: list[_Race] = []
        self.input_names = {b.name for b in program.inputs}

    def fail(self, what: str, at: Stmt | None, why: str | None = None, hint: str | None = None) -> NoReturn:
        marks = {self.p.name: "here"} if at is None else {}
        raise LoopError(f"verify: {what}", where=excerpt(self.p, marks, at=at), why=why, hint=hint)

    # -- program
    def program(self) -> None:
        p = self.p
        for d in p.dims:
            if not d.dtype.is_integer:
                self.fail(f"dim '{d.name}' is {d.dtype}, no integer", None)
            self.define(d, None)
        for b in p.params:
            if b.scope == "register":
                self.fail(
                    f"'{b.name}' is a parameter in register scope",
                    None,
                    hint="only allocated buffers live in registers",
                )
            self.define_buffer(b, None)
        if not p.outputs:
            self.fail("the program has no output", None)
        for out, into in p.aliases:
            if not (0 <= out < len(p.outputs) and 0 <= into < len(p.inputs)):
                self.fail(
                    f"alias {out} = {into} names no output or no input",
                    None,
                    f"there are {len(p.outputs)} output(s) and {len(p.inputs)} input(s)",
                )
            a, b = p.outputs[out], p.inputs[into]
            pairs = [(int_const(m), int_const(n)) for m, n in zip(a.shape, b.shape)]
            if (
                a.dtype != b.dtype
                or len(a.shape) != len(b.shape)
                or any(m != n for m, n in pairs if None not in (m, n))
            ):
                why = f"the output is {print_buffer(a)}, the input {print_buffer(b)}"
                self.fail(
                    f"alias {out} = {into} joins what cannot be one memory",
                    None,
                    why,
                    "give both one dtype and one shape, or leave the alias out",
                )
        self.stmt(p.body)

    # -- names
    def define(self, var: Var, at: Stmt | None) -> None:
        if var.name in self.names or var.name in self.iterators:
            self.fail(
                f"the variable name '{var.name}' is used twice",
                at,
                hint="every loop, let and dim has a name of its own",
            )
        self.names.add(var.name)
        self.variables[var.name] = var

    def define_buffer(self, b: Buffer, at: Stmt | None) -> None:
        if b.name in self.buffer_names:
            self.fail(f"the buffer name '{b.name}' is used twice", at, hint="every buffer has a name of its own")
        for d in b.shape:
            self.integer(d, f"a dimension of '{b.name}'", at)
        if b.dtype.kind in ("handle", "string"):
            self.fail(f"buffer '{b.name}' holds elements of dtype {b.dtype}", at)
        self.buffer_names.add(b.name)
        self.buffers[b.name] = b

    # -- formulas
    def integer(self, x: Expr, what: str, at: Stmt | None, dtype: dt.DType | None = None) -> None:
        self.expr(x, at)
        if not x.dtype.is_integer or x.dtype.lanes > 1 or (dtype is not None and x.dtype != dtype):
            self.fail(f"{what} is {x.dtype}, expected {dtype or 'an integer'}", at, f"it is {x}")

    def condition(self, x: Expr, what: str, at: Stmt) -> None:
        self.expr(x, at)
        if x.dtype != dt.bool_:
            self.fail(f"{what} is {x.dtype}, expected bool", at, f"it is {x}")

    def expr(self, x: Expr, at: Stmt | None) -> None:
        for node in walk(x):
            match node:
                case Var():
                    self.use(node, at)
                case Load():
                    self.access(node.buffer, node.indices, node.predicate, at)
                case _ if type(node).__name__ in ("Read", "Reduce"):
                    self.fail(f"'{node}' belongs to the tensor language", at, hint="lower it to loads and blocks")

    def use(self, x: Var, at: Stmt | None) -> None:
        found = self.variables.get(x.name)
        if found is None:
            close = nearest(x.name, self.variables)
            why = "it is defined elsewhere, and ends with its body" if x.name in self.names | self.iterators else None
            self.fail(
                f"variable '{x.name}' is used before it is defined",
                at,
                why,
                f"did you mean '{close}'?" if close and not why else None,
            )
        if found.dtype != x.dtype:
            self.fail(f"variable '{x.name}' is {found.dtype}, used as {x.dtype}", at)
        if x.name in self.hidden:
            hint = "bind it to an iterator of the block"
            self.fail(
                f"the body of block '{self.hidden[x.name]}' uses '{x.name}', a loop around the block", at, hint=hint
            )

    def known(self, b: Buffer, at: Stmt | None) -> None:
        found = self.buffers.get(b.name)
        if found is None:
            close = nearest(b.name, self.buffers)
            why = "it is allocated elsewhere, and ends with its body" if b.name in self.buffer_names else None
            self.fail(
                f"buffer '{b.name}' does not exist here",
                at,
                why,
                f"did you mean '{close}'?" if close and not why else None,
            )
        if found != b:
            self.fail(
                f"buffer '{b.name}' is used as another than the one defined",
                at,
                f"used as {print_buffer(b)}, defined as {print_buffer(found)}",
            )

    def access(self, b: Buffer, indices: Iterable[Expr], predicate: Expr | None, at: Stmt | None) -> int:
        """Checks an access without its formulas' insides; the number of lanes."""
        self.known(b, at)
        indices = tuple(indices)
        if len(indices) != len(b.shape):
            self.fail(f"buffer '{b.name}' has {len(b.shape)} dimension(s), indexed with {len(indices)}", at)
        lanes = {i.dtype.lanes for i in indices if i.dtype.lanes > 1}
        for k, i in enumerate(indices):
            if not i.dtype.is_integer:
                self.fail(f"index {k} of '{b.name}' is {i.dtype}, no integer", at, f"it is {i}")
        if len(lanes) > 1:
            self.fail(f"the indices of '{b.name}' have {' and '.join(map(str, sorted(lanes)))} lanes", at)
        if lanes and b.dtype.lanes > 1:
            self.fail(f"buffer '{b.name}' holds vectors and is indexed by a vector", at)
        count = max([1, b.dtype.lanes, *lanes])
        if predicate is not None and (not predicate.dtype.is_bool or predicate.dtype.lanes not in (1, count)):
            self.fail(
                f"the predicate of an access to '{b.name}' is {predicate.dtype}, expected {dt.bool_.with_lanes(count)}",
                at,
            )
        return count

    def stored_value(self, b: Buffer, value: Expr, lanes: int, at: Stmt) -> None:
        if b.name in self.input_names:
            self.fail(f"input '{b.name}' is stored to", at, hint="store to an output or an allocated buffer")
        if value.dtype != b.dtype.with_lanes(lanes):
            self.fail(
                f"a value of dtype {value.dtype} is stored to '{b.name}', expected {b.dtype.with_lanes(lanes)}",
                at,
                f"it is {value}",
            )

    def exprs(self, s: Stmt) -> None:
        for x in stmt_exprs(s):
            self.expr(x, s)

    # -- statements
    def stmt(self, s: Stmt) -> None:
        match s:
            case Seq():
                for inner in s.stmts:
                    self.stmt(inner)
            case For():
                self.loop(s)
            case While():
                self.condition(s.cond, "the condition of a while", s)
                self.guarded(s.cond, s.body)
            case If():
                self.condition(s.cond, "the condition of an if", s)
                self.guarded(s.cond, s.then)
                if s.orelse is not None:
                    self.guarded(s.cond, s.orelse)
            case Let():
                self.exprs(s)
                if s.value.dtype != s.var.dtype:
                    self.fail(f"let '{s.var.name}' is {s.var.dtype}, its value {s.value.dtype}", s, f"it is {s.value}")
                self.define(s.var, s)
                self.derive(s.var, (s.value,))
                self.stmt(s.body)
                self.forget(s.var)
            case Allocate():
                self.define_buffer(s.buffer, s)
                for race in self.races:
                    race.private.add(s.buffer.name)
                self.stmt(s.body)
                del self.buffers[s.buffer.name]
            case Store():
                self.exprs(s)
                lanes = self.access(s.buffer, s.indices, s.predicate, s)
                self.stored_value(s.buffer, s.value, lanes, s)
                self.race(s)
            case AtomicUpdate():
                self.exprs(s)
                if s.op not in ("add", "min", "max"):
                    self.fail(f"unknown atomic operation '{s.op}'", s, hint="one of add, min, max")
                self.stored_value(s.buffer, s.value, self.access(s.buffer, s.indices, None, s), s)
            case Evaluate():
                if not isinstance(s.call, IntrinsicCall):
                    self.fail("a formula without effects is evaluated", s)
                self.exprs(s)
                for r in s.within:
                    self.known(r.buffer, s)
                    for part in (x for pair in r.ranges for x in pair):
                        self.integer(part, f"the region of '{r.buffer.name}'", s)
            case Block():
                self.block(s)
            case _:
                raise LoopError(f"verify: a {type(s).__name__} is no statement", where=f"program {self.p.name}")

    def loop(self, s: For) -> None:
        if not is_loop_kind(s.kind):
            close = nearest(s.kind, LOOP_KINDS)
            self.fail(
                f"loop '{s.var.name}' is of unknown kind '{s.kind}'",
                s,
                hint=f"did you mean '{close}'?" if close else None,
            )
        if not s.var.dtype.is_integer:
            self.fail(f"loop variable '{s.var.name}' is {s.var.dtype}, no integer", s)
        self.integer(s.extent, f"the extent of loop '{s.var.name}'", s, s.var.dtype)
        if s.kind == "vectorized" and int_const(s.extent) is None:
            self.fail(
                f"vectorized loop '{s.var.name}' has the extent {s.extent}, no constant",
                s,
                hint="split it by the number of lanes first",
            )
        self.define(s.var, s)
        extent = int_const(s.extent)
        concurrent = s.kind not in ("serial", "unrolled") and (extent is None or extent > 1)
        if concurrent:
            self.races.append(_Race(s, {s.var.name}, _stored(s.body)))
        self.stmt(s.body)
        if concurrent:
            self.races.pop()
        self.forget(s.var)

    def forget(self, var: Var) -> None:
        del self.variables[var.name]

    def block(self, s: Block) -> None:
        if s.name in self.blocks:
            self.fail(f"the block name '{s.name}' is used twice", s, hint="every block has a name of its own")
        self.blocks.add(s.name)
        if len(s.iters) != len(s.bindings):
            raise LoopError(
                f"verify: block '{s.name}' has {len(s.iters)} iterator(s) and {len(s.bindings)} binding(s)",
                where=f"program {self.p.name}",
            )
        for i, binding in zip(s.iters, s.bindings):
            if i.kind not in ("spatial", "reduce", "scan"):
                self.fail(
                    f"iterator '{i.var.name}' is of unknown kind '{i.kind}'", s, hint="one of spatial, reduce, scan"
                )
            if not i.var.dtype.is_integer:
                self.fail(f"iterator '{i.var.name}' is {i.var.dtype}, no integer", s)
            self.integer(i.extent, f"the extent of iterator '{i.var.name}'", s, i.var.dtype)
            self.integer(binding, f"the binding of iterator '{i.var.name}'", s, i.var.dtype)
        outer = dict(self.variables)
        for i, binding in zip(s.iters, s.bindings):
            if i.var.name in self.names or i.var.name in self.variables:
                hint = "an iterator is named unlike every loop, let and dim, and unlike iterators around it"
                self.fail(f"the variable name '{i.var.name}' is used twice", s, hint=hint)
            self.iterators.add(i.var.name)
            self.variables[i.var.name] = i.var
            self.derive(i.var, (binding,))
        self.condition(s.predicate, f"the predicate of block '{s.name}'", s)
        before = dict(self.hidden)
        for name in outer:
            if name in self.loop_names:
                self.hidden.setdefault(name, s.name)
        for region in (*(s.reads or ()), *(s.writes or ())):
            self.region(region, s)
        if any(b.name in self.input_names for b in (r.buffer for r in s.writes or ())):
            self.fail(f"block '{s.name}' says that it writes an input", s)
        entered = self.enter(s.predicate)
        if s.init is not None:
            # Only the first step of the reduction runs it: a loop bound to a reduce iterator does not store here in
            # every iteration.
            first = self.enter(*(b for i, b in zip(s.iters, s.bindings) if i.kind == "reduce"))
            self.stmt(s.init)
            self.leave(first)
        self.stmt(s.body)
        self.leave(entered)
        self.hidden = before
        for i in s.iters:
            self.forget(i.var)

    def region(self, r: Region, s: Block) -> None:
        self.known(r.buffer, s)
        if len(r.ranges) != len(r.buffer.shape):
            self.fail(
                f"block '{s.name}' gives a region of {len(r.ranges)} dimension(s) for '{r.buffer.name}', which has"
                f" {len(r.buffer.shape)}",
                s,
            )
        for lo, n in r.ranges:
            self.integer(lo, f"the region of '{r.buffer.name}'", s)
            self.integer(n, f"the region of '{r.buffer.name}'", s)

    # -- races
    def varies(self, race: _Race, x: Expr) -> bool:
        """Whether `x` may differ between iterations of the loop; an element of a buffer that the loop stores to may."""
        for n in walk(x):
            if (
                isinstance(n, IntrinsicCall)
                or (isinstance(n, Var) and n.name in race.varying)
                or (isinstance(n, Load) and n.buffer.name in race.stored)
            ):
                return True
        return False

    def derive(self, var: Var, exprs: Iterable[Expr]) -> None:
        exprs = tuple(exprs)
        for race in self.races:
            if any(self.varies(race, x) for x in exprs):
                race.varying.add(var.name)
            else:
                race.varying.discard(var.name)

    def enter(self, *conditions: Expr) -> list[_Race]:
        """A part that may run in one iteration only, where `conditions` vary."""
        entered = [r for r in self.races if any(self.varies(r, c) for c in conditions)]
        for r in entered:
            r.guarded += 1
        return entered

    def leave(self, entered: list[_Race]) -> None:
        for r in entered:
            r.guarded -= 1

    def guarded(self, cond: Expr, body: Stmt) -> None:
        entered = self.enter(cond)
        self.stmt(body)
        self.leave(entered)

    def race(self, s: Store) -> None:
        for r in self.races:
            if r.guarded or s.buffer.name in r.private or any(self.varies(r, i) for i in s.indices):
                continue
            if s.predicate is not None and self.varies(r, s.predicate):
                continue
            if not self.varies(r, s.value):
                continue  # every iteration stores the same value
            name = r.loop.var.name
            self.fail(
                f"the iterations of {r.loop.kind} loop '{name}' store different values"
                f" to the same element of '{s.buffer.name}'",
                s,
                f"the indices of the store do not depend on '{name}'",
                f"keep '{name}' serial, or give every iteration a partial result of its own (rfactor)",
            )  # fmt: skip


def _stored(body: Stmt) -> set[str]:
    names: set[str] = set()
    for s in walk_stmts(body):
        if isinstance(s, (Store, AtomicUpdate)):
            names.add(s.buffer.name)
        if (
            isinstance(s, Evaluate) and s.call.name != PREFETCH
        ):  # an intrinsic may store through any address it is given
            names.update(n.buffer.name for n in walk(s.call) if isinstance(n, Load))
        if isinstance(s, Block):
            names.update(r.buffer.name for r in s.writes or ())
    return names
