"""Chains whose formulas, graphs or constants could double with every step compile in time that grows with the model,
not with what it could become."""

from __future__ import annotations

import cProfile
import itertools
import time
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from benchmarks.growth import CHAINS, REFUSED, WIDE, model_of
from onnx import TensorProto, helper, numpy_helper

import weft
from weft import dtypes as dt
from weft.errors import UnsupportedError
from weft.expr.nodes import Expr, Var, add, floordiv, maximum, mul, size_of
from weft.graph.nodes import GraphBuilder, tensor_type
from weft.passes import fold_constants as folding
from weft.passes.fold_constants import fold_constants
from weft_ops import Concat, Fill, MatMul, ReduceSum

STEPS = 30
SLOW = ("pads", "compressed", "pools")
"""Chains of kernels that differ, each of which is compiled: some seconds."""


@pytest.fixture(scope="module", autouse=True)
def _started() -> None:
    """What the first compilation of a process imports and starts is no part of a measurement."""
    weft.compile(model_of("gather", 1).SerializeToString(), cache=False)


def calls(model: bytes) -> int:
    """Calls of functions that compiling `model` takes in this thread: as many on a busy machine as on an idle one."""
    profile = cProfile.Profile()
    profile.runcall(weft.compile, model, cache=False)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.full if k in SLOW else ()) for k in CHAINS if k not in REFUSED]
)
def test_the_work_on_a_chain_grows_with_its_length(kind: str) -> None:
    """At most fifty times the calls of half the chain: there is room for a cube, and for kernels where the half is
    folded, and none for what doubles with each step (32,768 times). `benchmarks.growth` has the times."""
    half = calls(model_of(kind, STEPS // 2).SerializeToString())
    assert calls(model_of(kind, STEPS).SerializeToString()) <= 50 * half


@pytest.mark.full
@pytest.mark.parametrize("kind", WIDE)
def test_the_work_on_a_wide_model_grows_with_its_width(kind: str) -> None:
    """In calls that grow less than the square of the width."""
    width = WIDE[kind][1]
    assert calls(model_of(kind, width).SerializeToString()) <= 3 * calls(model_of(kind, width // 2).SerializeToString())


def test_functions_that_multiply_without_end_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="comes to more than 20,000 nodes") as caught:
        weft.compile(model_of("function_of_itself", STEPS).SerializeToString(), cache=False)
    assert "written out" in str(caught.value.why) and caught.value.hint and "node '" in str(caught.value.where)


# -- the answers stay what they were ----------------------------------------------------------------------------------


def f(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) - 2


def first(kind: str, steps: int, *inputs: np.ndarray) -> np.ndarray:
    return np.asarray(weft.compile(model_of(kind, steps).SerializeToString(), cache=False)(*inputs))


def repeated(step: Callable[[np.ndarray], np.ndarray], x: np.ndarray, steps: int) -> np.ndarray:
    for _ in range(steps):
        x = step(x)
    return x


def test_chains_that_are_cut_give_what_their_definition_says() -> None:
    i = np.array([2, -1, 0, 1, -4, 3])
    x = f(6)
    np.testing.assert_array_equal(first("gather", 11, x, i), repeated(lambda t: t[i], x, 11))
    np.testing.assert_array_equal(first("gather_of_itself", 7, i), repeated(lambda t: t[t], i, 7))
    y = np.arange(8) * 3
    np.testing.assert_array_equal(
        first("gather_arithmetic", 9, y, np.arange(8)), repeated(lambda t: (y[t] + t) % 8, np.arange(8), 9)
    )
    z = np.linspace(0.999, 1.001, 5, dtype=np.float32)
    np.testing.assert_allclose(first("product", 12, z), z.astype(np.float64) ** 4096, rtol=1e-3)
    s = np.linspace(0, 1, 9, dtype=np.float32).reshape(3, 3)
    np.testing.assert_allclose(first("transposed_product", 5, s), repeated(lambda t: t * t.T, s, 5), rtol=1e-5)
    v = np.linspace(0, 1, 20, dtype=np.float32)
    np.testing.assert_allclose(first("sums_of_slices", 9, v), repeated(lambda t: t[1:] + t[:-1], v, 9), rtol=1e-5)
    np.testing.assert_allclose(
        first("padded", 9, v[:3]), repeated(lambda t: np.pad(t, (1, 0)) + np.pad(t, (0, 1)), v[:3], 9), rtol=1e-5
    )
    np.testing.assert_array_equal(first("concat", 6, f(3)), np.tile(f(3), 64))
    np.testing.assert_array_equal(first("function_twice", 9, f(4)), np.maximum(f(4), 0) * 512)
    one, rows = f(1, 3), [np.array(s) for s in ((1, 1), (1, 3), (4, 1), (4, 3), (1, 1), (4, 1))]
    np.testing.assert_array_equal(first("expands", 6, one, *rows), np.broadcast_to(one, (4, 3)))
    sides = [
        np.array(p) for p in ((1, 0, 0, 2), (0, 0, 0, 0), (0, 3, 1, 0), (-1, 0, 0, 1), (0, 0, 2, -2), (2, 1, 1, 0))
    ]
    padded = repeated(lambda t: np.pad(t, ((1, 0), (0, 2))), f(2, 3), 1)
    padded = np.pad(np.pad(np.pad(padded, ((0, 1), (3, 0)))[1:], ((0, 0), (0, 1))), ((0, 2), (0, 0)))[:, :-2]
    bounds = [(1, 60, 1), (-1, -99, -2), (0, 99, 3), (99, -99, -1), (1, 9, 1), (0, 99, 1), (7, 0, -2), (0, 1, 5)]
    numbers = [np.array([b]) for bound in bounds for b in bound]
    expected = f(64)
    for start, end, step in bounds:
        expected = expected[start:end:step]
    np.testing.assert_array_equal(first("slices", len(bounds), f(64), *numbers), expected)
    np.testing.assert_array_equal(first("pads", 6, f(2, 3), *sides), np.pad(padded, ((2, 1), (1, 0))))


def test_chains_of_where_choose_as_numpy_does() -> None:
    rng = np.random.default_rng(0)
    x, conditions, u, v = f(37), rng.random((6, 37)) < 0.5, *rng.normal(0, 9, (2, 6, 37)).astype(np.float32)
    chosen = compared = x
    for c, a, b in zip(conditions, u, v):
        chosen, compared = np.where(c, chosen, a), np.where(compared > a, compared, b)
    np.testing.assert_array_equal(first("wheres", 6, x, *(t for pair in zip(conditions, u) for t in pair)), chosen)
    np.testing.assert_array_equal(
        first("wheres_of_themselves", 6, x, *(t for pair in zip(u, v) for t in pair)), compared
    )


def test_wide_models_give_what_their_definition_says() -> None:
    pieces = [f(k % 3, 3) for k in range(200)]
    inputs = [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, [f"n{k}", 3]) for k in range(200)]
    node = helper.make_node("Concat", [i.name for i in inputs], ["y"], axis=0)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])])
    exe = weft.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString(),
        cache=False,
    )
    np.testing.assert_array_equal(exe(*pieces), np.concatenate(pieces))
    x = f(2, 3)
    parts = [(np.add, np.multiply, np.subtract)[k % 3](x, np.float32(k)) for k in range(100)]
    np.testing.assert_array_equal(first("concat_computed", 100, x), np.concatenate(parts, 1))
    y = f(2, 4 * 300)
    np.testing.assert_array_equal(first("split_concat", 300, y), np.concatenate(np.split(y, 300, 1)[::-1], 1))


def test_kernels_that_differ_in_a_constant_only_are_one() -> None:
    scheduled: list[str] = []
    exe = weft.compile(
        model_of("outputs", 40).SerializeToString(),
        cache=False,
        on_stage=lambda r: scheduled.extend([r.subject] * (r.stage == "schedule")),
    )
    assert len(scheduled) <= 2  # x + 0 is a copy
    for k, y in enumerate(exe(f(5))):
        np.testing.assert_array_equal(y, f(5) + k)


def test_kernels_that_differ_in_names_of_sizes_only_are_one() -> None:
    """Each call has sizes of its own."""
    scheduled: list[str] = []
    model = model_of("products_of_matrices", 4).SerializeToString()
    exe = weft.compile(model, cache=False, on_stage=lambda r: scheduled.extend([r.subject] * (r.stage == "schedule")))
    assert len(scheduled) == 1
    sizes = (3, 17, 1, 40, 5, 9)
    x, *matrices = (np.arange(a * b, dtype=np.float32).reshape(a, b) % 5 - 2 for a, b in itertools.pairwise(sizes))
    np.testing.assert_array_equal(exe(x, *matrices), np.linalg.multi_dot([x, *matrices]))


@pytest.mark.parametrize(("taken", "kind"), [(t, k) for t in (True, False) for k in ("nested_if", "nested_if_failing")])
def test_nested_branches_give_what_the_inner_one_does(taken: bool, kind: str) -> None:
    x, i = f(4), np.array([3, 2, 1, 0])
    expected = (x[i] if kind == "nested_if_failing" else np.maximum(x, 0)) if taken else -x
    np.testing.assert_array_equal(first(kind, 6, x, np.array(taken), i), expected)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("shape_sums", lambda s: s * s // (s + 1) + s),
        ("shape_products", lambda s: s * s),
        ("shape_powers", lambda s: s * (s + 1)),
        ("shape_mix", lambda s: max(s, (s + s % 7) // 2)),
    ],
)
def test_sizes_whose_formulas_are_cut_are_what_they_were(kind: str, step: Callable[[int], int]) -> None:
    """Each formula is longer than a formula may be, its value small enough to run."""
    size, steps = 1, 5 if kind in ("shape_powers", "shape_sums") else 12
    for _ in range(steps):
        size = step(size)
    assert first(kind, steps, f(1), f(1)).shape == (size,)


def test_a_size_that_may_be_negative_keeps_its_sign_when_its_formula_is_cut() -> None:
    """s = s·s − 3s, at 2 and 1: −2, 10, 70 and −2, 10, 70 by way of negative numbers; an unsigned symbol would be
    wrong."""
    steps = 8
    nodes = [helper.make_node("Shape", ["x"], ["n"]), helper.make_node("Sub", ["n", "three"], ["s0"])]
    for k in range(steps):
        nodes += [
            helper.make_node("Mod", [f"s{k}", "five"], [f"a{k}"]), helper.make_node("Div", [f"s{k}", "two"], [f"b{k}"]),
            helper.make_node("Sub", [f"b{k}", f"a{k}"], [f"s{k + 1}"]),
        ]  # fmt: skip
    nodes += [helper.make_node("Abs", [f"s{steps}"], ["t"]), helper.make_node("Expand", ["v", "t"], ["y"])]
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, ["n"]), info("v", TensorProto.FLOAT, [1])]
    numbers = [numpy_helper.from_array(np.array([k]), n) for n, k in (("three", 30), ("five", 5), ("two", 2))]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", TensorProto.FLOAT, [None])], numbers)
    run = weft.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString(),
        cache=False,
    )
    for n in (1, 7, 100):
        s = n - 30
        for _ in range(steps):
            s = int(s / 2) - s % 5
        assert np.asarray(run(f(n), f(1))).shape == (abs(s),)


def test_a_random_function_that_is_called_twice_is_not_one_call() -> None:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    noise = helper.make_node("RandomNormalLike", ["a"], ["b"])
    function = helper.make_function("own", "noise", ["a"], ["b"], [noise], opsets)
    nodes = [helper.make_node("noise", ["x"], [n], domain="own") for n in ("p", "q")] + [
        helper.make_node("Sub", ["p", "q"], ["y"])
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64]) for n in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", info[:1], info[1:]), opset_imports=opsets, functions=[function], ir_version=10
    )
    try:
        exe = weft.compile(model.SerializeToString(), cache=False)
    except UnsupportedError:
        pytest.skip("random operators are not supported")
    assert np.abs(np.asarray(exe(f(64)))).max() > 0


# -- formulas ---------------------------------------------------------------------------------------------------------


def shared(steps: int) -> Expr:
    """A formula of 2ⁿ parts in n nodes."""
    e: Expr = Var("n")
    for k in range(steps):
        e = maximum(floordiv(e, 3), add(e, k + 1))
    return e


def test_equal_formulas_that_share_parts_compare_in_time_of_their_nodes() -> None:
    a, b = shared(60), shared(60)
    assert size_of(a) > 1 << 60
    began = time.process_time()
    assert a == b and hash(a) == hash(b) and a != add(b, 1) and mul(a, 2) == mul(b, 2)
    assert time.process_time() - began < 0.1


# -- folding ----------------------------------------------------------------------------------------------------------


def test_constant_folding_ends_when_it_has_made_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MADE", 1 << 12)
    b = GraphBuilder()
    x = b.constant(np.ones(4, np.float32))
    for _ in range(12):
        x = b.add(Concat(0), x, x)
    b.output(b.add(ReduceSum((0,), False), x))
    folded = fold_constants(b.build())
    assert folded.nodes and sum(c.constant.nbytes for c in folded.constants() if c.constant is not None) <= 1 << 12


def test_constant_folding_ends_when_it_has_done_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "WORK", 1 << 24)
    monkeypatch.setattr(folding, "WORK_PER_ELEMENT", 0)
    b = GraphBuilder()
    w = b.constant(np.eye(128, dtype=np.float32))
    x = w
    for _ in range(8):
        x = b.add(MatMul(), x, w)
    b.output(x)
    left = fold_constants(b.build())
    assert 0 < len(left.nodes) < 8 and all(isinstance(n.op, MatMul) for n in left.nodes)


def test_values_made_of_nothing_are_folded_as_far_as_the_budget_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MADE", 1 << 15)
    b = GraphBuilder()
    b.input("x", tensor_type("float32", (1,)))
    parts = [b.add(Fill(dt.float32, (1 << 6, 1 << 6), float(k))) for k in range(12)]
    b.output(b.add(Concat(0), *parts))
    folded = fold_constants(b.build())
    assert (
        folded.nodes
        and 0 < sum(c.constant.nbytes for c in folded.constants() if c.constant is not None) <= folding.MADE
    )


def test_growth_models_are_valid_onnx() -> None:
    for kind in (*CHAINS, *WIDE):
        onnx.checker.check_model(model_of(kind, 3))
