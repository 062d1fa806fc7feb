"""Random valid ONNX models of many operators: any rank to five, sizes of zero and one, broadcasting, all dtypes, sizes
that are open.

A model grows node by node. Each is evaluated by ONNX's reference as it is added, for every assignment of the open
sizes, and once more with noise of the last digits on all results that are rounded: what the reference refuses,
overflows or makes NaN is left out, and the noise tells how far two right results may be apart. Operators that jump
(comparisons, roundings, positions of maxima) take what is exact only.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OPSET = 21
FLOATS = ("float32", "float32", "float32", "float16", "float64")
INTS = ("int64", "int32", "int8", "uint8", "int16", "uint32")
SIZES = (1, 2, 3, 4, 5, 7)
ASSIGNMENTS = (3, 6)
"""What the open size `n` is in one run of a model and the next."""
LARGEST = {"float16": 50.0, "float32": 1e4, "float64": 1e6}
# The reference computes Erf of float64 in float32, and with attributes that are float32 (HardSigmoid's 0.2).
NOISE = {"float16": 1e-3, "float32": 3e-7, "float64": 3e-8}
MOST_ELEMENTS = 4000

Array = np.ndarray[Any, Any]


@dataclass
class Value:
    """A value of the model: its array in each run, the same with noise, and whether it is exact."""

    name: str
    runs: list[Array]
    noisy: list[Array]
    exact: bool

    @property
    def dtype(self) -> str:
        return str(self.runs[0].dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.runs[0].shape

    @property
    def rank(self) -> int:
        return self.runs[0].ndim


class Refused(Exception):
    """A choice that makes no valid node."""


@dataclass
class Model:
    """A random model with inputs and expected outputs of its runs, by name; `slack` is how far results may be apart by
    noise."""

    seed: int
    proto: onnx.ModelProto
    inputs: list[dict[str, Array]]
    outputs: list[dict[str, Array]]
    slack: list[dict[str, Array]]


@dataclass
class Growing:
    chance: random.Random
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    open: bool = False
    count: int = 0

    # -- values
    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def data(self, shape: tuple[int, ...], dtype: str) -> Array:
        rng = np.random.default_rng(self.chance.getrandbits(32))
        if dtype == "bool":
            return rng.random(shape) < 0.5
        if dtype.startswith("float"):
            return np.asarray(rng.uniform(-2, 2, shape)).astype(dtype)
        return np.asarray(rng.integers(0 if dtype.startswith("u") else -6, 9, shape)).astype(dtype)

    def input(self) -> None:
        chance, name = self.chance, self.fresh()
        dtype = chance.choice((*FLOATS, *INTS[:4], "bool"))
        rank = chance.choice((0, 1, 2, 2, 3, 3, 4, 4, 5))
        shape = [chance.choice(SIZES) if chance.random() > 0.03 else 0 for _ in range(rank)]
        dims: list[int | str] = [("n" if self.open and chance.random() < 0.4 else d) for d in shape]
        runs = [self.data(tuple(n if d == "n" else int(d) for d in dims), dtype) for n in self.assignments]
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(runs[0].dtype), dims))
        self.values.append(Value(name, runs, [r.copy() for r in runs], True))

    @property
    def assignments(self) -> tuple[int, ...]:
        return ASSIGNMENTS if self.open else ASSIGNMENTS[:1]

    def constant(self, array: Any, dtype: str | None = None) -> Value:
        data = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype)
        name = self.fresh()
        self.constants.append(numpy_helper.from_array(data, name))
        return Value(name, [data] * len(self.assignments), [data] * len(self.assignments), True)

    def pick(
        self,
        *dtypes: str,
        ranks: tuple[int, int] = (0, 5),
        exact: bool = False,
        where: Callable[[Value], bool] = lambda v: True,
    ) -> Value:
        """A value of these dtypes (any if none is given), rather one of the last."""
        fit = [
            v for v in self.values
            if (not dtypes or v.dtype in dtypes)
            and ranks[0] <= v.rank <= ranks[1]
            and (v.exact or not exact or not v.dtype.startswith("float"))
            and where(v)
        ]  # fmt: skip
        if not fit:
            raise Refused
        return self.chance.choice(fit[-6:] if self.chance.random() < 0.6 else fit)

    def like(self, x: Value) -> Value:
        """A value that x broadcasts with: another one of the model, or a constant."""
        fit = [v for v in self.values if v.dtype == x.dtype and v is not x and _broadcast(v, x)]
        if fit and self.chance.random() < 0.7:
            return self.chance.choice(fit)
        kept = x.shape[self.chance.randrange(x.rank + 1) :]
        shape = tuple(1 if self.chance.random() < 0.3 or any(r.shape != x.shape for r in x.runs) else d for d in kept)
        return self.constant(self.data(shape, x.dtype))

    # -- nodes
    def add(
        self, op: str, inputs: list[Value | None], outputs: int = 1, exact: bool = False, **attributes: Any
    ) -> None:
        """A node, if the reference takes it in every run.

        Raises:
            Refused: it does not, or results are too large, not finite, or too many.
        """
        names = [self.fresh() for _ in range(outputs)]
        node = helper.make_node(
            op, ["" if v is None else v.name for v in inputs], names, name=f"{op}_{self.count}", **attributes
        )
        given = [v for v in inputs if v is not None]
        runs = [evaluate(node, [v.runs[k] for v in given]) for k in range(len(self.assignments))]
        noisy = [evaluate(node, [v.noisy[k] for v in given]) for k in range(len(self.assignments))]
        same = exact and all(v.exact for v in given)
        sums = op.startswith(("Reduce", "Cum")) or sum(v.runs[0].dtype.kind == "f" for v in given) > 1
        for q, name in enumerate(names):
            arrays, others = [r[q] for r in runs], [r[q] for r in noisy]
            if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(arrays, others)):
                raise Refused
            if not same:
                others = [self.disturbed(a, sums) for a in others]
            if not all(_tame(a) for a in (*arrays, *others)):
                raise Refused
            self.values.append(Value(name, arrays, others, same))
        self.nodes.append(node)

    def disturbed(self, a: Array, sums: bool) -> Array:
        """`a` with noise in its last digits: those of the largest element where elements are sums, since terms that
        cancel leave their roundings."""
        if a.dtype.kind != "f" or not a.size:
            return a
        rng = np.random.default_rng(self.chance.getrandbits(32))
        size = np.abs(a).max() if sums and np.isfinite(a).all() else a
        with np.errstate(all="ignore"):  # what is not finite is left out
            return np.asarray(a + size * (NOISE[str(a.dtype)] * rng.uniform(-1, 1, a.shape))).astype(a.dtype)


def _broadcast(a: Value, b: Value) -> bool:
    try:
        return all(np.broadcast_shapes(x.shape, y.shape) is not None for x, y in zip(a.runs, b.runs))
    except ValueError:
        return False


def _tame(a: Array) -> bool:
    if a.size > MOST_ELEMENTS:
        return False
    return a.dtype.kind != "f" or (
        bool(np.isfinite(a).all()) and (not a.size or float(np.abs(a).max()) <= LARGEST[str(a.dtype)])
    )


def evaluate(node: onnx.NodeProto, arrays: list[Array]) -> list[Array]:
    """A node's outputs by ONNX's reference.

    Raises:
        Refused: it fails.
    """
    names = [n for n in node.input if n]
    distinct = dict(zip(names, arrays))
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in distinct.items()
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in node.output]
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs), opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
    )
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, distinct)
    except Exception as error:
        raise Refused from error
    if not all(isinstance(r, (np.ndarray, np.generic)) for r in results):
        raise Refused
    made = [np.asarray(r) for r in results]
    # The reference is wrong where it departs from the types that ONNX's own inference gives (sums of squares of int32,
    # global pools of three dimensions).
    for info, array in zip(onnx.shape_inference.infer_shapes(model).graph.output, made):
        known = info.type.tensor_type
        if known.elem_type != helper.np_dtype_to_tensor_dtype(array.dtype) or (
            known.HasField("shape") and len(known.shape.dim) != array.ndim
        ):
            raise Refused
    return made


# -- operators --------------------------------------------------------------------------------------------------------

Maker = Callable[[Growing], None]
SMOOTH = (
    "Abs", "Neg", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Elu", "Erf", "Exp", "HardSigmoid",
    "HardSwish", "LeakyRelu", "Log",
    "Mish", "Reciprocal", "Relu", "Selu", "Celu", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan",
    "Tanh", "Gelu", "Identity",
)  # fmt: skip
JUMPING = "Ceil Floor Round Sign ThresholdedRelu Shrink IsNaN IsInf".split()  # noqa: SIM905
REDUCING = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare".split()  # noqa: E501, SIM905


def _unary(op: str) -> Maker:
    return lambda g: g.add(op, [g.pick(*FLOATS)], exact=op in ("Abs", "Neg", "Relu", "Identity"))


def _jumping(op: str) -> Maker:
    return lambda g: g.add(
        op, [g.pick(*(("float32", "float64") if op.startswith("Is") else FLOATS), exact=True)], exact=True
    )


def _binary(op: str, dtypes: tuple[str, ...], jumps: bool = False, exact: bool = False) -> Maker:
    def make(g: Growing) -> None:
        x = g.pick(*dtypes, exact=jumps)
        y = g.like(x)
        if jumps and not y.exact and y.dtype.startswith("float"):
            raise Refused
        pair: list[Value | None] = [x, y] if g.chance.random() < 0.5 else [y, x]
        if op in ("Div", "Mod") and x.dtype[0] in "iu":
            pair = [x, g.constant(g.chance.choice((1, 2, 3, 5)), x.dtype)]
        g.add(
            op,
            pair,
            exact=exact or x.dtype[0] in "iub",
            **({"direction": g.chance.choice(("LEFT", "RIGHT"))} if op == "BitShift" else {}),
        )

    return make


def _reduce(op: str) -> Maker:
    def make(g: Growing) -> None:
        x = (
            g.pick(*FLOATS, "int32", "int64", ranks=(1, 5))
            if op not in ("ReduceLogSum", "ReduceLogSumExp")
            else g.pick(*FLOATS, ranks=(1, 5))
        )
        if any(0 in r.shape for r in x.runs) and op in (
            "ReduceMax",
            "ReduceMin",
            "ReduceMean",
            "ReduceLogSumExp",
            "ReduceLogSum",
        ):
            raise Refused
        axes = g.chance.sample(range(-x.rank, 0), g.chance.randint(1, x.rank))
        g.add(
            op,
            [x, g.constant(axes, "int64")],
            exact=op in ("ReduceMax", "ReduceMin") or x.dtype[0] == "i",
            keepdims=g.chance.randint(0, 1),
        )

    return make


def _arg(op: str) -> Maker:
    def make(g: Growing) -> None:
        x = g.pick("float32", "int32", "float64", ranks=(1, 4), exact=True, where=lambda v: all(r.size for r in v.runs))
        g.add(
            op,
            [x],
            exact=True,
            axis=g.chance.randrange(-x.rank, x.rank),
            keepdims=g.chance.randint(0, 1),
            select_last_index=g.chance.randint(0, 1),
        )

    return make


def where(g: Growing) -> None:
    x = g.pick()
    condition = g.pick("bool", where=lambda v: _broadcast(v, x))
    g.add("Where", [condition, x, g.like(x)], exact=True)


def cast(g: Growing) -> None:
    x = g.pick(exact=True)
    to = g.chance.choice(("float32", "float16", "float64", "int32", "int64", "bool"))
    if to == "float16" and x.dtype == "float64":
        raise Refused
    g.add("Cast", [x], exact=True, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


def clip(g: Growing) -> None:
    x = g.pick(*FLOATS, "int32", "int8")
    g.add("Clip", [x, g.constant(-1, x.dtype), g.constant(2, x.dtype)], exact=True)


def reshape(g: Growing) -> None:
    x = g.pick(where=lambda v: all(r.size for r in v.runs))
    kind = g.chance.random()
    target: list[int]
    if kind < 0.5 or g.open:
        keep = g.chance.randint(0, max(0, x.rank - 1))
        target = [0] * keep + [-1] if g.chance.random() < 0.7 else [-1, 1]
    else:
        left, target = x.runs[0].size, []
        for d in (2, 3, 5, 7):
            if left % d == 0 and g.chance.random() < 0.6:
                target.append(d)
                left //= d
        target.insert(g.chance.randint(0, len(target)), left)
    g.add("Reshape", [x, g.constant(target, "int64")], exact=True)


def reshape_like(g: Growing) -> None:
    """To the shape of another value, read at run time."""
    x = g.pick()
    like = g.pick(where=lambda v: v is not x and all(a.size == b.size for a, b in zip(v.runs, x.runs)))
    g.add("Shape", [like], exact=True)
    g.add("Reshape", [x, g.values[-1]], exact=True, allowzero=1)


def transpose(g: Growing) -> None:
    x = g.pick(ranks=(2, 5))
    g.add("Transpose", [x], exact=True, perm=g.chance.sample(range(x.rank), x.rank))


def flatten(g: Growing) -> None:
    x = g.pick(ranks=(1, 5))
    g.add("Flatten", [x], exact=True, axis=g.chance.randint(0, x.rank))


def squeeze(g: Growing) -> None:
    x = g.pick(ranks=(1, 5), where=lambda v: any(all(r.shape[a] == 1 for r in v.runs) for a in range(v.rank)))
    g.add(
        "Squeeze",
        [x, g.constant([a for a in range(x.rank) if all(r.shape[a] == 1 for r in x.runs)], "int64")],
        exact=True,
    )


def unsqueeze(g: Growing) -> None:
    x = g.pick(ranks=(0, 4))
    g.add("Unsqueeze", [x, g.constant([g.chance.randrange(-x.rank - 1, x.rank + 1)], "int64")], exact=True)


def concat(g: Growing) -> None:
    x = g.pick(ranks=(1, 5))
    axis = g.chance.randrange(x.rank)

    def fits(v: Value) -> bool:
        return (
            v.dtype == x.dtype
            and v.rank == x.rank
            and all(
                a.shape[:axis] + a.shape[axis + 1 :] == b.shape[:axis] + b.shape[axis + 1 :]
                for a, b in zip(v.runs, x.runs)
            )
        )

    others = [g.pick(x.dtype, where=fits) for _ in range(g.chance.randint(1, 3))]
    g.add("Concat", [x, *others], exact=True, axis=g.chance.choice((axis, axis - x.rank)))


def slice_(g: Growing) -> None:
    x = g.pick(ranks=(1, 5))
    axes = g.chance.sample(range(x.rank), g.chance.randint(1, x.rank))
    steps = [g.chance.choice((1, 1, 2, -1, -2)) for _ in axes]
    starts = [g.chance.choice((0, 1, -2, -100)) if s > 0 else g.chance.choice((-1, 100, 2)) for s in steps]
    ends = [g.chance.choice((100, -1, 3)) if s > 0 else g.chance.choice((-100, 0, -(2**62))) for s in steps]
    g.add("Slice", [x, *(g.constant(v, "int64") for v in (starts, ends, axes, steps))], exact=True)


def split(g: Growing) -> None:
    x = g.pick(
        ranks=(1, 5),
        where=lambda v: any(len({r.shape[a] for r in v.runs}) == 1 and v.shape[a] > 1 for a in range(v.rank)),
    )
    axis = g.chance.choice([a for a in range(x.rank) if len({r.shape[a] for r in x.runs}) == 1 and x.shape[a] > 1])
    first = g.chance.randint(0, x.shape[axis])
    g.add("Split", [x, g.constant([first, x.shape[axis] - first], "int64")], 2, exact=True, axis=axis)


def expand(g: Growing) -> None:
    x = g.pick()
    wanted = [
        d if g.chance.random() < 0.5 and len({r.shape[k] for r in x.runs}) == 1 and d != 1 else 1
        for k, d in enumerate(x.shape)
    ]
    for k, d in enumerate(x.shape):
        if d == 1 and g.chance.random() < 0.7 and len({r.shape[k] for r in x.runs}) == 1:
            wanted[k] = g.chance.choice((0, 2, 3))
    g.add(
        "Expand",
        [x, g.constant([*([2] * g.chance.randint(0, max(0, min(1, 5 - x.rank)))), *wanted], "int64")],
        exact=True,
    )


def tile(g: Growing) -> None:
    x = g.pick(ranks=(1, 4))
    g.add("Tile", [x, g.constant([g.chance.choice((1, 1, 2, 0)) for _ in range(x.rank)], "int64")], exact=True)


def pad(g: Growing) -> None:
    x = g.pick("float32", "float64", "int32", "int64", ranks=(1, 4))
    mode = g.chance.choice(("constant", "constant", "edge", "reflect", "wrap"))
    least = min((d for r in x.runs for d in r.shape), default=0)
    if mode != "constant" and least < 3:
        raise Refused
    pads = [g.chance.choice((0, 0, 1, 2, *((-1,) if mode == "constant" else ()))) for _ in range(2 * x.rank)]
    fill = [g.constant(1, x.dtype)] if mode == "constant" and g.chance.random() < 0.5 else []
    g.add("Pad", [x, g.constant(pads, "int64"), *fill], exact=True, mode=mode)


def _indices(g: Growing, shape: tuple[int, ...], size: int) -> Value:
    rng = np.random.default_rng(g.chance.getrandbits(32))
    return g.constant(rng.integers(-size, size, shape), g.chance.choice(("int64", "int32")))


def gather(g: Growing) -> None:
    x = g.pick(ranks=(1, 4), where=lambda v: all(r.size for r in v.runs))
    axis = g.chance.randrange(x.rank)
    size = min(r.shape[axis] for r in x.runs)
    g.add(
        "Gather",
        [x, _indices(g, g.chance.choice(((), (2,), (2, 2), (0,))), size)],
        exact=True,
        axis=axis - g.chance.choice((0, x.rank)),
    )


def gather_by_data(g: Growing) -> None:
    """Indices that are computed."""
    x = g.pick(ranks=(1, 3), where=lambda v: all(r.size for r in v.runs))
    raw = g.pick("int64", "int32", ranks=(0, 2))
    size = min(r.shape[0] for r in x.runs)
    g.add("Mod", [raw, g.constant(size, raw.dtype)], exact=True)
    g.add("Gather", [x, g.values[-1]], exact=True)


def gather_elements(g: Growing) -> None:
    x = g.pick(ranks=(1, 4), where=lambda v: all(r.size for r in v.runs) and len({r.shape for r in v.runs}) == 1)
    axis = g.chance.randrange(x.rank)
    g.add(
        "GatherElements",
        [x, _indices(g, x.shape[:axis] + (2,) + x.shape[axis + 1 :], x.shape[axis])],
        exact=True,
        axis=axis,
    )


def gather_nd(g: Growing) -> None:
    x = g.pick(ranks=(1, 4), where=lambda v: all(r.size for r in v.runs))
    g.add("GatherND", [x, _indices(g, (3, 1), min(r.shape[0] for r in x.runs))], exact=True)


def scatter_elements(g: Growing) -> None:
    x = g.pick(
        "float32",
        "int32",
        "float64",
        ranks=(1, 3),
        where=lambda v: all(r.size for r in v.runs) and len({r.shape for r in v.runs}) == 1,
    )
    axis = g.chance.randrange(x.rank)
    shape = x.shape[:axis] + (1,) + x.shape[axis + 1 :]
    reduction = g.chance.choice(("none", "add", "max", "min"))
    g.add(
        "ScatterElements",
        [x, _indices(g, shape, x.shape[axis]), g.constant(g.data(shape, x.dtype))],
        exact=reduction != "add",
        axis=axis,
        reduction=reduction,
    )


def scatter_nd(g: Growing) -> None:
    x = g.pick(
        "float32",
        "int64",
        "float64",
        ranks=(1, 3),
        where=lambda v: all(r.size for r in v.runs) and len({r.shape for r in v.runs}) == 1,
    )
    reduction = g.chance.choice(("none", "add", "mul"))
    g.add(
        "ScatterND",
        [x, _indices(g, (2, 1), x.shape[0]), g.constant(g.data((2, *x.shape[1:]), x.dtype))],
        exact=reduction == "none",
        reduction=reduction,
    )


def one_hot(g: Growing) -> None:
    x = g.pick("int64", "int32", ranks=(0, 3))
    g.add(
        "OneHot",
        [x, g.constant(4, "int64"), g.constant([0.5, 2], "float32")],
        exact=True,
        axis=g.chance.choice((-1, 0)),
    )


def trilu(g: Growing) -> None:
    x = g.pick("float32", "float64", "int32", "bool", ranks=(2, 4))
    g.add("Trilu", [x, g.constant(g.chance.choice((-1, 0, 1, 2)), "int64")], exact=True, upper=g.chance.randint(0, 1))


def eye_like(g: Growing) -> None:
    g.add("EyeLike", [g.pick("float32", "int32", ranks=(2, 2))], exact=True, k=g.chance.choice((-1, 0, 1)))


def reverse_sequence(g: Growing) -> None:
    x = g.pick(ranks=(2, 4), where=lambda v: len({r.shape for r in v.runs}) == 1 and v.runs[0].size > 0)
    lengths = [g.chance.randint(1, x.shape[0]) for _ in range(x.shape[1])]
    g.add("ReverseSequence", [x, g.constant(lengths, "int64")], exact=True, time_axis=0, batch_axis=1)


def shape_of(g: Growing) -> None:
    g.add(g.chance.choice(("Shape", "Size")), [g.pick()], exact=True)


def constant_of_shape(g: Growing) -> None:
    x = g.pick(ranks=(1, 3))
    g.add("Shape", [x], exact=True)
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [1.5])
    g.add("ConstantOfShape", [g.values[-1]], exact=True, value=value)


def range_(g: Growing) -> None:
    x = g.pick(ranks=(1, 5))
    g.add("Size", [x], exact=True)
    g.add(
        "Range",
        [
            g.constant(g.chance.choice((0, 2, -3)), "int64"),
            g.values[-1],
            g.constant(g.chance.choice((1, 2, 5)), "int64"),
        ],
        exact=True,
    )


def compress(g: Growing) -> None:
    x = g.pick(ranks=(1, 3), where=lambda v: all(r.size for r in v.runs))
    axis = g.chance.randrange(x.rank)
    g.add(
        "Compress",
        [x, g.constant([g.chance.random() < 0.6 for _ in range(min(r.shape[axis] for r in x.runs))])],
        exact=True,
        axis=axis,
    )


def non_zero(g: Growing) -> None:
    g.add("NonZero", [g.pick("int32", "bool", "float32", "int64", ranks=(1, 3), exact=True)], exact=True)


def top_k(g: Growing) -> None:
    x = g.pick("float32", "int64", "float64", ranks=(1, 3), exact=True, where=lambda v: all(r.size for r in v.runs))
    axis = g.chance.randrange(x.rank)
    k = g.chance.randint(1, min(r.shape[axis] for r in x.runs))
    g.add("TopK", [x, g.constant([k], "int64")], 2, exact=True, axis=axis, largest=g.chance.randint(0, 1))


def cum_sum(g: Growing) -> None:
    x = g.pick("float32", "float64", "int32", "int64", ranks=(1, 4))
    axis = g.constant(g.chance.randrange(-x.rank, x.rank), "int64")
    g.add(
        "CumSum", [x, axis], exact=x.dtype[0] == "i", exclusive=g.chance.randint(0, 1), reverse=g.chance.randint(0, 1)
    )


def mat_mul(g: Growing) -> None:
    x = g.pick("float32", "float64", "float16", ranks=(1, 4), where=lambda v: len({r.shape[-1] for r in v.runs}) == 1)
    fit = [v for v in g.values if v.dtype == x.dtype and v.rank >= 2 and v is not x]
    y = (
        g.chance.choice(fit)
        if fit and g.chance.random() < 0.4
        else g.constant(g.data((x.shape[-1], g.chance.choice(SIZES)), x.dtype))
    )
    g.add("MatMul", [x, y])


def gemm(g: Growing) -> None:
    x = g.pick("float32", "float64", ranks=(2, 2))
    turned = g.chance.randint(0, 1)
    if turned or len({r.shape[1] for r in x.runs}) > 1:
        raise Refused
    n = g.chance.choice(SIZES)
    g.add(
        "Gemm",
        [x, g.constant(g.data((n, x.shape[1]), x.dtype)), g.constant(g.data((n,), x.dtype))],
        transB=1,
        alpha=0.5,
        beta=2.0,
    )


def einsum(g: Growing) -> None:
    x = g.pick("float32", ranks=(2, 2))
    g.add("Einsum", [x, x], equation=g.chance.choice(("ij,kj->ik", "ij,ij->i", "ij,ij->ji", "ij,ik->jk")))


def _picture(g: Growing) -> Value:
    x = g.pick(
        "float32",
        "float32",
        "float64",
        ranks=(3, 5),
        where=lambda v: all(min(r.shape[2:]) >= 2 and r.shape[0] for r in v.runs) and v.rank in (3, 4, 5),
    )
    if len({r.shape[1] for r in x.runs}) > 1 or not x.shape[1]:
        raise Refused
    return x


def conv(g: Growing) -> None:
    x = _picture(g)
    channels, n = x.shape[1], x.rank - 2
    group = g.chance.choice([k for k in (1, 1, 2, channels) if channels % k == 0])
    w = g.constant(
        g.data(
            (group * g.chance.choice((1, 2, 3)), channels // group, *(g.chance.choice((1, 2, 3)) for _ in range(n))),
            x.dtype,
        )
        / 2
    )
    more: list[Value | None] = [g.constant(g.data((w.shape[0],), x.dtype))] if g.chance.random() < 0.5 else []
    if g.chance.random() < 0.3:
        g.add("Conv", [x, w, *more], group=group, auto_pad="SAME_UPPER")
    else:
        pads, strides = [g.chance.choice((0, 1)) for _ in range(2 * n)], [g.chance.choice((1, 1, 2)) for _ in range(n)]
        g.add(
            "Conv",
            [x, w, *more],
            group=group,
            pads=pads,
            strides=strides,
            dilations=[g.chance.choice((1, 1, 2)) for _ in range(n)],
        )


def conv_transpose(g: Growing) -> None:
    x = _picture(g)
    n = x.rank - 2
    w = g.constant(g.data((x.shape[1], g.chance.choice((1, 2)), *([2] * n)), x.dtype) / 2)
    g.add("ConvTranspose", [x, w], strides=[g.chance.choice((1, 2)) for _ in range(n)])


def pool(g: Growing) -> None:
    x = _picture(g)
    n = x.rank - 2
    op = g.chance.choice(("MaxPool", "AveragePool"))
    more = {"count_include_pad": g.chance.randint(0, 1)} if op == "AveragePool" else {}
    strides, pads = [g.chance.choice((1, 2)) for _ in range(n)], [g.chance.choice((0, 1)) for _ in range(2 * n)]
    ceil = g.chance.choice((0, 0, 1))
    if op == "MaxPool":
        # The reference takes the ends of one axis for two axes, and rounds sizes up where nothing is left over.
        pads = pads[:1] * 2 * n
        ceil = 0 if pads[0] else ceil
    g.add(
        op,
        [x],
        exact=op == "MaxPool",
        kernel_shape=[2] * n,
        strides=strides,
        pads=pads,
        ceil_mode=ceil,
        **more,
    )


def global_pool(g: Growing) -> None:
    op = g.chance.choice(("GlobalAveragePool", "GlobalMaxPool"))
    g.add(op, [_picture(g)], exact=op == "GlobalMaxPool")


def softmax(g: Growing) -> None:
    x = g.pick(*FLOATS, ranks=(1, 4), where=lambda v: all(r.size for r in v.runs))
    g.add(g.chance.choice(("Softmax", "LogSoftmax")), [x], axis=g.chance.randrange(-x.rank, x.rank))


def hardmax(g: Growing) -> None:
    x = g.pick("float32", "float64", ranks=(1, 4), exact=True, where=lambda v: all(r.size for r in v.runs))
    g.add("Hardmax", [x], exact=True, axis=g.chance.randrange(-x.rank, x.rank))


def layer_norm(g: Growing) -> None:
    x = g.pick("float32", ranks=(2, 4), where=lambda v: len({r.shape[-1] for r in v.runs}) == 1 and v.shape[-1] > 1)
    g.add(
        "LayerNormalization",
        [x, g.constant(g.data((x.shape[-1],), x.dtype)), g.constant(g.data((x.shape[-1],), x.dtype))],
        epsilon=0.01,
    )


def batch_norm(g: Growing) -> None:
    x = _picture(g)
    vectors = [g.constant(g.data((x.shape[1],), x.dtype)) for _ in range(3)]
    g.add("BatchNormalization", [x, *vectors, g.constant(np.abs(g.data((x.shape[1],), x.dtype)) + 0.5, x.dtype)])


def instance_norm(g: Growing) -> None:
    x = _picture(g)
    g.add("InstanceNormalization", [x, *(g.constant(g.data((x.shape[1],), x.dtype)) for _ in range(2))], epsilon=0.01)


def lp_norm(g: Growing) -> None:
    x = g.pick("float32", "float64", ranks=(1, 4), where=lambda v: all(r.size for r in v.runs))
    g.add(
        "LpNormalization", [x], axis=g.chance.randrange(x.rank), p=2
    )  # with 1 the reference leaves out the absolute value


def resize(g: Growing) -> None:
    x = g.pick("float32", ranks=(4, 4), where=lambda v: all(r.size for r in v.runs))
    scales = g.constant([1, 1, g.chance.choice((1, 2)), g.chance.choice((1, 2, 3))], "float32")
    g.add(
        "Resize",
        [x, None, scales],
        exact=True,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def depth(g: Growing) -> None:
    x = g.pick("float32", ranks=(4, 4), where=lambda v: all(r.size for r in v.runs))
    op = g.chance.choice(("DepthToSpace", "SpaceToDepth"))
    if any((r.shape[1] % 4 if op == "DepthToSpace" else r.shape[2] % 2 + r.shape[3] % 2) for r in x.runs):
        raise Refused
    g.add(op, [x], exact=True, blocksize=2)


def quantize(g: Growing) -> None:
    x = g.pick("float32", exact=True)
    scale, zero = g.constant(0.05, "float32"), g.constant(3, g.chance.choice(("uint8", "int8")))
    g.add("QuantizeLinear", [x, scale, zero], exact=True)
    g.add("DequantizeLinear", [g.values[-1], scale, zero])


def power(g: Growing) -> None:
    x = g.pick("float32", "float64")
    g.add("Pow", [x, g.constant(g.chance.choice((2, 3, 0.5, -1)), x.dtype)])


def variadic(g: Growing) -> None:
    op = g.chance.choice(("Sum", "Mean", "Max", "Min"))
    x = g.pick("float32", "float64")
    g.add(op, [x, g.like(x), g.like(x)], exact=op in ("Max", "Min"))


def prelu(g: Growing) -> None:
    x = g.pick("float32", "float64", ranks=(1, 4))
    g.add("PRelu", [x, g.constant(g.data((1,), x.dtype))])


@cache
def makers() -> dict[str, Maker]:
    """What grows a model, by a name; nodes of more than one operator count under each of them."""
    numbers, compared = (*FLOATS, *INTS[:4]), ("float32", "float64", "int32", "int64")
    found: dict[str, Maker] = {op: _unary(op) for op in SMOOTH}
    found |= {op: _jumping(op) for op in JUMPING}
    found |= {op: _binary(op, numbers) for op in ("Add", "Sub", "Mul", "Div")}
    found |= {
        op: _binary(op, ("int32", "int64", "int8", "uint8")) for op in ("Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
    }
    found |= {
        op: _binary(op, compared, jumps=True, exact=True)
        for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
    }
    found |= {op: _binary(op, ("bool",)) for op in ("And", "Or", "Xor")}
    found["BitShift"] = _binary("BitShift", ("uint8", "uint32"))
    found["Not"] = lambda g: g.add("Not", [g.pick("bool")], exact=True)
    found["BitwiseNot"] = lambda g: g.add("BitwiseNot", [g.pick("int32", "uint8")], exact=True)
    found |= {op: _reduce(op) for op in REDUCING}
    found |= {op: _arg(op) for op in ("ArgMax", "ArgMin")}
    others = (
        where, cast, clip, reshape, reshape_like, transpose, flatten, squeeze, unsqueeze, concat, slice_, split, expand,
        tile, pad, gather, gather_by_data,
        gather_elements, gather_nd, scatter_elements, scatter_nd, one_hot, trilu, eye_like, reverse_sequence, shape_of,
        constant_of_shape, range_, compress,
        non_zero, top_k, cum_sum, mat_mul, gemm, einsum, conv, conv_transpose, pool, global_pool, softmax, hardmax,
        layer_norm, batch_norm, instance_norm,
        lp_norm, resize, depth, quantize, power, variadic, prelu,
    )  # fmt: skip
    return found | {f.__name__: f for f in others}


# -- models -----------------------------------------------------------------------------------------------------------


def random_model(seed: int) -> Model:
    """The model of a seed, always the same."""
    chance = random.Random(seed)
    g = Growing(chance)
    g.open = chance.random() < 0.4
    for _ in range(chance.randint(2, 5)):
        g.input()
    wanted, names = chance.randint(5, 40), sorted(makers())
    for _ in range(20 * wanted):
        if len(g.nodes) >= wanted:
            break
        kept = len(g.values), len(g.nodes), len(g.constants), g.count
        try:
            makers()[chance.choice(names)](g)
        except (Refused, IndexError):
            del g.values[kept[0] :], g.nodes[kept[1] :], g.constants[kept[2] :]
            g.count = kept[3]
    used = {n for node in g.nodes for n in node.input}
    made = {n for node in g.nodes for n in node.output}
    last = [v for v in g.values if v.name in made and v.name not in used] or [v for v in g.values if v.name in made]
    outputs = [
        helper.make_tensor_value_info(v.name, helper.np_dtype_to_tensor_dtype(v.runs[0].dtype), [None] * v.rank)
        for v in last
    ]
    graph = helper.make_graph(g.nodes, f"random_{seed}", g.inputs, outputs, [c for c in g.constants if c.name in used])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    given = {i.name for i in g.inputs}
    runs = range(len(g.assignments))
    return Model(
        seed,
        proto,
        [{v.name: v.runs[k] for v in g.values if v.name in given} for k in runs],
        [{v.name: v.runs[k] for v in last} for k in runs],
        [{v.name: _slack(v.runs[k], v.noisy[k]) for v in last} for k in runs],
    )


def _slack(a: Array, b: Array) -> Array:
    """How far noise in the last digits moved each element; of the largest of all, since elements that noise happened to
    spare are no more certain."""
    if a.dtype.kind != "f" or not a.size:
        return np.zeros(a.shape)
    return np.full(a.shape, np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
