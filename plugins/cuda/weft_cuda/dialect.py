"""CUDA C++ as a dialect of the C family, without a toolkit's headers: NVRTC knows the rest, and `weft_cuda.h` has the
instructions that C++ lacks."""

from __future__ import annotations

from weft import dtypes as dt
from weft.expr.functions import FUNCTIONS
from weft_c_family import Dialect
from weft_cuda.intrinsics import TEMPLATES
from weft_gpu.bulk_copies import BulkCopies

_VECTORS = {4: "unsigned int", 8: "uint2", 16: "uint4"}
"""Bytes that one thread moves at once → the type that does."""

# CUDA's own functions are as near as Weft's formulas or nearer: at most 4 units in the last place, over the whole
# range. CUDA Programming Guide, "Mathematical Functions".
_ONE = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
)
_EXACT = ("sqrt", "floor", "ceil", "trunc")

CUDA = Dialect(
    name="cuda",
    header=('#include "weft_cuda.h"',),
    types={
        "bool": "bool", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
        "uint8": "unsigned char", "uint16": "unsigned short",
        "uint32": "unsigned int", "uint64": "unsigned long long", "float32": "float", "float64": "double",
    },
    kernel='extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters})',
    buffer="{const}{type} *__restrict__ {name}",
    size="{type} {name}",
    function="static __device__ __forceinline__",
    scopes={
        "local": "{type} {name}[{size}];",
        "register": "{type} {name}[{size}];",
        "shared": "__shared__ __align__({align}) {type} {name}[{size}];",
        **{f"fragment.{part}": "weft_fragment<{type}, {size}> {name};" for part in "abc"},
        "fragment.wide": "weft_wide_fragment<{type}, {size}> {name};",
    },
    shared_scopes=frozenset({"shared"}),
    indices={f"{kind}.{axis}": f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"},
    barrier="__syncthreads();",
    atomics={
        **{f"add {d}": "atomicAdd(&{buffer}[{index}], {value});" for d in ("int32", "uint32", "uint64", "float32",
            "float64")},
        **{f"{op} {d}": f"atomic{op.title()}(&{{buffer}}[{{index}}], {{value}});" for op in ("min",
            "max") for d in ("int32", "uint32", "int64", "uint64")},
        "add int64": "atomicAdd((unsigned long long *)&{buffer}[{index}], (unsigned long long){value});",
        **{f"{op} float32": f"weft_atomic_{op}(&{{buffer}}[{{index}}], {{value}});" for op in ("min", "max")},
    },
    functions={
        **{f: f + "{f}({0})" for f in (*_ONE, *_EXACT)}, "round": "rint{f}({0})", "abs": "fabs{f}({0})",
        "pow": "pow{f}({0}, {1})", "copysign": "copysign{f}({0}, {1})", "fmod": "fmod{f}({0}, {1})",
        "fma": "fma{f}({0}, {1}, {2})",
    },
    intrinsics={
        "shuffle_xor": "__shfl_xor_sync(0xffffffffu, {0}, {1})", "whole_warp": "true",
        "copy_async": "weft_copy_async<{2}>({0:address}, {1:address})", "await_copies": "weft_await_copies()",
        **TEMPLATES,
    },
    widen={"float16": "weft_f16_widen({0})"},
    narrow={"float16": "weft_f16_narrow({0})", "bfloat16": "weft_bf16_narrow({0})"},
    vectors={
        f"{d.name}x{size // d.bytes}": name
        for size, name in _VECTORS.items() for d in dt.all_dtypes()
        if d.kind in ("int", "uint", "float", "bool") and (d.bits >= 8 or d.is_bool) and size // d.bytes > 1
    },
    vector_copy="*reinterpret_cast<{type} *>({to}) = *reinterpret_cast<const {type} *>({source});",
    lanes="__align__(16) {type} {name}[{size}];",
    unroll="#pragma unroll",
    extension=BulkCopies(
        tensor="const __grid_constant__ weft_tensor {name}",
        top=("__shared__ __align__(8) unsigned long long weft_arrivals[1];", "unsigned int weft_turn = 0;",
            "weft_begin_boxes(weft_arrivals);"),
        copy="weft_copy_box({to}, {tensor}, weft_arrivals, {bytes}, {start});",
        wait="weft_await_boxes(weft_arrivals, weft_turn);",
    ),
    infinity="__int_as_float(0x7f800000)",
    nan="__int_as_float(0x7fc00000)",
    reserved=frozenset({
        *FUNCTIONS, *(f + "f" for f in FUNCTIONS), "max", "min", "fmax", "fmin", "clock", "printf", "malloc", "free",
        "assert", "memcpy", "memset", "main",
        "gridDim", "blockDim", "warpSize", "gamma", "j0", "j1", "jn", "y0", "y1", "yn", "norm", "hypot", "cbrt", "erfc",
        "ldexp", "frexp", "modf",
        "remainder", "logb", "ilogb", "scalbn", "rsqrt", "dim3", "cospi", "sinpi", "llround", "lround", "nan",
        "nextafter", "fdim", "div", "sincos",
        "ulonglong2", "float4", "float2", "int4", "int2", "exp10", "labs", "llabs", "lrint", "llrint", "fdividef",
        "tgamma", "lgamma", "signbit", "finite",
    }),
)  # fmt: skip
