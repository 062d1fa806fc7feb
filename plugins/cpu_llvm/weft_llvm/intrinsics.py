"""Tensor intrinsics of CPUs: dot products of a few bytes, or of two integers of 16 bits or bfloat16, in every lane.

Each computes a row of results from one short row of the left operand and a panel of the right one in which the elements
of one result lie side by side:

    c[j] = c[j] + Σ_k a[k]·b[j, k]        k in 4 for 8-bit integers, in 2 for 16 bits; j in the lanes of a register

Integer sums are exact modulo 2^32: vpdpbusd does not saturate. Processors of x86 without it have vpmaddubsw, whose sums
of two products of bytes saturate at 16 bits, so that full ranges give wrong results; vpmaddwd multiplies pairs of 16
bits exactly, and an addition follows. vdpbf16ps and bfdot round as their makers say, which is not exactly as two fused
steps would, and vdpbf16ps takes denormals for zero. Sources: Intel Architecture Instruction Set Extensions Programming
Reference (VPDPBUSD, VDPBF16PS) and Software Developer's Manual (PMADDWD); Arm Architecture Reference Manual for
A-profile (SDOT, UDOT, USDOT, BFDOT). The accumulator may be in registers: it is an operand of the formula, not an
address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import CodegenError
from weft.expr.nodes import Broadcast, Const, cast_to
from weft.loop.nodes import IntrinsicCall, Load, Stmt
from weft.scheduling.intrinsic import Intrinsic, Operand, OperandView
from weft.tensor.language import compute, placeholder, reduce_axis, sum

if TYPE_CHECKING:
    from weft.machine import Machine
    from weft_llvm.emitter import Emitter
    from weft_llvm.instructions import Value


@dataclass(frozen=True)
class Dot:
    """One instruction: its name here, LLVM's intrinsic, dtypes of left, right and result, lanes of the result, and the
    features that it needs.

    `adds`: it adds to what it is given; else an addition follows it.
    """

    name: str
    llvm: str
    left: DType
    right: DType
    result: DType
    lanes: int
    requires: tuple[str, ...]
    adds: bool = True

    @property
    def depth(self) -> int:
        """Products per lane."""
        return 4 if self.left.bits == 8 else 2


DOTS: tuple[Dot, ...] = (
    Dot("vpdpbusd512", "llvm.x86.avx512.vpdpbusd.512", dt.uint8, dt.int8, dt.int32, 16, ("avx512vnni",)),
    Dot("vpdpbusd256", "llvm.x86.avx512.vpdpbusd.256", dt.uint8, dt.int8, dt.int32, 8, ("avxvnni",)),
    Dot("vpmaddwd512", "llvm.x86.avx512.pmaddw.d.512", dt.int16, dt.int16, dt.int32, 16, ("avx512bw",), adds=False),
    Dot("vpmaddwd256", "llvm.x86.avx2.pmadd.wd", dt.int16, dt.int16, dt.int32, 8, ("avx2",), adds=False),
    Dot("pmaddwd128", "llvm.x86.sse2.pmadd.wd", dt.int16, dt.int16, dt.int32, 4, ("x86_64",), adds=False),
    Dot("wasmdot", "llvm.wasm.dot", dt.int16, dt.int16, dt.int32, 4, ("simd128",), adds=False),
    Dot("vdpbf16ps512", "llvm.x86.avx512bf16.dpbf16ps.512", dt.bfloat16, dt.bfloat16, dt.float32, 16, ("avx512bf16",)),
    Dot("udot", "llvm.aarch64.neon.udot.v4i32.v16i8", dt.uint8, dt.uint8, dt.int32, 4, ("aarch64", "dotprod")),
    Dot("sdot", "llvm.aarch64.neon.sdot.v4i32.v16i8", dt.int8, dt.int8, dt.int32, 4, ("aarch64", "dotprod")),
    Dot("usdot", "llvm.aarch64.neon.usdot.v4i32.v16i8", dt.uint8, dt.int8, dt.int32, 4, ("aarch64", "i8mm")),
    Dot("vudot", "llvm.arm.neon.udot.v4i32.v16i8", dt.uint8, dt.uint8, dt.int32, 4, ("arm", "dotprod")),
    Dot("vsdot", "llvm.arm.neon.sdot.v4i32.v16i8", dt.int8, dt.int8, dt.int32, 4, ("arm", "dotprod")),
    Dot("vusdot", "llvm.arm.neon.usdot.v4i32.v16i8", dt.uint8, dt.int8, dt.int32, 4, ("arm", "i8mm")),
    Dot("bfdot", "llvm.aarch64.neon.bfdot.v4f32.v8bf16", dt.bfloat16, dt.bfloat16, dt.float32, 4, ("aarch64", "bf16")),
)


def dot(d: Dot) -> Intrinsic:
    """The intrinsic of an instruction; called like it."""
    a, b, k = (
        placeholder((d.depth,), d.left, "a"),
        placeholder((d.lanes, d.depth), d.right, "b"),
        reduce_axis(d.depth, "k"),
    )
    c = compute(
        (d.lanes,), lambda j: sum(cast_to(a[k], d.result) * cast_to(b[j, k], d.result), axis=k), "c", axes=("j",)
    )
    wide, zero = d.result.with_lanes(d.lanes), Broadcast(Const(0, d.result), d.lanes)

    def update(left: OperandView, right: OperandView, to: OperandView) -> Stmt:
        return to.store(IntrinsicCall(d.name, (to.load(d.lanes), left.address, right.address), wide))

    def reset(to: OperandView) -> Stmt:
        return to.store(zero)

    def whole(left: OperandView, right: OperandView, to: OperandView) -> Stmt:
        return to.store(IntrinsicCall(d.name, (zero, left.address, right.address), wide))

    operands = (Operand("a"), Operand("b"), Operand("c"))
    return Intrinsic(d.name, c, operands, whole, reset, update, d.requires, MappingProxyType({d.name: _Meaning(d)}))


@dataclass(frozen=True)
class _Meaning:
    """What an instruction computes, for the interpreter."""

    dot: Dot
    addresses: ClassVar[bool] = True

    def __call__(self, held: Any, left: Any, right: Any) -> Any:
        d = self.dot
        a = left.array[left.offset : left.offset + d.depth].astype(d.result.numpy)
        b = (
            right.array[right.offset : right.offset + d.lanes * d.depth]
            .astype(d.result.numpy)
            .reshape(d.lanes, d.depth)
        )
        total = np.array(held)
        for k in range(d.depth):
            total = total + a[k] * b[:, k]
        return total


def dots_of(machine: Machine) -> tuple[Dot, ...]:
    """The instructions that `machine` has for its vectors, those of the most products per lane first."""
    return tuple(d for d in DOTS if machine.features.issuperset(d.requires) and d.lanes == machine.lanes(d.result))


def intrinsics(machine: Machine) -> list[Intrinsic]:
    """Those that schedules use: on whole registers of the machine. What else it has of shorter ones no schedule asks
    for."""
    return [dot(d) for d in dots_of(machine)]


# -- code -------------------------------------------------------------------------------------------------------------


def _emit(d: Dot) -> Callable[[Emitter, IntrinsicCall], Value]:
    def emit(emitter: Emitter, call: IntrinsicCall) -> Value:
        from weft_llvm.instructions import Value

        held, left, right = call.args
        if not isinstance(left, Load) or not isinstance(right, Load):
            raise CodegenError(f"{d.name} takes elements of buffers", where=str(call))
        element = f"i{d.left.bits}" if d.left.is_integer else "bfloat"
        short, packed = d.depth * d.left.bits, f"<{d.lanes * d.depth} x {element}>"
        accumulator = emitter.value_type(d.result.with_lanes(d.lanes))
        total = emitter.emit_expr(held)
        few = emitter.op(f"load i{short}, ptr {emitter.address(left)}, align 1", dt.int32)
        spread = emitter.splat(few, d.lanes)
        a = emitter.op(f"bitcast <{d.lanes} x i{short}> {spread.text} to {packed}", call.dtype)
        b = emitter.op(f"load {packed}, ptr {emitter.address(right)}, align 1", call.dtype)
        if d.adds:
            return Value(
                emitter.intrinsic(accumulator, d.llvm, (accumulator, total.text), (packed, a.text), (packed, b.text)),
                call.dtype,
                True,
            )
        products = emitter.intrinsic(accumulator, d.llvm, (packed, a.text), (packed, b.text))
        return emitter.op(f"add {accumulator} {total.text}, {products}", call.dtype)

    return emit


EMITTERS: Mapping[str, tuple[tuple[str, ...], Callable[[Emitter, IntrinsicCall], Value]]] = MappingProxyType(
    {d.name: (d.requires, _emit(d)) for d in DOTS}
)
"""Instruction → the features that it needs, and what emits it."""


def emitters(features: frozenset[str]) -> dict[str, Callable[[Emitter, IntrinsicCall], Value]]:
    """What emits the instructions that a processor of these features has."""
    return {name: emit for name, (requires, emit) in EMITTERS.items() if features.issuperset(requires)}
