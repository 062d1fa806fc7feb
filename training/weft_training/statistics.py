"""Statistics of batch normalisation, and other constants that a model writes, as states of a training step.

A normalisation of a model that is being trained computes with its batch's own mean and variance, and keeps running ones
for inference (Ioffe and Szegedy, Batch Normalization, 2015). The formulas are PyTorch's.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeAlias

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import InputError, UnsupportedError
from weft.graph.control import bodies
from weft.graph.identity import Identity, Require
from weft.graph.nodes import Graph, GraphBuilder, Node, Value
from weft.graph.rewrite import Rewriter
from weft.tensor.language import Dim
from weft_ops import Add, BatchNorm, Cast, Multiply, Reciprocal, Reshape, Sqrt
from weft_ops.composing import Composer
from weft_ops.shapes import axis_of, product

Statistics: TypeAlias = Literal["model", "update"]
"""What becomes of the statistics of normalisations; see `weft_training.compile_training`."""
AFTER = ".after"
"""What stands behind the name of a constant in that of the output which the model writes to it, as the frontend for
PyTorch calls what a module writes to its buffers."""


def with_states(graph: Graph, statistics: Statistics, momentum: float) -> tuple[Graph, dict[str, Value]]:
    """A copy of a graph without the outputs that are next values of constants, and these values by the constants'
    names; the constants are as they were.

    They are what a module of PyTorch writes to its buffers, and running statistics of an ONNX model that is in training
    mode, where they are outputs; with "update" also the statistics of every normalisation at inference, which then
    normalises by its batch.

    Args:
        momentum: the part of a batch's statistics in the running ones, with "update".

    Raises:
        InputError: `statistics` or `momentum` is none.
        UnsupportedError: with "update", a normalisation with constant statistics is in the body of a branch or loop,
            has one element for each mean, or its statistics are computed of constants.
    """
    if statistics not in ("model", "update"):
        raise InputError(f"statistics: expected 'model' or 'update', got {statistics!r}")
    if not 0 <= momentum <= 1:
        raise InputError(f"statistics_momentum: expected 0 … 1, got {momentum}")
    rewriter = Rewriter(graph)
    work = rewriter.run(lambda r, node, inputs: None)
    written: dict[str, Value] = {}
    outputs = list(zip(work.output_names or [v.name for v in work.outputs], work.outputs))
    constants = {v.name: v for v in work.constants()}
    means = {id(v) for n in work.nodes if isinstance(n.op, BatchNorm) for v in n.inputs[3:5] if v is not None}
    kept = []
    uses = _Uses(work)
    for name, value in outputs:
        if name.endswith(AFTER):
            constant = constants.get(name.removesuffix(AFTER))
        else:
            constant = _running(value, means)
            if constant is not None and constant.type == value.type and uses.count[id(constant)] > 1:
                constant = _apart(rewriter.builder, value, constant)
        if constant is None or constant.type != value.type or constant.name in written:
            kept.append((name, value))
        else:
            written[constant.name] = value
    work.output_names, work.outputs = [n for n, _ in kept], [v for _, v in kept]
    if statistics == "update":
        _in_training(rewriter.builder, momentum, written)
    return work, written


def source_of(value: Value | None) -> Value | None:
    """The value whose elements a value has, in their order, perhaps in another shape or dtype."""
    while value is not None and value.producer is not None:
        if not isinstance(value.producer.op, (Cast, Identity, Reshape)):
            break
        value = value.producer.inputs[0]
    return value


def statistics_of(graph: Graph) -> set[int]:
    """The constants, by id, that normalisations at inference have as mean and variance."""
    found = (source_of(v) for n in graph.nodes if isinstance(n.op, BatchNorm) for v in n.inputs[3:5])
    return {id(v) for v in found if v is not None and v.constant is not None}


class _Uses:
    """What constants are used for, in whatever shape and dtype.

    Attributes:
        count: by the id of a constant, how often a node or output uses it.
        statistics: by the id of a constant, for which normalisations it is a mean or variance: the ids of all vectors
            of the normalisation, and the operand's place.
    """

    def __init__(self, graph: Graph) -> None:
        self.count: Counter[int] = Counter(id(source_of(v)) for v in graph.outputs)
        self.statistics: dict[int, Counter[tuple[tuple[int, ...], int]]] = {}
        for node in graph.nodes:
            if isinstance(node.op, (Cast, Identity, Reshape)):
                continue
            sources = [id(source_of(v)) for v in node.inputs]
            self.count.update(sources)
            if isinstance(node.op, BatchNorm):
                for place in (3, 4):
                    self.statistics.setdefault(sources[place], Counter())[tuple(sources[1:5]), place] += 1

    def alone(self, constant: Value) -> bool:
        """Whether a constant is the mean, or the variance, of one normalisation alone, which may be used often. Files
        may have one constant for all weights that have the same elements, as zeros have."""
        found = self.statistics.get(id(constant), Counter())
        return len(found) == 1 and found.total() == self.count[id(constant)]


def _apart(builder: GraphBuilder, value: Value, constant: Value) -> Value:
    """A copy of the constant, in its place in a running mean (`_running`) of its type."""
    copy = builder.constant(constant.constant, constant.name)
    assert value.producer is not None and value.producer.inputs[0] is not None
    old = value.producer.inputs[0].producer
    assert old is not None
    old.inputs = (copy, *old.inputs[1:])
    return copy


def _running(value: Value, means: set[int]) -> Value | None:
    """The constant whose running mean a value is: c · constant + d · x, x the mean or variance by which a normalisation
    normalises (`means`, by id)."""
    node = value.producer
    if node is None or not isinstance(node.op, Add):
        return None
    old, new = (None if v is None else v.producer for v in node.inputs)
    if old is None or new is None or not isinstance(old.op, Multiply) or not isinstance(new.op, Multiply):
        return None
    x, constant = new.inputs[0], source_of(old.inputs[0])
    if x is not None and x.producer is not None and isinstance(x.producer.op, Cast):
        x = x.producer.inputs[0]
    return constant if constant is not None and constant.constant is not None and id(x) in means else None


def _in_training(builder: GraphBuilder, momentum: float, written: dict[str, Value]) -> None:
    """Makes normalisations with constant statistics normalise by their batch; adds the running statistics after it to
    `written`.

    Raises:
        UnsupportedError: as `with_states`.
    """
    graph, uses = builder.graph, _Uses(builder.graph)
    copies: dict[tuple[int, ...], Value] = {}
    nodes, graph.nodes = graph.nodes, []
    replaced: dict[int, Value] = {}
    computed = {id(v) for v in graph.inputs}
    """What depends on inputs or random numbers, by id."""
    for node in nodes:
        node.inputs = tuple([None if v is None else replaced.get(id(v), v) for v in node.inputs])
        statistics = [v for v in node.inputs[3:5] if v is not None] if isinstance(node.op, BatchNorm) else []
        sources = [s for s in map(source_of, statistics) if s is not None and s.constant is not None]
        if any(statistics_of(body) for body in bodies(node.op)):
            raise UnsupportedError(
                "a normalisation in the body of a branch or loop has no running statistics",
                where=_where(node),
                hint=_HINT,
            )
        if statistics and len(sources) < 2 and not any(id(v) in computed for v in statistics):
            raise UnsupportedError(
                "statistics of a normalisation are computed of several constants", where=_where(node), hint=_HINT
            )
        if len(sources) < 2:
            graph.nodes.append(node)
            if not node.op.deterministic or any(id(v) in computed for v in node.inputs):
                computed.update(id(o) for o in node.outputs)
            continue
        with builder.named(*node.names):
            y, now = _normalized(builder, node)
            vectors = tuple(id(source_of(v)) for v in node.inputs[1:5])
            for place, (source, new) in enumerate(zip(sources, now)):
                if not uses.alone(source):
                    key = (*vectors, place)
                    if key not in copies:
                        copies[key] = builder.constant(source.constant, source.name)
                    source = copies[key]
                written[source.name] = _moved(builder, written.get(source.name, source), new, momentum)
        y.name, node.output.name = node.output.name, y.name
        replaced[id(node.output)] = y
        computed.add(id(y))
    graph.outputs = [replaced.get(id(v), v) for v in graph.outputs]


_HINT = 'statistics="model" leaves those of normalisations at inference as they are'


def _where(node: Node) -> str:
    return repr(node) + (f", made of {', '.join(sorted(node.names))}" if node.names else "")


def _normalized(builder: GraphBuilder, node: Node) -> tuple[Value, tuple[Value, Value]]:
    """The result of a normalisation by its batch, and the statistics for inference: the mean, and the variance with a
    divisor of one less than the number of elements."""
    assert isinstance(node.op, BatchNorm)
    x, scale, bias = node.inputs[:3]
    assert x is not None and scale is not None and bias is not None
    c, rank = Composer(builder), len(x.shape)
    axis = axis_of(node.op.axis, rank)
    others = tuple(d for d in range(rank) if d != axis)
    count = product([x.shape[d] for d in others])
    if isinstance(count, int) and count < 2:
        raise UnsupportedError(
            "a batch normalisation needs several elements for each of its means",
            where=_where(node),
            why=f"its operand is a {x.type}",
            hint='a larger batch, or statistics="model"',
        )
    text = "a batch normalisation needs several elements for each of its means, the batch has {0}"
    x = c.required(x, Require(count, 2, None, text, (count,), "BatchNorm"))
    wide = c.wide(x)
    mean = c.mean(wide, others)
    low = c.sub(wide, mean)
    variance = c.mean(c.mul(low, low), others)
    column = (x.shape[axis], *(1 for _ in x.shape[axis + 1 :]))
    factor = c.mul(
        c.reshape(c.cast(scale, wide.dtype), column),
        c(Reciprocal(), c(Sqrt(), c.add(c.reshape(variance, column), node.op.epsilon))),
    )
    y = c.add(c.mul(low, factor), c.reshape(c.cast(bias, wide.dtype), column))
    vector = (x.shape[axis],)
    unbiased = c.mul(c.reshape(variance, vector), _correction(c, count, wide.dtype))
    return c.cast(y, x.dtype), (c.reshape(mean, vector), unbiased)


def _correction(c: Composer, count: Dim, dtype: DType) -> Value | float:
    """count / (count - 1)."""
    if isinstance(count, int):
        return count / (count - 1)
    several = c.cast(c.dim(count), dt.float64)
    return c.cast(c.div(several, c.sub(several, 1.0)), dtype)


def _moved(builder: GraphBuilder, old: Value, new: Value, momentum: float) -> Value:
    """(1 - momentum) · old + momentum · new, of old's type."""
    c = Composer(builder)
    new = c.cast(c.reshape(new, old.shape), old.dtype)
    return c.add(c.mul(old, 1.0 - momentum), c.mul(new, momentum))
