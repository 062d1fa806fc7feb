"""Quantised products and convolutions through dot products: exact, in one kernel with what follows, by the instruction
that the processor has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.passes.library import run_passes
from tests.qemu.cross import compile_cross

import weft
from weft import dtypes as dt
from weft.graph.evaluate import evaluate
from weft.graph.group import Group
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.passes.capabilities import Capabilities, DotProduct
from weft.passes.decompose import decompose
from weft.passes.fold_constants import fold_constants
from weft.resolve import ResolvedTarget, resolve_target
from weft.scheduling import Schedule, meanings, replay
from weft.scheduling.rule import select_rule
from weft_interpreter.interpret import interpret
from weft_ops import (
    Add,
    Cast,
    Conv,
    ConvInteger,
    Dequantize,
    DynamicQuantize,
    MatMul,
    MatMulInteger,
    QLinearConv,
    Relu,
    Round,
)
from weft_ops.passes.narrow_products import narrow_products
from weft_ops.passes.simplify_algebra import simplify_algebra

Array = np.ndarray[Any, Any]
U8S8, S8S8, U8U8 = (
    DotProduct(a, b, dt.int32, 4) for a, b in ((dt.uint8, dt.int8), (dt.int8, dt.int8), (dt.uint8, dt.uint8))
)
PAIRS = DotProduct(dt.int16, dt.int16, dt.int32, 2)
SETS = {"vnni": (U8S8, PAIRS), "pairs": (PAIRS,), "sdot": (U8U8, S8S8), "i8mm": (U8U8, S8S8, U8S8), "udot": (U8U8,)}


def x86(cpu: str) -> str:
    return f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu} -threads=1"


def arm(cpu: str) -> str:
    return f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu} -threads=1"


def numbers(shape: tuple[int, ...], dtype: str, seed: int, extremes: bool = False) -> Array:
    """Any values of an integer dtype; with `extremes`, its least and greatest only."""
    rng, info = np.random.default_rng(seed), np.iinfo(dtype)
    return (
        rng.choice([info.min, info.max], shape) if extremes else rng.integers(info.min, info.max + 1, shape)
    ).astype(dtype)


def integer_product(
    op: Any, x: Array, w: Array, x_zero: Any = None, w_zero: Any = None, run_time: bool = False
) -> tuple[Graph, list[Array]]:
    """A graph of MatMulInteger or ConvInteger with constant weights; the zero point of x is an input at `run_time`."""
    b = GraphBuilder("product")
    inputs: list[Value | None] = [b.input("x", tensor_type(x.dtype.name, x.shape)), b.constant(w, "w")]
    arrays = [x]
    if x_zero is not None and run_time:
        inputs.append(b.input("x_zero", tensor_type(x.dtype.name, np.shape(x_zero))))
        arrays.append(np.asarray(x_zero, x.dtype))
    else:
        inputs.append(None if x_zero is None else b.constant(np.asarray(x_zero, x.dtype), "x_zero"))
    inputs.append(None if w_zero is None else b.constant(np.asarray(w_zero, w.dtype), "w_zero"))
    b.output(b.add(op, *inputs))
    return b.build(), arrays


def quantised_conv(
    x: Array,
    w: Array,
    op: QLinearConv,
    x_zero: int = 3,
    w_zero: Any = 0,
    y: str = "uint8",
    bias: bool = True,
    scale: float = 2e-4,
) -> tuple[Graph, list[Array]]:
    b = GraphBuilder("conv")
    rng, outputs = np.random.default_rng(7), w.shape[0]
    constants = (
        (np.float32(0.02), np.asarray(x_zero, x.dtype)),
        (w, (0.01 + 0.01 * rng.random(outputs)).astype(np.float32), np.broadcast_to(w_zero, outputs)),
    )
    (x_scale, zero), (weights, w_scale, weights_zero) = constants
    values = [
        x_scale,
        zero,
        weights,
        w_scale,
        weights_zero.astype(w.dtype),
        np.float32(x_scale * 0.015 / scale),
        np.asarray(100 if y == "uint8" else -7, y),
    ]
    if bias:
        values.append(rng.integers(-999, 999, outputs).astype(np.int32))
    inputs = [b.constant(np.asarray(v), f"c{k}") for k, v in enumerate(values)]
    b.output(b.add(op, b.input("x", tensor_type(x.dtype.name, x.shape)), *inputs))
    return b.build(), [x]


def narrowed(graph: Graph, dots: tuple[DotProduct, ...], panel: int | None = 4, lanes: int | None = 4) -> Graph:
    c = Capabilities(channel_block=lanes, panel=panel, dots=dots)
    return narrow_products(simplify_algebra(fold_constants(decompose(graph, c))), c)


def contractions(graph: Graph) -> list[tuple[str, str]]:
    """The dtypes of the operands of products and convolutions."""
    nodes = [n for g in (graph, *(n.op.body for n in graph.nodes if isinstance(n.op, Group))) for n in g.nodes]
    return [(str(n.inputs[0].dtype), str(n.inputs[1].dtype)) for n in nodes if isinstance(n.op, (MatMul, Conv))]  # type: ignore[union-attr]


def whole(graph: Graph, dots: tuple[DotProduct, ...]) -> bool:
    """Whether every sum is of whole dot products."""
    nodes = [n for n in graph.nodes if isinstance(n.op, (MatMul, Conv))]
    lengths = [(n.inputs[1].shape[0 if isinstance(n.op, MatMul) else 1], str(n.inputs[1].dtype)) for n in nodes]  # type: ignore[union-attr]
    return all(any(length % d.depth == 0 for d in dots if str(d.right) == dtype) for length, dtype in lengths)  # type: ignore[operator]


# -- the algebra ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(SETS)), st.sampled_from(["uint8", "int8"]), st.sampled_from(["uint8", "int8"]),
    st.integers(1, 5), st.integers(1, 13), st.integers(2, 9), st.sampled_from([None, "one", "rows"]),
    st.sampled_from([None, "one", "columns"]),
    st.booleans(), st.booleans(), st.booleans(), st.integers(0, 1 << 20),
)  # fmt: skip
def test_products_keep_every_bit(
    dots: str,
    left: str,
    right: str,
    m: int,
    k: int,
    n: int,
    rows: str | None,
    columns: str | None,
    run_time: bool,
    extremes: bool,
    packed: bool,
    seed: int,
) -> None:
    """With panels or, row-major, without."""
    x, w = numbers((m, k), left, seed, extremes), numbers((k, n), right, seed + 1, extremes)
    x_zero = None if rows is None else numbers((m,) if rows == "rows" else (), left, seed + 2, extremes)
    w_zero = None if columns is None else numbers((n,) if columns == "columns" else (), right, seed + 3, extremes)
    graph, arrays = integer_product(MatMulInteger(), x, w, x_zero, w_zero, run_time)
    new = narrowed(graph, SETS[dots], *((4, 4) if packed else (None, None)))
    assert contractions(new) in [[(str(d.left), str(d.right))] for d in SETS[dots]], (
        "the product is one of the target's"
    )
    assert whole(new, SETS[dots])
    np.testing.assert_array_equal(evaluate(new, arrays)[0], evaluate(graph, arrays)[0])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(SETS)), st.sampled_from(["uint8", "int8"]), st.sampled_from(["uint8", "int8"]),
    st.integers(1, 9), st.integers(2, 6), st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(st.integers(1, 2),
        st.integers(1, 2)),
    st.tuples(*[st.integers(0, 2)] * 4), st.tuples(st.integers(1, 2), st.integers(1, 2)), st.sampled_from([None,
        "one"]),
    st.sampled_from([None, "one", "columns"]), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 1 << 20),
)  # fmt: skip
def test_convolutions_keep_every_bit(
    dots: str, left: str, right: str, c: int, outputs: int, taps: tuple[int, int], strides: tuple[int, int],
    pads: tuple[int, ...],
    dilations: tuple[int, int], shift: str | None, columns: str | None, run_time: bool, extremes: bool, packed: bool,
    seed: int,
) -> None:  # fmt: skip
    """With channel blocks or, row-major, without."""
    x, w = numbers((2, c, 6, 7), left, seed, extremes), numbers((outputs, c, *taps), right, seed + 1, extremes)
    x_zero = None if shift is None else numbers((), left, seed + 2, extremes)
    w_zero = None if columns is None else numbers((outputs,) if columns == "columns" else (), right, seed + 3, extremes)
    graph, arrays = integer_product(ConvInteger(strides, pads, dilations), x, w, x_zero, w_zero, run_time)
    new = narrowed(graph, SETS[dots], *((4, 4) if packed else (None, None)))
    assert packed or whole(new, SETS[dots])
    assert set(contractions(new)) in [{(str(d.left), str(d.right))} for d in SETS[dots]]
    np.testing.assert_array_equal(evaluate(new, arrays)[0], evaluate(graph, arrays)[0])


def test_what_wraps_at_32_bits_wraps_alike() -> None:
    """(-255)² · 40,000 is beyond 2³¹: sums of any order, corrected or not, are those of the definition modulo 2³²."""
    x, w = np.zeros((1, 40_000), np.uint8), np.zeros((40_000, 4), np.uint8)
    graph, arrays = integer_product(MatMulInteger(), x, w, 255, 255)
    want = evaluate(graph, arrays)[0]
    assert (want == np.int64(255**2 * 40_000).astype(np.int32)).all()
    for dots in SETS.values():
        np.testing.assert_array_equal(evaluate(narrowed(graph, dots), arrays)[0], want)


def test_zero_points_of_constant_weights_cost_nothing_where_they_fit() -> None:
    """Weights of uint8 around 128 are weights of int8; what remains of the activations' zero point is one constant per
    column."""
    x, w = numbers((4, 8), "uint8", 0), numbers((8, 4), "uint8", 1)
    graph, _ = integer_product(MatMulInteger(), x, w, 7, 128)
    assert [type(n.op).__name__ for n in narrowed(graph, SETS["vnni"]).nodes] == ["MatMul", "Subtract"]
    graph, _ = integer_product(MatMulInteger(), x, w, 7, 100)
    assert "ReduceSum" in [type(n.op).__name__ for n in narrowed(graph, SETS["vnni"]).nodes], (
        "others are made up for with the sums of rows"
    )


def test_what_does_not_fit_stays_as_it_is() -> None:
    def kinds(graph: Graph, dots: tuple[DotProduct, ...]) -> list[tuple[str, str]]:
        return contractions(narrowed(graph, dots))

    b = GraphBuilder("wide")
    x, w = b.input("x", tensor_type("int32", (4, 8))), np.ones((8, 4), np.int32)
    b.output(b.add(MatMul(), x, b.constant(w, "w")))
    assert kinds(b.build(), SETS["vnni"]) == [("int32", "int32")], "activations of any size"
    b = GraphBuilder("wide_weights")
    x = b.input("x", tensor_type("int8", (4, 8)))
    b.output(b.add(MatMul(), b.add(Cast(dt.int32), x), b.constant(w * 40_000, "w")))
    assert kinds(b.build(), SETS["pairs"]) == [("int32", "int32")], "weights beyond 16 bits"
    assert kinds(b.build(), SETS["vnni"]) == [("uint8", "int8")], (
        "which all are the same: nothing is left of them but an offset"
    )
    b = GraphBuilder("weights_unknown")
    b.output(
        b.add(MatMulInteger(), b.input("x", tensor_type("uint8", (4, 8))), b.input("w", tensor_type("int8", (8, 4))))
    )
    assert kinds(b.build(), ()) == [("uint8", "int8")]
    grouped, _ = integer_product(
        ConvInteger(groups=2), numbers((1, 8, 3, 3), "uint8", 0), numbers((8, 4, 1, 1), "int8", 1), 3
    )
    assert kinds(grouped, ()) == [("int32", "int32")]
    graph, _ = integer_product(MatMulInteger(), numbers((4, 8), "uint8", 0), numbers((8, 4), "int8", 1), 3)
    assert kinds(graph, ()) == [("int32", "int32")], "a target without dot products"


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["uint8", "int8"]), st.integers(1, 3), st.integers(1, 3), st.tuples(*[st.integers(0, 2)] * 4),
    st.sampled_from([None, "one"]), st.sampled_from([None, "columns"]), st.booleans(), st.integers(0, 1 << 20),
)  # fmt: skip
def test_convolutions_in_groups_are_exact_in_floats(
    left: str,
    groups: int,
    each: int,
    pads: tuple[int, ...],
    shift: str | None,
    columns: str | None,
    extremes: bool,
    seed: int,
) -> None:
    """No instruction takes them; their sums are integers that float32 holds."""
    x, w = (
        numbers((2, groups * each, 5, 6), left, seed, extremes),
        numbers((groups * 2, each, 3, 2), "int8", seed + 1, extremes),
    )
    x_zero = None if shift is None else numbers((), left, seed + 2, extremes)
    w_zero = None if columns is None else numbers((groups * 2,), "int8", seed + 3, extremes)
    graph, arrays = integer_product(ConvInteger((2, 1), pads, (), groups), x, w, x_zero, w_zero)
    new = narrowed(graph, SETS["pairs"], lanes=64)
    assert contractions(new) == [(left, "float32")]
    np.testing.assert_array_equal(evaluate(new, arrays)[0], evaluate(graph, arrays)[0])


@pytest.mark.parametrize("zeros", [None, (128, -3)])
def test_two_activations_are_exact_in_floats_up_to_their_length(zeros: tuple[int, int] | None) -> None:
    def build(length: int) -> tuple[Graph, list[Array]]:
        b = GraphBuilder("two")
        x, y = numbers((2, 3, length), "uint8", 0, True), numbers((2, length, 5), "int8", 1, True)
        inputs = [b.input("x", tensor_type("uint8", x.shape)), b.input("y", tensor_type("int8", y.shape))]
        shifts = [] if zeros is None else [b.constant(np.uint8(zeros[0]), "a"), b.constant(np.int8(zeros[1]), "b")]
        b.output(b.add(MatMulInteger(), *inputs, *shifts))
        return b.build(), [x, y]

    graph, arrays = build(64)
    new = narrowed(graph, SETS["vnni"])
    assert contractions(new) == [("float32", "float32")]
    np.testing.assert_array_equal(evaluate(new, arrays)[0], evaluate(graph, arrays)[0])
    graph, _ = build(1 << 11)
    assert contractions(narrowed(graph, SETS["vnni"]))[0][0] != "float32", "2048 products of 16 bits are beyond 2^24"


def test_sixteen_bits_take_pairs() -> None:
    b = GraphBuilder("wide")
    x, w = numbers((3, 6), "int16", 0, True), numbers((6, 4), "int16", 1, True)
    b.output(b.add(MatMul(dt.int32), b.input("x", tensor_type("int16", x.shape)), b.constant(w, "w")))
    graph = b.build()
    new = narrowed(graph, SETS["vnni"])
    assert contractions(new) == [("int16", "int16")]
    np.testing.assert_array_equal(evaluate(new, [x])[0], evaluate(graph, [x])[0])


# -- the schedule -----------------------------------------------------------------------------------------------------


def kernels(graph: Graph, target: ResolvedTarget) -> Iterator[tuple[Any, str, Program, Schedule]]:
    """Each group: its node, its rule, its Program before the schedule, and the schedule."""
    for node in run_passes(graph, target.capabilities).nodes:
        if not isinstance(node.op, Group) or node.op.view:
            yield node, "", None, None  # type: ignore[misc]
            continue
        program = lower_group(node.op.body)
        rule, _ = select_rule(target.rules, program, target.machine)
        s = Schedule(program, target.machine, checked=rule.name == "dots", intrinsics=target.intrinsics)
        rule.apply(s)
        yield node, rule.name, program, s


def interpreted(graph: Graph, arrays: list[Array], target: ResolvedTarget) -> tuple[Array, list[Schedule]]:
    """The result, by the interpreter where instructions are used; and those schedules."""
    known: dict[str, Array] = {v.name: a for v, a in zip(graph.inputs, arrays)}
    functions, found = meanings(target.intrinsics.values()), []

    def of(v: Value) -> Array:
        return known[v.name] if v.constant is None else v.constant

    for node, rule, _, s in kernels(graph, target):
        (out,) = node.outputs
        if rule != "dots":
            (known[out.name],) = evaluate(node.op.body, [of(v) for v in node.inputs])
            continue
        found.append(s)
        stored = [
            a.reshape([int(str(n)) for n in b.shape])
            for a, b in zip((_packed(v, of(v)) for v in node.inputs), s.program.inputs)
        ]
        (result,) = interpret(s.program, stored, {}, intrinsics=functions).values()
        layout, shape = out.tensor.layout, [int(str(d)) for d in out.shape]
        known[out.name] = (
            result.reshape(shape)
            if layout is None
            else layout.unpack(result.reshape([int(str(n)) for n in layout.stored_shape(shape)]), shape)
        )
        replayed = replay(lower_group(node.op.body), s.trace, target.intrinsics)
        assert str(replayed) == str(s.program), "the trace gives the schedule"
    return known[run_passes(graph, target.capabilities).outputs[0].name], found


def _packed(v: Value, a: Array) -> Array:
    return a if v.tensor.layout is None else v.tensor.layout.pack(a)


CASES: dict[str, Any] = {
    "matmul": lambda e: integer_product(
        MatMulInteger(), numbers((7, 36), "uint8", 0, e), numbers((36, 40), "int8", 1, e), 9
    ),
    "int8": lambda e: integer_product(
        MatMulInteger(), numbers((5, 9), "int8", 0, e), numbers((9, 33), "int8", 1, e), -3
    ),
    "columns": lambda e: integer_product(
        MatMulInteger(),
        numbers((3, 8), "uint8", 0, e),
        numbers((8, 32), "uint8", 1, e),
        255,
        numbers((32,), "uint8", 2),
    ),
    "row": lambda e: integer_product(
        MatMulInteger(), numbers((1, 20), "uint8", 0, e), numbers((20, 64), "int8", 1, e), 128
    ),
    "short": lambda e: integer_product(
        MatMulInteger(), numbers((4, 3), "uint8", 0, e), numbers((3, 17), "int8", 1, e), 200
    ),
    "thin": lambda e: quantised_conv(
        numbers((1, 3, 4, 5), "uint8", 0, e), numbers((16, 3, 1, 1), "int8", 1, e), QLinearConv((2, 2))
    ),
    "conv": lambda e: quantised_conv(
        numbers((1, 18, 5, 6), "uint8", 0, e), numbers((20, 18, 3, 3), "int8", 1, e), QLinearConv(pads=(1, 1, 1, 1))
    ),
    "strided": lambda e: quantised_conv(
        numbers((2, 3, 7, 9), "uint8", 0, e),
        numbers((17, 3, 3, 2), "int8", 1, e),
        QLinearConv((2, 2), (1, 0, 1, 1)),
        y="int8",
    ),
    "pointwise": lambda e: quantised_conv(
        numbers((1, 16, 3, 5), "int8", 0, e), numbers((24, 16, 1, 1), "int8", 1, e), QLinearConv(), -128, bias=False
    ),
    "unsigned": lambda e: quantised_conv(
        numbers((1, 8, 4, 4), "uint8", 0, e),
        numbers((9, 8, 2, 2), "uint8", 1, e),
        QLinearConv(dilations=(2, 1)),
        w_zero=numbers((9,), "uint8", 3),
    ),
}
PROCESSORS = {
    x86("cascadelake"): ("vpdpbusd512", r"\bvpdpbusd\s.*%zmm"),
    x86("sapphirerapids"): ("vpdpbusd512", r"\bvpdpbusd\s.*%zmm"),
    x86("alderlake"): ("vpdpbusd256", r"\{vex\}\s+vpdpbusd\s.*%ymm"),
    x86("skylake-avx512"): ("vpmaddwd512", r"\bvpmaddwd\s.*%zmm"),
    x86("haswell"): ("vpmaddwd256", r"\bvpmaddwd\s.*%ymm"),
    x86("nehalem"): ("pmaddwd128", r"\bpmaddwd\s.*%xmm"),
    arm("neoverse-n1"): ("[us]dot", r"\b[us]dot\s+v\d+\.4s"),
    arm("neoverse-v1"): ("(us|s|u)dot", r"\b(us|s|u)dot\s+v\d+\.4s"),
}


def tensorized(s: Schedule) -> set[str]:
    return {str(step.args[1]) for step in s.trace.steps if step.do == "tensorize"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", PROCESSORS, ids=lambda t: t.split("-mcpu=")[1].split()[0])
def test_every_processor_has_its_instruction(case: str, target: str) -> None:
    """The interpreter gives the reference's bits, the trace says tensorize, and the inner loop is the instruction,
    accumulators in registers."""
    graph, arrays = CASES[case](True)
    resolved, (name, pattern) = resolve_target(target), PROCESSORS[target]
    got, schedules = interpreted(graph, arrays, resolved)
    np.testing.assert_array_equal(got, evaluate(graph, arrays)[0])
    assert schedules, "no product was tensorized"
    for s in schedules:
        assert all(re.fullmatch(name, i) for i in tensorized(s)) and tensorized(s), s.trace
        codegen: Any = resolved.kind.codegen(resolved.target)
        assert re.search(pattern, codegen.assembly(lower_program(s.program, codegen.functions)))


@pytest.mark.parametrize("cpu", ["cascadelake", "haswell"])
def test_accumulators_stay_in_registers(cpu: str) -> None:
    name, pattern = PROCESSORS[x86(cpu)]
    x, w = numbers((1, 64, 14, 14), "uint8", 0), numbers((64, 64, 3, 3), "int8", 1)
    for graph, _ in (
        quantised_conv(x, w, QLinearConv(pads=(1, 1, 1, 1))),
        integer_product(MatMulInteger(), x[0, :, 0], w[0, :14, 0, 0:1].repeat(64, 1), 3),
    ):
        resolved = resolve_target(x86(cpu))
        (s,) = (s for _, rule, _, s in kernels(graph, resolved) if rule == "dots")
        codegen: Any = resolved.kind.codegen(resolved.target)
        bodies = re.split(r"(?m)^\.L\w+:", codegen.assembly(lower_program(s.program, codegen.functions)))
        hot = max((b.split("\tj", 1)[0] for b in bodies), key=lambda b: len(re.findall(pattern, b)))
        assert len(re.findall(pattern, hot)) >= 10 and not re.search(r"\bvmovdqu\S*\s+%[xyz]mm\d+, .*\(", hot), (
            f"{name} spills\n{hot}"
        )


def test_scales_are_part_of_the_kernel() -> None:
    """A quantised convolution is one kernel from activations to activations, between what stores them for it."""
    graph, _ = CASES["conv"](False)
    rules = [
        (rule, [str(b.annotation("op")) for b in _blocks(p)])
        for _, rule, p, _ in kernels(graph, resolve_target(x86("cascadelake")))
    ]
    (ops,) = (ops for rule, ops in rules if rule == "dots")
    assert ops[0] == "Conv" and {"Multiply", "Round", "Clip"} <= set(ops) and "Cast" in ops[-1:]
    assert [rule for rule, _ in rules if rule not in ("dots", "elementwise")] == []


def _blocks(program: Program) -> list[Any]:
    from weft.scheduling.access import blocks_of

    return blocks_of(program)


# -- native -----------------------------------------------------------------------------------------------------------


def run_here(graph: Graph, arrays: list[Array], target: str = "llvm -threads=2") -> Array:
    exe = weft.compile(graph, target, cache=False)
    return next(iter(exe.run({v.name: a for v, a in zip(graph.inputs, arrays)}).values()))


@pytest.mark.parametrize("extremes", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_this_machine_gives_every_bit(case: str, extremes: bool) -> None:
    graph, arrays = CASES[case](extremes)
    np.testing.assert_array_equal(run_here(graph, arrays), evaluate(graph, arrays)[0])


SHAPES = [(1, 7, 16), (1, 1, 16), (5, 2, 17), (13, 31, 47), (64, 128, 100), (100, 65, 260), (6, 256, 1024)]


@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_any_shape(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    graph, arrays = integer_product(
        MatMulInteger(),
        numbers((m, k), "uint8", 0, True),
        numbers((k, n), "int8", 1, True),
        128,
        numbers((n,), "int8", 2),
    )
    np.testing.assert_array_equal(run_here(graph, arrays), evaluate(graph, arrays)[0])


@pytest.mark.parametrize("cpu", ["cascadelake", "alderlake"])
def test_a_sum_of_a_single_step_of_the_instruction(cpu: str) -> None:
    """No loop of the reduction is left around the instruction, and none of rows."""
    program = parse_program("""program step(a: uint8[4], b: int8[16, 4]) -> (c: int32[16]) {
      for j in 16 { for k in 4 { block C(vj: 16 = j, vk: reduce 4 = k) @ op="MatMul" {
        init { c[vj] = 0i32 } c[vj] = c[vj] + int32(a[vk])*int32(b[vj, vk]) } } } }""")
    target = resolve_target(x86(cpu))
    s = Schedule(program, target.machine, intrinsics=target.intrinsics)
    rule, _ = select_rule(target.rules, program, target.machine, target.intrinsics)
    rule.apply(s)
    assert rule.name == "dots" and tensorized(s)
    a, b = numbers((4,), "uint8", 0), numbers((16, 4), "int8", 1)
    (got,) = interpret(s.program, [a, b], intrinsics=meanings(target.intrinsics.values())).values()
    np.testing.assert_array_equal(got, b.astype(np.int32) @ a.astype(np.int32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_become_their_nearest_integers(dtype: str) -> None:
    """Halves go to even, what is almost a half does not."""
    halves = np.arange(-40, 40) / 2
    x = np.concatenate(
        [
            halves,
            np.nextafter(halves.astype(dtype), np.inf),
            np.nextafter(halves.astype(dtype), -np.inf),
            [2.0**29 + 0.5, -(2.0**29) - 0.5],
        ]
    )
    x = x.astype(dtype)
    b = GraphBuilder("nearest")
    b.output(b.add(Cast(dt.int32), b.add(Round(), b.input("x", tensor_type(dtype, x.shape)))))
    np.testing.assert_array_equal(run_here(b.build(), [x]), np.rint(x).astype(np.int32))


def test_any_number_of_rows() -> None:
    """A symbolic number of rows: one executable, every tail of a tile."""
    b = GraphBuilder("rows")
    w = numbers((33, 48), "int8", 1)
    x = b.input("x", tensor_type("uint8", (weft.var("n"), 33)))
    b.output(b.add(MatMulInteger(), x, b.constant(w, "w"), b.constant(np.uint8(77), "zero")))
    graph = b.build()
    exe = weft.compile(graph, "llvm -threads=2", cache=False)
    for n in (1, 5, 6, 7, 12, 29):
        x_data = numbers((n, 33), "uint8", n)
        np.testing.assert_array_equal(
            next(iter(exe.run({"x": x_data}).values())), (x_data.astype(np.int32) - 77) @ w.astype(np.int32)
        )


def test_zero_points_of_run_time() -> None:
    """Dynamically quantised activations, as an encoder's: the zero point is known when the product runs."""
    b = GraphBuilder("dynamic")
    x, w = np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32), numbers((40, 32), "int8", 1)
    y, scale, zero = b.add_all(DynamicQuantize(), b.input("x", tensor_type("float32", x.shape)))
    total = b.add(Cast(dt.float32), b.add(MatMulInteger(), y, b.constant(w, "w"), zero))
    b.output(b.add(Dequantize(), y, scale, zero))
    b.output(total)
    graph = b.build()
    want = evaluate(graph, [x])
    got = list(weft.compile(graph, "llvm -threads=1", cache=False).run({"x": x}).values())
    steps = np.abs(want[0] - got[0]).max() / (np.abs(x).max() / 255)
    assert steps <= 1.01, "a quotient that is almost halfway rounds either way"
    if steps < 0.5:
        np.testing.assert_array_equal(got[1], want[1])


def test_a_chain_of_convolutions_keeps_its_layout() -> None:
    """Between two quantised convolutions nothing is stored in another order; both are tensorized, and a residual is
    added between."""
    b = GraphBuilder("chain")
    x = numbers((1, 16, 8, 8), "uint8", 0)
    value = b.input("x", tensor_type("uint8", x.shape))
    f = np.float32
    first = value
    for k in range(2):
        w = numbers((16, 16, 3, 3), "int8", k + 1)
        parts = (f(0.02), np.uint8(3), w, np.full(16, 0.01, f), np.zeros(16, np.int8), f(0.1), np.uint8(100))
        value = b.add(
            QLinearConv(pads=(1, 1, 1, 1)), value, *(b.constant(np.asarray(p), f"c{k}{j}") for j, p in enumerate(parts))
        )
    whole = b.add(Relu(), b.add(Add(), b.add(Cast(dt.int32), value), b.add(Cast(dt.int32), first)))
    b.output(whole)
    graph = b.build()
    resolved = resolve_target("llvm -threads=1")
    found = list(kernels(graph, resolved))
    rules, groups = [rule for _, rule, _, _ in found], [str(group) for group, *_ in found]
    # Where bytes stay bytes (VNNI) the input is brought into blocks by a kernel of its own.
    assert rules.count("dots") == 2 and len(rules) <= 7, rules
    moved = [group for group in groups if "relayout" in group.split("(%")[0]]
    assert all("(%x:" in group or "row_major = " in group for group in moved), moved
    np.testing.assert_array_equal(run_here(graph, [x]), evaluate(graph, [x])[0])


@pytest.mark.needs("qemu")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cpu", ["neoverse-n1", "neoverse-v1"])
def test_arm_gives_every_bit_under_qemu(case: str, cpu: str) -> None:
    graph, arrays = CASES[case](True)
    want = [np.asarray(a) for a in evaluate(graph, arrays)]
    linked, compilation = compile_cross(graph, arm(cpu))
    assert "dots" in {k.rule for k in compilation.kernels.values()}
    answer = linked.run(arrays, want, "max")
    assert (answer.code, answer.error) == (0, 0), answer.error_args
    np.testing.assert_array_equal(answer.outputs[0], want[0])
