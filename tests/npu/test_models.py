"""Models on the example accelerator: results are those of the reference, nodes go where they can be computed, and what
cannot says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weft_npu.schedules import rules

import weft
from weft.errors import ExecutionError, TargetError, UnsupportedError, WeftError
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, Value, tensor_type
from weft_ops.activation import Relu, Sigmoid
from weft_ops.arithmetic import Add, Multiply
from weft_ops.columns import Col2Im
from weft_ops.contraction import Conv, MatMul
from weft_ops.movement import Transpose
from weft_ops.normalization import Softmax
from weft_ops.reduction import ReduceMean
from weft_ops.sorting import TopK
from weft_ops.window import AveragePool, MaxPool
from weft_runtime.device import open_device
from weft_runtime.executable import Executable
from weft_testing.models import mlp, picture, resnet18

pytestmark = pytest.mark.usefixtures("npu")
RNG = np.random.default_rng(0)


def one(shape: tuple[int, ...], build: Callable[[GraphBuilder, Value], Value]) -> Graph:
    g = GraphBuilder("net")
    g.output(build(g, g.input("x", tensor_type("float32", shape))), "y")
    return g.build()


def data(g: GraphBuilder, *shape: int) -> Any:
    return g.constant(RNG.standard_normal(shape).astype(np.float32), "w")


def agrees(graph: Graph, target: str = "npu", *, alone: bool = True, atol: float = 4e-6) -> Executable:
    """Results within a few units in the last place of the greatest, and, if `alone`, nothing on the host: small graphs
    would not be worth the copies."""
    exe = weft.compile(graph, target, cache=False)
    inputs = {v.name: RNG.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    got = exe.run(inputs)
    for name, want in zip(graph.output_names, evaluate(graph, inputs)):
        np.testing.assert_allclose(got[name], want, atol=atol * max(1.0, float(np.abs(want).max())), rtol=1e-5)
    if alone:
        assert {s.kind for s in exe.manifest.steps} <= {"copy", "device"}, str(exe.plan)
    return exe


def traces(graph: Graph, target: str = "npu") -> list[tuple[str, str]]:
    """Rule and trace of each kernel on the npu."""
    from weft.mixed import MixedCompilation
    from weft.resolve import resolve_targets

    compilation = MixedCompilation(resolve_targets(target), cache=False)
    compilation.run(graph)
    return [
        (k.rule, str(k.trace)) for r in compilation.regions if r.target.target.kind == "npu" for k in r.kernels.values()
    ]


# -- products


@pytest.mark.parametrize("shape", [(16, 24, 32), (8, 8, 8), (1, 64, 40), (13, 61, 19), (100, 512, 300), (3, 5, 7)])
def test_products(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    graph = one((m, k), lambda g, x: g.add(Relu(), g.add(Add(), g.add(MatMul(), x, data(g, k, n)), data(g, n))))
    agrees(graph)
    products = [trace for rule, trace in traces(graph) if rule == "gemm"]
    assert len(products) == 1 and products[0].count("tensorize") >= 1


def test_a_product_of_two_inputs_and_of_batches() -> None:
    def graph(a: tuple[int, ...], b: tuple[int, ...]) -> Graph:
        g = GraphBuilder("net")
        g.output(g.add(MatMul(), g.input("a", tensor_type("float32", a)), g.input("b", tensor_type("float32", b))), "y")
        return g.build()

    agrees(graph((24, 16), (16, 20)))
    agrees(graph((3, 16, 16), (3, 16, 24)))


def test_large_products_are_cut_and_two_buffers_pay() -> None:
    graph = one((256, 1024), lambda g, x: g.add(MatMul(), x, data(g, 1024, 256)))
    cycles = {}
    for double in ("true", "false"):
        device = open_device("npu")
        device.reset()  # type: ignore[attr-defined]
        agrees(graph, f"npu -double-buffer={double}")
        (cycles[double],) = [c.cycles for c in device.counts.values()]  # type: ignore[attr-defined]
    assert cycles["true"] < cycles["false"]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_products_of_any_size(m: int, k: int, n: int) -> None:
    agrees(one((m, k), lambda g, x: g.add(MatMul(), x, data(g, k, n))))


# -- convolutions and pictures


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_convolutions(d: Any) -> None:
    c, o = d.draw(st.sampled_from([1, 3, 8, 16, 24])), d.draw(st.sampled_from([8, 16, 20]))
    kernel, stride, pad, dilation = (
        d.draw(st.sampled_from(list(x))) for x in ((1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (1, 2))
    )
    h, w = d.draw(st.integers(9, 20)), d.draw(st.integers(9, 20))
    op = Conv(strides=(stride, stride), pads=(pad, pad, pad, 0), dilations=(dilation, dilation))
    agrees(
        one(
            (1, c, h, w),
            lambda g, x: g.add(Relu(), g.add(Add(), g.add(op, x, data(g, o, c, kernel, kernel)), data(g, o, 1, 1))),
        )
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions(stride: int) -> None:
    op = Conv(strides=(stride, stride), pads=(1, 1, 1, 1), groups=24)
    agrees(
        one(
            (1, 24, 15, 17),
            lambda g, x: g.add(Relu(), g.add(Add(), g.add(op, x, data(g, 24, 1, 3, 3)), data(g, 24, 1, 1))),
        )
    )


def test_a_convolution_larger_than_the_memories() -> None:
    graph = one((1, 64, 40, 40), lambda g, x: g.add(Conv(pads=(1, 1, 1, 1)), x, data(g, 128, 64, 3, 3)))
    agrees(graph, "npu -activations=32 -weights=32 -accumulators=32")
    (trace,) = [trace for rule, trace in traces(graph) if rule == "gemm"]
    for step in ("cache_read", "compute_at", "tensorize", "decompose_reduction"):
        assert step in trace


@pytest.mark.parametrize(
    "op",
    [
        MaxPool(kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
        MaxPool(kernel=(2, 2), strides=(2, 2)),
        AveragePool(kernel=(2, 2), strides=(2, 2)),
        ReduceMean(axes=(2, 3)),
        Transpose(axes=(0, 2, 3, 1)),
        Sigmoid(),
    ],
    ids=lambda op: type(op).__name__,
)
def test_other_operators(op: Any) -> None:
    agrees(one((1, 16, 14, 18), lambda g, x: g.add(op, x)))


def test_windows_that_overlap_are_added_one_after_another() -> None:
    agrees(
        one(
            (1, 12, 9),
            lambda g, x: g.add(
                Col2Im(image=(5, 6), block=(2, 3), strides=(2, 1), pads=(1, 0, 0, 1), dilations=(1, 2)), x
            ),
        )
    )


def test_a_long_vector_of_a_prime_length() -> None:
    agrees(one((40009,), lambda g, x: g.add(Add(), g.add(Multiply(), x, x), x)))


# -- models


def test_a_residual_network_runs_on_the_npu_alone() -> None:
    graph = resnet18(width=8, size=64)
    exe = weft.compile(graph, "npu, llvm", cache=False)
    image = picture(64)
    want = evaluate(graph, {"picture": image})[0]
    np.testing.assert_allclose(exe.run({"picture": image})["scores"], want, atol=1e-4 * float(np.abs(want).max()))
    assert [s.kind for s in exe.manifest.steps] == ["copy", "device", "copy"]
    report = open_device("npu").report()  # type: ignore[attr-defined]
    assert report.splitlines()[-1].startswith("total")


def test_what_the_npu_does_not_take_goes_to_the_host(tmp_path: Path) -> None:
    def build(g: GraphBuilder, x: Value) -> Value:
        y = g.add(Softmax(), g.add(MatMul(), x, data(g, 512, 1024)))
        return g.add(MatMul(), g.add_all(TopK(k=1024), y)[0], data(g, 1024, 512))

    graph = one((32, 512), build)
    exe = agrees(graph, "npu, llvm", alone=False, atol=2e-5)  # sums of a thousand products, one after another
    assert [s.kind for s in exe.manifest.steps].count("device") == 2
    with pytest.raises(
        UnsupportedError, match=r"TopK.*\n.*npu: TopK is no formula of its operands' elements \[opaque\]"
    ):
        weft.compile(graph, "npu", cache=False)
    exe.save(tmp_path / "m.weft")
    x = RNG.standard_normal((32, 512)).astype(np.float32)
    np.testing.assert_array_equal(Executable.load(tmp_path / "m.weft").run({"x": x})["y"], exe.run({"x": x})["y"])


def test_what_is_not_worth_the_copies_stays_on_the_host() -> None:
    small = one((8, 16), lambda g, x: g.add(Relu(), x))
    assert [s.kind for s in weft.compile(small, "npu, llvm", cache=False).manifest.steps] == ["native"]
    large = one((512, 512), lambda g, x: g.add(Relu(), g.add(MatMul(), x, data(g, 512, 4096))))
    kinds = {
        c: {s.kind for s in weft.compile(large, f"npu -clock={c}, llvm", cache=False).manifest.steps} for c in (0, 1)
    }
    assert kinds == {0: {"copy", "device"}, 1: {"native"}}  # at a megahertz the host is faster
    with pytest.raises(TargetError, match="option '-clock' is 0 to 100000 MHz, got -1"):
        weft.compile(small, "npu -clock=-1", cache=False)


def test_cycles_are_estimated_about_as_they_are_counted() -> None:
    from weft_npu.simulator import estimate

    exe = weft.compile(resnet18(width=8, size=64), "npu", cache=False)
    device = open_device("npu")
    device.reset()  # type: ignore[attr-defined]
    exe.run({"picture": picture(64)})
    for name, counts in device.counts.items():  # type: ignore[attr-defined]
        once = counts.cycles / counts.launches
        assert 0.3 * once <= estimate(device.loaded[name]) <= once, name  # type: ignore[attr-defined]


def test_symbolic_sizes_and_other_types_stay_on_the_host() -> None:
    exe = weft.compile(mlp(), "npu, llvm", cache=False)
    assert [s.kind for s in exe.manifest.steps] == ["native"]
    with pytest.raises(UnsupportedError, match=r"npu: sizes known only at run time \[symbolic\]"):
        weft.compile(mlp(), "npu", cache=False)
    g = GraphBuilder("ints")
    x = g.input("x", tensor_type("int32", (8,)))
    g.output(g.add(Add(), x, x), "y")
    with pytest.raises(UnsupportedError, match=r"npu: the npu computes in float32 \[dtype\]"):
        weft.compile(g.build(), "npu", cache=False)


def test_options() -> None:
    with pytest.raises(TargetError, match="option '-weights' is 4 to 4096 KiB, got 2"):
        weft.compile(mlp(batch=8), "npu -weights=2, llvm")
    with pytest.raises(TargetError, match="did you mean '-weights'"):
        weft.compile(mlp(batch=8), "npu -weight=64, llvm")


def test_a_scope_that_a_schedule_overflows() -> None:
    from weft_npu.codegen import NpuCodegen

    from weft.codegen.base import require
    from weft.loop.parser import parse_program

    text = """
    program big(x: float32[100000]) -> (y: float32[100000]) {
      allocate t: float32[100000] in `npu.weights`
      for i in 100000 { t[i] = x[i] }
      for j in 100000 { y[j] = t[j] }
    }
    """
    with pytest.raises(
        WeftError, match=r"weft-npu: the schedule needs 400128 bytes of scope 'npu.weights', there are 262144"
    ):
        require(NpuCodegen((1 << 18, 1 << 18, 1 << 17, 1 << 15)), parse_program(text), "npu")


def test_code_that_the_npu_cannot_run_is_listed_at_once() -> None:
    from weft_npu.codegen import NpuCodegen

    from weft.loop.parser import parse_program

    text = """
    program bad(x: float32[64], k: float32[64]) -> (y: float32[64]) {
      allocate t: float32[64] in `npu.activations`
      for i in 64 { t[i] = x[i] }
      for j in 64 { if t[j] < 0.5f32 { @`vec.copy`(0.0f32, t[j], 0, 1, 1, 1) } }
      for l in 64 { @`vec.copy`(0.0f32, t[l*l], 0, 1, 1, 1) }
      while t[0] < 0.5f32 { t[0] = 1.0f32 }
      @launch_rocket(t[0])
    }
    """
    assert NpuCodegen((1 << 18, 1 << 18, 1 << 17, 1 << 15)).check(parse_program(text)) == [
        "no instruction stores to 't': tensorize the loops around t[i] = x[i]",
        "the npu does not branch: if t[j] < 0.5f32",
        "the address t[l*l] is no affine formula of loops",
        "the npu has no instruction for While",
        "the npu has no instruction 'launch_rocket'",
    ]


def test_damage_is_an_error_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = weft.compile(mlp(batch=8), "npu", cache=False)
    x = RNG.standard_normal((8, 64)).astype(np.float32)
    want = exe.run({"x": x})["y"]
    device = open_device("npu")
    monkeypatch.setattr(type(device), "launch", lambda *a: 1 / 0)
    with pytest.raises(ExecutionError, match=r"kernel '.*' failed on device 'npu'"):
        exe.run({"x": x})
    monkeypatch.undo()
    np.testing.assert_array_equal(exe.run({"x": x})["y"], want)


def test_rules_have_names_and_decline_with_reasons() -> None:
    from weft.lower.lower import lower_group
    from weft.resolve import resolve_target
    from weft.scheduling.rule import Decline

    machine = resolve_target("npu").machine
    program = lower_group(one((4, 8), lambda g, x: g.add(Relu(), x)))
    gemm, vector = rules()
    assert gemm.offer(program, machine) == Decline("no_product", "it is not one matrix product or convolution")
    assert not isinstance(vector.offer(program, machine), Decline)


def test_a_group_that_does_not_fit_together_is_computed_block_by_block() -> None:
    from weft_npu.intrinsics import INTRINSICS
    from weft_npu.schedules import Gemm, lacking

    from weft.lower.lower import lower_group
    from weft.resolve import resolve_target
    from weft.scheduling import Schedule, meanings
    from weft.scheduling.tree import blocks_in
    from weft_interpreter.interpret import interpret

    shapes = {"x": (16, 16), "w": (16, 24), "b": (24,)}
    g = GraphBuilder("net")
    x, w, b = (g.input(name, tensor_type("float32", shape)) for name, shape in shapes.items())
    g.output(g.add(Relu(), g.add(Add(), g.add(MatMul(), x, w), b)), "y")
    s = Schedule(
        lower_group(g.build()), resolve_target("npu").machine, checked=True, intrinsics={i.name: i for i in INTRINSICS}
    )
    gemm = rules()[0]
    assert isinstance(gemm, Gemm)
    gemm.apart(s)
    assert lacking(s.program, s.machine) == []
    assert [str(s.trace).count(f"'{name}'") for name in ("gemm8x8", "vec.fma", "vec.add", "vec.atleast")] == [
        2,
        0,
        1,
        1,
    ]
    assert all(b.annotation("tensorize") for b in blocks_in(s.program.body))
    arrays = [RNG.integers(-4, 5, shape).astype(np.float32) for shape in shapes.values()]
    (got,) = interpret(s.program, arrays, intrinsics=meanings(INTRINSICS)).values()
    np.testing.assert_array_equal(got, np.maximum(arrays[0] @ arrays[1] + arrays[2], 0))
