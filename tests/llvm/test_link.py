"""The linker: images that run, on this machine and (by their instruction words) on aarch64; everything else refused by
name."""

from __future__ import annotations

import ctypes
import struct

import llvmlite.binding as llvm
import pytest
from tests.runtime.models import CPU, MACHINE, compiled

from weft.errors import CodegenError
from weft_llvm.link import PAGE, link
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
        CodegenError, match="object 'k' is not 64-bit little-endian ELF\n  hint: emit objects with an ELF target triple"
    ):
        link({"k": b"\xcf\xfa\xed\xfe" + bytes(100)})
    with pytest.raises(CodegenError, match="object 'k' cannot be linked\n  why: ELF type 3, machine"):
        link({"k": good[:16] + b"\3\0" + good[18:]})
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


def test_overflow_and_misalignment() -> None:
    from weft_llvm.link import _apply_aarch64, _apply_x86

    with pytest.raises(
        CodegenError,
        match="a relocation of 32 bits overflows\n  here\n  why: distance 4294967296\n  hint: the image is too large",
    ):
        _apply_x86(bytearray(16), 2, 0, 1 << 32, 0, "here")
    with pytest.raises(
        CodegenError, match="a load of a misaligned constant\n  here\n  why: offset 0x3 of a 8-byte access"
    ):
        _apply_aarch64(bytearray(16), 286, 0, 3, 0, "here")
    with pytest.raises(CodegenError, match="a branch to a misaligned address"):
        _apply_aarch64(bytearray(16), 283, 0, 6, 0, "here")
    with pytest.raises(CodegenError, match="relocation R_X86_64 99 is not supported\n  here"):
        _apply_x86(bytearray(16), 99, 0, 0, 0, "here")
    with pytest.raises(
        CodegenError,
        match="an access through a global offset table cannot be rewritten\n  here\n  hint: declare the symbol hidden",
    ):
        _apply_x86(bytearray(16), 42, 8, 0, 0, "here")


def test_symbols_outside_the_image() -> None:
    ir = "@t = external thread_local global i32\ndefine i32 @f() { %v = load i32, ptr @t ret i32 %v }"
    with pytest.raises(CodegenError, match=r"symbols that nothing defines: .*t"):
        link({"k": compiled(ir)})
