"""The linker: images that run, here and on every machine that qemu is; everything else refused by name."""

from __future__ import annotations

import ctypes
import random
import struct

import llvmlite.binding as llvm
import numpy as np
import pytest
from tests.qemu import runner
from tests.qemu.systems import SYSTEMS
from tests.runtime.models import CPU, MACHINE, compiled

from weft.errors import CodegenError
from weft_llvm.link import PAGE, link
from weft_llvm.relocations import Architecture, Fix
from weft_llvm.relocations.aarch64 import AARCH64
from weft_llvm.relocations.arm import ARM as ARM_32
from weft_llvm.relocations.riscv import RISCV32, RISCV64
from weft_llvm.relocations.s390x import S390X
from weft_llvm.relocations.x86 import I386, X86_64
from weft_llvm.toolchain import Cpu, compile_object
from weft_runtime.loader import Code

ARM = Cpu("aarch64-unknown-linux-gnu", "generic", "", 2)

TABLE = """
@table = private unnamed_addr constant [4 x i32] [i32 10, i32 20, i32 30, i32 40], align 16
@shared = hidden constant [2 x i64] [i64 5, i64 7], align 64
define i32 @look(i32 %i) {
  %k = sext i32 %i to i64
  %p = getelementptr [4 x i32], ptr @table, i64 0, i64 %k
  %v = load i32, ptr %p
  ret i32 %v
}
"""
USER = """
declare hidden i32 @look(i32)
@shared = external constant [2 x i64]
define i64 @use(i32 %i) {
  %a = call i32 @look(i32 %i)
  %w = sext i32 %a to i64
  %p = getelementptr [2 x i64], ptr @shared, i64 0, i64 1
  %b = load i64, ptr %p
  %c = add i64 %w, %b
  ret i64 %c
}
define ptr @where() { ret ptr @shared }
define ptr @function() { ret ptr @look }
"""
SWITCH = """
define i32 @jump(i32 %i) {
  switch i32 %i, label %d [ i32 0, label %a i32 1, label %b i32 2, label %c i32 3, label %e i32 4, label %f i32 5, label %g ]
a: call void @effect() ret i32 17
b: call void @effect() ret i32 3
c: call void @effect() ret i32 91
e: call void @effect() ret i32 4
f: call void @effect() ret i32 66
g: call void @effect() ret i32 1000
d: ret i32 -1
}
declare hidden void @effect()
"""  # noqa: E501
EFFECT = "define void @effect() { ret void }"


def test_runs_across_objects() -> None:
    image = link({"user": compiled(USER), "table": compiled(TABLE)})
    assert {"look", "use", "shared", "where", "function"} <= set(image.entries) and image.alignment == PAGE
    code = Code(image.bytes, image.entries)
    use = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int32)(code.address("use"))
    assert [use(i) for i in range(4)] == [17, 27, 37, 47]
    for entry, symbol in (("where", "shared"), ("function", "look")):
        assert ctypes.CFUNCTYPE(ctypes.c_void_p)(code.address(entry))() == code.address(
            symbol
        )  # through a table of addresses rewritten away
    assert code.address("shared") % 64 == 0


def test_jump_tables() -> None:
    image = link({"switch": compiled(SWITCH), "effect": compiled(EFFECT)})
    code = Code(image.bytes, image.entries)
    jump = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(code.address("jump"))
    assert [jump(i) for i in range(-1, 7)] == [-1, 17, 3, 91, 4, 66, 1000, -1]


def _run_a64(image: bytes, at: int, x0: int) -> int:
    """Just enough of an aarch64 interpreter for the functions above: addresses are offsets in the image."""
    x = [0] * 32
    x[0], x[30] = x0, -1
    mask = (1 << 64) - 1
    stack: dict[int, int] = {}
    x[31] = 1 << 40
    for _ in range(200):
        (w,) = struct.unpack_from("<I", image, at)
        rd, rn, rm = w & 31, (w >> 5) & 31, (w >> 16) & 31
        following = at + 4

        def signed(value: int, bits: int) -> int:
            return value - (1 << bits) if value >> (bits - 1) else value

        if w == 0xD65F03C0:
            if x[30] == -1:
                return x[0]
            following = x[30]
        elif w & 0x9F000000 == 0x90000000:  # adrp
            x[rd] = (at & ~0xFFF) + (signed((w >> 29 & 3) | (w >> 5 & 0x7FFFF) << 2, 21) << 12)
        elif w & 0x9F000000 == 0x10000000:  # adr
            x[rd] = at + signed((w >> 29 & 3) | (w >> 5 & 0x7FFFF) << 2, 21)
        elif w & 0xFFC00000 == 0x91000000:  # add immediate
            x[rd] = x[rn] + (w >> 10 & 0xFFF)
        elif w & 0xFC000000 == 0x94000000:  # bl
            x[30] = following
            following = at + signed(w & 0x3FFFFFF, 26) * 4
        elif w & 0xFFE0FC00 in (0xB860D800, 0xB8607800, 0xB860C800, 0xB8605800):  # ldr w, [x, w, (s|u)xtw/lsl #2]
            x[rd] = struct.unpack_from("<I", image, x[rn] + signed(x[rm] & 0xFFFFFFFF, 32) * 4)[0]
        elif w & 0xFFC00000 == 0xF9400000:  # ldr x, [x, #imm]
            place = x[rn] + (w >> 10 & 0xFFF) * 8
            x[rd] = stack[place] if place >= 1 << 39 else struct.unpack_from("<Q", image, place)[0]
        elif w & 0xFFE0FC00 == 0x8B20C000:  # add x, x, w, sxtw
            x[rd] = (x[rn] + signed(x[rm] & 0xFFFFFFFF, 32)) & mask
        elif w & 0xFFC00C00 == 0xF8000C00:  # str x, [sp, #imm]!
            x[rn] += signed(w >> 12 & 0x1FF, 9)
            stack[x[rn]] = x[rd]
        elif w & 0xFFC00C00 == 0xF8400400:  # ldr x, [sp], #imm
            x[rd] = stack[x[rn]]
            x[rn] += signed(w >> 12 & 0x1FF, 9)
        else:
            raise AssertionError(f"instruction {w:08x} at {at:#x}")
        at = following
    raise AssertionError("endless")


def test_aarch64_by_interpretation() -> None:
    padding = "define void @pad() { ret void }\n@far = hidden constant [6000 x i8] zeroinitializer, align 16"
    image = link(
        {"pad": compile_object(padding, ARM), "user": compile_object(USER, ARM), "table": compile_object(TABLE, ARM)}
    )
    assert [_run_a64(image.bytes, image.entries["use"], i) for i in range(4)] == [17, 27, 37, 47]
    assert _run_a64(image.bytes, image.entries["where"], 0) == image.entries["shared"]
    assert _run_a64(image.bytes, image.entries["function"], 0) == image.entries["look"]


def test_undefined_symbols_are_named() -> None:
    ir = (
        "declare float @sinf(float)\ndeclare void @other()\ndefine float @f(float %x) { call void @other() %y = call"
        " float @sinf(float %x) ret float %y }"
    )
    with pytest.raises(CodegenError) as error:
        link({"kernel_3": compiled(ir)})
    assert (
        str(error.value)
        == "compiled code refers to symbols that nothing defines: other, sinf\n  other: wanted by kernel_3\n  sinf:"
        " wanted by kernel_3\n  hint: a saved model links to no library: expand the function to a formula, or add"
        " the kernel's object"
    )


def test_doubly_defined_symbols() -> None:
    with pytest.raises(
        CodegenError, match="symbol 'effect' is defined twice\n  a\n  b\n  hint: give kernels names of their own"
    ):
        link({"a": compiled(EFFECT), "b": compiled(EFFECT)})
    weak = EFFECT.replace("define", "define linkonce_odr hidden")
    assert (
        "effect"
        in link(
            {"a": compiled(weak + "\ndefine void @g() { call void @effect() ret void }"), "b": compiled(EFFECT)}
        ).entries
    )


def test_writable_data_is_refused() -> None:
    for ir in (
        "@state = global i32 3\ndefine ptr @f() { ret ptr @state }",
        "@state = global i32 0\ndefine ptr @f() { ret ptr @state }",
    ):
        with pytest.raises(
            CodegenError,
            match=(
                r"object 'k' has writable or relocated data in section \.(data|bss)\n  why: an image is mapped"
                r" read-only"
            ),
        ):
            link({"k": compiled(ir)})
    pointers = "@a = hidden constant i32 1\n@table = constant [1 x ptr] [ptr @a]\ndefine ptr @f() { ret ptr @table }"
    with pytest.raises(CodegenError, match=r"in section \.data\.rel\.ro"):
        link({"k": compiled(pointers)})


def test_absolute_addresses_are_refused() -> None:
    machine = llvm.Target.from_triple(CPU.triple).create_target_machine(cpu=CPU.name, reloc="static", codemodel="large")
    module = llvm.parse_assembly("@a = constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]\ndefine ptr @f() { ret ptr @a }")
    if MACHINE == "x86_64":
        with pytest.raises(
            CodegenError,
            match=(
                r"compiled code holds an absolute address \(relocation R_X86_64 1\)\n  k: \.l?text.*→.*\n  why: an"
                r" image may be mapped anywhere\n"
            ),
        ):
            link({"k": machine.emit_object(module)})


def test_files_that_are_no_objects() -> None:
    good = compiled(EFFECT)
    with pytest.raises(
        CodegenError, match=r"object 'k' is not ELF\n  why: it starts with .*\n  hint: emit objects with an"
    ):
        link({"k": b"\xcf\xfa\xed\xfe" + bytes(100)})
    with pytest.raises(CodegenError, match="object 'k' cannot be linked\n  why: its ELF type is 3"):
        link({"k": good[:16] + b"\3\0" + good[18:]})
    with pytest.raises(
        CodegenError, match="cannot be linked\n  why: it is of ELF machine 8, 64 bits, little-endian\n  hint:"
    ):
        link({"k": good[:18] + b"\x08\0" + good[20:]})
    for size in (40, 63, len(good) // 2):
        with pytest.raises(CodegenError, match="object 'k' is not a well-formed ELF file"):
            link({"k": good[:size]})
    other = (
        compile_object(EFFECT, ARM)
        if MACHINE == "x86_64"
        else compile_object(EFFECT, Cpu("x86_64-unknown-linux-gnu", "x86-64", "", 2))
    )
    with pytest.raises(CodegenError, match="objects of different machines cannot be linked\n  a, b"):
        link({"a": good, "b": other})
    with pytest.raises(CodegenError, match="there is no object to link"):
        link({})


# -- every relocation -------------------------------------------------------------------------------------------------


def apply(of: Architecture, kind: int, code: str, distance: int, at: int = 0, addend: int | None = 0) -> str:
    """What a relocation makes of code whose first byte is at 0x10000; `distance`: from what is relocated to its
    symbol."""
    data, place = bytearray.fromhex(code), 0x10000 + at
    of.apply([Fix(kind, memoryview(data), at, place, place + distance, addend, "here")])
    return data.hex()


@pytest.mark.parametrize(
    ("of", "kind", "code", "distance", "at", "addend", "wanted"),
    [
        (RISCV64, 16, "63000000", 8, 0, 0, "63040000"),  # beqz zero, 8
        (RISCV64, 16, "63000000", -4096, 0, 0, "63000080"),
        (RISCV64, 16, "63000000", 4094, 0, 0, "e30f007e"),
        (RISCV64, 17, "6f000000", 74566, 0, 0, "6f206134"),  # j 74566
        (RISCV64, 17, "6f000000", -1048576, 0, 0, "6f000080"),
        (RISCV64, 19, "97000000e7800000", 0x12345678, 0, 0, "97503412e7808067"),  # auipc ra, 74565; jalr 1656(ra)
        (RISCV64, 19, "97000000e7800000", 0x800, 0, 0, "97100000e7800080"),  # auipc ra, 1; jalr -2048(ra)
        (RISCV32, 18, "97000000e7800000", -0x801, 0, 0, "97f0ffffe780f07f"),
        (RISCV64, 44, "01c1", 94, 0, 0, "39cd"),  # beqz a0, 94
        (RISCV64, 44, "01c1", -256, 0, 0, "01d1"),
        (RISCV64, 45, "01a0", 1454, 0, 0, "7da3"),  # j 1454
        (RISCV64, 45, "01a0", -2048, 0, 0, "01b0"),
        (RISCV64, 57, "00000000", -4, 0, 0, "fcffffff"),
        (RISCV64, 59, "00000000", 8, 0, 4, "0c000000"),
        (S390X, 17, "a7f40000", 100, 2, 2, "a7f40033"),  # j 102
        (S390X, 18, "a7150000", -100, 2, 2, "a715ffcf"),
        (S390X, 19, "c00000000000", 100, 2, 2, "c00000000033"),  # larl %r0, 102
        (S390X, 20, "c0e500000000", -100, 2, 2, "c0e5ffffffcf"),
        (S390X, 26, "c41800000000", 0x1234, 2, 2, "c0100000091b"),  # lgrl %r1, table(symbol) → larl %r1, symbol
        (S390X, 5, "00000000", -2, 0, 0, "fffffffe"),
        (S390X, 16, "0000", 260, 0, 0, "0104"),
        (S390X, 23, "0000000000000000", 1 << 33, 0, 0, "0000000200000000"),
        (ARM_32, 28, "feffffeb", 0x1000, 0, None, "fe0300eb"),  # bl #4088
        (ARM_32, 29, "feffffea", -0x2000000 + 8, 0, None, "000080ea"),
        (ARM_32, 29, "feffff0a", 0x1000, 0, None, "fe03000a"),  # beq
        (ARM_32, 45, "f87f0fe3", 0x12345678, 0, None, "707605e3"),  # movw r7, 0x12345678 - 8, lower half
        (ARM_32, 46, "f87f4fe3", 0x12345678, 0, None, "347241e3"),
        (ARM_32, 3, "08000000", 0x100, 0, None, "08010000"),
        (ARM_32, 42, "00000080", -4, 0, None, "fcffffff"),
        (I386, 2, "fcffffff", 0x100, 0, None, "fc000000"),
        (I386, 4, "e8fcffffff", 0x100, 1, None, "e8fc000000"),
        (I386, 9, "04000000", -0x10000, 0, None, "04000000"),  # from the image's first byte
        (I386, 10, "81c302000000", -0x10002, 2, None, "81c30000ffff"),
        (I386, 43, "8b8300000000", -0x10002 + 0x44, 2, None, "8d8344000000"),  # mov table(%ebx) → lea symbol(%ebx)
        (I386, 43, "ff9300000000", 0x100, 2, None, "67e8fc000000"),
        (I386, 43, "ffa300000000", 0x100, 2, None, "90e9fc000000"),
        (I386, 21, "fcff", 16, 0, None, "0c00"),
        (I386, 23, "fc", 16, 0, None, "0c"),
        (X86_64, 41, "ff1500000000", 0x100, 2, -4, "67e8fc000000"),
        (X86_64, 41, "ff2500000000", 0x100, 2, -4, "90e9fc000000"),
        (X86_64, 42, "488b0500000000", 0x100, 3, -4, "488d05fc000000"),
        (X86_64, 24, "0000000000000000", -1, 0, 0, "ff" * 8),
        (AARCH64, 279, "00000036", 8, 0, 0, "40000036"),  # tbz w0, #0, 8
        (AARCH64, 280, "00000054", -8, 0, 0, "c0ffff54"),
        (AARCH64, 273, "00000058", 16, 0, 0, "80000058"),
        (AARCH64, 274, "00000010", 5, 0, 0, "20000030"),
        (AARCH64, 262, "0000", -2, 0, 0, "feff"),
    ],
)  # fmt: skip
def test_what_relocations_write(
    of: Architecture, kind: int, code: str, distance: int, at: int, addend: int | None, wanted: str
) -> None:
    """Words as LLVM's disassembler reads them."""
    assert apply(of, kind, code, distance, at, addend) == wanted


def test_riscv_addresses_in_two_instructions() -> None:
    """The lower half belongs to the upper half whose place it names; through a table it is no load any more."""

    def both(upper: int, second: str, kind: int, distance: int) -> str:
        data = bytearray.fromhex("17050000" + second)
        view = memoryview(data)
        RISCV64.apply(
            [Fix(upper, view, 0, 0x1000, 0x1000 + distance, 0, "here"), Fix(kind, view, 4, 0x1004, 0x1000, 0, "here")]
        )
        return data.hex()

    assert both(23, "13050500", 24, 0x12345FFF) == "17653412" + "1305f5ff"  # auipc a0, 0x12346; addi a0, a0, -1
    assert both(20, "03350500", 24, 0x12345FFF) == "17653412" + "1305f5ff"  # ld a0, 0(a0) of a table
    assert both(23, "2330a500", 25, 0x1008) == "17150000" + "2334a500"  # sd a0, 8(a0)
    with pytest.raises(CodegenError, match="through a global offset table cannot be rewritten"):
        both(20, "03250500".replace("0325", "0315"), 24, 8)  # lh
    with pytest.raises(CodegenError, match="the lower half of an address without its upper half\n  here"):
        apply(RISCV64, 24, "13050500", 8)


def test_riscv_differences() -> None:
    def pair(kinds: tuple[int, int], start: str, a: int, b: int) -> str:
        data = bytearray.fromhex(start)
        RISCV64.apply([Fix(k, memoryview(data), 0, 0x1000, v, 0, "here") for k, v in zip(kinds, (a, b))])
        return data.hex()

    assert pair((35, 39), "00000000", 0x100, 0x180) == "80ffffff"
    assert pair((36, 40), "01" + "00" * 7, 0x100, 0x80) == "81" + "00" * 7
    assert pair((55, 38), "ffff", 0x100, 0x80) == "8000" and pair((33, 37), "00", 9, 4) == "05"
    with pytest.raises(CodegenError, match=r"holds an absolute address \(relocation R_RISCV 35\)"):
        apply(RISCV64, 35, "00000000", 8)


@pytest.mark.parametrize(
    ("of", "kind", "code", "distance", "at", "addend", "said"),
    [
        (X86_64, 2, "00000000", 1 << 32, 0, 0, "32 bits overflows\n  here\n  why: distance 4294967296\n"),
        (X86_64, 99, "00000000", 0, 0, 0, "relocation R_X86_64 99 is not supported\n  here"),
        (X86_64, 42, "00" * 16, 0, 8, 0, "table cannot be rewritten\n  here\n  hint: declare the symbol hidden"),
        (X86_64, 42, "00000000", 0, 0, 0, "table cannot be rewritten"),
        (X86_64, 2, "00000000", 0, 0, None, "a relocation has no addend\n  here"),
        (X86_64, 1, "00" * 8, 0, 0, 0, r"absolute address \(relocation R_X86_64 1\)"),
        (I386, 1, "00000000", 0, 0, None, r"absolute address \(relocation R_386 1\)"),
        (I386, 43, "8b0500000000", 0, 2, None, "table cannot be rewritten"),  # without a base: an absolute address
        (I386, 43, "8b8304000000", 0, 2, None, "table cannot be rewritten"),
        (I386, 32, "00000000", 0, 0, None, "R_386 32 is not supported"),
        (AARCH64, 286, "00000000", -0x10000 + 3, 0, 0, "misaligned constant\n  here\n  why: offset 0x3 of a 8-byte"),
        (AARCH64, 283, "00000000", 6, 0, 0, "a branch to a misaligned address"),
        (AARCH64, 257, "00" * 8, 0, 0, 0, "absolute address"),
        (ARM_32, 28, "feffffeb", 0x2000010, 0, None, "of 24 bits overflows"),
        (ARM_32, 28, "feffffeb", 1, 0, None, "a branch to Thumb code\n  here\n  hint: compile all of it as Arm code"),
        (ARM_32, 96, "00000000", 0, 0, None, "table cannot be rewritten"),
        (ARM_32, 2, "00000000", 0, 0, None, r"absolute address \(relocation R_ARM 2\)"),
        (ARM_32, 10, "00000000", 0, 0, None, "R_ARM 10 is not supported"),
        (RISCV64, 16, "63000000", 4096, 0, 0, "of 12 bits overflows"),
        (RISCV64, 19, "97000000e7800000", 1 << 31, 0, 0, "of 20 bits overflows"),
        (RISCV64, 26, "37050000", 0, 0, 0, r"absolute address \(relocation R_RISCV 26\)"),
        (RISCV64, 43, "00000000", 0, 0, 0, "R_RISCV 43 is not supported"),
        (S390X, 19, "c00000000000", 101, 2, 2, "a branch to a misaligned address\n  here\n  why: distance 103"),
        (S390X, 26, "e31000000004", 0, 2, 2, "table cannot be rewritten"),
        (S390X, 22, "00" * 8, 0, 0, 0, r"absolute address \(relocation R_390 22\)"),
        (S390X, 62, "00" * 8, 0, 0, 0, "R_390 62 is not supported"),
    ],
)  # fmt: skip
def test_relocations_that_no_image_can_have(
    of: Architecture, kind: int, code: str, distance: int, at: int, addend: int | None, said: str
) -> None:
    with pytest.raises(CodegenError, match=said):
        apply(of, kind, code, distance, at, addend)


SUM = """
declare i32 @look(i32)
declare i64 @use(i32)
declare ptr @where()
declare ptr @function()
declare i32 @jump(i32)
@shared = external constant [2 x i64]
define i32 @run(ptr %ctx, ptr %in, ptr %out) nounwind {
  %tensor = load ptr, ptr %out
  %to = load ptr, ptr %tensor
  %u = call i64 @use(i32 2)
  store i64 %u, ptr %to
  %w = call ptr @where()
  %w.at = getelementptr i64, ptr %w, i32 1
  %second = load i64, ptr %w.at
  %to.1 = getelementptr i64, ptr %to, i32 1
  store i64 %second, ptr %to.1
  %f = call ptr @function()
  %l = call i32 %f(i32 3)
  %l.wide = sext i32 %l to i64
  %to.2 = getelementptr i64, ptr %to, i32 2
  store i64 %l.wide, ptr %to.2
  %j = call i32 @jump(i32 5)
  %j.wide = sext i32 %j to i64
  %to.3 = getelementptr i64, ptr %to, i32 3
  store i64 %j.wide, ptr %to.3
  ret i32 0
}
"""


@pytest.mark.needs("qemu")
@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("machine", SYSTEMS)
def test_images_of_every_machine_run(machine: str, level: int) -> None:
    """Calls, data and tables of jumps across objects; what is not hidden is found through tables of addresses, which
    32-bit Arm's code cannot do without."""
    system = SYSTEMS[machine]
    sources = {"run": SUM, "user": USER, "table": TABLE, "switch": SWITCH, "effect": EFFECT}
    if machine == "arm":
        sources = {k: v.replace("@shared = external ", "@shared = external hidden ").replace(
            "define i32 @look", "define hidden i32 @look") for k, v in sources.items()}  # fmt: skip
    cpu = Cpu(system.triple, system.cpu, system.features, level)
    objects = {k: compile_object(f'target triple = "{system.triple}"\n{v}', cpu) for k, v in sources.items()}
    image = link(objects)
    cases = {"riscv32": "rv32", "riscv64": "rv64"}
    answer = runner.run(
        machine, image.bytes, image.entries["run"], [], [], [np.zeros(4, np.int64)], 64, cases.get(machine, "max")
    )
    assert answer.code == 0 and answer.outputs[0].tolist() == [37, 7, 40, 1000]


@pytest.mark.parametrize("machine", [*SYSTEMS, "x86_64"])
def test_damaged_objects_are_refused(machine: str) -> None:
    """Not a byte is written outside of a section, and no other error than ours leaves the linker."""
    system = SYSTEMS.get(machine)
    cpu = Cpu(system.triple, system.cpu, system.features, 2) if system else Cpu("x86_64-linux-gnu", "x86-64", "", 2)
    sources = {"table": TABLE, "switch": SWITCH, "effect": EFFECT}
    good = {k: compile_object(f'target triple = "{cpu.triple}"\n{v}', cpu) for k, v in sources.items()}
    link(good)
    draw, refused = random.Random(7), 0
    for _ in range(300):
        bad = bytearray(good["switch"])
        for _ in range(draw.choice([1, 1, 4])):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        data = bytes(bad[: draw.choice([len(bad), len(bad), draw.randrange(len(bad))])])
        try:
            image = link({**good, "switch": data})
        except CodegenError:
            refused += 1
        else:
            assert len(image.bytes) < 1 << 20
    assert refused > 50


def test_symbols_outside_the_image() -> None:
    ir = "@t = external thread_local global i32\ndefine i32 @f() { %v = load i32, ptr @t ret i32 %v }"
    with pytest.raises(CodegenError, match=r"symbols that nothing defines: .*t"):
        link({"k": compiled(ir)})
