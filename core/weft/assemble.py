"""From a grouped, planned graph and its kernels to the description of one native segment.

The order of items is the order of the graph's nodes; a data symbol is bound right after the node that computes its
value, an output is allocated as soon as the symbols of its shape are bound, right before the kernel that writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft import dtypes as dt
from weft.codegen import segment as sg
from weft.codegen.base import THREADS
from weft.errors import LoweringError
from weft.expr.nodes import Const, Expr, Var, add, all_of, any_of, const, free_vars, lt, maximum, mul, wrap
from weft.graph.inferred import Assumption
from weft.graph.nodes import Graph, Node, Value
from weft.loop.nodes import TRUE
from weft.passes.plan_memory import MemoryPlan, overwrites
from weft_runtime.abi import ErrorCode


@dataclass(frozen=True)
class KernelUse:
    """The kernel of one group node: its name, what its dims are here, its scratch (bytes over symbols and THREADS)."""

    kernel: str
    dims: tuple[Expr, ...]
    scratch: tuple[Expr, ...] = ()


@dataclass
class Assembly:
    """The segment and the constants it refers to, in the order of its table."""

    spec: sg.SegmentSpec
    constants: list[Value]
    checks: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Error code → (what, hint)."""
    calls: list[Node] = field(default_factory=list)
    """The node of each kernel call of the spec, in order."""
    overwrites: tuple[tuple[int, int], ...] = ()
    """Outputs with inputs whose memory they may have."""


def assemble(
    graph: Graph,
    plan: MemoryPlan,
    kernels: Mapping[int, KernelUse],
    name: str = "main",
    assumptions: Sequence[Assumption] = (),
) -> Assembly:
    """See the module.

    Args:
        graph: groups only, fused and planned.
        kernels: id(node) → its kernel; view nodes have none.
        assumptions: each is checked as soon as its symbols are bound, before the kernels that follow.
    """
    return _Assembler(graph, plan, kernels, name, assumptions).run()


@dataclass
class _Assembler:
    graph: Graph
    plan: MemoryPlan
    kernels: Mapping[int, KernelUse]
    name: str
    assumptions: Sequence[Assumption] = ()
    checks: dict[int, tuple[str, str]] = field(default_factory=dict)
    buffers: list[sg.BufferRef] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)  # id(root value) → buffer number
    constants: list[Value] = field(default_factory=list)
    items: list[sg.Item] = field(default_factory=list)
    symbols: list[sg.Symbol] = field(default_factory=list)
    bound: set[str] = field(default_factory=set)
    calls: list[Node] = field(default_factory=list)

    def run(self) -> Assembly:
        g = self.graph
        self.by_name = {v.name: v for v in g.values()}
        self._bind_inputs()
        for i, v in enumerate(g.inputs):
            self._set(v, sg.Input(i))
        for k, v in enumerate(g.outputs):
            root = self._root(v)
            if id(root) in self.index or root.constant is not None:
                raise LoweringError(
                    f"output '{v.name}' is not computed by a kernel of its own", hint="an Identity must stand before it"
                )
            self._set(root, sg.Output(k))
        self._bind_data()
        self._check()
        allocated: set[int] = set()
        pending = dict(self._data_symbols())
        for node in g.nodes:
            use = self.kernels.get(id(node))
            if use is not None:
                self._call(node, use, allocated)
            for v in node.outputs:
                for symbol in pending.pop(id(v), ()):
                    self.symbols.append(symbol)
                    self.bound.add(symbol.name)
                    self.items.append(sg.BindData(symbol.name))
                    self._check()
        for k, v in enumerate(g.outputs):
            if k not in allocated:
                raise LoweringError(f"output '{v.name}' is never written")
        inputs = tuple(sg.Tensor(v.name, v.dtype, _dims(v)) for v in g.inputs)
        outputs = tuple(sg.Tensor(n, v.dtype, _dims(v)) for n, v in zip(g.output_names, g.outputs))
        arena = wrap(self.plan.arena_bytes, dt.int64)
        if not self._is_static(arena):
            # What depends on data grows the arena item by item; the rest has its room from the start.
            arena = const(0)
            for ref in self.buffers:
                if isinstance(ref, sg.Arena) and self._is_static(ref.offset) and self._is_static(ref.bytes):
                    arena = maximum(arena, add(ref.offset, ref.bytes))
        spec = sg.SegmentSpec(
            self.name,
            inputs,
            outputs,
            len(self.constants),
            tuple(self.symbols),
            tuple(self.buffers),
            tuple(self.items),
            arena,
        )
        return Assembly(spec, self.constants, self.checks, self.calls, overwrites(g))

    def _call(self, node: Node, use: KernelUse, allocated: set[int]) -> None:
        """The call of a node's kernel, once there is room for its results; `allocated`: outputs that have theirs."""
        numbers = [self._number(v) for v in node.inputs if v is not None]
        for v in node.outputs:
            ref = self.buffers[self._number(v)]
            if isinstance(ref, sg.Output) and ref.index not in allocated:
                allocated.add(ref.index)
                self.items.append(sg.AllocateOutput(ref.index, _dims(self.graph.outputs[ref.index])))
            elif isinstance(ref, sg.Arena) and not (self._is_static(ref.offset) and self._is_static(ref.bytes)):
                self.items.append(sg.ReserveArena(add(ref.offset, ref.bytes)))
        numbers += [self._number(v) for v in node.outputs]
        numbers += self._scratch(node, use)
        self.items.append(sg.KernelCall(use.kernel, tuple(numbers), tuple(use.dims), _some_element(node)))
        self.calls.append(node)

    def _check(self) -> None:
        """Checks what can be checked by now. An assumption about a symbol that the passes resolved is never bound, and
        certain."""
        later = []
        for a in self.assumptions:
            if free_vars(a.holds).keys() <= self.bound:
                code = ErrorCode.FIRST_CHECK + len(self.checks)
                self.checks[code] = (a.what, a.hint)
                self.items.append(sg.Check(a.holds, code, a.args))
            else:
                later.append(a)
        self.assumptions = later

    # -- buffers
    def _root(self, value: Value) -> Value:
        name = self.plan.aliases.get(value.name)
        return value if name is None else self.by_name[name]

    def _set(self, value: Value, ref: sg.BufferRef) -> None:
        self.index[id(value)] = len(self.buffers)
        self.buffers.append(ref)

    def _number(self, value: Value) -> int:
        root = self._root(value)
        if id(root) not in self.index:
            if root.constant is not None:
                self._set(root, sg.Constant(len(self.constants)))
                self.constants.append(root)
            else:
                self._set(root, sg.Arena(wrap(self.plan.offsets[root.name], dt.int64), stored_bytes(root)))
        return self.index[id(root)]

    # -- symbols
    def _bind_inputs(self) -> None:
        for i, v in enumerate(self.graph.inputs):
            for axis, d in enumerate(v.shape):
                if isinstance(d, Var) and d.name not in self.bound:
                    self.bound.add(d.name)
                    self.symbols.append(sg.Symbol(d.name, sg.InputDim(i, axis)))
        self.static = frozenset(self.bound) | {
            n for n, s in self.graph.symbols.items() if any(s.value is v for v in self.graph.inputs)
        }

    def _bind_data(self) -> None:
        for name, source in self.graph.symbols.items():
            if any(source.value is v for v in self.graph.inputs):
                self.bound.add(name)
                self.symbols.append(
                    sg.Symbol(name, sg.Data(self._number(source.value), source.value.dtype, source.index))
                )

    def _data_symbols(self) -> Mapping[int, Sequence[sg.Symbol]]:
        pending: dict[int, list[sg.Symbol]] = {}
        for name, source in self.graph.symbols.items():
            if name not in self.bound:
                pending.setdefault(id(source.value), []).append(
                    sg.Symbol(name, sg.Data(self._number(source.value), source.value.dtype, source.index))
                )
        return pending

    def _is_static(self, e: Expr) -> bool:
        return free_vars(e).keys() <= self.static | {THREADS.name}  # the segment binds THREADS itself

    def _scratch(self, node: Node, use: KernelUse) -> list[int]:
        numbers = []
        for at, size in zip(self.plan.scratch.get(node.outputs[0].name, ()), use.scratch, strict=True):
            offset = wrap(at, dt.int64)
            if not (self._is_static(offset) and self._is_static(size)):
                self.items.append(sg.ReserveArena(add(offset, size)))
            self.buffers.append(sg.Arena(offset, size))
            numbers.append(len(self.buffers) - 1)
        return numbers


def _some_element(node: Node) -> Expr:
    """Whether any output of a kernel has an element: one that has none to compute might count for hours, if of its open
    sizes one is 0 and another 2⁴⁰. Where one size alone is open, it bounds the time as well."""
    open_sizes = [[d for d in dict.fromkeys(_dims(v)) if not isinstance(d, Const)] for v in node.outputs]
    if min(map(len, open_sizes)) < 2:
        return TRUE
    return any_of(all_of(lt(0, d) for d in dims) for dims in open_sizes)


def _dims(value: Value) -> tuple[Expr, ...]:
    return tuple(wrap(d, dt.int64) for d in value.shape)


def stored_bytes(value: Value) -> Expr:
    """Bytes of a value as its layout stores it."""
    t = value.tensor
    shape = t.shape if t.layout is None else t.layout.stored_shape(t.shape)
    size: Expr = const(t.dtype.bytes)
    for d in shape:
        size = mul(size, wrap(d, dt.int64))
    return size
