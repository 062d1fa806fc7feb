"""Lowered Programs → text in a language of C's family, one `emit_<Node>` method per statement; formulas are in
`formulas`.

    helpers, as far as they are used
    head of the kernel
      its buffers and dims
      // buffers that the loops below compute
      statements

Loops, variables and buffers keep the names that they have in the Program, where those are identifiers. The same Program
always gives the same text.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from weft import dtypes as dt
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range
from weft.loop import nodes as lp
from weft.loop.grids import WHOLE_WARP, private
from weft.loop.nodes import Buffer, Load, Program, Stmt
from weft_c_family.dialect import Dialect
from weft_c_family.extension import Extension
from weft_c_family.formulas import LOOSE, Formulas, parts
from weft_c_family.language import identifier

VERSION = 2
"""Goes into cache keys: raise it when other text comes out for the same Program."""

_ALWAYS = frozenset({"isnan", "isinf"})  # of functions: comparisons, where the language has no words for them
_OF_INTEGERS = frozenset({"abs", "popcount", "floor", "ceil", "trunc", "round", "isnan", "isinf"})
_INDENT = "  "


@dataclass(frozen=True)
class Emitted:
    """A kernel as text.

    Args:
        name: the Program's.
        symbol: what the kernel is called in the text.
        source: the text.
        scratch: sizes in bytes of the buffers behind the outputs, over the Program's dims.
        grid: loop kind ("blockIdx.x", "threadIdx.x" …) → how many are to be launched, over the Program's dims.
        helpers: the functions in `source` that the kernel calls.
        parameters: its buffers, as it declares them.
        body: the kernel alone.
        arguments: what the last parameters stand for, as `Extension.argument` has it.
    """

    name: str
    symbol: str
    source: str
    scratch: tuple[Expr, ...] = ()
    grid: tuple[tuple[str, Expr], ...] = ()
    arguments: tuple[Hashable, ...] = ()
    helpers: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    body: str = ""


class Emitter:
    """Emits one Program after another in one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.writer: type[Kernel] = dialect.writer or Kernel

    @property
    def functions(self) -> frozenset[str]:
        """The functions of `weft.expr.functions` that need no expansion."""
        known = {"sqrt", "floor", "ceil", "trunc", "round", "abs", "copysign", "fma", "isnan", "isinf", "popcount"}
        extra = set(self.dialect.functions) - {"fmod"}
        return frozenset((known & (extra | _ALWAYS | {"popcount"})) | extra)

    # -- what is lacking

    def check(self, program: Program) -> list[str]:
        """What `program` uses and the dialect lacks, a line each."""
        d, functions = self.dialect, self.functions
        formulas = self.writer.formulas_of(d)
        language = formulas.language
        extended = d.extension.intrinsics if d.extension is not None else frozenset()
        lacks: dict[str, None] = {}
        seen: set[Expr] = set()

        def visit(e: Expr) -> None:
            if e in seen:
                return
            seen.add(e)
            if not language.has(e.dtype) and e.dtype != dt.handle:
                lacks[f"dtype {e.dtype.scalar}"] = None
            if isinstance(e, ex.Call):
                of = e.args[0].dtype.scalar
                if e.name not in functions:
                    lacks[f"function {e.name}"] = None
                elif not of.is_float and not (e.name in _OF_INTEGERS and of.kind != "complex"):
                    lacks[f"function {e.name} of {of}"] = None
            elif isinstance(e, lp.IntrinsicCall):
                if not (
                    e.name == WHOLE_WARP
                    or (d.barrier if e.name == "barrier" else e.name in extended or e.name in d.intrinsics)
                ):
                    lacks[f"intrinsic {e.name}"] = None
                elif e.dtype.lanes > 1 or any(a.dtype.lanes > 1 for a in e.args):
                    lacks[f"intrinsic {e.name} of vectors"] = None
            elif isinstance(e, (ex.FloorMod, ex.TruncMod)) and e.dtype.is_float and "fmod" not in d.functions:
                lacks["remainders of floats"] = None
            elif isinstance(e, ex.Bitcast) and e.dtype.lanes != e.value.dtype.lanes:
                lacks[f"bitcast of {e.value.dtype} to {e.dtype}"] = None
            elif not hasattr(formulas, "emit_" + type(e).__name__):
                lacks[f"formula {type(e).__name__}"] = None
            for c in e.children():
                visit(c)

        for b in program.params:
            if not language.has(b.dtype):
                lacks[f"dtype {b.dtype.scalar}"] = None
        for s in lp.walk_stmts(program.body):
            match s:
                case lp.Block():
                    lacks[f"block {s.name}"] = None
                    continue
                case lp.For() if s.kind not in ("serial", *(("parallel",) if d.serial else ()), *d.indices, *d.units):
                    lacks[f"{s.kind} loop {s.var.name}"] = None
                case lp.Allocate():
                    if s.buffer.scope != "global" and s.buffer.scope not in d.scopes:
                        lacks[f"scope {s.buffer.scope} of buffer {s.buffer.name}"] = None
                    if not language.has(s.buffer.dtype):
                        lacks[f"dtype {s.buffer.dtype.scalar}"] = None
                case lp.AtomicUpdate() if not d.serial and f"{s.op} {s.buffer.dtype.scalar}" not in d.atomics:
                    lacks[f"atomic {s.op} of {s.buffer.dtype.scalar}"] = None
            for e in lp.stmt_exprs(s):
                visit(e)
        return list(lacks)

    # -- program

    def emit(self, program: Program) -> Emitted:
        """Raises CodegenError for what `check` lists, and for buffers whose size is not known before the kernel
        starts."""
        lacks = self.check(program)
        if lacks:
            raise CodegenError(
                f"'{self.dialect.name}' cannot express kernel '{program.name}'",
                where="\n".join(lacks),
                hint="run the loop passes first",
            )
        return self.writer(self.dialect, program).emit()


class Kernel:
    """One emission. A language of another syntax has a subclass (`Dialect.writer`).

    Args:
        dialect: the language.
        program: the lowered Program.
    """

    formulas_of: ClassVar[type[Formulas]] = Formulas

    def __init__(self, dialect: Dialect, program: Program) -> None:
        self.dialect, self.program = dialect, program
        self.formulas = self.formulas_of(dialect)
        self.formulas.suppose_extents(
            [*program.params, *(s.buffer for s in lp.walk_stmts(program.body) if isinstance(s, lp.Allocate))]
        )
        self.symbol = identifier(program.name, dialect.words)
        self.formulas.fresh(self.symbol)
        self.lines: list[str] = []
        self.top: list[str] = []  # declarations that all threads of a group see
        self.depth = 1
        self.scratch: list[tuple[Buffer, Expr]] = []
        self.grid: dict[str, Expr] = {}
        self.used: set[str] = set()
        self.values: dict[str, Expr] = {}
        self._stack = 0
        self._lane = ""  # what counts lanes, in every loop over them
        self.extension = dialect.extension
        self.arguments = self._asked()

    def declared(self) -> list[tuple[Buffer, bool, str]]:
        """Declares buffers and dims, and finds scratch and what is launched: each buffer of the kernel, whether it is
        an input, and its name."""
        p, f = self.program, self.formulas
        self.used = _used(p)
        for b in p.params:
            f.declare(b.name)
        for v in p.dims:
            f.declare(v.name)
        self._place_scratch(p.body, {})
        names = {b.name: f.name_of(b.name) for b in p.params}
        names |= {b.name: f.declare(b.name) for b, _ in self.scratch}
        for s in lp.walk_stmts(p.body):
            if isinstance(s, lp.For) and s.kind in self.dialect.indices:
                self._launch(s)
        buffers = [(b, i < len(p.inputs)) for i, b in enumerate(p.params)] + [(b, False) for b, _ in self.scratch]
        return [(b, read, names[b.name]) for b, read in buffers]

    def emit(self) -> Emitted:
        p, f = self.program, self.formulas
        buffers = self.declared()
        used = self.used
        self.arguments = {argument: f.fresh(stem) for argument, stem in self.arguments.items()}
        self.nests(p.body)

        parameters, entries = [], []
        for i, (b, read, name) in enumerate(buffers):
            const = "const " if read else ""
            fields = {"const": const, "type": f.language.memory_type(b.dtype), "name": name, "index": i}
            if b.dtype.kind == "complex":
                f.definitions.complex(b.dtype)
            if self.dialect.buffer:
                parameters.append(self.dialect.buffer.format(**fields))
            if self.dialect.buffer_entry and b.name in used:
                entries.append(self.dialect.buffer_entry.format(**fields))
        for i, v in enumerate(p.dims):
            index = i + (len(buffers) if self.dialect.buffer else 0)
            fields = {"type": f.language.type(v.dtype), "name": f.name_of(v.name), "index": index, "number": i}
            if self.dialect.size:
                parameters.append(self.dialect.size.format(**fields))
            elif v.name in used:
                entries.append(self.dialect.size_entry.format(**fields))
        if self.extension is not None and self.arguments:
            parameters += [self.extension.parameter(name) for name in self.arguments.values()]
            self.top += self.extension.top
        group = [lp.int_const(self.grid.get(f"threadIdx.{axis}", lp.int64(1))) or 1 for axis in "xyz"]
        every = ", ".join([*parameters, *self.dialect.more_parameters])
        head = self.dialect.kernel.format(name=self.symbol, parameters=every, group=group, threads=math.prod(group))
        start = [f"// {p.name}", *self.dialect.header, ""]
        for helper in f.definitions.texts():
            start += [helper, ""]
        text = [head + " {", *(_INDENT + e for e in (*entries, *self.top)), *self.lines]
        text += [_INDENT + self.dialect.end] if self.dialect.end else []
        body = "\n".join([*text, "}"]) + "\n"
        source = "\n".join([*start, body])
        return Emitted(
            p.name,
            self.symbol,
            source,
            tuple(n for _, n in self.scratch),
            tuple(self.grid.items()),
            tuple(self.arguments),
            tuple(f.definitions.texts()),
            tuple(parameters),
            body,
        )

    def _asked(self) -> dict[Hashable, str]:
        """What the calls of the dialect's extension ask for, each with the stem of its parameter's name."""
        if self.extension is None:
            return {}
        calls = [s.call for s in lp.walk_stmts(self.program.body) if isinstance(s, lp.Evaluate)]
        return dict(self.extension.argument(call) for call in calls if call.name in self.extension.intrinsics)

    # -- where buffers are

    def _place_scratch(self, stmt: Stmt, lets: Mapping[str, Expr], unit: str | None = None) -> None:
        """Collects the buffers that are parameters behind the outputs. There is one of each, however many units a level
        has."""
        while isinstance(stmt, lp.Let):
            if stmt.var.dtype.is_integer:
                lets = {**lets, stmt.var.name: ex.substitute(stmt.value, lets)}
            stmt = stmt.body
        if isinstance(stmt, lp.Allocate):
            size = byte_size(stmt.buffer)
            if not self._inside(stmt.buffer, size):
                if unit is not None:
                    raise CodegenError(
                        f"buffer '{stmt.buffer.name}' of kernel '{self.program.name}' is scratch,"
                        " of which units share one",
                        where=f"allocate {stmt.buffer.name}: {size} bytes in {stmt.buffer.scope}",
                        why=f"each iteration of loop '{unit}' has its own",
                        hint="put it in a memory of the unit, or allocate it outside of the loop"
                        " with the unit among its indices",
                    )  # fmt: skip
                size = ex.substitute(size, lets)
                known = {d.name for d in self.program.dims}
                unknown = [n for n in ex.free_vars(size) if n not in known]
                if unknown or ex.has(size, Load):
                    raise CodegenError(
                        f"the size of buffer '{stmt.buffer.name}' is not known before kernel '{self.program.name}'"
                        " starts",
                        where=f"allocate {stmt.buffer.name}: {size} bytes",
                        why=(
                            f"it depends on '{unknown[0]}', which is no dimension of the kernel"
                            if unknown
                            else "it depends on a loaded value"
                        ),
                        hint="allocate the upper bound",
                    )
                room = self.dialect.scratch_align
                self.scratch.append((stmt.buffer, ex.mul(ex.floordiv(ex.add(size, room - 1), room), room)))
        if isinstance(stmt, lp.For) and lp.level_of(stmt.kind) is not None:
            unit = stmt.var.name
        for child in lp.stmt_children(stmt):
            self._place_scratch(child, lets, unit)

    def _inside(self, b: Buffer, size: Expr) -> bool:
        """Whether a buffer is declared inside the kernel."""
        if b.scope == "global":
            return False
        constant = lp.int_const(size)
        if b.scope in self.dialect.shared_scopes or not self.dialect.serial:
            if constant is None:
                raise CodegenError(
                    f"buffer '{b.name}' of kernel '{self.program.name}' is in scope {b.scope},"
                    " but its size is not constant",
                    where=f"allocate {b.name}: {size} bytes",
                    why=f"'{self.dialect.name}' declares such buffers inside the kernel",
                    hint="compact it to what one iteration of the loops around it uses",
                )  # fmt: skip
            return True
        if constant is not None and self._stack + constant <= self.dialect.stack_bytes:
            self._stack += constant
            return True
        return False

    def _launch(self, s: lp.For) -> None:
        """Of loops that run on the same index the longest is what is launched."""
        known = {d.name for d in self.program.dims}
        if ex.free_vars(s.extent).keys() - known or ex.has(s.extent, Load):
            raise CodegenError(
                f"the extent of loop '{s.var.name}' is not known before kernel '{self.program.name}' starts",
                where=f"for {s.var.name} in {s.extent} {s.kind}",
                hint="its extent may depend on the kernel's dims only",
            )  # fmt: skip
        before = self.grid.get(s.kind)
        self.grid[s.kind] = s.extent if before is None or before == s.extent else ex.maximum(before, s.extent)

    # -- text

    def line(self, text: str) -> None:
        self.lines.append(_INDENT * self.depth + text)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        self.line(head + " {")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def begin(self, *roots: Expr) -> None:
        self.formulas.begin(*roots)

    def flush(self) -> None:
        """Constants that formulas want in front of them."""
        for text in self.formulas.lines:
            self.line(text)
        self.formulas.lines = []

    # -- statements

    def nests(self, s: Stmt) -> None:
        """The outermost statements, each with the names of what it computes."""
        if isinstance(s, lp.Seq):
            for child in s.stmts:
                self.nests(child)
        elif isinstance(s, (lp.Allocate, lp.Let)):
            self._open(s)
            self.nests(s.body)
        else:
            stored = dict.fromkeys(
                x.buffer.name for x in lp.walk_stmts(s) if isinstance(x, (lp.Store, lp.AtomicUpdate))
            )
            if stored:
                self.line(f"// {', '.join(stored)}")
            self.stmt(s)

    def stmt(self, s: Stmt) -> None:
        getattr(self, "emit_" + type(s).__name__)(s)

    def emit_Seq(self, s: lp.Seq) -> None:
        for child in s.stmts:
            self.stmt(child)

    def _open(self, s: lp.Allocate | lp.Let) -> None:
        if isinstance(s, lp.Let):
            self.let(s)
        else:
            self.allocate(s.buffer)

    def emit_Let(self, s: lp.Let) -> None:
        inner: Stmt = s
        while isinstance(inner, (lp.Allocate, lp.Let)):
            self._open(inner)
            inner = inner.body
        self.stmt(inner)

    emit_Allocate = emit_Let

    def let(self, s: lp.Let) -> None:
        f = self.formulas
        if s.var.name not in self.used:
            return
        if s.var.dtype.is_integer and s.var.dtype.lanes == 1:
            f.ranges[s.var.name] = f.range(s.value)
            self.values[s.var.name] = s.value
        lanes = s.var.dtype.lanes
        if lanes == 1:
            self.begin(s.value)
            text = f.value(s.value).text
            self.flush()
            self.line(f"const {f.type_of(s.value)} {f.declare(s.var.name)} = {text};")
            return
        value = self._moved(s.value)
        name = f.declare(s.var.name)
        self.array(name, s.var.dtype)
        self._fill(name, value, lanes)

    def allocate(self, b: Buffer) -> None:
        f = self.formulas
        if any(b is x or b == x for x, _ in self.scratch):
            return
        name = f.declare(b.name)
        if b.dtype.kind == "complex":
            f.definitions.complex(b.dtype)
        size = lp.int_const(byte_size(b))
        assert size is not None  # `_inside` has seen to it
        elements = max(1, size // b.dtype.scalar.bytes)
        text = self.dialect.scopes[b.scope].format(
            type=f.language.memory_type(b.dtype), name=name, size=elements, align=b.align
        )
        if b.scope in self.dialect.shared_scopes:
            self.top.append(text)
        else:
            self.line(text)

    def emit_For(self, s: lp.For) -> None:
        f = self.formulas
        self.begin(s.extent)
        extent = f.value(s.extent, index=True)
        self.flush()
        reach = f.range(s.extent)
        f.ranges[s.var.name] = Range(0, (1 << 47) if reach.hi is None else max(0, reach.hi - 1))
        t = f.type_of(s.var)
        if s.kind in self.dialect.indices:
            name = f.declare(s.var.name)
            self.line(f"const {t} {name} = ({t}){self.dialect.indices[s.kind]};")
            if self.grid[s.kind] == s.extent:
                self.stmt(s.body)
                return
            with self.braces(f"if ({name} < {extent.at(3)})"):
                self.stmt(s.body)
            return
        end = extent.at(3)
        if ex.has(s.extent, Load) or len(end) > 32:  # evaluated once
            end = f.fresh("end")
            self.line(f"const {t} {end} = {extent.text};")
        name = f.declare(s.var.name)
        head = self.dialect.units.get(s.kind, "for ({type} {name} = 0; {name} < {extent}; ++{name})")
        if self.dialect.rolled and self.calls(s):
            self.line(self.dialect.rolled)
        with self.braces(head.format(type=t, name=name, extent=end)):
            self.stmt(s.body)

    def calls(self, s: lp.For) -> bool:
        """Whether a loop of more than two iterations calls functions of the language's own."""
        count = lp.int_const(s.extent)
        functions = self.dialect.intrinsics
        return (count is None or count > 2) and any(
            isinstance(inner, lp.Evaluate) and functions.get(inner.call.name) for inner in lp.walk_stmts(s.body)
        )

    def emit_While(self, s: lp.While) -> None:
        f = self.formulas
        self.begin(s.cond)
        cond = f.value(s.cond)
        if not f.lines:
            with self.braces(f"while ({cond.text})"):
                self.stmt(s.body)
            return
        with self.braces("for (;;)"):
            self.flush()
            self.line(f"if (!({cond.text})) break;")
            self.stmt(s.body)

    def emit_If(self, s: lp.If) -> None:
        if (
            isinstance(s.cond, lp.IntrinsicCall) and s.cond.name == WHOLE_WARP
        ):  # all threads of a warp come here together
            self.stmt(s.then)
            return
        self.begin(s.cond)
        cond = self.formulas.value(s.cond)
        self.flush()
        with self.braces(f"if ({cond.text})"):
            self.stmt(s.then)
        if s.orelse is not None:
            self.lines.pop()
            with self.braces("} else"):
                self.stmt(s.orelse)

    def emit_Evaluate(self, s: lp.Evaluate) -> None:
        if s.call.name == "barrier":
            self.line(self.dialect.barrier)
            return
        if self.extension is not None and self.arguments:
            if s.call.name in self.extension.intrinsics:
                self.line(self._extended(s.call, self.extension))
                return
            if s.call.name in self.extension.instead:
                self.line(self.extension.instead[s.call.name])
                return
        self.begin(s.call)
        text = self.formulas.value(s.call).text
        self.flush()
        if text:
            self.line(text if text.endswith(";") else text + ";")

    def _extended(self, call: lp.IntrinsicCall, extension: Extension) -> str:
        f = self.formulas
        argument, _ = extension.argument(call)
        self.begin(*extension.operands(call))
        text = extension.statement(
            call,
            self.arguments[argument],
            lambda x: f"&{f.element(x.buffer, x.indices)}",
            lambda e: f.value(e).at(LOOSE),
        )
        self.flush()
        return text

    # -- stores

    def emit_Store(self, s: lp.Store) -> None:
        lanes = _lanes(s.indices, s.value)
        if lanes == 1:
            self.begin(*lp.stmt_exprs(s))
            self._store(s)
            return
        # All lanes are read before any is written.
        value = self._moved(s.value)
        s = lp.Store(s.buffer, s.indices, value, s.predicate)
        if self._copied(s):
            return
        if self._moves(value):
            value = self._kept(value, lanes)
            s = lp.Store(s.buffer, s.indices, value, s.predicate)
        if _reads(s.buffer, s.indices, [value, *([] if s.predicate is None else [s.predicate])], self.program):
            value = self._kept(value, lanes)
            if s.predicate is not None and s.predicate.dtype.lanes > 1:
                s = lp.Store(s.buffer, s.indices, value, self._kept(s.predicate, lanes))
            else:
                s = lp.Store(s.buffer, s.indices, value, s.predicate)
        if s.predicate is not None and s.predicate.dtype.lanes == 1:
            self.begin(s.predicate)
            cond = self.formulas.value(s.predicate)
            self.flush()
            with self.braces(f"if ({cond.text})"):
                self._lanes(lanes, lp.Store(s.buffer, s.indices, s.value))
            return
        self._lanes(lanes, s)

    def _lanes(self, lanes: int, s: lp.Store | lp.AtomicUpdate) -> None:
        with self.each_lane(lanes):
            self.begin(*lp.stmt_exprs(s))
            if isinstance(s, lp.Store):
                self._store(s)
            else:
                self.update(s)

    @contextmanager
    def each_lane(self, lanes: int) -> Iterator[None]:
        f = self.formulas
        t = f.language.type(dt.int64)
        self._lane = f.lane = self._lane or f.fresh("lane")
        if self.dialect.unroll:
            self.line(self.dialect.unroll)
        with self.braces(f"for ({t} {f.lane} = 0; {f.lane} < {lanes}; ++{f.lane})"):
            yield
        f.lane = None

    def array(self, name: str, d: dt.DType) -> None:
        self.line(self.dialect.lanes.format(type=self.formulas.language.type(d), name=name, size=d.lanes))

    def _moved(self, value: Expr) -> Expr:
        """`value` with whole vectors that the language moves at once in arrays of their own, if they are loaded in any
        case."""
        if not self.dialect.vectors or isinstance(value, Load):
            return value
        kept: dict[Expr, Expr] = {}
        stack = [value]
        while stack:
            e = stack.pop()
            if e not in kept and self._moves(e):
                kept[e] = self._kept(e, e.dtype.lanes)
            stack += [c for c, always in parts(e) if always]
        return ex.transform(value, lambda e: kept.get(e)) if kept else value

    def _kept(self, value: Expr, lanes: int) -> Expr:
        """The lanes of a value, computed now."""
        f = self.formulas
        name = f.fresh("lanes")
        var = ex.Var(f" {name}", value.dtype.with_lanes(lanes))
        f.names[var.name] = name
        self.array(name, var.dtype)
        self._fill(name, value, lanes)
        return var

    def _fill(self, name: str, value: Expr, lanes: int) -> None:
        """The array `name` becomes the lanes of `value`; moved as one vector where the language can."""
        f = self.formulas
        if isinstance(value, Load) and self._moves(value):
            if value.predicate is None:
                self._copy_from(value, name)
                return
            assert isinstance(value.predicate, ex.Broadcast)
            self.begin(value.predicate.value)
            cond = f.value(value.predicate.value).text
            self.flush()
            with self.braces(f"if ({cond})"):
                self._copy_from(value, name)
            self.lines.pop()
            with self.braces("} else"):
                self._fill(name, ex.Broadcast(ex.const(0, value.dtype.scalar), lanes), lanes)
            return
        with self.each_lane(lanes):
            self.begin(value)
            text = f.value(value).text
            self.flush()
            self.line(f"{name}[{f.lane}] = {text};")

    def _moves(self, e: Expr) -> bool:
        """Whether a formula is a load, of all lanes or none, that the language does at once."""
        return (
            isinstance(e, Load)
            and (e.predicate is None or isinstance(e.predicate, ex.Broadcast))
            and self._whole(e.buffer, e.indices)
        )

    def _copy_from(self, value: Load, name: str) -> None:
        self._copy(value.dtype, (f"&{name}[0]", "local"), self._vector_address(value.buffer, value.indices))

    def _copied(self, s: lp.Store) -> bool:
        """Whether the store was one move of a whole vector."""
        if s.predicate is not None or f"{s.value.dtype}" not in self.dialect.vectors:
            return False
        if not self._whole(s.buffer, s.indices):
            return False
        to = self._vector_address(s.buffer, s.indices)
        kept = self._kept(s.value, s.value.dtype.lanes)
        assert isinstance(kept, ex.Var)
        self._copy(s.value.dtype, to, (f"&{self.formulas.names[kept.name]}[0]", "local"))
        return True

    def _copy(self, d: dt.DType, to: tuple[str, str], source: tuple[str, str]) -> None:
        spaces = self.dialect.spaces
        self.flush()
        self.line(
            self.dialect.vector_copy.format(
                type=self.dialect.vectors[str(d)],
                to=to[0],
                to_space=spaces.get(to[1], ""),
                source=source[0],
                source_space=spaces.get(source[1], ""),
            )
        )

    def _whole(self, b: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether indices are neighbouring, aligned elements, so many as the language moves at once.

        A thread's own arrays are no memory: compilers keep them in registers, and else align them as their elements.
        """
        if len(indices) != 1 or not isinstance(indices[0], ex.Ramp) or private(b.scope):
            return False
        ramp = indices[0]
        if f"{b.dtype.scalar.with_lanes(ramp.lanes)}" not in self.dialect.vectors or lp.int_const(ramp.stride) != 1:
            return False
        return not b.align % (ramp.lanes * b.dtype.scalar.bytes) and self._divisible(ramp.base, ramp.lanes)

    def _vector_address(self, b: Buffer, indices: tuple[Expr, ...]) -> tuple[str, str]:
        """Where such elements begin, and their scope."""
        (ramp,) = indices
        assert isinstance(ramp, ex.Ramp)
        self.begin(ramp.base)
        return f"&{self.formulas.name_of(b.name)}[{self.formulas.value(ramp.base, True).text}]", b.scope

    def _divisible(self, e: Expr, by: int) -> bool:
        """Whether a formula is certainly a multiple."""
        match e:
            case ex.Const():
                return int(e.value) % by == 0
            case ex.Var():
                return e.name in self.values and self._divisible(self.values[e.name], by)
            case ex.Cast():  # between integers of indices, which fit
                return self._divisible(e.value, by)
            case ex.Add() | ex.Sub():
                return self._divisible(e.a, by) and self._divisible(e.b, by)
            case ex.Mul():
                return self._divisible(e.a, by) or self._divisible(e.b, by)
            case ex.FloorMod():
                return self._divisible(e.a, by) and self._divisible(e.b, by)
        return False

    def _store(self, s: lp.Store) -> None:
        """Of one lane."""
        f = self.formulas
        if s.predicate is not None:
            cond = f.value(s.predicate)
            self.flush()
            with self.braces(f"if ({cond.text})"):
                self.assign(s)
            return
        self.assign(s)

    def assign(self, s: lp.Store) -> None:
        f = self.formulas
        to = f.element(s.buffer, s.indices)
        value = f.value(s.value)
        self.flush()
        self.line(f"{to} = {value.text};")

    def emit_AtomicUpdate(self, s: lp.AtomicUpdate) -> None:
        lanes = _lanes(s.indices, s.value)
        if lanes == 1:
            self.begin(*lp.stmt_exprs(s))
            self.update(s)
            return
        if any(isinstance(n, Load) and n.buffer.name == s.buffer.name for n in ex.walk(s.value)):
            s = lp.AtomicUpdate(s.buffer, s.indices, s.op, self._kept(s.value, lanes))
        self._lanes(lanes, s)

    def update(self, s: lp.AtomicUpdate) -> None:
        """Of one lane."""
        f = self.formulas
        template = self.dialect.atomics.get(f"{s.op} {s.buffer.dtype.scalar}")
        if template is not None:
            index = f.element(s.buffer, s.indices).partition("[")[2][:-1]
            text = f.value(s.value).text
            self.flush()
            space = self.dialect.spaces.get(s.buffer.scope, "")
            self.line(template.format(buffer=f.name_of(s.buffer.name), index=index, value=text, space=space))
            return
        at = tuple(
            ex.Broadcast(i, s.value.dtype.lanes) if i.dtype.lanes < s.value.dtype.lanes else i for i in s.indices
        )
        value = (
            s.value
            if s.value.dtype.lanes == Load(s.buffer, at).dtype.lanes
            else ex.Broadcast(s.value, Load(s.buffer, at).dtype.lanes)
        )
        operation = {"add": ex.Add, "min": ex.Min, "max": ex.Max}[s.op]
        self.assign(lp.Store(s.buffer, at, operation(Load(s.buffer, at), value)))


def byte_size(b: Buffer) -> Expr:
    """The bytes of a buffer, a formula over its dimensions' variables."""
    size: Expr = lp.int64(b.dtype.scalar.bytes)
    for d in b.shape:
        size = ex.mul(size, d)
    return size


def _lanes(indices: tuple[Expr, ...], value: Expr) -> int:
    return max([i.dtype.lanes for i in indices] + [value.dtype.lanes])


def _reads(b: Buffer, indices: tuple[Expr, ...], values: list[Expr], program: Program) -> bool:
    """Whether lanes of `values` may read what another lane has written to `b`."""
    names = {b.name}
    for o, i in program.aliases:
        pair = {program.outputs[o].name, program.inputs[i].name}
        names |= pair if b.name in pair else set()
    apart = len(indices) == 1 and isinstance(indices[0], ex.Ramp) and lp.int_const(indices[0].stride) not in (None, 0)
    loads = [n for v in (*values, *indices) for n in ex.walk(v) if isinstance(n, Load) and n.buffer.name in names]
    return any(not (apart and n.indices == indices) for n in loads)


def _used(program: Program) -> set[str]:
    """Names of buffers, dims and variables that the text needs: a Let that nothing uses is left out, and what only it
    uses."""
    lets: dict[str, set[str]] = {}
    found: set[str] = set()
    for s in lp.walk_stmts(program.body):
        if isinstance(s, lp.Allocate):
            continue  # its size is for the caller
        if isinstance(s, lp.Let):
            effects = ex.has(s.value, lp.IntrinsicCall)
            lets[s.var.name] = _names([s.value])
            found |= {s.var.name} if effects else set()
            continue
        exprs = list(lp.stmt_exprs(s))
        if isinstance(s, (lp.Store, lp.AtomicUpdate)):
            found.add(s.buffer.name)
            exprs += s.buffer.shape[1:]
        found |= _names(exprs)
    pending = [name for name in found if name in lets]
    while pending:
        new = lets.pop(pending.pop(), set()) - found
        found |= new
        pending += [name for name in new if name in lets]
    return found


def _names(exprs: list[Expr]) -> set[str]:
    """Variables and buffers in formulas; each formula is visited once."""
    found: set[str] = set()
    seen: set[Expr] = set()
    stack = list(exprs)
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        stack += e.children()
        if isinstance(e, ex.Var):
            found.add(e.name)
        elif isinstance(e, Load):
            found.add(e.buffer.name)
            stack += e.buffer.shape[1:]
    return found
