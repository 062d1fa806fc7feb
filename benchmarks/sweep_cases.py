"""The random cases of `benchmarks.sweep`: for each kind how a case is drawn, what work it is, and its model.

Cases are drawn from a seed, and the elements of their inputs from another, so that a case is the same in every run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
IR_VERSION = 10
FLOP_PER_SECOND, BYTES_PER_SECOND = 1e11, 2e10
LONGEST = 1e-2
"""Seconds that a case may take on a core that does the above."""


@dataclass(frozen=True)
class Case:
    """A model of one operator, or of a few. `form`: which of the operators or variants of its kind. `shape` in words
    that `--only` finds."""

    kind: str
    form: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def shape(self) -> str:
        return " ".join(f"{name}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for name, v in self.settings)

    @property
    def of(self) -> dict[str, Any]:
        return dict(self.settings)

    @property
    def text(self) -> str:
        return f"{self.kind} {self.form} {self.shape}"


@dataclass
class Model:
    """Nodes with their inputs and constants. Every node has one output, which is the last one's the model's."""

    values: np.random.Generator
    opset: int = 20
    nodes: list[Any] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return cast(Array, self.values.standard_normal(shape, np.float32) * np.float32(scale))

    def input(self, x: Array) -> str:
        return self._named(self.inputs, "x", x)

    def constant(self, x: Any) -> str:
        return self._named(self.constants, "c", np.asarray(x))

    @staticmethod
    def _named(where: dict[str, Array], letter: str, x: Array) -> str:
        name = f"{letter}{len(where)}"
        where[name] = x
        return name

    def node(self, op: str, *operands: str, outputs: int = 1, **attributes: Any) -> str:
        from onnx import helper

        name = f"y{len(self.nodes)}"
        names = [name, *(f"{name}_{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(op, list(operands), names, **attributes))
        return name

    def proto(self) -> onnx.ModelProto:
        from onnx import ValueInfoProto, helper, numpy_helper

        graph = helper.make_graph(
            self.nodes,
            "case",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
                for name, x in self.inputs.items()
            ],
            [ValueInfoProto(name=name) for name in self.nodes[-1].output],
            [numpy_helper.from_array(x, name) for name, x in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=IR_VERSION)


@dataclass(frozen=True)
class Kind:
    """How cases of a kind are made.

    Attributes:
        draw: a case; one whose work is not within the bounds is drawn again.
        work: FLOP and bytes of a case; 0 bytes if it has no result.
        build: writes the nodes of a case into a model.
        limit: of the 95th percentile of Weft's time over that of the best peer.
        shortest: seconds that a case takes at least on a core of `FLOP_PER_SECOND` and `BYTES_PER_SECOND`.
    """

    draw: Callable[[random.Random], Case]
    work: Callable[[Case], tuple[float, float]]
    build: Callable[[Case, Model], Any]
    limit: float = 1.5
    shortest: float = 1e-5


# -- sizes ------------------------------------------------------------------------------------------------------------


def log_uniform(r: random.Random, low: int, high: int) -> int:
    """Half of them multiples of 8 where there are such."""
    n = round(math.exp(r.uniform(math.log(low), math.log(high))))
    return max(8, n // 8 * 8) if n >= 8 and r.random() < 0.5 else n


def shape_of(r: random.Random, rank: int, low: int = 1 << 16, high: int = 1 << 23) -> tuple[int, ...]:
    """Sizes with a product of about `low` to `high`, in random order."""
    left = math.exp(r.uniform(math.log(low), math.log(high)))
    sizes = []
    for k in range(rank - 1, 0, -1):
        size = log_uniform(r, 1, max(2, min(4096, round(left ** (2 / (k + 1))))))
        sizes.append(size)
        left /= size
    sizes.append(max(1, round(left)))
    r.shuffle(sizes)
    return tuple(sizes)


def picture(r: random.Random) -> tuple[int, int]:
    """Height and width."""
    size = log_uniform(r, 7, 512)
    return size, size if r.random() < 0.5 else log_uniform(r, 7, 512)


# -- products and convolutions ----------------------------------------------------------------------------------------


def draw_matmul(r: random.Random) -> Case:
    form = r.choice(("constant", "constant", "constant", "runtime", "runtime", "batched", "transposed", "transposed"))
    m, k, n = log_uniform(r, 1, 512), log_uniform(r, 16, 4096), log_uniform(r, 16, 4096)
    batch = log_uniform(r, 2, 16) if form == "batched" else 1
    constant = form == "constant" or (form == "transposed" and r.random() < 0.5)
    flipped = form != "constant" and r.random() < 0.5
    transposed = flipped or form == "transposed"
    return Case(
        "matmul",
        form,
        (("batch", batch), ("m", m), ("k", k), ("n", n), ("constant", constant), ("transposed", transposed)),
    )


def work_of_matmul(case: Case) -> tuple[float, float]:
    o = case.of
    b, m, k, n = o["batch"], o["m"], o["k"], o["n"]
    return 2.0 * b * m * k * n, 4.0 * b * (m * k + k * n + m * n)


def build_matmul(case: Case, model: Model) -> None:
    """A Transpose before the product where a run-time right operand is transposed."""
    o = case.of
    lead = (o["batch"],) if o["batch"] > 1 else ()
    x = model.input(model.normal(*lead, o["m"], o["k"], scale=1 / 8))
    right = model.normal(*lead, *((o["n"], o["k"]) if o["transposed"] else (o["k"], o["n"])), scale=1 / 8)
    w = model.constant(right) if o["constant"] else model.input(right)
    if o["transposed"] and not lead:
        model.node("Gemm", x, w, transB=1)
        return
    model.node("MatMul", x, model.node("Transpose", w, perm=[0, 2, 1]) if o["transposed"] else w)


def draw_conv(r: random.Random) -> Case:
    form = r.choice(("dense", "dense", "dense", "dense", "grouped", "depthwise"))
    kernel = r.choice((1, 1, 3, 3, 3, 5, 7))
    groups = 1
    if form == "depthwise":
        kernel = r.choice((3, 3, 5, 7))
        groups = channels = outputs = log_uniform(r, 8, 1024)
    elif form == "grouped":
        groups = r.choice((2, 3, 4, 8, 16, 32))
        channels, outputs = (
            groups * log_uniform(r, 1, max(2, 1024 // groups)),
            groups * log_uniform(r, 1, max(2, 1024 // groups)),
        )
    else:
        channels, outputs = log_uniform(r, 1, 1024), log_uniform(r, 1, 1024)
    dilation = r.choice((1, 1, 1, 1, 1, 2)) if kernel > 1 else 1
    pad = r.choice((dilation * (kernel // 2), dilation * (kernel // 2), 0))
    size = (log_uniform(r, 7, 112), 0)
    size = (size[0], size[0] if r.random() < 0.7 else log_uniform(r, 7, 112))
    settings = (
        ("channels", channels),
        ("outputs", outputs),
        ("size", size),
        ("kernel", kernel),
        ("stride", r.choice((1, 1, 2))),
        ("pad", pad),
    )
    return Case("conv", form, (*settings, ("dilation", dilation), ("groups", groups)))


def work_of_conv(case: Case) -> tuple[float, float]:
    o = case.of
    out = [max(0, (s + 2 * o["pad"] - o["dilation"] * (o["kernel"] - 1) - 1) // o["stride"] + 1) for s in o["size"]]
    taps = o["channels"] // o["groups"] * o["kernel"] ** 2
    positions = math.prod(out)
    elements = o["channels"] * math.prod(o["size"]) + positions * o["outputs"] + o["outputs"] * taps
    return 2.0 * positions * o["outputs"] * taps, 4.0 * elements if positions else 0.0


def build_conv(case: Case, model: Model) -> None:
    o = case.of
    x = model.input(model.normal(1, o["channels"], *o["size"], scale=1 / 8))
    w = model.normal(o["outputs"], o["channels"] // o["groups"], o["kernel"], o["kernel"], scale=1 / 8)
    attributes = {
        "strides": [o["stride"]] * 2,
        "pads": [o["pad"]] * 4,
        "dilations": [o["dilation"]] * 2,
        "group": o["groups"],
    }
    model.node("Conv", x, model.constant(w), **attributes)


# -- attention --------------------------------------------------------------------------------------------------------


def draw_attention(r: random.Random) -> Case:
    """Forms: `operator` and `written` (products and a softmax), `decode` (one query or a few) and `cache` (the same,
    with keys and values of earlier positions as operands)."""
    form = r.choice(("operator", "written", "written", "decode", "cache"))
    batch = r.choice((1, 1, 1, 2, 4))
    groups = r.choice((1, 1, 2, 4, 8))
    heads = groups * log_uniform(r, 1, max(2, 32 // groups))
    size = r.choice((16, 32, 40, 64, 64, 80, 96, 128, 256, r.randint(16, 256)))
    keys = log_uniform(r, 1, 8192)
    few = form in ("decode", "cache")
    queries = r.choice((1, 1, 1, 2, 5)) if few else keys if r.random() < 0.7 else log_uniform(r, 1, 8192)
    mask = r.choice(("", "qk", "11qk", "b1qk", "1hqk", "bhqk", "b11k", "111k"))
    causal = form == "operator" and queries == keys and r.random() < 0.5
    return Case(
        "attention",
        form,
        (
            ("batch", batch),
            ("heads", heads),
            ("groups", groups),
            ("size", size),
            ("queries", queries),
            ("keys", keys),
            ("mask", mask or "none"),
            ("booleans", bool(mask) and form != "written" and r.random() < 0.5),
            ("causal", causal),
        ),
    )


def work_of_attention(case: Case) -> tuple[float, float]:
    o = case.of
    rows, scores = o["batch"] * o["heads"], o["queries"] * o["keys"]
    elements = 2 * rows * o["queries"] * o["size"] + 2 * rows // o["groups"] * o["keys"] * o["size"]
    shared = {"b": o["batch"], "h": o["heads"], "q": o["queries"], "k": o["keys"], "1": 1}
    masked = math.prod(shared[c] for c in o["mask"]) if o["mask"] != "none" else 0
    # An exponential is about as long as ten additions.
    return rows * scores * (4.0 * o["size"] + 20), 4.0 * (elements + masked)


def build_attention(case: Case, model: Model) -> None:
    o = case.of
    batch, heads, size, queries, keys = (o[n] for n in ("batch", "heads", "size", "queries", "keys"))
    few = heads // o["groups"]
    q = model.input(model.normal(batch, heads, queries, size))
    earlier = max(0, keys - queries) if case.form == "cache" else 0
    k, v = (model.input(model.normal(batch, few, keys - earlier, size)) for _ in range(2))
    mask = mask_of(case, model)
    if case.form == "written":
        write_attention(case, model, q, k, v, mask)
        return
    model.opset = 23
    past = [model.input(model.normal(batch, few, earlier, size)) for _ in range(2)] if earlier else []
    operands = [q, k, v, mask, *past]
    while not operands[-1]:
        operands.pop()
    model.node("Attention", *operands, outputs=3 if past else 1, is_causal=int(o["causal"]))


def mask_of(case: Case, model: Model) -> str:
    """The name of the mask, "" if there is none. Every query sees the first key."""
    o = case.of
    if o["mask"] == "none":
        return ""
    sizes = {"b": o["batch"], "h": o["heads"], "q": o["queries"], "k": o["keys"], "1": 1}
    shape = [sizes[c] for c in o["mask"]]
    if not o["booleans"]:
        return model.input(model.normal(*shape))
    seen = model.values.random(shape) < 0.8
    seen[..., 0] = True
    return model.input(seen)


def write_attention(case: Case, model: Model, q: str, k: str, v: str, mask: str) -> None:
    """As exporters write it; keys and values that heads share are repeated."""
    o = case.of
    if o["groups"] > 1:
        batch, keys, size = o["batch"], o["keys"], o["size"]
        few = o["heads"] // o["groups"]
        wide = model.constant(np.array([batch, few, o["groups"], keys, size]))
        flat = model.constant(np.array([batch, o["heads"], keys, size]))
        axis = model.constant(np.array([2]))
        k, v = (
            model.node("Reshape", model.node("Expand", model.node("Unsqueeze", x, axis), wide), flat) for x in (k, v)
        )
    scores = model.node("MatMul", q, model.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = model.node("Mul", scores, model.constant(np.float32(o["size"] ** -0.5)))
    if mask:
        scores = model.node("Add", scores, mask)
    model.node("MatMul", model.node("Softmax", scores, axis=-1), v)


# -- resizing ---------------------------------------------------------------------------------------------------------

COORDINATES = ("half_pixel", "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


def draw_resize(r: random.Random) -> Case:
    while True:
        form = r.choice(("nearest", "linear", "linear", "cubic"))
        size = picture(r)
        exact = r.random() < 0.5
        factor = r.choice((0.25, 0.5, 2, 2, 3, 4)) if exact else 0
        after = tuple(max(1, int(n * (factor or math.exp(r.uniform(math.log(0.2), math.log(5)))))) for n in size)
        coordinates = r.choice(COORDINATES)
        nearest = r.choice(("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")) if form == "nearest" else ""
        antialias = form != "nearest" and r.random() < 0.15
        if form != "nearest" or all(map(is_clear, size, after, (coordinates,) * 2, (nearest,) * 2)):
            break
    return Case(
        "resize",
        form,
        (
            ("batch", r.choice((1, 1, 1, 4))),
            ("channels", r.choice((1, 3, 3, log_uniform(r, 1, 512)))),
            ("size", size),
            ("after", after),
            ("coordinates", coordinates),
            ("nearest", nearest or "none"),
            ("antialias", antialias),
        ),
    )


def is_clear(before: int, after: int, coordinates: str, nearest: str) -> bool:
    """Whether the nearest elements are the same ones if places have the rounding errors of float32, in which peers
    compute them."""
    scale = after / before
    if scale == int(scale) or ((1 / scale).is_integer() and math.log2(scale).is_integer()):
        return True
    o = np.arange(after, dtype=np.float64)
    if coordinates == "asymmetric":
        at = o / scale
    elif coordinates == "align_corners":
        at = o * (before - 1) / max(1, after - 1)
    else:
        at = (o + 0.5) / scale - 0.5
    ties = at if nearest in ("floor", "ceil") else at - 0.5
    return bool((np.abs(ties - np.round(ties)) > 1e-3).all())


def work_of_resize(case: Case) -> tuple[float, float]:
    o = case.of
    pictures = o["batch"] * o["channels"]
    before, after = math.prod(o["size"]), math.prod(o["after"])
    taps = {"nearest": 0, "linear": 4, "cubic": 8}[case.form]
    # Few instructions for each element in vectors: indices, loads, blends.
    return 8.0 * pictures * after * taps, 4.0 * pictures * (before + after)


def build_resize(case: Case, model: Model) -> None:
    o = case.of
    x = model.input(model.normal(o["batch"], o["channels"], *o["size"]))
    sizes = model.constant(np.array([o["batch"], o["channels"], *o["after"]]))
    attributes: dict[str, Any] = {"mode": case.form, "coordinate_transformation_mode": o["coordinates"]}
    if case.form == "nearest":
        attributes["nearest_mode"] = o["nearest"]
    if o["antialias"]:
        attributes["antialias"] = 1
    model.node("Resize", x, "", "", sizes, **attributes)


# -- moving -----------------------------------------------------------------------------------------------------------

DTYPES = ("float32", "float32", "float32", "float32", "uint8", "float16", "int64")


def draw_transpose(r: random.Random) -> Case:
    """Forms: `axes` (any order of the axes of any shape), `picture` (channels last to first or back)."""
    if r.random() < 0.3:
        height, width = log_uniform(r, 100, 2160), log_uniform(r, 100, 3840)
        channels = r.choice((2, 3, 3, 3, 4, log_uniform(r, 1, 64)))
        first = r.random() < 0.5
        shape: tuple[int, ...] = (1, channels, height, width) if first else (1, height, width, channels)
        order: tuple[int, ...] = (0, 2, 3, 1) if first else (0, 3, 1, 2)
        return Case("transpose", "picture", (("shape", shape), ("perm", order), ("dtype", r.choice(DTYPES))))
    rank = r.randint(2, 5)
    perm = list(range(rank))
    while perm == sorted(perm):
        r.shuffle(perm)
    settings = (("shape", shape_of(r, rank)), ("perm", tuple(perm)), ("dtype", r.choice(DTYPES)))
    return Case("transpose", "axes", settings)


def work_of_transpose(case: Case) -> tuple[float, float]:
    return 0.0, 2.0 * math.prod(case.of["shape"]) * np.dtype(case.of["dtype"]).itemsize


def build_transpose(case: Case, model: Model) -> None:
    o = case.of
    x = model.normal(*o["shape"], scale=50)
    model.node("Transpose", model.input((abs(x) if o["dtype"] == "uint8" else x).astype(o["dtype"])), perm=o["perm"])


# -- reductions -------------------------------------------------------------------------------------------------------

REDUCTIONS = ("Sum", "Sum", "Mean", "Mean", "Max", "Min", "L2", "SumSquare", "LogSumExp", "L1")


def draw_reduction(r: random.Random) -> Case:
    rank = r.randint(1, 5)
    shape = shape_of(r, rank)
    if r.random() < 0.2:
        return Case("reduction", r.choice(("ArgMax", "ArgMin")), (("shape", shape), ("axes", (r.randrange(rank),))))
    axes = tuple(sorted(r.sample(range(rank), r.randint(1, rank))))
    return Case("reduction", "Reduce" + r.choice(REDUCTIONS), (("shape", shape), ("axes", axes)))


def work_of_reduction(case: Case) -> tuple[float, float]:
    n = math.prod(case.of["shape"])
    return (20.0 if case.form == "ReduceLogSumExp" else 1.0) * n, 4.0 * n


def build_reduction(case: Case, model: Model) -> None:
    o = case.of
    x = model.input(model.normal(*o["shape"]))
    if case.form.startswith("Arg"):
        model.node(case.form, x, axis=o["axes"][0], keepdims=0)
    else:
        model.node(case.form, x, model.constant(np.array(o["axes"])), keepdims=0)


# -- normalisations ---------------------------------------------------------------------------------------------------

NORMALISATIONS = ("layer", "layer", "rms", "group", "instance", "softmax", "softmax", "log_softmax")


def draw_normalisation(r: random.Random) -> Case:
    form = r.choice(NORMALISATIONS)
    if form in ("group", "instance"):
        groups = r.choice((1, 2, 4, 8, 32)) if form == "group" else 1
        shape: tuple[int, ...] = (r.choice((1, 1, 2, 4)), groups * log_uniform(r, 1, max(2, 512 // groups)))
        shape += picture(r) if r.random() < 0.8 else (log_uniform(r, 16, 8192),)
        return Case("normalisation", form, (("shape", shape), ("groups", groups)))
    rank = r.randint(1 if "softmax" in form else 2, 4)
    axis = rank - 1 if "softmax" not in form or r.random() < 0.7 else r.randrange(rank)
    if form == "layer" and rank > 2 and r.random() < 0.2:
        axis = r.randrange(1, rank)
    return Case("normalisation", form, (("shape", shape_of(r, rank)), ("axis", axis)))


def work_of_normalisation(case: Case) -> tuple[float, float]:
    n = math.prod(case.of["shape"])
    return (30.0 if "softmax" in case.form else 8.0) * n, 8.0 * n


def build_normalisation(case: Case, model: Model) -> None:
    o, form = case.of, case.form
    shape = o["shape"]
    x = model.input(model.normal(*shape))
    if form in ("softmax", "log_softmax"):
        model.node("Softmax" if form == "softmax" else "LogSoftmax", x, axis=o["axis"])
    elif form in ("layer", "rms"):
        scale, bias = (model.constant(model.normal(*shape[o["axis"] :])) for _ in range(2))
        if form == "layer":
            model.node("LayerNormalization", x, scale, bias, axis=o["axis"])
        else:
            model.opset = 23
            model.node("RMSNormalization", x, scale, axis=o["axis"])
    else:
        scale, bias = (model.constant(model.normal(shape[1])) for _ in range(2))
        if form == "instance":
            model.node("InstanceNormalization", x, scale, bias)
        else:
            model.opset = 21
            model.node("GroupNormalization", x, scale, bias, num_groups=o["groups"])


# -- elementwise ------------------------------------------------------------------------------------------------------

# No operator with jumps: beside one, a rounding error is a wrong answer.
ONE = ("Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "HardSwish")
TWO = ("Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min")


def draw_elementwise(r: random.Random) -> Case:
    """A chain: operators of one operand, and of two, of which the second is broadcast along some axes (1 in `with`),
    or has fewer axes. The first value, too, may be broadcast (form `outer`)."""
    rank = r.randint(1, 5)
    shape = shape_of(r, rank)
    steps = []
    for _ in range(r.randint(1, 6)):
        if r.random() < 0.4:
            steps.append(r.choice(ONE))
            continue
        other = [n if r.random() < 0.6 else 1 for n in shape]
        steps.append(f"{r.choice(TWO)}:{'x'.join(map(str, other[r.randrange(rank) if r.random() < 0.3 else 0 :]))}")
    outer = rank > 1 and r.random() < 0.2
    first = tuple(n if not outer or r.random() < 0.5 else 1 for n in shape)
    if outer:
        steps.insert(0, f"{r.choice(TWO)}:{'x'.join(str(1 if a > 1 else n) for a, n in zip(first, shape))}")
    return Case(
        "elementwise",
        "outer" if outer else "chain",
        (("shape", shape), ("first", first), ("steps", ",".join(steps))),
    )


def operands_of(case: Case) -> list[tuple[str, tuple[int, ...]]]:
    """Of each step the operator and the shape of its second operand, () if it has none."""
    found = []
    for step in case.of["steps"].split(","):
        op, _, shape = step.partition(":")
        found.append((op, tuple(int(n) for n in shape.split("x")) if shape else ()))
    return found


def work_of_elementwise(case: Case) -> tuple[float, float]:
    o, n = case.of, math.prod(case.of["shape"])
    operands = operands_of(case)
    flop = sum({"Sigmoid": 20, "Tanh": 20, "Exp": 15, "Erf": 25, "Div": 5, "Sqrt": 5}.get(op, 1) for op, _ in operands)
    moved = n + math.prod(o["first"]) + sum(math.prod(s) for _, s in operands if s)
    return float(flop * n), 4.0 * moved


def build_elementwise(case: Case, model: Model) -> None:
    """Values stay of moderate size: what is divided by and what a root is taken of is positive."""
    y = model.input(model.normal(*case.of["first"]))
    for op, shape in operands_of(case):
        if shape:
            other = np.abs(model.normal(*shape)) + np.float32(0.5) if op == "Div" else model.normal(*shape)
            y = model.node(op, y, model.input(other))
        elif op in ("Exp", "Sqrt"):
            y = model.node("Tanh" if op == "Exp" else "Abs", y)
            y = model.node(op, y)
        else:
            y = model.node(op, y)


# -- pooling ----------------------------------------------------------------------------------------------------------


def draw_pooling(r: random.Random) -> Case:
    form = r.choice(("max", "max", "max", "average", "average", "average", "global_max", "global_average"))
    dims = r.choice((1, 2, 2, 2, 2, 3))
    size = tuple(log_uniform(r, 4, (4096, 256, 48)[dims - 1]) for _ in range(dims))
    kernel = tuple(r.choice((1, 2, 2, 3, 3, 5, 7)) for _ in range(dims)) if r.random() < 0.3 else ()
    kernel = kernel or (r.choice((2, 2, 3, 3, 3, 5, 7)),) * dims
    settings: list[tuple[str, Any]] = [
        ("batch", r.choice((1, 1, 1, 4))),
        ("channels", log_uniform(r, 1, 1024)),
        ("size", size),
    ]
    if not form.startswith("global"):
        settings += [
            ("kernel", kernel),
            ("stride", r.choice((1, 2, 2, 3)) if r.random() < 0.8 else kernel[0]),
            ("pads", tuple(r.randint(0, k // 2) for k in kernel)),
            ("ceil", r.random() < 0.25),
            ("include", form == "average" and r.random() < 0.5),
        ]
    return Case("pooling", form, tuple(settings))


def pooled(case: Case) -> list[int]:
    o = case.of
    if "kernel" not in o:
        return [1 for _ in o["size"]]
    return [
        max(0, (n + 2 * p - k + (o["stride"] - 1 if o["ceil"] else 0)) // o["stride"] + 1)
        for n, k, p in zip(o["size"], o["kernel"], o["pads"])
    ]


def work_of_pooling(case: Case) -> tuple[float, float]:
    o = case.of
    planes, after = o["batch"] * o["channels"], math.prod(pooled(case))
    if not after:
        return 0.0, 0.0
    taps = math.prod(o["kernel"]) if "kernel" in o else math.prod(o["size"])
    return 4.0 * planes * after * taps, 4.0 * planes * (math.prod(o["size"]) + after)


def build_pooling(case: Case, model: Model) -> None:
    o = case.of
    x = model.input(model.normal(o["batch"], o["channels"], *o["size"]))
    if "kernel" not in o:
        model.node("GlobalMaxPool" if case.form == "global_max" else "GlobalAveragePool", x)
        return
    attributes: dict[str, Any] = {
        "kernel_shape": o["kernel"],
        "strides": [o["stride"]] * len(o["kernel"]),
        "pads": [*o["pads"], *o["pads"]],
        "ceil_mode": int(o["ceil"]),
    }
    if case.form == "average":
        attributes["count_include_pad"] = int(o["include"])
    model.node("MaxPool" if case.form == "max" else "AveragePool", x, **attributes)


KINDS = {
    "matmul": Kind(draw_matmul, work_of_matmul, build_matmul, 1.3, 5e-5),
    "conv": Kind(draw_conv, work_of_conv, build_conv, 1.3, 5e-5),
    "attention": Kind(draw_attention, work_of_attention, build_attention, 1.3),
    "resize": Kind(draw_resize, work_of_resize, build_resize),
    "transpose": Kind(draw_transpose, work_of_transpose, build_transpose),
    "reduction": Kind(draw_reduction, work_of_reduction, build_reduction),
    "normalisation": Kind(draw_normalisation, work_of_normalisation, build_normalisation),
    "elementwise": Kind(draw_elementwise, work_of_elementwise, build_elementwise),
    "pooling": Kind(draw_pooling, work_of_pooling, build_pooling),
}


def work(case: Case) -> tuple[float, float]:
    """FLOP and bytes of a case; 0 bytes if it has no result."""
    return KINDS[case.kind].work(case)


def draw(count: int, seed: int, kinds: Sequence[str]) -> list[Case]:
    """`count` different cases of sensible length, the kinds in turn."""
    r = random.Random(seed)
    cases: dict[Case, None] = {}
    while len(cases) < count:
        kind = KINDS[kinds[len(cases) % len(kinds)]]
        case = kind.draw(r)
        flop, size = kind.work(case)
        if size and kind.shortest <= max(flop / FLOP_PER_SECOND, size / BYTES_PER_SECOND) <= LONGEST:
            cases[case] = None
    return list(cases)


def model_of(case: Case, seed: int = 0) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model of a case, and its inputs by name."""
    model = Model(np.random.default_rng(seed))
    KINDS[case.kind].build(case, model)
    return model.proto(), model.inputs
