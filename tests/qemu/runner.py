"""Runs an aarch64 image under qemu-user, without a C compiler and without a C library.

The runner is a static ELF executable: LLVM IR whose only tie to the system is one `svc` instruction, linked by Weft's
own linker and wrapped in a header here. It maps the file on its standard input at BASE, where everything in the file
already holds its final address, calls the segment's entry and writes the answer to standard output:

    file    := header image memory          all pointers absolute, the image at a page boundary
    header  := entry ctx in out code-address start length      8 bytes each
    answer  := code (8 bytes) context (160 bytes) outputs: `length` bytes of the file from `start`
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from weft_llvm.link import link
from weft_llvm.toolchain import Cpu, compile_object
from weft_runtime.abi import ABI_VERSION, DEVICE_CPU, OFFSETS, Context, DLTensor, dlpack_type

TRIPLE = "aarch64-linux-gnu"
BASE = 0x10_0000_0000
"""Where the file is mapped: far from the program, its stack and what qemu itself uses."""
LOAD = 0x40_0000
PAGE = 0x1_0000
"""The largest page of aarch64, so that any kernel takes the layout."""
INSTALL = "qemu-aarch64 is not installed: apt-get install qemu-user"

Array = np.ndarray[Any, Any]

# A system call as a function (number, six arguments): LLVM has no assembler for foreign targets here, so its words are
# written out. They are a constant; an image is executable as a whole.
_SYSCALL = (
    0xAA0003E8,  # mov x8, x0
    *(0xAA0003E0 | (k + 1) << 16 | k for k in range(6)),  # mov x0, x1 … mov x5, x6
    0xD4000001,  # svc #0
    0xD65F03C0,  # ret
)

RUNNER = f"""
target triple = "{TRIPLE}"

@call = internal constant [{len(_SYSCALL)} x i32] [{", ".join(f"i32 {w}" for w in _SYSCALL)}], align 4

define internal void @send(i64 %from, i64 %bytes) {{
  br label %head
head:
  %at = phi i64 [ %from, %0 ], [ %next, %body ]
  %left = phi i64 [ %bytes, %0 ], [ %rest, %body ]
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %body, label %leave
body: ; write may take less than it is given
  %sent = call i64 @call(i64 64, i64 1, i64 %at, i64 %left, i64 0, i64 0, i64 0)
  %failed = icmp slt i64 %sent, 1
  %step = select i1 %failed, i64 %left, i64 %sent
  %next = add i64 %at, %step
  %rest = sub i64 %left, %step
  br label %head
leave:
  ret void
}}

define void @_start() noreturn {{
  ; the size is what lseek to the end says; mapped private: readable, writable, executable, exactly at BASE
  %size = call i64 @call(i64 62, i64 0, i64 0, i64 2, i64 0, i64 0, i64 0)
  %base = call i64 @call(i64 222, i64 {BASE}, i64 %size, i64 7, i64 18, i64 0, i64 0)
  %there = icmp eq i64 %base, {BASE}
  br i1 %there, label %run, label %bad
run:
  %entry = load ptr, ptr inttoptr (i64 {BASE} to ptr)
  %ctx = load ptr, ptr inttoptr (i64 {BASE + 8} to ptr)
  %in = load ptr, ptr inttoptr (i64 {BASE + 16} to ptr)
  %out = load ptr, ptr inttoptr (i64 {BASE + 24} to ptr)
  %code = load i64, ptr inttoptr (i64 {BASE + 32} to ptr)
  %start = load i64, ptr inttoptr (i64 {BASE + 40} to ptr)
  %length = load i64, ptr inttoptr (i64 {BASE + 48} to ptr)
  %r = call i32 %entry(ptr %ctx, ptr %in, ptr %out)
  %wide = sext i32 %r to i64
  %place = inttoptr i64 %code to ptr
  store i64 %wide, ptr %place
  call void @send(i64 %code, i64 8)
  %c = ptrtoint ptr %ctx to i64
  call void @send(i64 %c, i64 160)
  call void @send(i64 %start, i64 %length)
  %gone = call i64 @call(i64 93, i64 0, i64 0, i64 0, i64 0, i64 0, i64 0)
  unreachable
bad:
  %lost = call i64 @call(i64 93, i64 3, i64 0, i64 0, i64 0, i64 0, i64 0)
  unreachable
}}
"""


def static_elf(code: bytes, entry: int) -> bytes:
    """An executable that is one segment of code: 64-bit little-endian ELF, aarch64, no sections."""
    header = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 183, 1, LOAD + PAGE + entry, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, PAGE, LOAD + PAGE, LOAD + PAGE, len(code), len(code), PAGE)
    return (header + segment).ljust(PAGE, b"\0") + code


@cache
def runner() -> bytes:
    image = link({"runner": compile_object(RUNNER, Cpu(TRIPLE, "generic", "", 2))})
    return static_elf(image.bytes, image.entries["_start"])


def qemu() -> str | None:
    return shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


@dataclass(frozen=True)
class Answer:
    """What a run left behind: the entry's result, the error code and its arguments, the outputs."""

    code: int
    error: int
    error_args: tuple[int, ...]
    outputs: list[Array]


class _File:
    """Bytes at BASE, in the order they are added; `add` says where something will be."""

    def __init__(self) -> None:
        self.data = bytearray(64)

    def add(self, content: bytes, alignment: int = 64) -> int:
        self.data.extend(bytes(-len(self.data) % alignment))
        address = BASE + len(self.data)
        self.data += content
        return address

    def tensors(self, arrays: Sequence[Array], data: Sequence[int]) -> int:
        """Pointers to DLTensors of `arrays`, whose data lie at `data`."""
        pointers = []
        for array, address in zip(arrays, data):
            code, bits = dlpack_type(array.dtype)
            shape = self.add(np.asarray(array.shape, np.int64).tobytes(), 8)
            tensor = DLTensor(
                data=address, device_type=DEVICE_CPU, ndim=array.ndim, code=code, bits=bits, lanes=1, shape=shape
            )
            pointers.append(self.add(bytes(tensor), 8))
        return self.add(np.asarray(pointers, np.uint64).tobytes(), 8)


def run(
    image: bytes,
    entry: int,
    constants: Sequence[Array],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    arena: int,
    cpu: str = "cortex-a72",
) -> Answer:
    """Runs a segment's image on inputs.

    Args:
        outputs: arrays of the expected dtypes and shapes; their values are not used.
        arena: bytes of memory for intermediate results.
        cpu: as qemu calls it.

    Raises:
        RuntimeError: qemu-user is absent, or the program ended otherwise than by answering.
    """
    program = qemu()
    if program is None:
        raise RuntimeError(INSTALL)
    file = _File()
    code = file.add(image, PAGE)
    table = file.add(
        np.asarray([file.add(np.ascontiguousarray(c).tobytes()) for c in constants], np.uint64).tobytes(), 8
    )
    given = [np.array(a, order="C") for a in inputs]
    ins = file.tensors(given, [file.add(a.tobytes()) for a in given])
    # A pattern, not zeros: nobody may count on fresh memory.
    memory = file.add(b"\xa5" * arena)
    start = file.add(b"")
    places = [file.add(b"\xa5" * a.nbytes) for a in outputs]
    length = BASE + len(file.data) - start
    outs = file.tensors(outputs, places)
    context = file.add(bytes(Context(version=ABI_VERSION, arena=memory, arena_bytes=arena, constants=table, threads=0)))
    result = file.add(bytes(8))
    struct.pack_into("<7Q", file.data, 0, code + entry, context, ins, outs, result, start, length)
    with tempfile.TemporaryDirectory() as folder:
        elf, payload = Path(folder) / "runner", Path(folder) / "payload"
        elf.write_bytes(runner())
        elf.chmod(0o755)
        payload.write_bytes(file.data)
        with payload.open("rb") as source:
            # max has every optional feature: what a narrower CPU lacks is told by -cpu cortex-a72, which is what most
            # code is for.
            done = subprocess.run(
                [program, "-cpu", cpu, str(elf)], stdin=source, capture_output=True, timeout=600, check=False
            )
    head = 8 + 160
    if done.returncode or len(done.stdout) != head + length:
        said = done.stderr.decode(errors="replace")[-500:]
        raise RuntimeError(
            f"qemu ended with {done.returncode} after {len(done.stdout)} of {head + length} bytes: {said}"
        )
    (returned,) = struct.unpack_from("<q", done.stdout)
    error, *args = struct.unpack_from("<9q", done.stdout, 8 + OFFSETS["error_code"])
    arrays = [
        np.frombuffer(done.stdout, a.dtype, a.size, head + place - start).reshape(a.shape)
        for a, place in zip(outputs, places)
    ]
    return Answer(int(returned), int(error), tuple(args), arrays)
