"""Words of WGSL: types, literals, names (W3C, "WebGPU Shading Language", sections "Types", "Literals" and "Keyword and
Token Summary")."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from weft.dtypes import DType
from weft_c_family.language import Language

PAIR = "vec2<u32>"
"""The type of 64-bit integers: the lower word, then the upper one. WGSL has no integers of 64 bits."""

TYPES = {
    "bool": "bool", "int8": "i32", "int16": "i32", "int32": "i32", "uint8": "u32", "uint16": "u32", "uint32": "u32",
    "int64": PAIR, "uint64": PAIR, "float32": "f32",
}  # fmt: skip
"""dtype → the type of its values. Integers of fewer than 32 bits are words in their range."""

_KEYWORDS = """
    alias break case const const_assert continue continuing default diagnostic discard else enable false fn for if let
    loop override requires return struct switch true var while
"""
_RESERVED = """
    NULL Self abstract active alignas alignof as asm asm_fragment async attribute auto await become cast catch class
    co_await co_return co_yield coherent column_major common compile compile_fragment concept const_cast consteval
    constexpr constinit crate debugger decltype delete demote demote_to_helper do dynamic_cast enum explicit export
    extends extern external fallthrough filter final finally friend from fxgroup get goto groupshared highp impl
    implements import inline instanceof interface layout lowp macro macro_rules match mediump meta mod module move mut
    mutable namespace new nil noexcept noinline nointerpolation non_coherent noncoherent noperspective null nullptr of
    operator package packoffset partition pass patch pixelfragment precise precision premerge priv protected pub public
    readonly ref regardless register reinterpret_cast require resource restrict self set shared sizeof smooth snorm
    static static_assert static_cast std subroutine super target template this thread_local throw trait try type
    typedef typeid typename typeof union unless unorm unsafe unsized use using varying virtual volatile wgsl where with
    writeonly yield
"""
_PREDECLARED = """
    bool f16 f32 i32 u32 i64 u64 f64 vec2 vec3 vec4 array atomic ptr function private workgroup uniform storage read
    write read_write abs acos acosh all any arrayLength asin asinh atan atan2 atanh atomicAdd atomicAnd
    atomicCompareExchangeWeak atomicExchange atomicLoad atomicMax atomicMin atomicOr atomicStore atomicSub atomicXor
    bitcast ceil clamp cos cosh countLeadingZeros countOneBits countTrailingZeros cross degrees determinant distance
    dot exp exp2 extractBits faceForward firstLeadingBit firstTrailingBit floor fma fract frexp fwidth insertBits
    inverseSqrt ldexp length log log2 max min mix modf normalize pow quantizeToF16 radians reflect refract reverseBits
    round saturate select sign sin sinh smoothstep sqrt step storageBarrier tan tanh transpose trunc workgroupBarrier
    workgroupUniformLoad sampler texture
"""
WORDS = frozenset(f"{_KEYWORDS} {_RESERVED} {_PREDECLARED}".split())
"""No variable is called so."""


class WgslLanguage(Language):
    """Types and literals of WGSL."""

    def has(self, d: DType) -> bool:
        return d.kind != "complex" and super().has(d)

    def literal(self, value: Any, d: DType) -> str:
        d = d.scalar
        if d.is_bool:
            return "true" if value else "false"
        if d.is_integer:
            number = int(value)
            if d.bits == 64:
                low, high = number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF
                return f"{PAIR}({low}u, {high}u)"
            return str(number) if d.kind == "int" else f"{number}u"
        if d.name in self.soft:
            return f"{int.from_bytes(d.numpy.type(value).tobytes(), 'little'):#x}u"
        if not math.isfinite(value):
            return f"weft_float({struct.unpack('<I', np.float32(value).tobytes())[0]:#x}u)"
        text = str(np.float32(value))
        return text + ("f" if any(c in text for c in ".e") else ".0f")
