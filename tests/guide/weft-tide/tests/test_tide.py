"""weft-tide as it is installed: what it computes, what it leaves to others, and what it says."""

from __future__ import annotations

import gc
import re
import warnings
from typing import Any

import numpy as np
import pytest
import weft
from weft import dtypes
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.pipeline import lower_program
from weft.loop.printer import print_program
from weft.lower.lower import lower_group
from weft.scheduling.intrinsic import meanings
from weft.scheduling.schedule import Schedule
from weft_interpreter.interpret import interpret
from weft_ops import Add, Conv, MatMul, MatMulInteger, Maximum, Relu
from weft_runtime.device import Slice, open_device
from weft_testing.imports import imports_beyond
from weft_testing.intrinsics import check_intrinsic
from weft_testing.plugin import resolve_target

from weft_tide.instructions import INTRINSICS
from weft_tide.schedules import Matrices

RNG = np.random.default_rng(0)


def whole(*shape: int, dtype: str = "float32") -> Any:
    """Whole numbers, whose sums of products are exact in every order."""
    return RNG.integers(-5, 6, shape).astype(dtypes.dtype(dtype).numpy)


def product(rows: int | str, terms: int | str, columns: int | str, *, batch: tuple[int, ...] = (), weights: Any = None) -> Graph:
    g = GraphBuilder("product")
    x = g.input("x", tensor_type("float32", (*batch, rows, terms)))
    w = g.constant(weights, "w") if weights is not None else g.input("w", tensor_type("float32", (*batch, terms, columns)))
    g.output(g.add(Relu(), g.add(MatMul(), x, w)), "y")
    return g.build()


def scheduled(graph: Graph) -> str:
    """The text of the scheduled product, checked after every step."""
    tide = resolve_target("tide")
    s = Schedule(lower_group(graph), tide.machine, checked=True, intrinsics=tide.intrinsics)
    Matrices().apply(s)
    return print_program(s.program)


@pytest.mark.parametrize("intrinsic", [i for i in INTRINSICS if "i8" in i.name], ids=lambda i: str(i.name))
def test_an_instructions_code_does_what_it_means(intrinsic: Any) -> None:
    assert check_intrinsic(intrinsic) > 0


@pytest.mark.parametrize(
    "sizes",
    [
        (48, 64, 64),
        (50, 128, 70),
        (23, 70, 40),
        (2, 9, 33),
        (7, 200, 96),
        (1, 64, 33),
        (30, 64, 5),
        (0, 8, 32),
        (3, 0, 4),
    ],
    ids=lambda s: "x".join(map(str, s)),
)
def test_products_are_those_of_numpy(sizes: tuple[int, int, int]) -> None:
    rows, terms, columns = sizes
    x, w = whole(rows, terms), whole(terms, columns)
    executable = weft.compile(product(*sizes), target="tide", cache=False)
    np.testing.assert_array_equal(executable.run({"x": x, "w": w})["y"], np.maximum(x @ w, 0))


def test_one_executable_takes_open_sizes() -> None:
    executable = weft.compile(product("rows", "terms", 40), target="tide", cache=False)
    for rows, terms in ((1, 1), (24, 64), (50, 70), (49, 129)):
        x, w = whole(rows, terms), whole(terms, 40)
        np.testing.assert_array_equal(executable.run({"x": x, "w": w})["y"], np.maximum(x @ w, 0))


def test_pairs_of_matrices_are_multiplied_in_one_kernel() -> None:
    x, w = whole(3, 30, 64), whole(3, 64, 40)
    executable = weft.compile(product(30, 64, 40, batch=(3,)), target="tide", cache=False)
    np.testing.assert_array_equal(executable.run({"x": x, "w": w})["y"], np.maximum(x @ w, 0))


@pytest.mark.parametrize("terms", (64, 200, 136))
def test_constant_weights_are_read_in_panels(terms: int) -> None:
    w = whole(terms, 70)
    graph, x = product(50, terms, 70, weights=w), whole(50, terms)
    np.testing.assert_array_equal(weft.compile(graph, target="tide", cache=False).run({"x": x})["y"], np.maximum(x @ w, 0))


@pytest.mark.parametrize(("kernel", "strides"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("channels", (13, 16))
def test_convolutions_are_gathered_with_channels_innermost(kernel: int, strides: int, channels: int) -> None:
    x, w = whole(1, channels, 9, 9), whole(35, channels, kernel, kernel)
    g = GraphBuilder("convolution")
    conv = Conv(strides=(strides, strides), pads=(kernel // 2,) * 4)
    g.output(g.add(conv, g.input("x", tensor_type("float32", x.shape)), g.constant(w, "w")), "y")
    graph = g.build()
    (expected,) = evaluate(graph, {"x": x})
    np.testing.assert_array_equal(weft.compile(graph, target="tide", cache=False).run({"x": x})["y"], expected)


@pytest.mark.parametrize("dtype", ("int8", "uint8"))
def test_integer_products_of_constant_weights_are_of_int8(dtype: str) -> None:
    x, w = RNG.integers(0, 100, (30, 70)).astype(dtype), whole(70, 40, dtype="int8")
    g = GraphBuilder("integers")
    g.output(g.add(MatMulInteger(), g.input("x", tensor_type(dtype, x.shape)), g.constant(w, "w")), "y")
    before = dict(open_device("tide").cycles)  # type: ignore[attr-defined]
    result = weft.compile(g.build(), target="tide", cache=False).run({"x": x})["y"]
    np.testing.assert_array_equal(result, x.astype(np.int32) @ w.astype(np.int32))
    assert open_device("tide").cycles["arrays"] > before["arrays"]  # type: ignore[attr-defined]


def test_open_sizes_in_every_direction_are_padded() -> None:
    text = scheduled(product("rows", "terms", "columns"))
    assert "@tide_f32_add(" in text and "(columns + 63)//64" in text


def test_tiles_are_brought_a_step_ahead_on_both_arrays() -> None:
    text = scheduled(product(50, 192, 64))
    assert "in 2 unit.array" in text
    assert "float32[2, 24, 64] in tide.staging align 256" in text
    assert "@tide_load_f32(in1[" in text and "in1_tide.staging_half" in text
    assert "min(25 - " in text, "the last rows are a length"


def test_a_ragged_sum_is_padded() -> None:
    text = scheduled(product(24, 70, 32))
    assert "@tide_f32_add(" in text
    assert "select(in0_tide.staging_v1 < 70" in text, "zeros in the copies alone"


def test_copies_are_begun_and_awaited() -> None:
    """Without a wait a tile reads as NaN."""
    tide = resolve_target("tide")
    s = Schedule(lower_group(product(24, 192, 32)), tide.machine, intrinsics=tide.intrinsics)
    Matrices().apply(s)
    x, w = whole(24, 192), whole(192, 32)
    lowered = lower_program(s.program, functions=frozenset(), extra=tide.loop_passes())
    text = print_program(lowered)
    assert "@begin_tide_load_f32(" in text and "@await_tide_engine(" in text
    (result,) = interpret(lowered, [x.reshape(-1), w.reshape(-1)], intrinsics=meanings(INTRINSICS)).values()
    np.testing.assert_array_equal(result.reshape(24, 32), np.maximum(x @ w, 0))


def test_panels_are_awaited_by_their_tokens() -> None:
    seen: list[str] = []
    w = whole(256, 64)
    executable = weft.compile(
        product(30, 256, 64, weights=w),
        target="tide",
        cache=False,
        on_stage=lambda stage: seen.append(f"{stage.stage}\n{stage.result}"),
    )
    text = next(t for t in seen if "@begin_tide_load_panel_f32" in t)
    assert (
        re.search(r"@begin_tide_load_panel_f32\(.*tide_panel_engine_tokens", text)
        and "@await_tide_panel_engine(tide_panel_engine_tokens" in text
    )
    x = whole(30, 256)
    np.testing.assert_array_equal(executable.run({"x": x})["y"], np.maximum(x @ w, 0))


def test_the_engine_works_beside_the_arrays() -> None:
    device: Any = open_device("tide")
    executable = weft.compile(product(48, 256, 64), target="tide", cache=False)
    before = dict(device.cycles)
    executable.run({"x": whole(48, 256), "w": whole(256, 64)})
    spent = {name: device.cycles[name] - before[name] for name in before}
    assert spent["arrays"] == 2 * 2 * 4 * (24 + 8 * 4), "tiles of rows, of columns, steps"
    assert spent["engine"] == 2 * 2 * 4 * (24 * 64 + 64 * 32) * 4 // 64


def test_the_simulator_refuses_what_is_not_aligned() -> None:
    device: Any = open_device("tide")
    text = """program k(x: float32[64]) -> (y: float32[1]) {
      allocate a: float32[768] in tide.staging align 256
      allocate b: float32[256] in tide.staging align 256
      allocate c: float32[32] in tide.accumulators align 256
      @tide_f32(a[8], 8, b[0], 8, c[0], 1, 8)
    }"""
    module = device.load(text.encode() + b"\0", {"k": 0})
    memory = device.reserve(1024)
    with pytest.raises(weft.WeftError, match=r"reads lines of 256 bytes"):
        device.launch(module, "k", [Slice(memory, 0, 256), Slice(memory, 256, 4)], [])


def test_its_own_pass_comes_before_it_is_asked_what_it_takes() -> None:
    g = GraphBuilder("largest")
    x = g.input("x", tensor_type("float32", (30, 64)))
    y = g.add(MatMul(), x, g.constant(whole(64, 40), "w"))
    g.output(g.add(Maximum(), y, g.constant(np.zeros((), np.float32), "zero")), "y")
    executable = weft.compile(g.build(), target="tide", cache=False)
    assert "relu" in executable.plan and "maximum" not in executable.plan


def test_a_model_goes_where_it_takes_the_least_time() -> None:
    pytest.importorskip("weft_llvm")
    for size, kinds in ((32, {"native"}), (384, {"device", "copy"})):
        executable = weft.compile(product(size, size, size), target="tide, llvm -threads=1", cache=False)
        assert kinds <= {step.kind for step in executable.manifest.steps}


def test_what_cannot_be_scheduled_goes_to_the_next_target_with_every_memory_that_is_too_small() -> None:
    pytest.importorskip("weft_llvm")
    graph = product(256, 256, 256)
    with pytest.warns(UserWarning) as told:
        executable = weft.compile(graph, target="tide -staging=8, llvm -threads=1", cache=False)
    said = "\n".join(str(w.message) for w in told)
    assert "28672 bytes of scope 'tide.staging', there are 8192" in said
    assert "one after another, is the host's [slow]" in said
    x, w = whole(256, 256), whole(256, 256)
    np.testing.assert_array_equal(executable.run({"x": x, "w": w})["y"], np.maximum(x @ w, 0))
    with pytest.raises(weft.WeftError, match="tide.staging"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weft.compile(graph, target="tide -staging=8", cache=False)


def test_memory_is_given_back() -> None:
    device = open_device("tide")
    g = GraphBuilder("addition")
    a, b = (g.input(name, tensor_type("float32", (64, 8))) for name in "ab")
    g.output(g.add(Add(), a, b), "sum")
    executable = weft.compile(g.build(), target="tide", cache=False)
    ones = np.ones((64, 8), np.float32)
    before = device.free
    executable.run({"a": ones, "b": ones})
    del executable
    gc.collect()
    assert device.free >= before


@pytest.mark.parametrize(("option", "text"), [("-staging=3", "-staging is 4 to 256, got 3"), ("-arrays=3", "-arrays is 1 or 2, got 3")])
def test_an_option_out_of_range_is_an_error(option: str, text: str) -> None:
    with pytest.raises(weft.WeftError, match=text):
        weft.compile(product(4, 8, 4), target=f"tide {option}", cache=False)


def test_it_imports_public_names_only() -> None:
    assert imports_beyond("weft_tide") == []
