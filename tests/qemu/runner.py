"""Runs an image of another architecture under qemu-user, without a C compiler and without a C library.

The runner is a static ELF executable: LLVM IR whose only tie to the system is one function of machine code, linked by
Weft's own linker and wrapped in a header (`tests.qemu.systems`). It maps the file on its standard input at the system's
`base`, where everything in the file already holds its final address, calls the segment's entry and writes the answer to
standard output:

    file    := header image memory          all pointers absolute, the image at a page boundary
    header  := entry ctx in out code-address start length      8 bytes each
    answer  := code (8 bytes) context outputs: `length` bytes of the file from `start`

Pointers, structures and numbers are those of the machine; constants are brought into its order of bytes, as whoever
loads an archive does.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.qemu.systems import SYSTEMS, System

from weft_llvm.link import link
from weft_llvm.toolchain import Cpu, compile_object
from weft_runtime.abi import ABI_VERSION, CONTEXT, DEVICE_CPU, ERROR_ARGS, TENSOR, dlpack_type
from weft_runtime.arrays import in_order

LOAD = 0x40_0000
PAGE = 0x1_0000
"""The largest page of the systems, so that any kernel takes the layout."""
_PRIVATE_FIXED = 18
_ALL_RIGHTS = 7

Array = np.ndarray[Any, Any]


def source(system: System) -> str:
    """LLVM IR of the runner."""
    w, n = f"i{8 * system.pointer}", 3 if system.map_block else 6
    base, most = system.base, system.most

    def call(number: int, *arguments: str) -> str:
        given = [str(number), *arguments, *["0"] * (n - len(arguments))]
        return f"call {w} @call(" + ", ".join(f"{w} {a}" for a in given) + ")"

    wanted = [base, most, _ALL_RIGHTS, _PRIVATE_FIXED, 0, 0]
    if system.map_block:
        block = "\n".join(
            f"  %arg{k} = getelementptr i64, ptr %block, i64 {k}\n  store i64 {v}, ptr %arg{k}"
            for k, v in enumerate(wanted)
        )
        mapped = f"  %block = alloca [6 x i64]\n{block}\n  %b = ptrtoint ptr %block to i64\n  %got = " + call(
            system.map, "%b"
        )
    else:
        mapped = "  %got = " + call(system.map, *map(str, wanted))
    fields = "\n".join(
        f"""  %{name}.at = inttoptr {w} {base + 8 * k} to ptr
  %{name}.wide = load i64, ptr %{name}.at
  %{name} = {"add" if system.pointer == 8 else "trunc"} i64 %{name}.wide{", 0" if system.pointer == 8 else " to i32"}"""
        for k, name in enumerate(("entry", "ctx", "in", "out", "code", "start", "length"))
    )
    # The stack is aligned for a program's start, not for a function.
    attributes = '"stackrealign" alignstack(16)' if system.machine == "i386" else ""
    code = ", ".join(f"i8 {b}" for b in system.call)
    return f"""
target triple = "{system.triple}"

@call = internal constant [{len(system.call)} x i8] [{code}], align 8

define internal void @send({w} %from, {w} %bytes) {{
  br label %head
head:
  %at = phi {w} [ %from, %0 ], [ %next, %body ]
  %left = phi {w} [ %bytes, %0 ], [ %rest, %body ]
  %more = icmp sgt {w} %left, 0
  br i1 %more, label %body, label %leave
body: ; write may take less than it is given
  %sent = {call(system.write, "1", "%at", "%left")}
  %failed = icmp slt {w} %sent, 1
  %step = select i1 %failed, {w} %left, {w} %sent
  %next = add {w} %at, %step
  %rest = sub {w} %left, %step
  br label %head
leave:
  ret void
}}

define void @_start() noreturn {attributes} {{
{mapped}
  %there = icmp eq {w} %got, {base}
  br i1 %there, label %run, label %bad
run:
{fields}
  %function = inttoptr {w} %entry to ptr
  %context = inttoptr {w} %ctx to ptr
  %inputs = inttoptr {w} %in to ptr
  %outputs = inttoptr {w} %out to ptr
  %r = call i32 %function(ptr %context, ptr %inputs, ptr %outputs)
  %wide = sext i32 %r to i64
  %place = inttoptr {w} %code to ptr
  store i64 %wide, ptr %place
  call void @send({w} %code, {w} 8)
  call void @send({w} %ctx, {w} {CONTEXT.size(system.pointer)})
  call void @send({w} %start, {w} %length)
  %gone = {call(system.exit, "0")}
  unreachable
bad:
  %lost = {call(system.exit, "3")}
  unreachable
}}
"""


@cache
def runner(system: System) -> bytes:
    image = link({"runner": compile_object(source(system), Cpu(system.triple, system.cpu, system.features, 2))})
    return system.executable(image.bytes, image.entries["_start"], LOAD, PAGE)


def qemu(machine: str = "aarch64") -> str | None:
    return SYSTEMS[machine].program()


@dataclass(frozen=True)
class Answer:
    """What a run left behind: the entry's result, the error code and its arguments, the outputs."""

    code: int
    error: int
    error_args: tuple[int, ...]
    outputs: list[Array]


class _File:
    """Bytes at the system's base, in the order they are added; `add` says where something will be."""

    def __init__(self, system: System) -> None:
        self.system, self.data = system, bytearray(64)

    def add(self, content: bytes, alignment: int = 64) -> int:
        self.data.extend(bytes(-len(self.data) % alignment))
        address = self.system.base + len(self.data)
        self.data += content
        return address

    def array(self, array: Array) -> int:
        return self.add(in_order(array, self.system.order).tobytes())

    def pointers(self, addresses: Sequence[int]) -> int:
        form = f"{self.system.struct_order}{len(addresses)}{'Q' if self.system.pointer == 8 else 'I'}"
        return self.add(struct.pack(form, *addresses), 8)

    def tensors(self, arrays: Sequence[Array], data: Sequence[int]) -> int:
        """Pointers to DLTensors of `arrays`, whose data lie at `data`."""
        pointers = []
        for array, address in zip(arrays, data):
            code, bits = dlpack_type(array.dtype)
            shape = self.array(np.asarray(array.shape, np.int64))
            fields = {"data": address, "device_type": DEVICE_CPU, "ndim": array.ndim, "code": code, "bits": bits}
            tensor = TENSOR.packed({**fields, "lanes": 1, "shape": shape}, self.system.pointer, self.system.order)
            pointers.append(self.add(tensor, 8))
        return self.pointers(pointers)


def run(
    machine: str,
    image: bytes,
    entry: int,
    constants: Sequence[Array],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    arena: int,
    cpu: str,
) -> Answer:
    """Runs a segment's image on inputs.

    Args:
        machine: of `SYSTEMS`.
        outputs: arrays of the expected dtypes and shapes; their values are not used.
        arena: bytes of memory for intermediate results.
        cpu: as qemu calls it.

    Raises:
        RuntimeError: qemu-user is absent, or the program ended otherwise than by answering.
    """
    system = SYSTEMS[machine]
    file = _File(system)
    code = file.add(image, PAGE)
    table = file.pointers([file.array(c) for c in constants])
    given = [np.array(a, order="C") for a in inputs]
    ins = file.tensors(given, [file.array(a) for a in given])
    # A pattern, not zeros: nobody may count on fresh memory.
    memory = file.add(b"\xa5" * arena)
    start = file.add(b"")
    places = [file.add(b"\xa5" * a.nbytes) for a in outputs]
    length = system.base + len(file.data) - start
    outs = file.tensors(outputs, places)
    fields = {"version": ABI_VERSION, "arena": memory, "arena_bytes": arena, "constants": table}
    context = file.add(CONTEXT.packed(fields, system.pointer, system.order))
    result = file.add(bytes(8))
    order = system.struct_order
    struct.pack_into(f"{order}7Q", file.data, 0, code + entry, context, ins, outs, result, start, length)
    if len(file.data) > system.most:
        raise RuntimeError(f"{len(file.data)} bytes of code and data, at most {system.most} are mapped")
    with tempfile.TemporaryDirectory() as folder:
        elf, payload = Path(folder) / "runner", Path(folder) / "payload"
        elf.write_bytes(runner(system))
        elf.chmod(0o755)
        payload.write_bytes(file.data)
        with payload.open("rb") as source:
            done = subprocess.run(system.command(elf, cpu), stdin=source, capture_output=True, timeout=600, check=False)
    head = 8 + CONTEXT.size(system.pointer)
    if done.returncode or len(done.stdout) != head + length:
        said = done.stderr.decode(errors="replace")[-500:]
        raise RuntimeError(
            f"qemu ended with {done.returncode} after {len(done.stdout)} of {head + length} bytes: {said}"
        )
    (returned,) = struct.unpack_from(f"{order}q", done.stdout)
    at = 8 + CONTEXT.offsets(system.pointer)["error_code"]
    error, *args = struct.unpack_from(f"{order}{1 + ERROR_ARGS}q", done.stdout, at)
    return Answer(int(returned), int(error), tuple(args), [
        _native(done.stdout[head + place - start :][: a.nbytes], a, system) for a, place in zip(outputs, places)
    ])  # fmt: skip


def _native(data: bytes, like: Array, system: System) -> Array:
    """The machine's numbers as this one's."""
    return in_order(np.frombuffer(data, like.dtype), system.order).view(like.dtype).reshape(like.shape)
