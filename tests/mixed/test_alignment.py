"""Buffers of a device begin where its instructions want them, from the declaration to the launch: values, constants,
scratch, what a caller gives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.mixed import board

import weft
from weft.errors import ArchiveError, ExecutionError, PluginError, ScheduleError
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.hooks import hookimpl
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.lower.lower import lower_group
from weft.machine import Machine, Scope
from weft.plugins import host
from weft.scheduling import Call, Intrinsic, Offer, Operand, Rule, Schedule, meanings, replay
from weft.scheduling.scopes import exceeds
from weft.target import Target, TargetKind
from weft.tensor import language as tl
from weft_interpreter.interpret import interpret
from weft_ops import Add, MatMul, Relu
from weft_runtime import device as devices
from weft_runtime.arrays import Array, array_address
from weft_runtime.device import Device, DeviceKind, HostDevice, Memory, Slice
from weft_runtime.plan import Manifest

SIZE = 16
ALIGN = 4096


def intrinsic(align: int = ALIGN) -> Intrinsic:
    """C += A · B of whole matrices, each of which begins at a multiple of `align` bytes."""
    a, b, k = tl.placeholder((SIZE, SIZE), name="A"), tl.placeholder((SIZE, SIZE), name="B"), tl.reduce_axis(SIZE, "k")
    c = tl.compute((SIZE, SIZE), lambda i, j: tl.sum(a[i, k] * b[k, j], axis=k), "C", axes=("i", "j"))
    return Intrinsic("product", c, tuple(Operand(n, align=align, strides=(SIZE, 1)) for n in "ABC"), Call("product"))


UNIT = intrinsic()
rng = np.random.default_rng(0)
ONE, TWO = (rng.integers(-3, 4, (SIZE, SIZE)).astype(np.float32) for _ in range(2))
BIAS = rng.integers(-3, 4, (SIZE,)).astype(np.float32)
found: list[tuple[str, int]] = []
"""Where buffers of launches began: the kernel, and the address modulo what was asked for."""


class Wide(board.Board):
    name: ClassVar[str] = "wide"
    align: ClassVar[int] = ALIGN
    where: ClassVar[str] = "wide"

    def machine(self, target: Target) -> Machine:
        return Machine(
            "wide", vector_bits=128, vector_registers=16, scopes={"global": Scope("global", align=self.align)}
        )

    def device(self, target: Target) -> str:
        return self.where


class Products(Rule):
    """Products of 16 × 16 by the instruction, everything else as it is."""

    name = "products"

    def offer(self, program: Program, machine: Any) -> Offer:
        return Offer(1.0)

    def apply(self, schedule: Schedule) -> None:
        for b in schedule.blocks():
            if schedule.block(b).annotation("op") == "MatMul":
                schedule.tensorize(b, "product")


def launched(program: Program, arrays: Sequence[Array], name: str, align: int, sizes: Mapping[str, int]) -> None:
    for b, array in zip(program.params, arrays):
        found.append((f"{name}.{b.name}", array_address(array) % max(align, b.align)))
    results = interpret(program, arrays[: len(program.inputs)], sizes, intrinsics=meanings([UNIT]))
    for array, result in zip(arrays[len(program.inputs) :], results.values()):
        array[...] = result


class Chip(board.Interpreter):
    """A device with memory of its own."""

    align = ALIGN

    def __init__(self) -> None:
        super().__init__()
        self.name = "wide"

    def allocate(self, size: int) -> Memory:
        store = np.full(size + self.align, 0xCD, np.uint8)
        at = -array_address(store) % self.align
        return Memory(size, store[at : at + size])

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        program: Program = module[kernel]
        views = []
        for b, s in zip(program.params, buffers):
            shape = [int(str(d)) for d in b.shape]
            views.append(self._bytes(s).view(b.dtype.numpy)[: int(np.prod(shape))].reshape(shape))
        launched(program, views, kernel, self.align, {})


class Beside(HostDevice):
    """A device on the host's memory."""

    align = ALIGN

    def __init__(self) -> None:
        super().__init__("wide")

    def load(self, image: bytes, entries: Mapping[str, int]) -> dict[str, Program]:
        return {name: parse_program(image[at : image.index(b"\0", at)].decode()) for name, at in entries.items()}

    def launch(self, module: Any, kernel: str, buffers: Sequence[Slice], dims: Sequence[int]) -> None:
        program: Program = module[kernel]
        views = []
        for b, s in zip(program.params, buffers):
            shape = [int(str(d)) for d in b.shape]
            views.append(self.bytes(s).view(b.dtype.numpy)[: int(np.prod(shape))].reshape(shape))
        launched(program, views, kernel, self.align, {})


class Plugin:
    opened: type[Device] = Chip

    @hookimpl
    def targets(self) -> Sequence[TargetKind]:
        return [Wide()]

    @hookimpl
    def schedules(self, target: Target) -> Sequence[Rule]:
        return [Products()] if target.kind == "wide" else []

    @hookimpl
    def intrinsics(self, target: Target) -> Sequence[Intrinsic]:
        return [UNIT] if target.kind == "wide" else []

    @hookimpl
    def devices(self) -> Sequence[DeviceKind]:
        return [DeviceKind("wide", lambda: None, self.opened)]


@pytest.fixture(params=[Chip, Beside], ids=["own memory", "the host's memory"])
def wide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "_open", {})
    plugin = Plugin()
    plugin.opened = request.param
    host().register(plugin, "wide")
    found.clear()
    yield
    host().unregister("wide")


def network() -> Graph:
    """Two products with what is between, a small constant beside, so that nothing falls on a boundary by itself."""
    g = GraphBuilder("network")
    x = g.input("x", tensor_type("float32", (SIZE, SIZE)))
    one, bias, two = (g.constant(data, name) for data, name in ((ONE, "one"), (BIAS, "bias"), (TWO, "two")))
    hidden = g.add(Relu(), g.add(Add(), g.add(MatMul(), x, one), bias))
    g.output(g.add(MatMul(), hidden, two), "y")
    return g.build()


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("offset", [0, 4, 64])
def test_everything_that_a_launch_gets_begins_where_it_should(offset: int, tmp_path: Path) -> None:
    graph = network()
    exe = weft.compile(graph, target="wide", cache=False)
    exe.save(tmp_path / "m.weft")
    store = np.zeros(4 * ALIGN, np.uint8)
    at = -array_address(store) % ALIGN + offset
    x = store[at : at + 4 * SIZE * SIZE].view(np.float32).reshape(SIZE, SIZE)
    x[...] = np.random.default_rng(1).integers(-3, 4, x.shape)
    for run in (exe, weft.Executable.load(tmp_path / "m.weft")):
        np.testing.assert_array_equal(run.run({"x": x})["y"], np.maximum(x @ ONE + BIAS, 0) @ TWO)
    assert len({name.partition(".")[0] for name, _ in found}) >= 2
    assert [f for f in found if f[1]] == []


@pytest.mark.usefixtures("wide")
def test_a_device_that_gives_less_than_kernels_take_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = weft.compile(network(), target="wide", cache=False)
    for kind in (Chip, Beside):
        monkeypatch.setattr(kind, "align", 64)  # of the allocator's, too
    with pytest.raises(ExecutionError, match="take memory aligned to 4096 bytes, device 'wide' gives 64") as caught:
        exe.run({"x": np.zeros((SIZE, SIZE), np.float32)})
    assert "the device's class says what it gives: align" in str(caught.value) and found == []


@pytest.mark.usefixtures("wide")
def test_kernels_of_the_host_take_arrays_that_begin_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wide, "where", "cpu")
    with pytest.raises(
        PluginError, match="the target 'wide' declares that global memory is aligned to 4096 bytes"
    ) as caught:
        weft.compile(network(), target="wide", cache=False)
    assert "callers' arrays begin at any element" in str(caught.value)


def test_a_machine_that_declares_nothing_aligns_to_64() -> None:
    g = GraphBuilder("product")
    g.output(g.add(MatMul(), *(g.input(n, tensor_type("float32", (SIZE, SIZE))) for n in "AB")), "C")
    naive = lower_group(g.build())
    plain, declared = (Machine("m", 128, 8, scopes=scopes) for scopes in ({}, {"global": Scope("global", align=ALIGN)}))
    s = Schedule(naive, plain, intrinsics={"product": UNIT})
    with pytest.raises(ScheduleError, match="must be aligned to 4096 bytes; 'in0' is aligned to 64") as caught:
        s.tensorize("matmul", "product")
    assert "declares Scope('global', align=4096)" in str(caught.value)
    s = Schedule(naive, declared, checked=True, intrinsics={"product": UNIT})
    s.tensorize("matmul", "product")
    assert str(s).count("align 4096") == 3 and str(parse_program(str(s))) == str(s)
    assert exceeds(s.program, declared) is None
    wanted = exceeds(s.program, plain)
    assert (
        wanted is not None
        and "needs 'in0' aligned to 4096 bytes, scope 'global' is aligned to 64 and 'in1' aligned to 4096" in wanted
    )
    assert str(replay(naive, s.trace, {"product": UNIT})) == str(s)


def test_memories_of_the_chip_are_aligned_as_they_declare() -> None:
    near = replace(UNIT, operands=tuple(Operand(n, scope="near", align=256) for n in "ABC"))
    for align, fits in ((256, True), (128, False)):
        g = GraphBuilder("product")
        g.output(g.add(MatMul(), *(g.input(n, tensor_type("float32", (SIZE, SIZE))) for n in "AB")), "C")
        s = Schedule(
            lower_group(g.build()),
            Machine("m", 128, 8, scopes={"near": Scope("near", align=align)}),
            intrinsics={"product": near},
        )
        for b in s.program.inputs:
            s.cache_read("matmul", b.name, "near")
        s.cache_write("matmul", "near")
        with s.attempt() as tried:
            s.tensorize("matmul", "product")
        assert bool(tried) == fits and (str(s).count("in near align 256") == 3) == fits


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("align", [0, 96, -64, 1 << 40, "64"])
def test_a_manifest_that_lies_about_alignment(align: object) -> None:
    data = json.loads(weft.compile(network(), target="wide", cache=False).manifest.to_json())
    step = next(s for s in data["steps"] if s["kind"] == "device")
    assert step["align"] == ALIGN
    step["align"] = align
    with pytest.raises(ArchiveError, match=r"steps.*align"):
        Manifest.from_json(json.dumps(data).encode(), "here")


def test_a_device_that_asks_for_nothing_shares_arrays_wherever_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy is made for a library that takes any address."""
    monkeypatch.setattr(devices, "_open", {})
    monkeypatch.setattr(Wide, "align", 64)
    monkeypatch.setattr(Beside, "align", HostDevice.align)
    monkeypatch.setattr(Products, "apply", lambda self, schedule: None)
    seen: list[int] = []
    monkeypatch.setattr(
        Beside, "share", lambda self, data: seen.append(array_address(data)) or HostDevice.share(self, data)
    )
    plugin = Plugin()
    plugin.opened = Beside
    host().register(plugin, "wide")
    try:
        exe = weft.compile(network(), target="wide", cache=False)
        x = np.zeros(4 * SIZE * SIZE + 4, np.uint8)[4:].view(np.float32).reshape(SIZE, SIZE)
        np.testing.assert_array_equal(exe.run({"x": x})["y"], np.maximum(x @ ONE + BIAS, 0) @ TWO)
    finally:
        host().unregister("wide")
    assert array_address(x) in seen


@pytest.mark.parametrize("align", [1, 64, 256])
def test_results_are_written_where_they_are_read(align: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a device that shares the host's memory asks for: an output is never a copy."""
    monkeypatch.setattr(devices, "_open", {})
    monkeypatch.setattr(Wide, "align", 64)
    monkeypatch.setattr(Beside, "align", align)
    monkeypatch.setattr(Products, "apply", lambda self, schedule: None)
    plugin = Plugin()
    plugin.opened = Beside
    host().register(plugin, "wide")
    try:
        exe = weft.compile(network(), target="wide", cache=False)
        kept = []
        for k in range(8):
            x = np.full((SIZE, SIZE), float(k), np.float32)
            kept.append(exe.run({"x": x})["y"])
            np.testing.assert_array_equal(kept[-1], np.maximum(x @ ONE + BIAS, 0) @ TWO)
            assert array_address(kept[-1]) % align == 0
    finally:
        host().unregister("wide")
