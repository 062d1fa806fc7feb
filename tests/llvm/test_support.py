"""The native code that the runtime comes with is what this plugin makes of its source, and an installation whose files
are others says so."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llvmlite.binding import llvm_version_info

import weft
from weft.errors import ExecutionError
from weft.resolve import resolve_target
from weft_llvm import native
from weft_llvm.memory import emit_memory
from weft_llvm.pool import emit_pool
from weft_llvm.support import CPUS, support_image
from weft_llvm.target import RESERVED, isa
from weft_llvm.toolchain import Cpu, compile_assembly
from weft_llvm.workers import Workers
from weft_runtime import cpu_features, support
from weft_runtime.abi import Context, DLTensor, Host, Room, dlpack_type
from weft_runtime.loader import Code, free, imports_table
from weft_testing.models import lstm


@pytest.mark.parametrize("architecture", CPUS)
def test_the_runtime_comes_with_what_its_source_gives(architecture: str) -> None:
    table = json.loads((support.FOLDER / "table.json").read_text())
    image = support_image(architecture)
    assert dict(image.entries).keys() == table["images"][architecture]["entries"].keys(), (
        "run python -m weft_llvm.support runtime/weft_runtime/images"
    )
    if table["llvm"] != ".".join(map(str, llvm_version_info)):
        pytest.skip(f"LLVM {table['llvm']} has made the images, which may give other instructions than this one")
    assert (support.FOLDER / f"{architecture}.bin").read_bytes() == image.bytes, (
        "run python -m weft_llvm.support runtime/weft_runtime/images"
    )
    assert table["images"][architecture]["entries"] == image.entries


def test_a_damaged_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, machine = tmp_path / "images", cpu_features.machine()
    shutil.copytree(support.FOLDER, folder)
    monkeypatch.setattr(support, "FOLDER", folder)
    fresh = support.support.__wrapped__
    assert isinstance(fresh(), Code)
    image = (folder / f"{machine}.bin").read_bytes()
    (folder / f"{machine}.bin").write_bytes(image[:-1] + b"x")
    with pytest.raises(
        ExecutionError,
        match=rf"of weft is damaged\n  .*images\n  why: the hash of {machine}.bin is not the one in table.json\n",
    ):
        fresh()
    (folder / f"{machine}.bin").unlink()
    with pytest.raises(ExecutionError, match=r"of weft is damaged\n  why: .*No such file"):
        fresh()
    monkeypatch.setattr(cpu_features, "machine", lambda: "riscv64")
    with pytest.raises(ExecutionError) as error:
        fresh()
    assert (
        str(error.value)
        == "weft runs no native code on riscv64\n  why: memory for results and the worker pool are native code that it"
        " brings, and it has it for aarch64 and x86_64\n  hint: compile the model and run it on such a machine"
    )
    (folder / "table.json").unlink()
    with pytest.raises(ExecutionError, match=r"of weft is damaged\n  why: .*No such file"):
        fresh()


def test_a_process_of_32_bits_does_not_run_what_its_system_could(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features.sys, "maxsize", (1 << 31) - 1)
    for system, process in (
        ("x86_64", "i386"),
        ("aarch64", "arm"),
        ("arm64", "arm"),
        ("armv7l", "arm"),
        ("i686", "i386"),
    ):
        monkeypatch.setattr(cpu_features.platform, "machine", lambda system=system: system)
        assert cpu_features.machine() == process


def test_windows_on_x86_is_a_machine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are in other registers there."""
    monkeypatch.setattr(cpu_features.sys, "platform", "win32")
    for system, machine in (("AMD64", "x86_64-windows"), ("ARM64", "aarch64")):
        monkeypatch.setattr(cpu_features.platform, "machine", lambda system=system: system)
        assert cpu_features.machine() == machine


def test_code_for_aarch64_leaves_the_register_alone_that_systems_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """In assembly, which is what LLVM encodes: the runtime's own code, kernels, segments, and what runs loops."""
    texts = [(emit_pool("aarch64"), CPUS["aarch64"]), (emit_memory(), CPUS["aarch64"])]
    submit = Workers.submit

    def listen(self: Workers, ir: str, cpu: Cpu, name: str) -> Any:
        texts.append((ir, cpu))
        return submit(self, ir, cpu, name)

    monkeypatch.setattr(Workers, "submit", listen)
    target = resolve_target("llvm -mtriple=aarch64-linux-gnu -threads=2")
    weft.compile(lstm(), str(target.target), cache=False)
    native.loops_code.__wrapped__(isa("aarch64-linux-gnu", "generic", RESERVED["aarch64"]))
    assert len(texts) > 4
    plain = [re.search(r"\b[wx]18\b", compile_assembly(ir, replace(cpu, features="")), re.I) for ir, cpu in texts]
    assert any(plain[:2]), "else this test shows nothing"
    for ir, cpu in texts:
        assert "target-features" not in ir or "+reserve-x18" in ir
        assert not re.search(r"\b[wx]18\b", compile_assembly(ir, cpu), re.I)
    assert "reserve-x18" not in target.kind.isa(target.target).needs


class Memory:
    """A context whose outputs are of these types and ranks."""

    def __init__(self, *outputs: tuple[str, int]) -> None:
        code = support.support()
        self.shapes = [(ctypes.c_int64 * 8)() for _ in outputs]
        self.tensors = (DLTensor * len(outputs))()
        for tensor, shape, (of, rank) in zip(self.tensors, self.shapes, outputs):
            tensor.ndim, tensor.shape, tensor.lanes = rank, ctypes.addressof(shape), 1
            tensor.code, tensor.bits = dlpack_type(of)
        pointers = (ctypes.c_void_p * len(outputs))(*(ctypes.addressof(t) for t in self.tensors))
        self.rooms = (Room * len(outputs))()
        self.host = Host(outputs=ctypes.addressof(pointers), rooms=ctypes.addressof(self.rooms))
        self.context = Context(imports=ctypes.addressof(imports_table()), host=ctypes.addressof(self.host))
        self.kept = pointers
        output = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        arena = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._output, self._arena = output(code.address("allocate_output")), arena(code.address("allocate_arena"))

    def output(self, index: int, *dims: int) -> int:
        sizes = (ctypes.c_int64 * max(1, len(dims)))(*dims)
        return int(self._output(ctypes.addressof(self.context), index, len(dims), ctypes.addressof(sizes)))

    def arena(self, size: int) -> int | None:
        return self._arena(ctypes.addressof(self.context), size)

    def __del__(self) -> None:
        for room in self.rooms:
            free(room.data)
        free(self.context.arena)


def test_an_arena_grows_and_keeps_what_it_holds() -> None:
    memory = Memory(("float32", 1))
    first = memory.arena(100)
    assert first and first % 64 == 0 and memory.context.arena == first and memory.context.arena_bytes >= 100
    ctypes.memset(first, 7, memory.context.arena_bytes)
    held = memory.context.arena_bytes
    second = memory.arena(20 << 20)
    assert second and second % 65536 == 0 and memory.context.arena_bytes >= 20 << 20
    assert ctypes.string_at(second, held) == b"\7" * held
    for size in (-1, -(1 << 63), 1 << 62, (1 << 63) - 1, 1 << 61):
        assert memory.arena(size) is None and memory.context.arena == second and memory.context.arena_bytes >= 20 << 20


def test_room_for_outputs() -> None:
    memory = Memory(("float32", 2), ("int4", 3), ("complex128", 0), ("bool", 1))
    for index, dims, size in (
        (0, (3, 5), 60),
        (1, (2, 3, 7), 42),
        (2, (), 16),
        (3, (0,), 1),
        (0, (1 << 20, 5), 20 << 20),
    ):
        assert memory.output(index, *dims) == 0
        room, tensor = memory.rooms[index], memory.tensors[index]
        assert room.bytes == size and tensor.data == room.data and room.data % 64 == 0
        assert list(memory.shapes[index])[: len(dims)] == list(dims)
        ctypes.memset(room.data, 1, room.bytes)
    held = memory.rooms[0].data
    assert memory.output(0, 2, 2) == 0 and memory.rooms[0].data == held, "what is large enough stays"


@pytest.mark.parametrize(
    "dims",
    [
        (-1, 3),
        (-(1 << 63), 2),
        (1 << 62, 4),
        (1 << 32, 1 << 32),
        ((1 << 63) - 1, 1),
        (0, 1 << 62),
        (1 << 62, 0),
        (1 << 40, 1 << 20),
        (1 << 30, 1 << 29),
    ],
)
def test_no_room_for_sizes_that_no_memory_has(dims: tuple[int, int]) -> None:
    """Products that leave 64 bits, negative sizes, and more than the system has."""
    memory = Memory(("float32", 2))
    assert memory.output(0, *dims) == 1
    assert memory.tensors[0].data is None and list(memory.shapes[0])[:2] == list(dims)
    assert memory.output(0, 2, 2) == 0
