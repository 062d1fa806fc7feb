"""Lowered Programs → LLVM IR text, one `emit_<Node>` method per node.

Text because llvmlite's builder has no bfloat and costs more than it gives. The shape of what comes out:

    define i32 @kernel(ptr %ctx, ptr %buffers, ptr %dims)            0 is success
    define internal void @kernel.task.K(ptr %ctx, ptr %closure, i64 %index, i64 %thread)     the body of the K-th
        parallel loop

The parts are classes in modules of their own, each on top of the one before: `instructions`, `conversions`,
`arithmetic`, `formulas`, `accesses`, `statements`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft import dtypes as dt
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.nodes import Expr
from weft.expr.ranges import Range
from weft.loop import nodes as lp
from weft.loop.nodes import Load, Program
from weft_llvm.accesses import CLOSE as CLOSE
from weft_llvm.accesses import MOST_INTERLEAVED as MOST_INTERLEAVED
from weft_llvm.instructions import Function, Value
from weft_llvm.statements import Statements, quote
from weft_llvm.storage import Memory, Storage

if TYPE_CHECKING:
    from weft_llvm.target import Isa

FUNCTIONS = frozenset(
    {"sqrt", "floor", "ceil", "trunc", "round", "abs", "copysign", "fma", "popcount", "isnan", "isinf"}
)
SCOPES = ("global", "local", "register")


@dataclass(frozen=True)
class Emitted:
    """LLVM IR of one kernel, and the sizes of the scratch buffers that follow its outputs (see KernelCode)."""

    name: str
    ir: str
    scratch: tuple[Expr, ...]
    parallel: bool = False


class Emitter(Statements):
    """Emits the IR of one Program after another for one instruction set.

    Args:
        isa: what the target can do.
        intrinsics: name → function(emitter, call) that emits an IntrinsicCall and returns its Value, or None if it has
            none. Whatever is called "llvm.…" is that intrinsic of LLVM's, on the arguments' values: which processor has
            it is for `Intrinsic.requires` to say.
    """

    def __init__(
        self, isa: Isa, intrinsics: Mapping[str, Callable[[Emitter, lp.IntrinsicCall], Value | None]] | None = None
    ) -> None:
        super().__init__(isa)
        self.intrinsics = {"prefetch": _emit_prefetch, **(intrinsics or {})}

    # -- what is lacking ------------------------------------------------------------------------------------------

    def check(self, program: Program) -> list[str]:
        lacks: dict[str, None] = {}

        known: set[type] = set()

        def visit(e: Expr) -> None:
            for n in ex.walk(e):
                kind = type(n)
                if kind is ex.Call or kind is lp.IntrinsicCall:
                    assert isinstance(n, (ex.Call, lp.IntrinsicCall))
                    if isinstance(n, lp.IntrinsicCall):
                        if n.name not in self.intrinsics and not n.name.startswith("llvm."):
                            lacks[f"intrinsic {n.name}"] = None
                    elif n.name not in FUNCTIONS:
                        lacks[f"function {n.name}"] = None
                    elif n.dtype.kind == "complex":
                        lacks[f"function {n.name} of {n.dtype.scalar}"] = None
                elif kind not in known:
                    if hasattr(self, "emit_" + kind.__name__):
                        known.add(kind)
                    else:
                        lacks[f"formula {kind.__name__}"] = None
                if n.dtype.kind == "string":
                    lacks["dtype string"] = None

        for s in lp.walk_stmts(program.body):
            if isinstance(s, lp.Block):
                lacks[f"block {s.name}"] = None
                continue
            if isinstance(s, lp.For) and s.kind not in ("serial", "parallel"):
                lacks[f"{s.kind} loop {s.var.name}"] = None
            if isinstance(s, lp.Allocate) and s.buffer.scope not in SCOPES:
                lacks[f"scope {s.buffer.scope} of buffer {s.buffer.name}"] = None
            if isinstance(s, (lp.Allocate, lp.Store, lp.AtomicUpdate)) and s.buffer.dtype.kind == "string":
                lacks["dtype string"] = None
            for e in lp.stmt_exprs(s):
                visit(e)
        for b in program.params:
            if b.dtype.kind == "string":
                lacks["dtype string"] = None
        return list(lacks)

    # -- program --------------------------------------------------------------------------------------------------

    def emit(self, program: Program, checked: bool = False) -> Emitted:
        """Raises CodegenError for what `check` lists (unless that was `checked` before), a register buffer that is not
        used as one, and unknown sizes."""
        lacks = [] if checked else self.check(program)
        if lacks:
            raise CodegenError(
                f"LLVM code cannot express kernel '{program.name}'",
                where="\n".join(lacks),
                hint="run the loop passes first",
            )
        self._begin(program)
        name = quote(program.name)
        self._fn = Function(
            f"define i32 @{name}(ptr %ctx, ptr noalias readonly %buffers, ptr noalias readonly %dims) #0"
        )
        for i, b in enumerate(program.params):
            # Buffer.align is not promised to LLVM: an aligned move gains nothing and faults on a caller's array that is
            # not.
            self._buffers[b.name] = Memory(self._load_pointer("%buffers", i, 1), b, self._annotations[b.name])
        self._scratch_base = {
            i: self._load_pointer("%buffers", len(program.params) + i, 64) for i in range(len(self._storage.sizes))
        }
        self._known_dims()
        for i, d in enumerate(program.dims):
            value = self._op(f"load i64, ptr {self._gep('i64', '%dims', str(i))}, align 8")
            self._env[d.name] = Value(
                value if d.dtype == dt.int64 else self._op(f"trunc i64 {value} to {self.value_type(d.dtype)}"), d.dtype
            )
        self.emit_stmt(program.body)
        self._line("ret i32 0")
        self._functions.append(self._fn.text())
        cpu = f'"target-cpu"="{self.isa.cpu}" ' + (
            f'"target-features"="{self.isa.features}" ' if self.isa.features else ""
        )
        wide = '"prefer-vector-width"="512" ' if "avx512" in self.isa.has else ""
        common = (
            f'nounwind "no-builtins" "no-trapping-math"="true" "frame-pointer"="none" "no-stack-arg-probe" {wide}{cpu}'
        )
        parts = [
            f'target datalayout = "{self.isa.data_layout}"',
            f'target triple = "{self.isa.triple}"',
            *self._declared.values(),
            *self._helpers.values(),
            *self._functions,
            # A task is called from one place besides the pool; inlining it there would only double the code.
            f"attributes #1 = {{ noinline {common} }}",
            f"attributes #0 = {{ {common} }}",
            *(f"!{i} = {text}" for i, text in enumerate(self._metadata)),
        ]
        return Emitted(program.name, "\n".join(parts) + "\n", tuple(self._storage.sizes), parallel=self._tasks > 0)

    def _begin(self, program: Program) -> None:
        """The state at the start of a program."""
        self.program = program
        self._storage = Storage(program)
        self._functions = []
        self._declared = {}
        self._helpers = {}
        self._metadata = []
        self._loop_hints = None
        self._counter = 0
        self._tasks = 0
        self._vectors = 0
        self._thread = None
        self._mask = None
        self._cache = {}
        self._trail = []
        self._impure = []
        self._env = {}
        self._buffers = {}
        self._ranges = {}
        self._annotations = self._alias_scopes()
        self._align_md = {}

    def _alias_scopes(self) -> dict[str, str]:
        """Per buffer the annotation that tells LLVM which other buffers it cannot overlap: all but its declared
        aliases."""
        p = self.program
        buffers = list(dict.fromkeys([b.name for b in p.params] + [b.name for b in self._storage.memory]))
        if len(buffers) < 2:
            return dict.fromkeys(buffers, "")
        domain = self._md("distinct !{!self}")
        scopes = {b: self._md(f"distinct !{{!self, {domain}}}") for b in buffers}
        pairs = {frozenset((p.outputs[o].name, p.inputs[i].name)) for o, i in p.aliases}
        result = {}
        for b in buffers:
            others = [scopes[c] for c in buffers if c != b and frozenset((b, c)) not in pairs]
            own = self._md(f"!{{{scopes[b]}}}")
            result[b] = f", !alias.scope {own}" + (
                f", !noalias {self._md('!{' + ', '.join(others) + '}')}" if others else ""
            )
        return result

    def _known_dims(self) -> None:
        """A dim that is a factor of a buffer's size is not negative; others (a value given at run time) may be."""
        for b in self.program.params:
            for d in b.shape:
                if isinstance(d, ex.Mul) and isinstance(d.b, ex.Const):
                    d = d.a
                if isinstance(d, ex.Var):
                    self._ranges[d.name] = Range(0, None)

    def emit_IntrinsicCall(self, e: lp.IntrinsicCall) -> Value:
        result = self.intrinsics.get(e.name, _emit_llvm)(self, e)
        # Whatever it read may have changed by the next statement.
        return Value("0", e.dtype, True) if result is None else replace(result, impure=True)


def _emit_prefetch(emitter: Emitter, call: lp.IntrinsicCall) -> Value | None:
    """prefetch(buffer[index], locality = 3): the line of an element that will be read; 3 means into every cache, 2 from
    the second on."""
    load = call.args[0]
    if not isinstance(load, Load):
        raise CodegenError("prefetch takes an element of a buffer", where=str(call))
    locality = int(call.args[1].value) if len(call.args) > 1 and isinstance(call.args[1], ex.Const) else 3
    emitter.intrinsic(
        "void", "llvm.prefetch.p0", ("ptr", emitter.address(load)), ("i32", "0"), ("i32", str(locality)), ("i32", "1")
    )
    return None


def _emit_llvm(emitter: Emitter, call: lp.IntrinsicCall) -> Value | None:
    """An intrinsic of LLVM's by its whole name; a call without a value gives none."""
    result = "void" if call.dtype == dt.handle else emitter.value_type(call.dtype)
    text = emitter.intrinsic(
        result, call.name, *((emitter.value_type(a.dtype), emitter.emit_expr(a).text) for a in call.args)
    )
    return Value(text, call.dtype, True) if text else None
