"""What one target computes of a model: its graph after every pass, and its kernels, each run by itself on the inputs
that it got."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from weft.compilation import Compilation, Kernel
from weft.errors import WeftError
from weft.expr.evaluate import evaluate
from weft.graph.control import run_bodies
from weft.graph.evaluate import Inputs, apply, steps
from weft.graph.group import Group
from weft.graph.nodes import Graph, Node, Value
from weft.graph.region import Region
from weft.graph.rewrite import concrete, copy_graph
from weft.loop.nodes import Buffer
from weft.mixed import MixedCompilation, Outline
from weft.pipeline import has_steps, mixed
from weft.resolve import ResolvedTarget
from weft_testing.alone import Run, buffer_shape, ready_alone
from weft_testing.verify.measure import Bound, Difference, compare
from weft_testing.verify.rounding import allowed_errors, drain, tolerated

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass
class Part:
    """All of a model, or a region of it.

    Attributes:
        name: of the region; empty where there is one part only.
        graph: as this target got it.
        grouped: after all passes.
    """

    name: str
    target: ResolvedTarget
    graph: Graph
    grouped: Graph
    compilation: Compilation
    names: dict[int, str] = field(default_factory=dict)  # id(node) → its kernel
    ready: dict[tuple[str, tuple[int, ...]], Run] = field(default_factory=dict)  # by kernel and dims
    inner: bool = False  # of what a branch or a loop runs

    @classmethod
    def of(cls, name: str, target: ResolvedTarget, graph: Graph) -> Part:
        """Compiles a graph for one target, with nothing taken from a cache."""
        compilation = Compilation(target, cache=False)
        grouped = compilation.optimize(copy_graph(graph))
        part = cls(name, target, graph, grouped, compilation)
        part.compile([n for n in grouped.nodes if _computes(n)])
        return part

    def compile(self, nodes: Sequence[Node]) -> None:
        """Makes kernels of groups."""
        uses = self.compilation.compile_kernels(Graph(self.graph.name, nodes=list(nodes)))
        self.names.update((key, use.kernel) for key, use in uses.items())

    def kernel(self, node: Node) -> Kernel:
        return self.compilation.kernels[self.names[id(node)]]

    def run(self, node: Node, inputs: Sequence[Array], dims: Mapping[str, int]) -> list[Array]:
        """The outputs of a node's kernel, run by itself; all in the shapes of its program's buffers."""
        kernel = self.kernel(node)
        key = kernel.name, tuple(dims.values())
        if key not in self.ready:
            assert kernel.code is not None
            self.ready[key] = ready_alone(self.target, kernel.code, kernel.naive, dims)
        return self.ready[key](inputs)


def _computes(node: Node) -> bool:
    """Whether a node becomes a kernel."""
    return isinstance(node.op, Group) and not node.op.view


Visit: TypeAlias = "Callable[[Part, list[Any], Mapping[str, int]], list[Any]]"


@dataclass
class Parts:
    """A model for its targets. `graph` is that of its regions, or the one part's `grouped`; `bodies` what branches and
    loops run."""

    graph: Graph
    parts: list[Part]
    placed: bool
    by_node: Mapping[int, Part] = field(default_factory=dict)
    bodies: Mapping[int, Sequence[Parts]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, targets: Sequence[ResolvedTarget]) -> Parts:
        """Raises WeftError if it does not compile."""
        if not (mixed(targets) or has_steps(graph)):
            one = Part.of("", targets[0], graph)
            return cls(one.grouped, [one], False)
        return cls._of(MixedCompilation(targets, cache=False).outline(copy_graph(graph)))

    @classmethod
    def _of(cls, outline: Outline, inner: bool = False) -> Parts:
        by_kind = {t.target.kind: t for t in outline.compilation.targets}
        found = cls(outline.graph, [], True, {}, {})
        by_node: dict[int, Part] = {}
        bodies: dict[int, Sequence[Parts]] = {}
        for number, node in enumerate(outline.graph.nodes):
            assert isinstance(node.op, Region)
            if node.op.target not in by_kind:  # what the runtime does itself
                bodies[id(node)] = [cls._of(o, True) for o in outline.bodies.get(number, ())]
                found.parts += [p for body in bodies[id(node)] for p in body.parts]
                continue
            name = outline.section(number) if inner or len(outline.graph.nodes) > 1 else ""
            part = by_node[id(node)] = Part.of(name, by_kind[node.op.target], node.op.body)
            part.inner = inner
            found.parts.append(part)
        return replace(found, by_node=by_node, bodies=bodies)

    def walk(self, inputs: Inputs, visit: Visit, symbols: Mapping[str, int] | None = None) -> list[Any]:
        """Evaluates the model part by part: `visit` gives a part's outputs for its inputs, those of loops at every
        trip. Returns the model's outputs."""
        if not self.placed:
            (part,) = self.parts
            named = inputs if isinstance(inputs, Mapping) else dict(zip((v.name for v in part.graph.inputs), inputs))
            return visit(part, [named[v.name] for v in part.graph.inputs], {})

        def run(node: Node, arrays: list[Any], env: Mapping[str, int]) -> tuple[Any, ...]:
            part = self.by_node.get(id(node))
            if part is not None:
                return tuple(visit(part, [a for a in arrays if a is not None], env))
            inside = self.bodies.get(id(node), ())
            if not inside:
                return apply(node, arrays, env)
            assert isinstance(node.op, Region)

            def control(inner: Node, given: list[Any], sizes: Mapping[str, int]) -> tuple[Any, ...]:
                runs = [lambda values, body=body: body.walk(values, visit, sizes) for body in inside]
                return tuple(run_bodies(inner.op, given, *runs))

            return tuple(drain(steps(node.op.body, [a for a in arrays if a is not None], env, control)))

        return drain(steps(self.graph, inputs, symbols, run))


# -- one kernel -------------------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """A kernel's run on the inputs that it got, and what it should have given.

    Attributes:
        arrays: its inputs, `want` and `got` its outputs, in logical shape.
        env: sizes of symbols.
    """

    part: Part
    node: Node
    arrays: list[Array]
    env: Mapping[str, int]
    want: list[Array]
    got: list[Array]
    allowed: list[Any]
    differences: list[Difference]

    @property
    def wrong(self) -> bool:
        return any(d.wrong for d in self.differences)

    @property
    def body(self) -> Graph:
        """What the kernel computes, with sizes for symbols."""
        op = concrete(self.node.op, self.env)
        assert isinstance(op, Group)
        return op.body

    @property
    def kernel(self) -> Kernel:
        return self.part.kernel(self.node)

    @property
    def dims(self) -> dict[str, int]:
        formulas = self.part.compilation.symbols_of(self.node)
        return {d.name: int(evaluate(formulas[d.name], self.env)) for d in self.kernel.naive.dims}

    def stored_inputs(self, buffers: Sequence[Buffer]) -> list[Array]:
        """The inputs as these parameters of a program hold them."""
        return [
            stored(v, a).reshape(buffer_shape(b, self.dims))
            for v, a, b in zip(self.body.inputs, self.arrays, buffers, strict=True)
        ]

    def judge(self, outputs: Sequence[Array]) -> list[Difference]:
        """Results of a program, in its shapes, against what should come out."""
        return [
            _judge(v, a, w, allowed)
            for v, a, w, allowed in zip(self.body.outputs, outputs, self.want, self.allowed, strict=True)
        ]


def try_kernel(part: Part, node: Node, arrays: Sequence[Any], env: Mapping[str, int], bound: Bound) -> Trial:
    """Runs the kernel of a group by itself, and its reference."""
    given = [np.asarray(a) for a in arrays if a is not None]
    trial = Trial(part, node, given, dict(env), [np.asarray(r) for r in apply(node, arrays, env)], [], [], [])
    outputs = part.run(node, trial.stored_inputs(trial.kernel.naive.inputs), trial.dims)
    body = trial.body
    trial.got = [logical(v, a, w.shape) for v, a, w in zip(body.outputs, outputs, trial.want, strict=True)]
    trial.allowed = [bound.of(w) for w in trial.want] if bound.given else _own_errors(body, trial)
    trial.differences = trial.judge(outputs)
    if (
        trial.wrong and not bound.given
    ):  # only now is it worth to know what rounding may do on the way through the group
        trial.allowed = allowed_errors(body, given, trial.want, env)
        trial.differences = trial.judge(outputs)
    return trial


def _own_errors(body: Graph, trial: Trial) -> list[float]:
    """By the tolerance of each output's own operator alone; of groups of one node that is all."""
    if len(body.nodes) != 1:
        return [0.0] * len(trial.want)
    (node,) = body.nodes
    by_value = {id(v): a for v, a in zip(body.inputs, trial.arrays)}
    arrays = [None if v is None else v.constant if v.constant is not None else by_value[id(v)] for v in node.inputs]
    return [tolerated(node, arrays, w) for w in trial.want]


def stored(value: Value, array: Array) -> Array:
    """An array as memory holds the value."""
    layout = value.tensor.layout
    return np.ascontiguousarray(array) if layout is None else layout.pack(array)


def logical(value: Value, array: Array, shape: Sequence[int]) -> Array:
    """The inverse of `stored`, of an array of any shape with as many elements."""
    layout = value.tensor.layout
    if layout is None:
        return array.reshape(shape)
    sizes = [d for d in layout.stored_shape(tuple(shape)) if isinstance(d, int)]
    return layout.unpack(array.reshape(sizes), shape)


def _judge(value: Value, array: Array, want: Array, allowed: Any) -> Difference:
    found = compare(logical(value, array, want.shape), want, allowed)
    layout = value.tensor.layout
    if found.wrong or layout is None or not layout.pads(want.shape):
        return found
    held = array.reshape([d for d in layout.stored_shape(want.shape) if isinstance(d, int)])
    inside = layout.pack(np.ones(want.shape, np.bool_))
    padding = compare(np.where(inside, np.zeros((), held.dtype), held), np.zeros(held.shape, held.dtype))
    if not padding.wrong:
        return found
    return Difference(
        padding.elements,
        padding.wrong,
        padding.absolute,
        padding.ulp,
        padding.relative,
        0.0,
        padding.at,
        padding.got,
        "0 in padding",
    )


# -- one node of a kernel ---------------------------------------------------------------------------------------------


def first_node(trial: Trial, bound: Bound) -> tuple[Node | None, Trial]:
    """The first node of a kernel's group that is wrong if the group ends with it, and that shorter kernel's run; none
    if it takes them all together."""
    body = trial.body
    if len(body.nodes) == 1:
        return body.nodes[0], trial
    for node in body.nodes:
        try:
            shorter = _up_to(trial, body, node, bound)
        except WeftError:  # it compiles as a whole only
            continue
        if shorter.wrong:
            return node, shorter
    return None, trial


def _up_to(trial: Trial, body: Graph, end: Node, bound: Bound) -> Trial:
    """A group's nodes as far as one needs them, compiled by themselves and run."""
    needed: dict[int, Node] = {}
    stack = [end]
    inside = {id(n) for n in body.nodes}
    while stack:
        node = stack.pop()
        needed[id(node)] = node
        stack += [
            v.producer
            for v in node.inputs
            if v is not None and v.producer is not None and id(v.producer) in inside and id(v.producer) not in needed
        ]
    nodes = [n for n in body.nodes if id(n) in needed]
    used = {id(v) for n in nodes for v in n.inputs if v is not None}
    given = [(v, a) for v, a in zip(body.inputs, trial.arrays) if id(v) in used]
    names = [v.name for v in end.outputs]
    shorter = Graph(body.name, [v for v, _ in given], list(end.outputs), nodes, dict(body.symbols), names)
    outer = [Value(v.name, v.type) for v, _ in given]
    node = Node(Group(shorter), outer, [Value(v.name, v.type) for v in end.outputs], end.names)
    part = Part(
        trial.part.name,
        trial.part.target,
        trial.part.graph,
        trial.part.grouped,
        Compilation(trial.part.target, cache=False),
    )
    part.compile([node])
    return try_kernel(part, node, [a for _, a in given], trial.env, bound)
