"""Small executables made by hand: kernels in LLVM IR, a segment around them."""

from __future__ import annotations

import platform
from functools import cache

import numpy as np

from weft import dtypes as dt
from weft.codegen.segment import (
    AllocateOutput,
    Arena,
    BindData,
    Check,
    Constant,
    Data,
    Input,
    InputDim,
    KernelCall,
    Output,
    SegmentSpec,
    Symbol,
    Tensor,
)
from weft.expr import nodes as ex
from weft_llvm.link import link
from weft_llvm.segment import emit_segment
from weft_llvm.toolchain import Cpu, compile_object
from weft_runtime import Executable, Native, NativeCode, TensorInfo

MACHINE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
CPU = Cpu(f"{MACHINE}-unknown-linux-gnu", "x86-64" if MACHINE == "x86_64" else "generic", "", 2)

# y[i] = x[i] + c[i % 4] for i < dims[0]
ADD = """
define i32 @add(ptr %ctx, ptr %b, ptr %d) {
  %x = load ptr, ptr %b
  %cp = getelementptr ptr, ptr %b, i64 1
  %c = load ptr, ptr %cp
  %yp = getelementptr ptr, ptr %b, i64 2
  %y = load ptr, ptr %yp
  %n = load i64, ptr %d
  br label %head
head:
  %i = phi i64 [ 0, %0 ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %leave
body:
  %xi = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %xi, align 4
  %k = and i64 %i, 3
  %ci = getelementptr float, ptr %c, i64 %k
  %w = load float, ptr %ci, align 4
  %s = fadd float %v, %w
  %yi = getelementptr float, ptr %y, i64 %i
  store float %s, ptr %yi, align 4
  %next = add i64 %i, 1
  br label %head
leave:
  ret i32 0
}
"""

# y[i] = x[i] * 2 for i < dims[0], a task for each
TWICE = """
define internal void @twice_task(ptr %ctx, ptr %b, i64 %i) {
  %x = load ptr, ptr %b
  %yp = getelementptr ptr, ptr %b, i64 1
  %y = load ptr, ptr %yp
  %xi = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %xi, align 4
  %s = fadd float %v, %v
  %yi = getelementptr float, ptr %y, i64 %i
  store float %s, ptr %yi, align 4
  ret void
}
define i32 @twice(ptr %ctx, ptr %b, ptr %d) {
  %n = load i64, ptr %d
  %at = getelementptr i8, ptr %ctx, i64 32
  %for = load ptr, ptr %at
  %r = call i32 %for(ptr %ctx, ptr @twice_task, ptr %b, i64 %n)
  ret i32 %r
}
"""

# count[0] = how many of x[0 … dims[0]) are positive; fails with 9 where x[0] is NaN
COUNT = """
define i32 @count(ptr %ctx, ptr %b, ptr %d) {
  %x = load ptr, ptr %b
  %yp = getelementptr ptr, ptr %b, i64 1
  %y = load ptr, ptr %yp
  %n = load i64, ptr %d
  store i64 0, ptr %y
  br label %head
head:
  %i = phi i64 [ 0, %0 ], [ %next, %body ]
  %k = phi i64 [ 0, %0 ], [ %k2, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %leave
body:
  %xi = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %xi, align 4
  %p = fcmp ogt float %v, 0.0
  %pi = zext i1 %p to i64
  %k2 = add i64 %k, %pi
  %next = add i64 %i, 1
  br label %head
leave:
  store i64 %k, ptr %y
  %first = load float, ptr %x, align 4
  %nan = fcmp uno float %first, 0.0
  %r = select i1 %nan, i32 9, i32 0
  ret i32 %r
}
; y = the positive ones of x
define i32 @keep(ptr %ctx, ptr %b, ptr %d) {
  %x = load ptr, ptr %b
  %yp = getelementptr ptr, ptr %b, i64 1
  %y = load ptr, ptr %yp
  %n = load i64, ptr %d
  br label %head
head:
  %i = phi i64 [ 0, %0 ], [ %next, %step ]
  %k = phi i64 [ 0, %0 ], [ %k2, %step ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %leave
body:
  %xi = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %xi, align 4
  %p = fcmp ogt float %v, 0.0
  br i1 %p, label %take, label %step
take:
  %yi = getelementptr float, ptr %y, i64 %k
  store float %v, ptr %yi, align 4
  br label %step
step:
  %pi = zext i1 %p to i64
  %k2 = add i64 %k, %pi
  %next = add i64 %i, 1
  br label %head
leave:
  ret i32 0
}
"""

N = ex.Var("n")


@cache
def compiled(ir: str) -> bytes:
    return compile_object(ir, CPU)


def make(
    spec: SegmentSpec,
    kernels: str,
    inputs: list[TensorInfo],
    outputs: list[TensorInfo],
    constants: dict[str, np.ndarray] | None = None,
    checks: dict[int, tuple[str, str]] | None = None,
    **options: object,
) -> Executable:
    image = link({"segment": compiled(emit_segment(spec)), "kernels": compiled(kernels)})
    items = tuple(type(i).__name__ if not isinstance(i, KernelCall) else i.kernel for i in spec.items)
    step = Native(
        "cpu",
        "run",
        items,
        tuple(i.name for i in inputs),
        tuple(o.name for o in outputs),
        tuple(constants or {}),
        checks or {},
    )
    code = {"cpu": NativeCode(image.bytes, image.entries, "weft-llvm", "0", parallel=True)}
    return Executable.build(
        name=spec.name,
        target="llvm",
        inputs=inputs,
        outputs=outputs,
        code=code,
        steps=[step],
        constants=constants,
        **options,  # type: ignore[arg-type]
    )


def affine(constant: np.ndarray | None = None) -> Executable:  # type: ignore[type-arg]
    """y = (x + c) * 2 with x: float32[n, 4], through the arena."""
    four = ex.const(4)
    spec = SegmentSpec(
        "affine",
        (Tensor("x", dt.float32, (N, four)),),
        (Tensor("y", dt.float32, (N, four)),),
        1,
        (Symbol("n", InputDim(0, 0)),),
        (Input(0), Constant(0), Arena(ex.const(64), N * 16), Output(0)),
        (KernelCall("add", (0, 1, 2), (N * 4,)), AllocateOutput(0, (N, four)), KernelCall("twice", (2, 3), (N * 4,))),
        N * 16 + 64,
    )
    c = np.arange(4, dtype=np.float32) if constant is None else constant
    return make(
        spec,
        ADD + TWICE,
        [TensorInfo("x", "float32", ("n", 4))],
        [TensorInfo("y", "float32", ("n", 4))],
        constants={"c": c},
        arena="n*16 + 64",
    )


def fixed() -> Executable:
    """y = x * 2 with x: float32[2, 3]."""
    shape = (ex.const(2), ex.const(3))
    spec = SegmentSpec(
        "fixed",
        (Tensor("x", dt.float32, shape),),
        (Tensor("y", dt.float32, shape),),
        0,
        (),
        (Input(0), Output(0)),
        (AllocateOutput(0, shape), KernelCall("twice", (0, 1), (ex.const(6),))),
    )
    return make(spec, TWICE, [TensorInfo("x", "float32", (2, 3))], [TensorInfo("y", "float32", (2, 3))])


def positives() -> Executable:
    """The positive elements of x: float32[n], n ≥ 1, at least one of them; the count is a data symbol."""
    m = ex.Var("m")
    spec = SegmentSpec(
        "positives",
        (Tensor("x", dt.float32, (N,)),),
        (Tensor("y", dt.float32, (m,)),),
        0,
        (Symbol("n", InputDim(0, 0)), Symbol("m", Data(1, dt.int64, 0))),
        (Input(0), Arena(ex.const(0), ex.const(8)), Output(0)),
        (
            Check(ex.lt(ex.const(0), N), 100, (N,)),
            KernelCall("count", (0, 1), (N,)),
            BindData("m"),
            Check(ex.lt(ex.const(0), m), 101, (m, N)),
            AllocateOutput(0, (m,)),
            KernelCall("keep", (0, 2), (N,)),
        ),
        ex.const(64),
    )
    checks = {100: ("x must not be empty", ""), 101: ("none of the {1} elements is positive", "give {0} + 1 of them")}
    return make(spec, COUNT, [TensorInfo("x", "float32", ("n",))], [TensorInfo("y", "float32", ("m",))], checks=checks)
