"""weft-wave as it is installed: what it computes, what it leaves to others, and what it says."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import weft
from weft import dtypes
from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.operator import Operator
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.scheduling.intrinsic import meanings
from weft.scheduling.rule import Offer, select_rule
from weft.scheduling.schedule import Schedule
from weft_interpreter.interpret import interpret
from weft_ops import Add, Conv, Exp, Gelu, MatMul, MaxPool, ReduceMean, ReduceSum, Relu, Sin, Softmax, Transpose
from weft_runtime.device import Slice, open_device
from weft_testing.imports import imports_beyond
from weft_testing.intrinsics import check_intrinsic
from weft_testing.models import mlp
from weft_testing.plugin import resolve_target

from weft_wave.codegen import WaveCodegen
from weft_wave.device import WaveDevice
from weft_wave.isa import Malformed, decode
from weft_wave.passes import pad_first


def alone(op: Operator, *shapes: tuple[object, ...], dtype: str = "float32") -> Graph:
    g = GraphBuilder("alone")
    g.output(g.add(op, *(g.input(f"x{n}", tensor_type(dtype, shape)) for n, shape in enumerate(shapes))), "y")
    return g.build()


def addition(rows: int = 4) -> Graph:
    return alone(Add(), (rows, 8), (rows, 8))


def cnn() -> Graph:
    rng = np.random.default_rng(1)
    g = GraphBuilder("cnn")

    def weights(*shape: int) -> object:
        return g.constant((rng.standard_normal(shape) * 0.2).astype(np.float32), "w")

    x = g.input("x", tensor_type("float32", (1, 3, 12, 12)))
    y = g.add(Relu(), g.add(Add(), g.add(Conv(pads=(1, 1, 1, 1)), x, weights(8, 3, 3, 3)), weights(8, 1, 1)))
    y = g.add(MaxPool(kernel=(2, 2), strides=(2, 2)), y)
    y = g.add(Relu(), g.add(Add(), g.add(Conv(), y, weights(16, 8, 3, 3)), weights(16, 1, 1)))
    y = g.add(MatMul(), g.add(ReduceMean(axes=(2, 3)), y), weights(16, 10))
    g.output(g.add(Softmax(), y), "y")
    return g.build()


SAMPLES = [
    (MatMul(), (3, 5), (5, 7)),
    (MatMul(), (8, 24), (24, 128)),
    (MatMul(), (2, 6, 9), (2, 9, 70)),
    (Conv(), (1, 3, 9, 9), (8, 3, 3, 3)),
    (Conv(strides=(2, 2), pads=(1, 1, 1, 1)), (1, 4, 9, 9), (6, 4, 3, 3)),
    (Softmax(), (5, 70)),
    (ReduceSum(axes=(1,)), (3, 128)),
    (Gelu(), (1000,)),
    (Transpose(axes=(1, 0)), (30, 70)),
]


@pytest.mark.parametrize(("op", "shapes"), [(op, shapes) for op, *shapes in SAMPLES])
def test_schedules_keep_the_meaning(op: Operator, shapes: list[tuple[int, ...]]) -> None:
    wave = resolve_target("wave")
    program = lower_group(alone(op, *shapes))
    rule, _ = select_rule(wave.rules, program, wave.machine)
    s = Schedule(program, wave.machine, checked=True, intrinsics=wave.intrinsics)
    rule.apply(s)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, [int(str(d)) for d in b.shape]).astype(np.float32) for b in program.inputs]
    (got,) = interpret(s.program, arrays, intrinsics=meanings(wave.intrinsics.values())).values()
    (expected,) = interpret(program, arrays).values()
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(("op", "shapes"), [(op, shapes) for op, *shapes in SAMPLES])
def test_the_device_computes_what_the_operator_means(op: Operator, shapes: list[tuple[int, ...]]) -> None:
    graph = alone(op, *shapes)
    rng = np.random.default_rng(0)
    arrays = {f"x{n}": rng.standard_normal(shape).astype(np.float32) for n, shape in enumerate(shapes)}
    (expected,) = evaluate(graph, arrays)
    np.testing.assert_allclose(weft.compile(graph, target="wave", cache=False).run(arrays)["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_sizes_that_only_a_run_knows(n: int) -> None:
    executable = weft.compile(alone(Exp(), (Var("n"),)), target="wave", cache=False)
    x = np.linspace(-5, 5, n, dtype=np.float32)
    np.testing.assert_allclose(executable.run({"x0": x})["y"], np.exp(x), rtol=1e-6)


def kernel(graph: Graph) -> Counter[str]:
    """How often each instruction stands in the one kernel of a graph."""
    wave = resolve_target("wave")
    program = lower_group(graph)
    rule, _ = select_rule(wave.rules, program, wave.machine)
    s = Schedule(program, wave.machine, intrinsics=wave.intrinsics)
    rule.apply(s)
    code = wave.kind.codegen(wave.target)
    return Counter(i.name for i in decode(code.compile(lower_program(s.program, code.functions)).object)[0])


def test_a_product_loads_a_strip_once_for_four_rows() -> None:
    names = kernel(alone(MatMul(), (8, 24), (24, 64)))
    assert (names["vmadd"], names["vld"], names["vst"]) == (4, 1, 4)


def test_the_last_strip_is_short_not_masked() -> None:
    names = kernel(alone(Add(), (Var("n"),), (Var("n"),)))
    assert names["setvl"] + names["setvli"] >= 1
    assert not {"vldm", "vstm"} & set(names)


def test_sums_reduce_a_register() -> None:
    assert kernel(alone(ReduceSum(axes=(0,)), (256,)))["vfsum"] >= 1


@pytest.mark.parametrize("name", ["axpy2", "axpy7", "axpy64", "sum8", "max64"])
def test_instructions_do_what_they_mean(name: str) -> None:
    assert check_intrinsic(resolve_target("wave").intrinsics[name]) > 0


def test_vectors_that_have_no_register_are_put_aside() -> None:
    """Twelve vectors live at once in a machine of eight registers."""
    lets = "".join(f"  let t{n}: float32x64 = x[ramp(0, 1, 64)]*broadcast({n}.0f32, 64)\n" for n in range(12))
    total = " + ".join(f"t{n}" for n in range(12))
    product = "*".join(f"t{n}" for n in range(1, 12))
    program = parse_program(
        f"program many(x: float32[64]) -> (y: float32[64], z: float32[64]) {{\n{lets}"
        f"  y[ramp(0, 1, 64)] = {total}\n  z[ramp(0, 1, 64)] = {product}\n}}\n"
    )
    x = np.linspace(0.5, 1.5, 64, dtype=np.float32)
    device = WaveDevice(1 << 20)
    code = WaveCodegen().compile(program)
    module = device.load(code.object, {"many": 0})
    pieces = [device.allocate(size) for size in (256, 256, 256, *(int(str(s)) for s in code.scratch))]
    slices = [Slice(m, 0, m.size) for m in pieces]
    device.write(slices[0], x)
    device.launch(module, "many", slices, [])
    for piece, expected in zip(slices[1:3], interpret(program, [x]).values(), strict=True):
        got = np.empty(64, np.float32)
        device.read(piece, got)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("graph", [mlp(batch=4), mlp(), cnn()], ids=["mlp", "mlp of any batch", "cnn"])
def test_models_agree_with_llvm(graph: Graph) -> None:
    pytest.importorskip("weft_llvm")
    (x,) = graph.inputs
    array = np.random.default_rng(2).standard_normal([d if isinstance(d, int) else 5 for d in x.shape]).astype(np.float32)
    mixed = weft.compile(graph, target="wave, llvm", cache=False)
    assert "device" in {step.kind for step in mixed.manifest.steps}
    host = weft.compile(graph, target="llvm", cache=False).run({x.name: array})
    for name, got in mixed.run({x.name: array}).items():
        np.testing.assert_allclose(got, host[name], rtol=1e-5, atol=1e-5)


def test_what_is_slower_here_stays_on_the_host() -> None:
    pytest.importorskip("weft_llvm")
    executable = weft.compile(mlp(batch=4), target="wave -prefer=faster, llvm", cache=False)
    assert {step.kind for step in executable.manifest.steps} == {"native"}


def test_what_it_does_not_take_is_an_error_that_says_why() -> None:
    with pytest.raises(weft.WeftError, match="wave has no values of float64"):
        weft.compile(alone(Sin(), (8,)), target="wave", cache=False)
    with pytest.raises(weft.WeftError, match="wave has no values of float16"):
        weft.compile(alone(Add(), (8,), (8,), dtype="float16"), target="wave", cache=False)


def test_what_it_does_not_take_goes_to_the_next_target() -> None:
    pytest.importorskip("weft_llvm")
    g = GraphBuilder("both")
    x = g.input("x", tensor_type("float32", (50,)))
    g.output(g.add(Sin(), g.add(Relu(), x)), "y")
    executable = weft.compile(g.build(), target="wave, llvm", cache=False)
    assert {"device", "native"} <= {step.kind for step in executable.manifest.steps}
    array = np.linspace(-2, 2, 50, dtype=np.float32)
    np.testing.assert_allclose(executable.run({"x": array})["y"], np.sin(np.maximum(array, 0)), rtol=1e-6)


def test_memory_is_given_back() -> None:
    device = open_device("wave")
    gc.collect()
    executable = weft.compile(addition(64), target="wave", cache=False)
    a = np.ones((64, 8), np.float32)
    executable.run({"x0": a, "x1": a})
    assert device.free < device.capacity
    del executable
    gc.collect()
    assert device.free == device.capacity


def test_free_memory_is_what_can_be_had_in_one_piece() -> None:
    device = WaveDevice(1 << 20)
    pieces = [device.reserve(100_000) for _ in range(10)]
    del pieces[1::2]
    assert device.free < 101_000 + (1 << 20) - 4096 - 1_000_000 + 1000
    with pytest.raises(weft.WeftError):
        device.reserve(400_000)
    del pieces
    assert device.free == device.capacity


def test_a_kernel_of_other_arguments_is_refused() -> None:
    device = WaveDevice(1 << 20)
    code = WaveCodegen().compile(parse_program("program one(x: float32[4]) -> (y: float32[4]) {\n  y[0] = x[0]\n}\n"))
    module = device.load(code.object, {"one": 0})
    with pytest.raises(ValueError, match="kernel one takes 2 arguments, and was given 0"):
        device.launch(module, "one", [], [])


def test_cycles_are_counted() -> None:
    device = open_device("wave")
    executable = weft.compile(addition(), target="wave", cache=False)
    before = device.cycles  # type: ignore[attr-defined]
    a = np.ones((4, 8), np.float32)
    executable.run({"x0": a, "x1": a})
    assert 50 < device.cycles - before < 1000  # type: ignore[attr-defined]


def test_an_option_out_of_range_is_an_error() -> None:
    with pytest.raises(weft.WeftError, match="-mhz is 50 to 1000, got 5"):
        weft.compile(addition(), target="wave -mhz=5")


def test_every_rule_says_why_it_declines() -> None:
    wave = resolve_target("wave")
    answer = {r.name: r.offer(lower_group(addition()), wave.machine) for r in wave.rules}
    assert getattr(answer["products"], "reason", "") == "it is not one matrix product or convolution"
    assert isinstance(answer["strips"], Offer)


def test_it_imports_public_names_only() -> None:
    assert imports_beyond("weft_wave") == []


def layer(pads: tuple[int, ...] = ()) -> Graph:
    g = GraphBuilder("layer")
    x, w, b = (g.input(n, tensor_type("float32", s)) for n, s in (("x", (1, 8, 10, 10)), ("w", (16, 8, 3, 3)), ("b", (16, 1, 1))))
    g.output(g.add(Relu(), g.add(Add(), g.add(Conv(pads=pads), x, w), b)), "y")
    return g.build()


def test_what_follows_a_product_happens_in_registers() -> None:
    names = kernel(layer())
    assert names["vst"] == 1
    assert names["vmadd"] == names["vfmaximum"] + 1 or names["vsel"] == 1


def test_a_border_is_made_before_the_convolution() -> None:
    assert kernel(layer())["vmadd"] > 0
    assert kernel(layer((1, 1, 1, 1)))["vmadd"] == 0
    padded = pad_first(layer((1, 1, 1, 1)))
    assert [type(n.op).__name__ for n in padded.nodes] == ["Pad", "Conv", "Add", "Relu"]
    rng = np.random.default_rng(3)
    arrays = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in padded.inputs}
    np.testing.assert_allclose(evaluate(padded, arrays)[0], evaluate(layer((1, 1, 1, 1)), arrays)[0], rtol=1e-5, atol=1e-5)


def test_a_saved_model_runs(tmp_path: Path) -> None:
    graph = mlp(batch=4)
    executable = weft.compile(graph, target="wave", cache=False)
    executable.save(tmp_path / "mlp.weft")
    x = {graph.inputs[0].name: np.ones((4, 64), np.float32)}
    for name, expected in executable.run(x).items():
        np.testing.assert_array_equal(weft.Executable.load(tmp_path / "mlp.weft").run(x)[name], expected)


def test_code_that_was_changed_is_not_started() -> None:
    device = WaveDevice(1 << 20)
    code = WaveCodegen().compile(parse_program("program one(x: float32[4]) -> (y: float32[4]) {\n  y[0] = x[0]\n}\n")).object
    with pytest.raises(Malformed, match="there is no opcode 0"):
        device.load(code[:16] + bytes(16) + code[32:], {"one": 0})


def test_the_machine_is_described() -> None:
    wave = resolve_target("wave")
    assert wave.machine.lanes(dtypes.float32) == 64
    assert wave.machine.scopes["wave.v"].size == 8 * 256
