"""Gradients of branches and loops.

The gradient of a branch is a branch over the gradients of both graphs. That of a loop is a loop over the same
iterations, last to first: each computes the values of its iteration again, from what was carried into it, and from them
the gradients. What was carried into each iteration the loop itself collects then; it gets further results for that. So
do operators whose results differ from run to run, as keys of random numbers: gradients use the results themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from weft import dtypes as dt
from weft.errors import UnsupportedError
from weft.expr import nodes as e
from weft.expr.nodes import Var
from weft.graph.control import SEQUENCE, If, Loop, bodies
from weft.graph.nodes import Graph, GraphBuilder, Node, TensorType, Value
from weft.graph.operator import Gradients
from weft.graph.rewrite import Rewriter, bound_symbols, copy_graph, drop_dead, mentioned_symbols
from weft.tensor.language import Dim, as_dim
from weft_ops import Add, Fill
from weft_ops.composing import Composer
from weft_ops.precision import compute_dtype
from weft_training.reverse import differentiable_parts, gradients, is_float, reached_by, where


def control_gradients(builder: GraphBuilder, node: Node, given: Gradients, active: Sequence[int]) -> list[Value | None]:
    """As `weft_training.reverse.node_gradients`, of a branch or a loop.

    Raises:
        UnsupportedError: no gradient passes it; says why.
    """
    odd = [v for k in active if (v := node.inputs[k]) is not None and not is_float(v)]
    if odd:
        raise _refused(node, f"it takes '{odd[0].name}', a {odd[0].type}, and gradients are tensors of known sizes")
    if isinstance(node.op, If):
        return _Branches(builder, node, node.op, given, active).gradients()
    assert isinstance(node.op, Loop)
    return _Iterations(builder, node, node.op, given, active).gradients()


def _refused(node: Node, why: str) -> UnsupportedError:
    name = node.op.operator_name
    return UnsupportedError(
        f"no gradient passes the {name} that gives '{node.output.name}'", where=where(node), why=why
    )


class _Backward:
    """A body as it becomes that of its gradient: its nodes, and those that are added behind them."""

    def __init__(self, builder: GraphBuilder, node: Node, body: Graph) -> None:
        if any(_draws(inner) for n in body.nodes for inner in bodies(n.op)):
            raise _refused(node, "a branch or a loop in it draws random numbers, which would be others a second time")
        rewriter = Rewriter(differentiable_parts(copy_graph(body)))
        self.graph = rewriter.run(lambda r, node, inputs: None)
        self.builder: GraphBuilder = rewriter.builder
        # Symbols mean the same in the graph around, so that new ones have to be new there, too.
        self.builder.reserve(v.name for v in builder.graph.values())
        self.builder.reserve(builder.graph.symbols)
        self.inputs, self.results = list(self.graph.inputs), list(self.graph.outputs)
        self.drawn: list[Value] = []
        """Inputs, behind those of the body, for what it would compute differently a second time."""
        for drawing in [n for n in self.graph.nodes if not n.op.deterministic]:
            self.graph.nodes.remove(drawing)
            for value in drawing.outputs:
                value.producer = None
                self.drawn.append(value)
        self.graph.inputs += self.drawn
        self.nodes = list(self.graph.nodes)
        self.graph.outputs, self.graph.output_names = [], []
        self.composer = Composer(self.builder)
        self.seeds: dict[Value, Value] = {}

    def input(self, like: Value, shape: Sequence[Dim] | None = None, wide: bool = False) -> Value:
        dtype = compute_dtype(like.dtype) if wide else like.dtype
        return self.builder.input(like.name, TensorType(dtype, like.shape if shape is None else tuple(shape)))

    def seed(self, result: Value, gradient: Value) -> None:
        """The whole depends on a result so; one value may be several results."""
        before = self.seeds.get(result)
        self.seeds[result] = gradient if before is None else self.builder.add(Add(), before, gradient)

    def found(self, wrt: Sequence[Value]) -> list[Value | None]:
        return gradients(self.builder, self.nodes, self.seeds, wrt)

    def zeros(self, like: Value, wide: bool = False) -> Value:
        return self.composer(Fill(compute_dtype(like.dtype) if wide else like.dtype, like.shape, 0))

    def finished(self, outputs: Iterable[Value]) -> Graph:
        """The body with these results; of its inputs those that it needs are left."""
        graph = self.graph
        for value in outputs:
            self.builder.output(value, self.builder.unique(f"{value.name}.result"))
        drop_dead(graph)
        used = {id(v) for n in graph.nodes for v in n.inputs} | {id(v) for v in graph.outputs}
        used |= {id(s.value) for s in graph.symbols.values()}
        whole, graph.inputs = graph.inputs, [v for v in graph.inputs if id(v) in used]
        while missing := [name for name in mentioned_symbols(graph) if name not in bound_symbols(graph)]:
            carrier = next((v for v in whole if v not in graph.inputs and _binds(v, missing[0])), None)
            if carrier is None:
                break  # it is one of the graph around
            graph.inputs = [v for v in whole if v in graph.inputs or v is carrier]
        return graph


def _draws(graph: Graph) -> bool:
    return any(not n.op.deterministic or any(map(_draws, bodies(n.op))) for n in graph.nodes)


def _also_gives(builder: GraphBuilder, body: Graph, values: Iterable[str | int | TensorType]) -> Graph:
    """A copy of the body with further results: values by name, inputs by position, or zeros of a type."""
    made = copy_graph(body)
    named = {v.name: v for v in made.values()}
    for which in values:
        if isinstance(which, TensorType):
            value = Value(builder.unique("none"), which)
            made.nodes.append(Node(Fill(which.dtype, which.shape, 0), (), (value,)))
        else:
            value = named[which] if isinstance(which, str) else made.inputs[which]
        made.outputs.append(value)
        made.output_names.append(builder.unique(f"{value.name}.kept"))
    return made


def _extend(builder: GraphBuilder, node: Node, op: If | Loop) -> tuple[Value, ...]:
    """Gives a node an operator of further results; these.

    Raises:
        UnsupportedError: their sizes are not known.
    """
    types = op.infer_checked(node.inputs)
    for value, type in zip(node.outputs, types):
        value.type = type  # the number of iterations may not have been in it
    made = [Value(builder.unique(f"{node.output.name}.kept"), t, node) for t in types[len(node.outputs) :]]
    if not all(isinstance(v.type, TensorType) for v in made):
        raise _refused(node, "the sizes of a value that it computes on the way are known only as it runs")
    node.op, node.outputs = op, (*node.outputs, *made)
    return tuple(made)


def _binds(value: Value, symbol: str) -> bool:
    return isinstance(value.type, TensorType) and any(isinstance(d, Var) and d.name == symbol for d in value.shape)


class _Branches:
    """The gradient of an If."""

    def __init__(self, builder: GraphBuilder, node: Node, op: If, given: Gradients, active: Sequence[int]) -> None:
        self.builder, self.node, self.op, self.given, self.active = builder, node, op, given, active

    def gradients(self) -> list[Value | None]:
        cut = 1 + len(self.op.then.inputs)
        first = (1, cut)
        sides = [_Backward(self.builder, self.node, graph) for graph in (self.op.then, self.op.orelse)]
        outside: list[dict[int, Value]] = []
        found: dict[int, Value] = {}
        for side, start in zip(sides, first):
            operands = self.node.inputs[start : start + len(side.inputs)]
            outside.append({id(v): o for v, o in zip(side.inputs, operands) if o is not None})
            for result, gradient in zip(side.results, self.given):
                if gradient is not None:
                    inside = side.input(gradient)
                    outside[-1][id(inside)] = gradient
                    side.seed(result, inside)
            own = [k for k in self.active if start <= k < start + len(side.inputs)]
            for k, gradient in zip(own, side.found([side.inputs[k - start] for k in own])):
                if gradient is not None:
                    found[k] = gradient
        if not found:
            return [None] * len(self.active)
        self._draw(sides, outside)
        made = []
        for n, (side, start) in enumerate(zip(sides, first)):
            results = []
            for k, gradient in found.items():
                if start <= k < start + len(side.inputs):
                    results.append(gradient)
                    continue
                operand = self.node.inputs[k]
                assert operand is not None
                if not operand.tensor.is_static:  # its sizes are known inside as those of an input
                    outside[n][id(side.input(operand))] = operand
                results.append(side.zeros(operand))
            made.append(side.finished(results))
        taken = [outside[n][id(v)] for n, body in enumerate(made) for v in body.inputs]
        values = self.builder.add_all(If(*made), self.node.inputs[0], *taken)
        if not all(isinstance(v.type, TensorType) for v in values):
            raise _refused(self.node, "the sizes of a gradient are known in one of its branches only")
        by = dict(zip(found, values))
        return [by.get(k) for k in self.active]

    def _draw(self, sides: Sequence[_Backward], outside: Sequence[dict[int, Value]]) -> None:
        """What the branches drew becomes further results: zeros of the one that is not taken."""
        drawn = [(n, v) for n, side in enumerate(sides) for v in side.drawn]
        if not drawn:
            return
        then, orelse = (
            _also_gives(self.builder, body, [v.name if n == m else v.tensor for n, v in drawn])
            for m, body in enumerate((self.op.then, self.op.orelse))
        )
        for (n, inside), value in zip(drawn, _extend(self.builder, self.node, If(then, orelse))):
            outside[n][id(inside)] = value


class _Iterations:
    """The gradient of a Loop. Positions are those of the body's inputs: the number of the iteration, carried values,
    items, captured values; of the node they come after two others."""

    def __init__(self, builder: GraphBuilder, node: Node, op: Loop, given: Gradients, active: Sequence[int]) -> None:
        self.builder, self.node, self.op, self.given, self.active = builder, node, op, given, active
        self.count = self._count()
        self.first_item = 1 + op.carried
        self.first_captured = self.first_item + len(op.item_axes)

    def _count(self) -> Dim:
        """The number of iterations.

        Raises:
            UnsupportedError: it shows only as the loop runs.
        """
        op, (trips, going) = self.op, self.node.inputs[:2]
        last = self.op.body.outputs[0].constant if op.tests else None
        if op.tests and (last is None or not bool(last.reshape(-1)[0])):
            raise _refused(self.node, "its body decides whether there is another iteration: their number is not known")
        if going is not None and (going.constant is None or not bool(going.constant.reshape(-1)[0])):
            raise _refused(self.node, "whether it begins is known only at run time")
        if SEQUENCE in (*op.item_axes, *op.result_axes):
            raise _refused(self.node, "it takes or gives a sequence, and gradients are tensors")
        if op.count is not None:
            return op.count
        if trips is None:
            return self.node.inputs[2 + op.carried].shape[op.item_axes[0]]  # type: ignore[union-attr]  # items are there
        if op.item_axes:
            raise _refused(self.node, "its number of iterations is the least of several")
        return as_dim(e.maximum(self.builder.symbol(trips), e.const(0, dt.int64)))

    def _outside(self, k: int) -> Value:
        value = self.node.inputs[k + 1]
        assert value is not None
        return value

    def gradients(self) -> list[Value | None]:
        op, back = self.op, _Backward(self.builder, self.node, self.op.body)
        by = self._by(back)
        carried = [k for k in by if k < self.first_item]
        outer = Composer(self.builder)
        results = back.results[op.tests :]
        starts: list[tuple[Value, Value]] = []  # in the body and outside
        items: list[tuple[Value, Value, int, bool]] = []  # the same, the axis, whether from the end
        for k in carried:
            if not isinstance(self.node.outputs[k - 1].type, TensorType):
                raise _refused(self.node, f"the sizes of '{back.inputs[k].name}' differ between iterations")
            gradient = self.given[k - 1]
            start = self._outside(k)
            starts.append(
                (back.input(back.inputs[k]), outer(Fill(start.dtype, start.shape, 0)) if gradient is None else gradient)
            )
            back.seed(results[k - 1], starts[-1][0])
        for q, (axis, backward) in enumerate(zip(op.result_axes, op.result_backward)):
            gradient = self.given[op.carried + q]
            if gradient is not None:
                items.append((back.input(results[op.carried + q]), gradient, axis, not backward))
                back.seed(results[op.carried + q], items[-1][0])
        found = dict(zip(by, back.found([back.inputs[k] for k in by])))
        sums = [k for k in by if k >= self.first_captured and found[k] is not None]
        parts = [k for k in by if self.first_item <= k < self.first_captured and found[k] is not None]
        outputs = [v if (v := found[k]) is not None else back.zeros(back.inputs[k]) for k in carried]
        for k in sums:  # in float32 for narrower floats, as every sum
            value, total = found[k], back.input(back.inputs[k], wide=True)
            assert value is not None
            outside = self._outside(k)
            starts.append((total, outer(Fill(total.dtype, outside.shape, 0))))
            outputs.append(back.composer.add(total, back.composer.cast(value, total.dtype)))
        outputs += [v for k in parts if (v := found[k]) is not None]
        values = self._loop(back, starts, items, outputs, [op.item_axes[k - self.first_item] for k in parts],
                            [not op.item_backward[k - self.first_item] for k in parts])  # fmt: skip
        result: dict[int, Value] = dict(zip((*carried, *sums, *parts), values))
        return [
            None if (v := result.get(k - 1)) is None else outer.cast(v, self._outside(k - 1).dtype) for k in self.active
        ]

    def _by(self, back: _Backward) -> list[int]:
        """The positions by which there are gradients: what is asked for, and carried values that depend on it."""
        found = {k - 1 for k in self.active}
        results = back.results[self.op.tests :]
        while True:
            reached = reached_by(back.nodes, [back.inputs[k] for k in sorted(found)])
            more = {1 + j for j in range(self.op.carried) if id(results[j]) in reached} - found
            if not more:
                return sorted(found)
            odd = [back.inputs[k] for k in sorted(more) if not is_float(back.inputs[k])]
            if odd:
                raise _refused(self.node, f"it carries '{odd[0].name}', a {odd[0].type}, and gradients are tensors")
            found |= more

    def _loop(
        self,
        back: _Backward,
        starts: Sequence[tuple[Value, Value]],
        items: Sequence[tuple[Value, Value, int, bool]],
        outputs: Sequence[Value],
        axes: Sequence[int],
        backward: Sequence[bool],
    ) -> tuple[Value, ...]:
        """Adds the loop over the body `back`."""
        op, first = self.op, back.graph.inputs
        body = back.finished(outputs)
        needed = {id(v) for v in body.inputs}
        items = [i for i in items if id(i[0]) in needed]
        kept: dict[str | int, Value] = {k: first[k] for k in range(self.first_item) if id(first[k]) in needed}
        kept |= {v.name: v for v in back.drawn if id(v) in needed}
        items += [(v, collected, 0, True) for v, collected in zip(kept.values(), self._collected(list(kept)))]
        for n, (axis, from_end) in enumerate(zip(op.item_axes, op.item_backward)):
            k = self.first_item + n
            if id(first[k]) in needed:
                items.append((first[k], self._outside(k), axis, not from_end))
        captured = [k for k in range(self.first_captured, len(back.inputs)) if id(first[k]) in needed]
        number = Value(back.builder.unique("step"), TensorType(dt.int64, ()))
        body.inputs = [number, *(s[0] for s in starts), *(i[0] for i in items), *(first[k] for k in captured)]
        made = Loop(
            body, len(starts), False, self.count,
            tuple(i[2] for i in items), tuple(i[3] for i in items), tuple(axes), tuple(backward),
        )  # fmt: skip
        trips = None if items else Composer(self.builder).dim(self.count)
        values = self.builder.add_all(
            made, trips, None, *(s[1] for s in starts), *(i[1] for i in items), *(self._outside(k) for k in captured)
        )
        if not all(isinstance(v.type, TensorType) for v in values):
            raise _refused(self.node, "the sizes of a gradient are known only as it runs")
        return values

    def _collected(self, kept: Sequence[str | int]) -> Sequence[Value]:
        """What comes into each iteration at these positions, or is computed there under these names, along the first
        axis: further results of the loop."""
        if not kept:
            return ()
        op, count = self.op, len(kept)
        made = replace(
            op,
            body=_also_gives(self.builder, op.body, kept),
            count=self.count,
            result_axes=(*op.result_axes, *(0,) * count),
            result_backward=(*op.result_backward, *(False,) * count),
        )
        return _extend(self.builder, self.node, made)


__all__ = ["control_gradients"]
