"""Winograd convolutions compiled: the definition's numbers for any shape, batch and number of threads. As a script:
errors and times, for the docs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import numbers

from weft import dtypes as dt
from weft.codegen.base import KernelCode
from weft.compilation import Compilation
from weft.errors import TargetError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import int_const
from weft.loop.pipeline import lower_program
from weft.lower.lower import lower_group
from weft.passes.choose_layouts import choose_layouts
from weft.resolve import resolve_target
from weft.scheduling.schedule import Schedule
from weft_interpreter.interpret import interpret
from weft_llvm.schedules.winograd import Pieces, Shape, WinogradRule, choose_pieces, choose_winograd, shape_of
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add, Clip
from weft_ops.contraction import Conv
from weft_ops.winograd import WinogradConv, transform_weights

Array = np.ndarray[Any, Any]
LANES = resolve_target("llvm").machine.lanes(dt.float32)
# Largest error ÷ largest output that is allowed; what is measured is in docs/math.md.
ALLOWED = {2: 5e-6, 4: 2e-5}


def winograd(
    m: int,
    x: tuple[Any, ...],
    w: Array,
    pads: tuple[int, ...],
    follow: str = "",
    block: int = LANES,
    skip: bool = False,
) -> Graph:
    """A Winograd convolution, with a bias, a residual and a ReLU after it if `follow` says so, or with a Clip."""
    b = GraphBuilder("net")
    y = b.add(
        WinogradConv(m, pads, block, skip),
        b.input("x", tensor_type("float32", x)),
        b.constant(transform_weights(w, m), "u"),
    )
    if "bias" in follow:
        y = b.add(Add(), y, b.constant(numbers(w.shape[0], 1, 1, seed=5), "bias"))
    if "residual" in follow:
        y = b.add(Add(), y, b.input("r", tensor_type("float32", y.shape)))
    if "relu" in follow:
        y = b.add(Relu(), y)
    if "clip" in follow:
        y = b.add(Clip(), y, b.constant(np.float32(-0.5)), b.constant(np.float32(0.75)))
    b.output(y, "y")
    return b.build()


def expected(x: Array, w: Array, pads: tuple[int, ...], follow: str, residual: Array | None) -> Array:
    y = Conv(pads=pads).reference(x.astype(np.float64), w.astype(np.float64))
    if "bias" in follow:
        y = y + numbers(w.shape[0], 1, 1, seed=5)
    if residual is not None:
        y = y + residual
    return np.maximum(y, 0) if "relu" in follow else np.clip(y, -0.5, 0.75) if "clip" in follow else y


def random_case(seed: int) -> tuple[int, int, tuple[int, ...], tuple[int, ...], str, int, bool]:
    rng = np.random.default_rng(seed)
    pads = tuple(int(p) for p in rng.integers(0, 3, 4))
    height, width = (int(n) for n in rng.integers(1, 41, 2))
    height, width = max(height, 3 - pads[0] - pads[2]), max(width, 3 - pads[1] - pads[3])
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 6)) * LANES, height, width)
    follow = str(rng.choice(["", "bias relu", "bias residual relu", "clip"]))
    return (
        int(rng.choice([2, 4])),
        int(rng.integers(1, 6)) * LANES,
        shape,
        pads,
        follow,
        int(rng.integers(1, 4)),
        bool(rng.integers(0, 2)),
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(200 if metafunc.config.getoption("--full") else 10))


def test_random_shapes(seed: int) -> None:
    m, outputs, shape, pads, follow, threads, symbolic = random_case(seed)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    w = (rng.standard_normal((outputs, shape[1], 3, 3)) / np.sqrt(9 * shape[1])).astype(np.float32)
    graph = winograd(m, (Var("n"), *shape[1:]) if symbolic else shape, w, pads, follow, skip=seed % 2 == 1)
    compilation = Compilation(resolve_target(f"llvm -threads={threads}"), cache=False)
    executable = compilation.run(graph)
    (kernel,) = [k for k in compilation.kernels.values() if k.name.startswith("winogradconv")]
    assert kernel.rule == "winograd" and not [why for _, why in kernel.declines if why.startswith("failed")]
    want_shape: tuple[Any, ...] = (shape[0], *graph.nodes[0].output.shape[1:])
    residual = rng.standard_normal(want_shape).astype(np.float32) if "residual" in follow else None
    got = executable.run({"x": x, **({} if residual is None else {"r": residual})})["y"]
    want = expected(x, w, pads, follow, residual)
    assert got.shape == want.shape == want_shape
    assert np.abs(got - want).max() <= ALLOWED[m] * max(1.0, float(np.abs(want).max()))


def test_random_shapes_of_open_sizes(seed: int) -> None:
    """One executable for pictures of any height or width or both, of other sizes than those it was made with."""
    m, outputs, shape, pads, follow, threads, batch = random_case(1000 + seed)
    rng = np.random.default_rng(seed)
    is_open = (batch, seed % 3 != 0, seed % 3 != 1)
    sizes: list[int | Var] = [
        Var(name) if given and (n > m or k == 0) else n
        for k, (name, given, n) in enumerate(zip("nhw", is_open, (shape[0], *shape[2:])))
    ]
    w = (rng.standard_normal((outputs, shape[1], 3, 3)) / np.sqrt(9 * shape[1])).astype(np.float32)
    graph = winograd(m, (sizes[0], shape[1], *sizes[1:]), w, pads, follow, skip=seed % 2 == 1)
    compilation = Compilation(resolve_target(f"llvm -threads={threads}"), cache=False)
    executable = compilation.run(graph)
    (kernel,) = [k for k in compilation.kernels.values() if k.name.startswith("winogradconv")]
    assert kernel.rule == "winograd" and not [why for _, why in kernel.declines if why.startswith("failed")]
    for _ in range(4):
        n, height, width = (
            int(rng.integers(least, 45)) if isinstance(size, Var) else size
            for size, least in zip(sizes, (1, max(1, 3 - pads[0] - pads[2]), max(1, 3 - pads[1] - pads[3])))
        )
        n = min(n, 3)
        x = rng.standard_normal((n, shape[1], height, width)).astype(np.float32)
        residual = None
        if "residual" in follow:
            residual = rng.standard_normal(expected(x, w, pads, "", None).shape).astype(np.float32)
        got = executable.run({"x": x, **({} if residual is None else {"r": residual})})["y"]
        want = expected(x, w, pads, follow, residual)
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= ALLOWED[m] * max(1.0, float(np.abs(want).max())), (n, height, width)


def test_transformed_weights_from_memory_are_asked_for_ahead() -> None:
    second = resolve_target("llvm").machine.caches[1]
    channels = 2 * LANES
    outputs = 2 * second // (4 * 16 * channels) // (2 * LANES) * 2 * LANES
    w, x = numbers(outputs, channels, 3, 3, seed=1), numbers(1, channels, 9, 9, seed=2)
    for count, asks in ((outputs, True), (2 * LANES, False)):
        compilation = Compilation(resolve_target("llvm -threads=1"), cache=False)
        got = compilation.run(winograd(2, x.shape, w[:count], (1, 1, 1, 1))).run({"x": x})["y"]
        (kernel,) = [k for k in compilation.kernels.values() if k.rule == "winograd"]
        assert ("prefetch(" in str(kernel.trace)) == asks
        np.testing.assert_allclose(got, expected(x, w[:count], (1, 1, 1, 1), "", None), rtol=0, atol=1e-4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("pieces", "skip"),
    [(Pieces(1, True), False), (Pieces(1, False), False), (Pieces(1, True, 2), False), (Pieces(2, False), True)],
)
@pytest.mark.parametrize("m", [2, 4])
def test_the_schedule_means_the_same(m: int, pieces: Pieces, skip: bool) -> None:
    target = resolve_target("llvm -mcpu=x86-64-v2 -mtriple=x86_64-unknown-linux-gnu -threads=2")  # four lanes
    w = numbers(16, 8, 3, 3)
    body = choose_layouts(winograd(m, (2, 8, 7, 6), w, (1, 1, 1, 1), "bias relu", 4, skip), target.capabilities)
    node, *after = [n for n in body.nodes if type(n.op).__name__ != "Relayout"]
    x, u = node.inputs
    b = GraphBuilder("group")
    assert x is not None and u is not None and u.constant is not None
    y = b.add(node.op, b.input("x", x.type), b.input("u", u.type))
    y.type = node.output.type
    bias = b.input("bias", after[0].inputs[1].type)  # type: ignore[union-attr]
    for n in after:
        y = b.add(n.op, *((y, bias) if isinstance(n.op, Add) else (y,)))
        y.type = n.output.type
    b.output(y)
    program = lower_group(b.build())
    shape = shape_of(program)
    assert shape is not None
    chosen = str(pieces._replace(rows=shape.down) if skip else pieces)
    s = Schedule(program, target.machine, overrides={"pieces": chosen}, checked=True)
    WinogradRule().apply(s)
    assert s.trace.choices["pieces"] == chosen
    data = numbers(2, 8, 7, 6, seed=2)
    assert x.tensor.layout is not None and u.tensor.layout is not None and y.tensor.layout is not None
    packed = [x.tensor.layout.pack(data), u.tensor.layout.pack(u.constant), numbers(16, 1, 1, seed=5)]
    want = expected(data, w, (1, 1, 1, 1), "bias relu", None)
    for p in (s.program, lower_program(s.program, frozenset({"fma"}))):
        arrays = [a.reshape([int_const(d) or 0 for d in q.shape]) for a, q in zip(packed, p.inputs)]
        (got,) = interpret(p, arrays, shuffle_seed=1).values()
        got = y.tensor.layout.unpack(np.asarray(got).reshape(y.tensor.layout.stored_shape(y.shape)), want.shape)
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    ("cpu", "arch"), [("skylake-avx512", "x86_64"), ("x86-64-v2", "x86_64"), ("cortex-a72", "aarch64")]
)
def test_other_machines_compile_it(cpu: str, arch: str) -> None:
    resolved = resolve_target(f"llvm -threads=4 -mcpu={cpu} -mtriple={arch}-linux-gnu")
    lanes = resolved.machine.lanes(dt.float32)
    compilation = Compilation(resolved, cache=False)
    compilation.run(
        winograd(4, (1, 2 * lanes, 28, 28), numbers(4 * lanes, 2 * lanes, 3, 3), (1,) * 4, "bias relu", lanes)
    )
    (kernel,) = [k for k in compilation.kernels.values() if k.name.startswith("winogradconv")]
    assert kernel.rule == "winograd" and isinstance(kernel.code, KernelCode)


def small_net() -> tuple[Graph, Array, Array]:
    """Three 3×3 convolutions with residuals, an input and the exact output."""
    b = GraphBuilder("net")
    shape = (1, 4 * LANES, 30, 30)
    x = y = b.input("x", tensor_type("float32", shape))
    data = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    want = data.astype(np.float64)
    for k in range(3):
        w = (np.random.default_rng(k).standard_normal((shape[1], shape[1], 3, 3)) / np.sqrt(9 * shape[1])).astype(
            np.float32
        )
        y = b.add(Relu(), b.add(Add(), b.add(Conv(pads=(1,) * 4), y, b.constant(w)), x))
        want = np.maximum(Conv(pads=(1,) * 4).reference(want, w.astype(np.float64)) + data, 0)
    b.output(y, "y")
    return b.build(), data, want


@pytest.mark.parametrize(("option", "operator", "allowed"), [("auto", "WinogradConv", 1e-4), ("off", "Conv", 1e-5)])
def test_the_option(option: str, operator: str, allowed: float) -> None:
    graph, data, want = small_net()
    compilation = Compilation(resolve_target(f"llvm -winograd={option}"), cache=False)
    got = compilation.run(graph).run({"x": data})["y"]
    kinds = {
        type(n.op).__name__ for n in compilation.graphs["fuse"].nodes for n in getattr(n.op, "body", Graph("")).nodes
    }
    assert operator in kinds and not {"WinogradConv", "Conv"} - {operator} & kinds
    assert np.abs(got - want).max() <= allowed * np.abs(want).max()


def test_an_unknown_value_of_the_option() -> None:
    with pytest.raises(TargetError, match="option '-winograd' is one of auto, off, got 'of'") as error:
        resolve_target("llvm -winograd=of")
    assert "did you mean 'off'?" in str(error.value)


def conv_node(channels: int, size: int, pads: tuple[int, ...] = (1,) * 4) -> Any:
    b = GraphBuilder()
    b.add(
        Conv(pads=pads),
        b.input("x", tensor_type("float32", (1, channels, size, size))),
        b.constant(np.zeros((channels, channels, 3, 3), np.float32)),
    )
    return b.graph.nodes[0]


def test_the_cost_model() -> None:
    machine = resolve_target("llvm -mcpu=znver3 -mtriple=x86_64-unknown-linux-gnu -threads=2").machine
    assert choose_winograd(conv_node(64, 56), machine) == (4, False)
    # 36/9 times the weights of the definition, read for 4 tiles only: the larger the weights, the smaller the tile.
    assert choose_winograd(conv_node(512, 7), machine) == (2, True)
    # 14 = 3·4 + 2: the last row and column of tiles do without a part of the products. 16 leaves nothing out.
    assert choose_winograd(conv_node(256, 14), machine) == (4, True) and choose_winograd(
        conv_node(256, 16), machine
    ) == (4, False)
    # One channel block in and out: the transforms cost more than they save. A single pixel: nothing to tile.
    assert choose_winograd(conv_node(8, 30), machine) is None
    assert choose_winograd(conv_node(64, 3, (0,) * 4), machine) is None


def test_pieces_stay_near_and_keep_cores_busy() -> None:
    machine = resolve_target("llvm -mcpu=znver3 -mtriple=x86_64-unknown-linux-gnu -threads=2").machine
    wide = Shape(64, 64, 14, 14, 4, 8)
    pieces = choose_pieces(wide, 1, machine)
    assert pieces.together and wide.down % pieces.rows == 0 and wide.down // pieces.rows % machine.cores == 0
    # Much larger pictures: all of V would be 29 MB.
    large = choose_pieces(Shape(64, 64, 56, 56, 4, 8), 1, machine)
    assert large.together and large.rows <= 4
    # Four tiles and many channels: panels of channels are what there is to share, V is made once for all.
    assert choose_pieces(Shape(512, 512, 2, 2, 4, 8), 1, machine)[:2] == (2, False)


def measure(channels: int, size: int) -> None:
    """Prints, for the definition and both tiles, the largest error ÷ largest output, and the kernel's time on this
    thread (least of many, interleaved)."""
    worst: dict[int, float] = {}
    calls: dict[int, Any] = {}
    target = resolve_target("llvm -threads=1 -winograd=off")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((1, channels, size, size)).astype(np.float32)
        w = (rng.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
        want = np.maximum(expected(x, w, (1,) * 4, "", None), 0)
        for m in (0, 2, 4):
            b = GraphBuilder("net")
            b.output(
                b.add(Relu(), b.add(Conv(pads=(1,) * 4), b.input("x", tensor_type("float32", x.shape)), b.constant(w))),
                "y",
            )
            compilation = Compilation(target)
            got = compilation.run(winograd(m, x.shape, w, (1,) * 4, "relu", skip=True) if m else b.build()).run(
                {"x": x}
            )["y"]
            worst[m] = max(worst.get(m, 0.0), float(np.abs(got - want).max() / np.abs(want).max()))
            if m not in calls:
                (kernel,) = [k for k in compilation.kernels.values() if "conv" in k.name]
                arrays = [np.ones([int_const(d) or 0 for d in q.shape], np.float32) for q in kernel.naive.params]
                calls[m] = target.kind.codegen(target.target).jit(kernel.naive, kernel.code).prepare(arrays)  # type: ignore[attr-defined]
    best = dict.fromkeys(calls, 1.0)
    for m in [*calls] * 60:
        started = time.thread_time()
        calls[m]()
        best[m] = min(best[m], time.thread_time() - started)
    names = {0: "definition", 2: "F(2×2)", 4: "F(4×4)"}
    print(
        f"{channels}, {size} × {size}: " + ", ".join(f"{names[m]} {worst[m]:.1e} {best[m] * 1e3:.3f} ms" for m in calls)
    )


if __name__ == "__main__":
    for each in ((64, 56), (128, 28), (256, 14), (512, 7)):
        measure(*each)
