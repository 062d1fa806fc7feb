"""Winograd convolutions on grids: schedules that mean what the stages mean, texts without a choice left in them, and
when they are chosen."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.gpu.kernels import MACHINES, agree, axes_of, lowered, lowered_meaning, meaning, random_inputs, scheduled
from tests.gpu.shim.targets import shimmed
from tests.gpu.test_shims import TARGETS, codegen_of

import weft
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import Program
from weft.lower.lower import lower_group
from weft.scheduling import Decline
from weft_cuda.dialect import CUDA
from weft_gpu.codegen import GpuCodegen
from weft_gpu.schedules.winograd import WinogradRule, choose_winograd
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add
from weft_ops.contraction import Conv
from weft_ops.shapes import tensor
from weft_ops.winograd import WinogradConv, transform_weights
from weft_testing.conform.kit import Kit
from weft_testing.plugin import resolve_target

UNITS = 100
"""Of the last place: the products' sums are added up in another order, and the last transform takes differences of
them."""
ONES = (1, 1, 1, 1)


def net(
    m: int,
    x: tuple[int | str, ...],
    outputs: int = 5,
    pads: tuple[int, ...] = ONES,
    follow: str = "bias relu",
    before: bool = False,
    block: int = 1,
    skip: bool = False,
    taps: Any = None,
) -> Graph:
    """A Winograd convolution with what `follow` says behind it, and a ReLU `before` it; by constant `taps` if there are
    some."""
    b = GraphBuilder("net")
    image = b.input("x", tensor_type("float32", tuple(Var(d) if isinstance(d, str) else d for d in x)))
    if taps is None:
        weights = b.input("u", tensor_type("float32", ((m + 2) ** 2, x[1], outputs)))
    else:
        weights = b.constant(transform_weights(taps, m), "u")
    y = b.add(WinogradConv(m, pads, block, skip), b.add(Relu(), image) if before else image, weights)
    if "bias" in follow:
        y = b.add(Add(), y, b.input("bias", tensor_type("float32", (outputs, 1, 1))))
    if "residual" in follow:
        y = b.add(Add(), y, b.input("residual", tensor_type("float32", y.shape)))
    if "both" in follow:
        b.output(y, "before")
    if "relu" in follow:
        y = b.add(Relu(), y)
    b.output(y, "y")
    return b.build()


def program(*args: Any, **more: Any) -> Program:
    return lower_group(net(*args, **more), "kernel")


CASES: dict[str, Program] = {
    "7x7": program(2, (3, 4, 7, 7)),
    "7x7 by four": program(4, (1, 4, 7, 7)),
    "14x14": program(4, (1, 3, 14, 14), 4, follow="bias residual relu"),
    "5x9": program(2, (3, 4, 5, 9), pads=(0, 2, 1, 0), follow="residual"),
    "any batch": program(4, ("n", 4, 5, 9), follow="bias residual relu"),
    "any batch by two": program(2, ("n", 3, 6, 8), follow=""),
    "no pads": program(4, (2, 3, 6, 10), pads=(), follow=""),
    "wide pads": program(4, (2, 3, 4, 5), pads=(2, 0, 2, 3)),
    "one tile": program(4, (1, 3, 4, 3)),
    "one row of tiles": program(2, (2, 3, 2, 9)),
    "one column of tiles": program(2, (2, 3, 9, 2)),
    "one row": program(4, (1, 3, 1, 9)),
    "one element": program(2, (1, 1, 1, 1), 1),
    "one channel": program(4, (2, 1, 7, 7), 1),
    "behind a block of its own": program(2, (2, 3, 6, 7), before=True),
    "two results": program(2, (2, 3, 6, 7), follow="bias both relu"),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_schedules_mean_what_the_stages_mean(name: str, machine: str) -> None:
    naive = CASES[name]
    dims = {v.name: 3 for v in naive.dims}
    inputs = random_inputs(naive, dims)
    rule, s = scheduled(naive, MACHINES[machine])
    want = meaning(naive, inputs, dims)
    agree(meaning(s.program, inputs, dims, seed=1), want, UNITS, str(s.program))
    agree(lowered_meaning(s.program, inputs, dims, seed=2), want, UNITS, str(s.program))
    assert rule == "winograd" and "declined" not in str(s.program)


def test_three_launches_and_nothing_but_transformed_data_between_them() -> None:
    _, s = scheduled(program(4, (2, 64, 14, 14), 64, follow="bias residual relu"), MACHINES["wide"])
    assert re.findall(r"allocate (\w+): float32\[([\d, ]+)\](?! in)", str(s.program)) == [
        ("winograd_input", "36, 2, 64, 16"), ("winograd_product", "2, 64, 6, 6, 16"),
    ]  # fmt: skip
    assert [axis for axis, _ in axes_of(s.program) if axis == "blockIdx.x"] == ["blockIdx.x"] * 3
    assert ("blockIdx.z", "36") in axes_of(s.program)


@pytest.mark.parametrize("m", [2, 4])
def test_texts_choose_nothing(m: int) -> None:
    """Where tiles end with the picture each statement is one sum: which of the transform's rows and columns it is of is
    known, and so is each register."""
    machine = resolve_target(TARGETS["cuda"]).machine
    _, s = scheduled(program(m, (1, 16, 4 * m + 2, 4 * m + 2), 16, pads=(), follow=""), machine)
    text = GpuCodegen(CUDA, machine=machine).source(lowered(s.program))
    first, _, last = re.split(r"(?m)^extern", text)[1:]
    for transform in (first, last):
        assert "?" not in transform and "if (" not in transform
        assert all(place.isdigit() for place in re.findall(r"winograd_(?:rows|columns)\[(.*?)\]", transform))
    assert len(re.findall(r"winograd_input\[.*\] = ", first)) == (m + 2) ** 2


@pytest.mark.parametrize(("block", "skip", "code"), [(2, False, "blocks"), (1, True, "spared")])
def test_what_grids_do_not_take_says_why(block: int, skip: bool, code: str) -> None:
    naive = program(2, (2, 4, 7, 7), 4, block=block, skip=skip)
    declined = WinogradRule().offer(naive, MACHINES["wide"])
    assert isinstance(declined, Decline) and declined.code == code
    inputs = random_inputs(naive)
    rule, s = scheduled(naive, MACHINES["wide"])
    assert rule != "winograd"
    agree(lowered_meaning(s.program, inputs, seed=1), meaning(naive, inputs), UNITS, str(s.program))


@pytest.mark.parametrize("language", TARGETS)
def test_texts_run(language: str) -> None:
    """As CUDA's and Metal's kernels, on the CPU: the definition's numbers for every batch. Metal's products are
    matrices of SIMD groups."""
    rng = np.random.default_rng(0)
    taps = rng.standard_normal((24, 16, 3, 3)).astype(np.float32)
    with shimmed(TARGETS[language], language, codegen_of(language)) as called:
        kit = Kit.open(called, quick=False)
        for m, size in ((2, (5, 9)), (4, (7, 7)), (4, (8, 12))):
            op = WinogradConv(m, (1, 0, 1, 2))
            compiled = kit.compile_alone(net(m, ("n", 16, *size), 24, (1, 0, 1, 2), "bias residual relu", taps=taps))
            assert {k.rule for k in compiled.kernels.values()} == {"winograd"}
            for n in (1, 3):
                made = op.infer(tensor_type("float32", (n, 16, *size)), tensor_type("float32", ((m + 2) ** 2, 16, 24)))
                shape = tensor(made.type).shape
                fed = {"x": (n, 16, *size), "bias": (24, 1, 1), "residual": shape}
                data = {k: rng.standard_normal(d).astype(np.float32) for k, d in fed.items()}  # type: ignore[arg-type]
                (got,) = compiled.executable.run(data).values()
                want = np.asarray(
                    Conv(pads=(1, 0, 1, 2)).reference(data["x"].astype(np.float64), taps.astype(np.float64))
                )
                want = np.maximum(want + data["bias"] + data["residual"], 0)
                assert np.abs(np.asarray(got) - want).max() <= 2e-5 * np.abs(want).max()


# -- the choice


def chosen(target: str, x: tuple[Any, ...], outputs: int) -> int | None:
    """m of the tile that a target chooses for a convolution, None for the definition."""
    b = GraphBuilder()
    taps = b.constant(np.zeros((outputs, x[1], 3, 3), np.float32))
    b.output(b.add(Conv(pads=ONES), b.input("x", tensor_type("float32", x)), taps))
    resolved = resolve_target(target)
    found = choose_winograd(b.build().nodes[0], resolved.machine, resolved.intrinsics.values())
    assert found is None or not found[1]
    return None if found is None else found[0]


@pytest.mark.parametrize("target", ["cuda -arch=sm_75", "cuda -arch=sm_80", "cuda -arch=sm_90", "metal -family=mac2"])
@pytest.mark.parametrize(
    "x",
    [(1, 64, 56, 56), (8, 64, 56, 56), (1, 128, 28, 28), (8, 256, 14, 14), (8, 512, 14, 14), (Var("n"), 128, 28, 28)],
    ids=str,
)
def test_many_channels_are_transformed(target: str, x: tuple[Any, ...]) -> None:
    assert chosen(target, x, x[1]) is not None


@pytest.mark.parametrize(
    "target", ["cuda -arch=sm_80", "cuda -arch=sm_90", "metal -family=apple7", "metal -family=mac2"]
)
def test_few_channels_are_not(target: str) -> None:
    """What a tile brings would be written and read more often than it is used; and rows of one pixel are no tiles."""
    assert chosen(target, (1, 3, 224, 224), 64) is None
    assert chosen(target, (8, 3, 56, 56), 64) is None
    assert chosen(target, (8, 256, 1, 196), 256) is None


@pytest.mark.parametrize("x", [(0, 8, 8, 8), (1, 0, 8, 8), (8, 64, 1024, 1024)], ids=str)
def test_nothing_and_what_memory_does_not_hold_are_not(x: tuple[int, ...]) -> None:
    assert chosen("cuda -arch=sm_90", x, 64) is None


def test_empty_batches_compile() -> None:
    b = GraphBuilder("empty")
    w = b.constant(np.zeros((16, 16, 3, 3), np.float32))
    b.output(b.add(Conv(pads=(1, 1, 1, 1)), b.input("x", tensor_type("float32", (0, 16, 8, 8))), w), "y")
    assert weft.compile(b.build(), target="cuda -arch=sm_90", cache=False).outputs[0].name == "y"


def test_rounded_factors_go_by_small_tiles() -> None:
    """TF32 is asked for, and F(4×4) would multiply its error."""
    assert chosen("cuda -arch=sm_90 -tf32", (8, 512, 14, 14), 512) == 2
    assert chosen("cuda -arch=sm_90", (8, 512, 14, 14), 512) == 4


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "metal"])
def test_targets_say_so_unless_it_is_off(target: str) -> None:
    assert resolve_target(target).capabilities.winograd is not None
    assert resolve_target(f"{target} -winograd=off").capabilities.winograd is None
    assert "-winograd=off" in str(resolve_target(f"{target} -winograd=off").target)
