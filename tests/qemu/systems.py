"""What programs without a C library need to know of each machine under qemu-user: its ELF header, and how the kernel is
called."""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weft_runtime.abi import ByteOrder
from weft_runtime.cpu_features import byte_order

INSTALL = "apt-get install qemu-user"


@dataclass(frozen=True)
class System:
    """A machine under Linux.

    Attributes:
        machine: its name in a manifest.
        triple, cpu, features: what the runner is compiled for: every processor.
        emulator: qemu's name of the machine.
        elf: number of the machine, and flags of the header.
        pointer: bytes of a pointer.
        call: machine code of a function (number, six arguments), all as wide as a pointer, that calls the kernel. LLVM
            has no assembler for foreign targets here, so it is written out; it is a constant, as an image is executable
            as a whole. That of s390x has three arguments.
        write, exit, map: numbers of system calls.
        map_block: whether the arguments of `map` are given in memory.
    """

    machine: str
    triple: str
    emulator: str
    elf: tuple[int, int]
    call: bytes
    write: int
    exit: int
    map: int
    cpu: str = "generic"
    features: str = ""
    pointer: int = 8
    map_block: bool = False

    @property
    def order(self) -> ByteOrder:
        return byte_order(self.machine)

    @property
    def struct_order(self) -> str:
        return "<" if self.order == "little" else ">"

    @property
    def base(self) -> int:
        """Where the file with code and data is mapped: far from the program, its stack and what qemu itself uses."""
        return 0x10_0000_0000 if self.pointer == 8 else 0x1000_0000

    @property
    def most(self) -> int:
        """Bytes of the file at most."""
        return 0x4000_0000 if self.pointer == 8 else 0x2000_0000

    def program(self) -> str | None:
        """qemu's program for the machine."""
        return shutil.which(f"qemu-{self.emulator}") or shutil.which(f"qemu-{self.emulator}-static")

    def command(self, elf: Path, cpu: str) -> list[str]:
        """What runs a static executable; `cpu` as qemu calls it. Code of 32-bit x86 runs on x86-64 itself where the
        kernel allows: qemu 7.2 takes wrong flags after a subtraction from memory of 8 and 16 bits."""
        if self.machine == "i386" and _runs_32_bits():
            return [str(elf)]
        program = self.program()
        if program is None:
            raise RuntimeError(f"qemu-{self.emulator} is not installed: {INSTALL}")
        return [program, "-cpu", cpu, str(elf)]

    def executable(self, code: bytes, entry: int, load: int, page: int) -> bytes:
        """An executable that is one segment of code, without sections."""
        word = "Q" if self.pointer == 8 else "I"
        number, flags = self.elf
        head, program = (64, 56) if self.pointer == 8 else (52, 32)
        header = struct.pack(
            f"{self.struct_order}4sBBBB8xHHI{word}{word}{word}IHHHHHH",
            b"\x7fELF", 2 if self.pointer == 8 else 1, 1 if self.order == "little" else 2, 1, 0,
            2, number, 1, load + page + entry, head, 0, flags, head, program, 1, 0, 0, 0,
        )  # fmt: skip
        start, size = load + page, len(code)
        if self.pointer == 8:
            segment = struct.pack(f"{self.struct_order}IIQQQQQQ", 1, 5, page, start, start, size, size, page)
        else:
            segment = struct.pack(f"{self.struct_order}8I", 1, page, start, start, size, size, 5, page)
        return (header + segment).ljust(page, b"\0") + code


@cache
def _runs_32_bits() -> bool:
    """Whether a program of 32-bit x86 runs here: one that ends at once."""
    if platform.machine() != "x86_64":
        return False
    ends = b"\x31\xdb\x31\xc0\x40\xcd\x80"  # xor ebx, ebx; xor eax, eax; inc eax; int 0x80
    with tempfile.TemporaryDirectory() as folder:
        elf = Path(folder) / "ends"
        elf.write_bytes(SYSTEMS["i386"].executable(ends, 0, 0x40_0000, 0x1_0000))
        elf.chmod(0o755)
        try:
            return subprocess.run([str(elf)], check=False, timeout=60).returncode == 0
        except OSError:
            return False


def _words(order: str, *words: int) -> bytes:
    return struct.pack(f"{order}{len(words)}I", *words)


_AARCH64 = _words(
    "<",
    0xAA0003E8,  # mov x8, x0
    *(0xAA0003E0 | (k + 1) << 16 | k for k in range(6)),  # mov x0, x1 … mov x5, x6
    0xD4000001,  # svc #0
    0xD65F03C0,  # ret
)
_ARM = _words(
    "<",
    0xE92D00B0,  # push {r4, r5, r7}
    0xE1A07000,  # mov r7, r0
    *(0xE1A00000 | k << 12 | k + 1 for k in range(3)),  # mov r0, r1 … mov r2, r3
    *(0xE59D0000 | 3 + k << 12 | 12 + 4 * k for k in range(3)),  # ldr r3, [sp, #12] … ldr r5, [sp, #20]
    0xEF000000,  # svc #0
    0xE8BD00B0,  # pop {r4, r5, r7}
    0xE12FFF1E,  # bx lr
)
_I386 = b"".join([
    b"\x53\x56\x57\x55",  # push ebx, esi, edi, ebp
    *(bytes([0x8B, modrm, 0x24, 20 + 4 * k]) for k, modrm in enumerate((0x44, 0x5C, 0x4C, 0x54, 0x74, 0x7C, 0x6C))),
    b"\xcd\x80",  # int 0x80
    b"\x5d\x5f\x5e\x5b\xc3",  # pop ebp, edi, esi, ebx; ret
])  # fmt: skip
_RISCV = _words(
    "<",
    0x00050893,  # mv a7, a0
    *(0x13 | (k + 1) << 15 | k << 7 for k in range(10, 16)),  # mv a0, a1 … mv a5, a6
    0x00000073,  # ecall
    0x00008067,  # ret
)
_S390X = bytes.fromhex(
    "b9040012"  # lgr %r1, %r2
    "b9040023b9040034b9040045"  # lgr %r2, %r3 … lgr %r4, %r5
    "0a00"  # svc 0
    "07fe"  # br %r14
)
_RV = "+m,+a,+f,+d,+c"

SYSTEMS: Mapping[str, System] = {s.machine: s for s in (
    System("aarch64", "aarch64-linux-gnu", "aarch64", (183, 0), _AARCH64, 64, 93, 222),
    System("arm", "armv7-linux-gnueabihf", "arm", (40, 0x05000400), _ARM, 4, 1, 192, pointer=4),
    System("i386", "i686-linux-gnu", "i386", (3, 0), _I386, 4, 1, 192, features="+sse2", pointer=4),
    System("riscv32", "riscv32-linux-gnu", "riscv32", (243, 5), _RISCV, 64, 93, 222, "generic-rv32", _RV, 4),
    System("riscv64", "riscv64-linux-gnu", "riscv64", (243, 5), _RISCV, 64, 93, 222, "generic-rv64", _RV),
    System("s390x", "s390x-linux-gnu", "s390x", (22, 0), _S390X, 4, 1, 90, map_block=True),
)}  # fmt: skip
