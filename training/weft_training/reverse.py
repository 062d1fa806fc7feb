"""Reverse mode: the gradients of a graph's values as a graph.

Every node has a rule that turns gradients by its outputs into gradients by its operands: what its operator defines
(`Operator.gradient`), the derivative of its formula where it is elementwise, or the rules of the operators that it
decomposes into. Nodes are visited last to first; a value that is used often has the sum of what its uses give (Griewank
and Walther, Evaluating Derivatives, 2008).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.errors import GraphError, UnsupportedError
from weft.graph.control import If, Loop
from weft.graph.nodes import Graph, GraphBuilder, Node, OptionalType, SequenceType, TensorType, Type, Value
from weft.graph.operator import Algorithm, Elementwise, Operator
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.decompose import decomposition
from weft_ops import Add
from weft_ops.composing import Composer
from weft_ops.derivatives import elementwise_gradient
from weft_ops.shapes import is_one

DEPTH = 16
"""Rounds of decomposing at most."""


def has_own_gradient(op: Operator) -> bool:
    """Whether the operator defines its gradient, instead of having that of its formula or its decomposition."""
    return type(op).gradient is not Operator.gradient or isinstance(op, Elementwise) or bool(op.no_gradient)


def differentiable_parts(graph: Graph) -> Graph:
    """A copy in which operators without a gradient of their own are decomposed, as far as they can be."""

    def splits(node: Node) -> bool:
        return not has_own_gradient(node.op) and decomposition(node) is not None

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        found = decomposition(node) if splits(node) else None
        if found is None:
            return None
        result = found.function(node.op, r.builder_for_rule(), *inputs)
        return result if isinstance(result, tuple) else (result,)

    for _ in range(DEPTH):
        if not any(map(splits, graph.nodes)):
            break
        graph = rewrite(graph, rule, rounds=1)
    return graph


def gradients(
    builder: GraphBuilder, nodes: Sequence[Node], seeds: Mapping[Value, Value], wrt: Sequence[Value]
) -> list[Value | None]:
    """Adds to `builder` what computes the gradients by `wrt` of Σ seed · value over `seeds`.

    Args:
        nodes: those between, in order; all are of the builder's graph.
        seeds: for values that are differentiated, the gradient of the whole by them: of their type.
        wrt: inputs, constants, or results of nodes, of float dtypes.

    Returns:
        For each of `wrt` its gradient, of its type; None: no differentiable path leads from it to the values.

    Raises:
        UnsupportedError: an operator on the way has no gradient; names the node and says why.
    """
    c = Composer(builder)
    depends = reached_by(nodes, wrt)
    found: dict[int, Value] = {}

    def accumulate(value: Value, gradient: Value) -> None:
        gradient = summed_to(c, gradient, value)
        before = found.get(id(value))
        found[id(value)] = gradient if before is None else builder.add(Add(), before, gradient)

    for value, seed in seeds.items():
        if id(value) in depends:
            accumulate(value, seed)
    wanted = {id(v) for v in wrt}
    for node in reversed(nodes):
        given = [found.get(id(v)) for v in node.outputs]
        active = [k for k, v in enumerate(node.inputs) if v is not None and id(v) in depends and not _is_complex(v)]
        if all(g is None for g in given):
            continue
        if any(v is not None and id(v) in depends and _is_complex(v) for v in node.inputs):
            raise UnsupportedError(
                "no gradient passes complex numbers",
                where=where(node),
                why="derivatives are those of floats by floats",
                hint=_STOP,
            )
        if not active:
            continue
        with builder.named(*node.names):
            for k, gradient in zip(active, node_gradients(builder, node, given, active)):
                operand = node.inputs[k]
                if gradient is not None and operand is not None:
                    accumulate(operand, gradient)
        for value in node.outputs:  # nothing before this node uses them
            if id(value) not in wanted:
                found.pop(id(value), None)
    return [found.get(id(v)) for v in wrt]


def reached_by(nodes: Sequence[Node], wrt: Iterable[Value]) -> set[int]:
    """Ids of what depends on one of `wrt` and is of floats: these values themselves, and results of the nodes."""
    depends = {id(v) for v in wrt}
    for node in nodes:
        if any(v is not None and id(v) in depends for v in node.inputs):
            depends.update(id(v) for v in node.outputs if holds_floats(v.type) or _is_complex(v))
    return depends


def node_gradients(
    builder: GraphBuilder, node: Node, given: Sequence[Value | None], active: Sequence[int]
) -> list[Value | None]:
    """The gradients by the operands `active` of one node, from those by its outputs.

    Raises:
        UnsupportedError: its operator has none.
    """
    op = node.op
    if isinstance(op, (If, Loop)):
        from weft_training.control import control_gradients  # which differentiates graphs itself

        return control_gradients(builder, node, given, active)
    for k in active:
        if k in op.no_gradient_by:
            raise UnsupportedError(
                f"{op.operator_name} has no gradient by operand {k}",
                where=where(node),
                why=op.no_gradient_by[k],
                hint=f"leave values before it out of `wrt`: {_STOP}",
            )
    if type(op).gradient is not Operator.gradient:
        results = op.gradient(builder, node, given)
        if len(results) != len(node.inputs):
            raise GraphError(
                f"the gradient of {op.operator_name} has {len(results)} values for {len(node.inputs)} operands",
                where=repr(node),
            )
        return [results[k] for k in active]
    if op.no_gradient:
        raise UnsupportedError(
            f"no gradient passes {op.operator_name}", where=where(node), why=op.no_gradient, hint=_STOP
        )
    if isinstance(op, Elementwise):
        gradient = given[0]
        assert gradient is not None
        return [elementwise_gradient(builder, op, node.inputs, node.output, gradient, k) for k in active]
    parts = decomposition(node)
    if parts is not None:
        return _gradients_of_parts(builder, node, parts, given, active)
    raise UnsupportedError(
        f"{op.operator_name} has no gradient",
        where=where(node),
        why="the operator defines none, has no formula for each element, and consists of no simpler operators",
        hint=f"give it a method `gradient`, or leave values before it out of `wrt`: {_STOP}",
    )


def _gradients_of_parts(
    builder: GraphBuilder, node: Node, parts: Algorithm, given: Sequence[Value | None], active: Sequence[int]
) -> list[Value | None]:
    """The gradients of an operator that a gradient brought, which is decomposed beside itself: what its parts compute
    again goes where no gradient needs it."""
    before = len(builder.graph.nodes)
    found = parts.function(node.op, builder, *node.inputs)
    results = found if isinstance(found, tuple) else (found,)
    seeds = {v: g for v, g in zip(results, given) if g is not None}
    wrt = {id(v): v for k in active if (v := node.inputs[k]) is not None}
    by = dict(zip(wrt, gradients(builder, builder.graph.nodes[before:], seeds, list(wrt.values()))))
    # An operand that is given twice has its gradient once.
    return [by.pop(id(node.inputs[k]), None) for k in active]


_STOP = "what reaches the result by another way, or not at all, may stay"


def where(node: Node) -> str:
    return repr(node) + (f", made of {', '.join(sorted(node.names))}" if node.names else "")


def holds_floats(type: Type) -> bool:
    """Whether values of this type hold numbers of a float dtype, as sequences of floats do."""
    if isinstance(type, (SequenceType, OptionalType)):
        return holds_floats(type.element)
    return type.dtype.is_float


def is_float(value: Value) -> bool:
    """Whether it is a tensor of a float dtype: others have no gradients."""
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def _is_complex(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.kind == "complex"


def summed_to(c: Composer, gradient: Value, value: Value) -> Value:
    """`gradient` summed over the axes along which `value` was broadcast, so that it has its shape.

    Raises:
        GraphError: it has another dtype, or a shape that the value does not broadcast to.
    """
    shape = value.shape
    if gradient.dtype != value.dtype or len(gradient.shape) < len(shape):
        raise GraphError(
            f"the gradient of '{value.name}' is a {gradient.type}, expected {value.type}", where=repr(gradient.producer)
        )
    extra = len(gradient.shape) - len(shape)
    ones = (k + extra for k, d in enumerate(shape) if is_one(d))
    axes = [*range(extra), *(k for k in ones if not is_one(gradient.shape[k]))]
    if axes:
        # In float32 for narrower floats: a sum of thousands in float16 would lose what each adds.
        gradient = c.cast(c.sum(c.wide(gradient), axes), value.dtype)
    return c.reshape(gradient, shape)
