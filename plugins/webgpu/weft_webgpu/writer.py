"""Kernels in WGSL: what `weft_c_family.emitter` writes in C.

    @group(0) @binding(k) var<storage, read_write> weft_bk: array<…>;      a buffer each
    @group(0) @binding(n) var<uniform> weft_sizes: array<vec4<i32>, m>;    the dims, if there are some
    functions, memory of groups
    @compute @workgroup_size(…) fn …

All bindings are read_write: WebGPU allows no buffer to be bound in two ways at once, and a plan's values are parts of
one. Where a device has fewer bindings than a launch has buffers, these lie in one array, `weft_all`; the words behind
the dims say where each begins. Whoever launches the text finds which of both it is, and makes one binding of two that
are the same (`weft_webgpu.text`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from weft import dtypes as dt
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range
from weft.loop import nodes as lp
from weft.loop.grids import private
from weft.loop.nodes import Buffer, Load, Program
from weft_c_family import Dialect, Emitted
from weft_c_family.emitter import Kernel, byte_size
from weft_c_family.formulas import Formulas
from weft_webgpu.formulas import Pair, WgslFormulas
from weft_webgpu.limits import LARGEST, MOST_GROUPS
from weft_webgpu.memory import Place

VERSION = 2
"""Goes into cache keys: raise it when other text comes out for the same Program."""


class WgslKernel(Kernel):
    """One emission."""

    formulas_of: ClassVar[type[Formulas]] = WgslFormulas
    buffers: ClassVar[int] = 1 << 30
    """Bindings that a launch may have."""

    formulas: WgslFormulas

    def __init__(self, dialect: Dialect, program: Program) -> None:
        super().__init__(dialect, program)
        self.module: list[str] = []  # memory of groups
        self.given = {b.name for b in program.params}
        self.cut = _cut(program)
        self.folded = False
        self.depth_z = "1"

    def emit(self) -> Emitted:
        p, f = self.program, self.formulas
        buffers = self.declared()
        updated = {s.buffer.name for s in lp.walk_stmts(p.body) if isinstance(s, lp.AtomicUpdate)}
        written = updated | {s.buffer.name for s in lp.walk_stmts(p.body) if isinstance(s, lp.Store)}
        packed = {b.name for b, _, _ in buffers if b.dtype.scalar.bytes < 4}
        atomic = updated | (packed & written)
        joined, dims = len(buffers) > self.buffers, len(p.dims)
        shared = joined and any(b.name in atomic for b, _, _ in buffers)
        for k, (b, _, name) in enumerate(buffers):
            f.places[b.name] = Place(
                "weft_all" if joined else f"weft_b{k}", b.dtype.scalar, f.language, b.name in packed,
                shared or b.name in atomic, _entry(dims + k) if joined else "", suffix=name,
            )  # fmt: skip
        for v in p.dims:
            f.ranges[v.name] = Range(0, LARGEST)
        x = self.grid.get("blockIdx.x")
        self.folded = x is not None and not f.range(x).within(0, MOST_GROUPS)
        if self.folded and "blockIdx.z" in self.grid:
            self.begin(self.grid["blockIdx.z"])
            self.depth_z = f.extent(self.grid["blockIdx.z"]).text
            self.flush()
        self.nests(p.body)

        words = dims + (len(buffers) if joined else 0)
        bindings = (
            [f"var<storage, read_write> weft_all: array<{'atomic<u32>' if shared else 'u32'}>;"]
            if joined
            else [f"var<storage, read_write> weft_b{k}: array<{f.places[b.name].declared}>;"
                for k, (b, _, _) in enumerate(buffers)]
        )  # fmt: skip
        if words:
            bindings.append(f"var<uniform> weft_sizes: array<vec4<i32>, {-(-words // 4)}>;")
        pieces = ["\n".join(f"@group(0) @binding({k}) {text}" for k, text in enumerate(bindings))]
        pieces += [
            *f.definitions.texts(),
            *dict.fromkeys(t for place in f.places.values() for t in place.functions.values()),
        ]
        if self.module:
            pieces.append("\n".join(self.module))
        entries = [f"let {f.name_of(v.name)}: i32 = {_entry(k)};" for k, v in enumerate(p.dims) if v.name in self.used]
        group = [lp.int_const(self.grid.get(f"threadIdx.{axis}", lp.int64(1))) or 1 for axis in "xyz"]
        head = self.dialect.kernel.format(name=self.symbol, group=group)
        body = "\n".join([head + " {", *("  " + e for e in (*entries, *self.top)), *self.lines, "}"]) + "\n"
        source = "\n\n".join([f"// {p.name}", *pieces, body])
        return Emitted(
            p.name, self.symbol, source, tuple(n for _, n in self.scratch), tuple(self.grid.items()),
            helpers=tuple(f.definitions.texts()), body=body,
        )  # fmt: skip

    # -- statements

    def let(self, s: lp.Let) -> None:
        f = self.formulas
        if s.var.name not in self.used:
            return
        d = s.var.dtype
        if d.is_integer and d.lanes == 1:
            f.ranges[s.var.name] = f.range(s.value)
            self.values[s.var.name] = s.value
        if d.lanes == 1:
            self.begin(s.value)
            code = f.value(s.value, s.var.name in self.cut)
            self.flush()
            if isinstance(code, Pair) and d == dt.int64:
                f.pairs.add(s.var.name)
            self.line(f"let {f.declare(s.var.name)}: {f.type_of_code(code, d)} = {code.text};")
            return
        name = f.declare(s.var.name)
        self.array(name, d)
        self._hold(s.var.name, d)
        self._fill(name, s.value, d.lanes)

    def _hold(self, name: str, d: dt.DType) -> None:
        """A vector of int64 is one of pairs."""
        if d.scalar == dt.int64:
            self.formulas.pairs.add(name)

    def _kept(self, value: Expr, lanes: int) -> Expr:
        f = self.formulas
        name = f.fresh("lanes")
        var = ex.Var(f" {name}", value.dtype.with_lanes(lanes))
        f.names[var.name] = name
        self._hold(var.name, var.dtype)
        self.array(name, var.dtype)
        self._fill(name, value, lanes)
        return var

    def _fill(self, name: str, value: Expr, lanes: int) -> None:
        f = self.formulas
        with self.each_lane(lanes):
            self.begin(value)
            code = f.value(value)
            self.flush()
            text = f.pair(code) if value.dtype.scalar == dt.int64 else code.text
            self.line(f"{name}[{f.lane}] = {text};")

    # Arrays of a thread are declared at its beginning: a declaration in a loop makes them 0 in every turn, and some
    # compilers take gigabytes for that.

    def array(self, name: str, d: dt.DType) -> None:
        self.top.append(f"var {name}: array<{self.formulas.language.type(d)}, {d.lanes}>;")

    def allocate(self, b: Buffer) -> None:
        f = self.formulas
        if any(b is x or b == x for x, _ in self.scratch):
            return
        name = f.declare(b.name)
        size = lp.int_const(byte_size(b))
        assert size is not None  # the base has seen to it
        shared = b.scope in self.dialect.shared_scopes
        updated = shared and any(
            isinstance(s, lp.AtomicUpdate) and s.buffer.name == b.name for s in lp.walk_stmts(self.program.body)
        )
        place = Place(name, b.dtype.scalar, f.language, atomic=updated, suffix=name)
        f.places[b.name] = place
        text = f"{name}: array<{place.declared}, {max(1, size // b.dtype.scalar.bytes)}>;"
        if shared:
            self.module.append(f"var<workgroup> {text}")
        else:
            self.top.append(f"var {text}")

    def emit_For(self, s: lp.For) -> None:
        f = self.formulas
        self.begin(s.extent)
        extent = f.extent(s.extent)
        self.flush()
        reach = f.range(s.extent)
        f.ranges[s.var.name] = Range(0, (1 << 31) - 1 if reach.hi is None else max(0, reach.hi - 1))
        name = f.declare(s.var.name)
        if s.kind in self.dialect.indices:
            self.line(f"let {name}: i32 = i32({self._number(s.kind)});")
            if self.grid[s.kind] == s.extent and not (self.folded and s.kind == "blockIdx.x"):
                self.stmt(s.body)
                return
            with self.braces(f"if ({name} < {extent.at(3)})"):
                self.stmt(s.body)
            return
        end = extent.at(3)
        if ex.has(s.extent, Load) or len(end) > 32:  # evaluated once
            end = f.fresh("end")
            self.line(f"let {end}: i32 = {extent.text};")
        with self.braces(f"for (var {name}: i32 = 0; {name} < {end}; {name}++)"):
            self.stmt(s.body)

    def _number(self, kind: str) -> str:
        """Of a group or thread. A grid of more groups along x than a dispatch has goes on along z."""
        if self.folded and kind == "blockIdx.x":
            turn = "weft_group.z" if self.depth_z == "1" else f"(weft_group.z / u32({self.depth_z}))"
            return f"weft_group.x + {MOST_GROUPS}u * {turn}"
        if self.folded and kind == "blockIdx.z":
            return f"weft_group.z % u32({self.depth_z})"
        return self.dialect.indices[kind]

    def emit_If(self, s: lp.If) -> None:
        """A conditional store to a thread's own array is an unconditional one of what it had: SwiftShader's compiler
        takes gigabytes for hundreds of branches in a loop."""
        then = s.then
        if s.orelse is None and isinstance(then, lp.Store) and then.predicate is None and _lanes_of(then) == 1:
            own = then.buffer.name not in self.given and private(then.buffer.scope)
            if own and not isinstance(s.cond, lp.IntrinsicCall):
                kept = Load(then.buffer, then.indices)
                self.stmt(lp.Store(then.buffer, then.indices, ex.select(s.cond, then.value, kept)))
                return
        super().emit_If(s)

    def emit_While(self, s: lp.While) -> None:
        f = self.formulas
        self.begin(s.cond)
        cond = f.value(s.cond)
        with self.braces("loop"):
            self.flush()
            self.line(f"if (!({cond.text})) {{ break; }}")
            self.stmt(s.body)

    @contextmanager
    def each_lane(self, lanes: int) -> Iterator[None]:
        f = self.formulas
        self._lane = f.lane = self._lane or f.fresh("lane")
        with self.braces(f"for (var {f.lane}: i32 = 0; {f.lane} < {lanes}; {f.lane}++)"):
            yield
        f.lane = None

    def assign(self, s: lp.Store) -> None:
        f = self.formulas
        at, code = f.at(s.buffer, s.indices), f.value(s.value)
        d = s.buffer.dtype.scalar
        text = f.pair(code) if d == dt.int64 else code.text
        self.flush()
        self.line(f.places[s.buffer.name].store(at, text))

    def update(self, s: lp.AtomicUpdate) -> None:
        f = self.formulas
        at, text = f.at(s.buffer, s.indices), f.value(s.value).text
        self.flush()
        place = f.places[s.buffer.name]
        self.line(place.update(s.op, at, text))


def _lanes_of(s: lp.Store) -> int:
    return max(s.value.dtype.lanes, *(i.dtype.lanes for i in s.indices))


def _entry(k: int) -> str:
    """The k-th word of the table of sizes."""
    return f"weft_sizes[{k // 4}].{'xyzw'[k % 4]}"


def _cut(program: Program) -> set[str]:
    """Names of int64 Lets that may be held modulo 2^32: all their uses are in indices of buffers, under sums,
    differences and products alone, so that what is lost does not matter."""
    lets: dict[str, Expr] = {}
    whole: set[str] = set()  # whose value is wanted

    def value(e: Expr) -> None:
        stack, seen = [e], set[Expr]()
        while stack:
            x = stack.pop()
            if x in seen:
                continue
            seen.add(x)
            if isinstance(x, ex.Var):
                whole.add(x.name)
            elif isinstance(x, Load):
                if x.predicate is not None:
                    stack.append(x.predicate)
                for i in x.indices:
                    index(i)
            else:
                stack += x.children()

    def index(e: Expr) -> None:
        stack = [e]
        while stack:
            x = stack.pop()
            if isinstance(x, (ex.Add, ex.Sub, ex.Mul, ex.Ramp, ex.Broadcast)):
                stack += x.children()
            elif not isinstance(x, ex.Var):
                value(x)

    for s in lp.walk_stmts(program.body):
        if isinstance(s, lp.Let):
            lets[s.var.name] = s.value
            if s.var.dtype != dt.int64:
                value(s.value)
        elif isinstance(s, (lp.Store, lp.AtomicUpdate)):
            for i in s.indices:
                index(i)
            for e in lp.stmt_exprs(s):
                if not any(e is i for i in s.indices):
                    value(e)
        else:
            for e in lp.stmt_exprs(s):
                value(e)
    for name, e in reversed(lets.items()):
        if name in whole:
            value(e)
        else:
            index(e)
    return {name for name in lets if name not in whole}
