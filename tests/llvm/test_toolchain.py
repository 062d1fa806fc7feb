"""LLVM through llvmlite: objects, assembly, linking, and what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from weft.errors import CodegenError
from weft_llvm.toolchain import (
    Cpu,
    JitKernel,
    Linked,
    compile_assembly,
    compile_object,
    data_layout,
    host_cpu,
    host_features,
    host_triple,
    optimized_ir,
    undefined_symbols,
)

HOST = Cpu(host_triple(), host_cpu(), host_features())
ARM = Cpu("aarch64-linux-gnu", "cortex-a72")
DOUBLE = "define i64 @twice(i64 %x) {\n %y = add i64 %x, %x\n ret i64 %y\n}\n"


def test_object_links_and_runs() -> None:
    image = compile_object(DOUBLE, HOST)
    linked = Linked(image, ["twice"])
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(linked.addresses["twice"])
    assert function(21) == 42


def test_undefined_symbols_are_read_from_the_object() -> None:
    calls = "declare i64 @elsewhere(i64)\ndefine i64 @f(i64 %x) {\n %y = call i64 @elsewhere(i64 %x)\n ret i64 %y\n}\n"
    for cpu in (HOST, ARM):
        assert undefined_symbols(compile_object(DOUBLE, cpu)) == []
        assert undefined_symbols(compile_object(calls, cpu)) == ["elsewhere"]
    with pytest.raises(CodegenError, match="not a 64-bit ELF object"):
        undefined_symbols(b"MZ no")


def test_a_missing_symbol_is_an_error_and_no_crash() -> None:
    image = compile_object(
        "declare i64 @weft_is_nowhere(i64)\ndefine i64 @f(i64 %x) {\n %y = call i64 @weft_is_nowhere(i64 %x)\n ret i64"
        " %y\n}\n",
        HOST,
    )
    with pytest.raises(CodegenError, match="the object does not link") as error:
        Linked(image, ["f"])
    assert "why: it needs weft_is_nowhere" in str(error.value)
    with pytest.raises(CodegenError, match="the object does not link"):
        Linked(compile_object(DOUBLE, HOST), ["thrice"])


def test_ir_that_does_not_parse() -> None:
    with pytest.raises(CodegenError) as error:
        compile_object("define i64 @f() { ret i32 0 }", HOST)
    text = str(error.value)
    assert "LLVM rejects the emitted IR" in text and "hint: this is a bug of the emitter" in text


def test_unknown_triple() -> None:
    with pytest.raises(CodegenError, match="LLVM has no code generator for 'nonsense'"):
        compile_object(DOUBLE, Cpu("nonsense", ""))


def test_assembly_and_layout_of_another_machine() -> None:
    assert "add\tx0, x0, x0" in compile_assembly(DOUBLE, ARM) or "lsl\tx0, x0, #1" in compile_assembly(DOUBLE, ARM)
    assert data_layout(ARM).startswith("e-m:e")


def test_llvm_leaves_loops_as_they_are() -> None:
    loop = """define void @f(ptr noalias %x, ptr noalias %y) {
entry:
  br label %l
l:
  %i = phi i64 [ 0, %entry ], [ %j, %l ]
  %p = getelementptr float, ptr %x, i64 %i
  %q = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %p
  store float %v, ptr %q
  %j = add nuw nsw i64 %i, 1
  %c = icmp slt i64 %j, 4096
  br i1 %c, label %l, label %e
e:
  ret void
}
attributes #0 = { "no-builtins" }
""".replace("%y) {", "%y) #0 {")
    ir = optimized_ir(loop, HOST)
    assert "x float>" not in ir and ir.count("load float") == 1 and "memcpy" not in ir


def test_kernel_arrays_are_contiguous() -> None:
    kernel = JitKernel("k", compile_object("define i32 @k(ptr %c, ptr %b, ptr %d) {\n ret i32 5\n}\n", HOST))
    assert kernel([np.zeros(4)]) == 5
    with pytest.raises(CodegenError, match="a kernel takes contiguous arrays"):
        kernel([np.zeros((4, 4))[:, ::2]])
