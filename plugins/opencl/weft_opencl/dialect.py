"""OpenCL C as a table: version 1.2, and what a device's extensions add.

A buffer is a base and an offset in bytes: a plan's arena is one allocation, and a part of it need not begin where a
device lets sub-buffers begin.

Division and square root are rounded correctly by a compiler option, where the device knows it
(`weft_opencl.devices.build_options`); of the functions those are the language's own that its specification bounds by 4
units in the last place. The others are expanded into formulas.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from weft_c_family import Dialect
from weft_opencl.devices import BASES

_TYPES = {
    "bool": "bool", "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar",
    "uint16": "ushort", "uint32": "uint",
    "uint64": "ulong", "float32": "float",
}  # fmt: skip
_ARITY = {"copysign": 2, "fmod": 2, "pow": 2, "fma": 3}
_EXACT = ("sqrt", "floor", "ceil", "trunc", "copysign", "fma", "fmod")
_NEAR = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "asin", "acos", "sinh", "cosh", "asinh", "acosh")
# Their formulas compute in float64; without it the language's own, within 5 and 16 units, are the best there is.
_WIDE = ("tan", "pow")
_WORDS = re.findall(
    r"\w+",
    """
    acospi asinpi atan2 atan2pi atanpi cbrt cospi dot cross distance length normalize erf erfc exp10 fabs fdim fmax fmin fract frexp hypot ilogb ldexp lgamma
    lgamma_r log10 logb mad maxmag minmag modf nan nextafter pown powr remainder remquo rint rootn round rsqrt sincos sinpi tanpi tgamma atan atanh tanh tan
    pow abs abs_diff add_sat hadd rhadd clamp clz mad_hi mad_sat max min mul_hi rotate sub_sat upsample popcount mad24 mul24 degrees mix radians step
    smoothstep sign isequal isnotequal isgreater isgreaterequal isless islessequal islessgreater isfinite isinf isnan isnormal isordered isunordered signbit
    any all bitselect select prefetch shuffle shuffle2 printf barrier event_t image2d_t sampler_t size_t ptrdiff_t intptr_t uintptr_t kernel global local
    constant private generic pipe uniform complex imaginary quad uchar ushort uint ulong half vec_step read_only write_only read_write atomic_add atomic_sub
    atomic_xchg atomic_inc atomic_dec atomic_cmpxchg atomic_min atomic_max atomic_and atomic_or atomic_xor
""",  # noqa: E501
)


def _calls(names: tuple[str, ...]) -> dict[str, str]:
    return {n: f"{n}({', '.join(f'{{{k}}}' for k in range(_ARITY.get(n, 1)))})" for n in names}


def _exchanged(operation: str, d: str, word: str, exchange: str) -> str:
    """An update of a float by comparing and exchanging its bits until nobody was quicker. `{old}` and `{{value}}` are
    floats in `operation`."""
    value = operation.format(old=f"as_{d}(weft_old)")
    pointer = f"volatile {{space}} {word} *"
    return (
        f"{{{{ {pointer}const weft_at = ({pointer})&{{buffer}}[{{index}}]; {word} weft_old = *weft_at, weft_seen; while"
        f" ((weft_seen = {exchange}(weft_at, weft_old, as_{word}(({d})({value})))) != weft_old) weft_old = weft_seen;"
        " }}"
    )


def _atomics(float64: bool, int64: bool) -> dict[str, str]:
    found = {}
    for operation, symbol in (("add", "{old} + {{value}}"), ("min",
    "{old} < {{value}} || {old} != {old} ? {old} : {{value}}"),
                              ("max", "{old} > {{value}} || {old} != {old} ? {old} : {{value}}")):  # fmt: skip
        for d in ("int32", "uint32"):
            found[f"{operation} {d}"] = f"atomic_{operation}(&{{buffer}}[{{index}}], {{value}});"
        found[f"{operation} float32"] = _exchanged(symbol, "float", "uint", "atomic_cmpxchg")
        if int64:
            for d in ("int64", "uint64"):
                found[f"{operation} {d}"] = f"atom_{operation}(&{{buffer}}[{{index}}], {{value}});"
            if float64:
                found[f"{operation} float64"] = _exchanged(symbol, "double", "ulong", "atom_cmpxchg")
    return found


def _vectors(float64: bool, float16: bool) -> dict[str, str]:
    """Of 16 bytes and the halves of it; a float that is carried as a word moves as one."""
    names = {**_TYPES, "float16": "half" if float16 else "ushort", "bfloat16": "ushort"} | (
        {"float64": "double"} if float64 else {}
    )
    sizes = {"8": 1, "16": 2, "32": 4, "64": 8}
    found = {}
    for d, t in names.items():
        size = sizes.get(d.lstrip("abcdefghijklmnopqrstuvwxyz"))
        for lanes in (2, 4, 8, 16):
            if size and 8 <= size * lanes <= 16:
                found[f"{d}x{lanes}"] = f"{t}{lanes}"
    return found


@cache
def dialect(float64: bool = True, float16: bool = False, int64_atomics: bool = False) -> Dialect:
    """The language of a device that has, or lacks, arithmetic of 64-bit and 16-bit floats, and atomic updates of 64-bit
    integers."""
    extensions = {
        "cl_khr_fp64": float64, "cl_khr_fp16": float16,
        "cl_khr_int64_base_atomics": int64_atomics, "cl_khr_int64_extended_atomics": int64_atomics,
    }  # fmt: skip
    own = _calls((*_EXACT, *_NEAR, *(() if float64 else _WIDE))) | {"round": "rint({0})", "abs": "fabs({0})"}
    numbers = {"blockIdx": "get_group_id", "threadIdx": "get_local_id"}
    group = "reqd_work_group_size({group[0]}, {group[1]}, {group[2]})"
    return Dialect(
        name="opencl",
        types=_TYPES | ({"float64": "double"} if float64 else {}) | ({"float16": "half"} if float16 else {}),
        header=tuple(f"#pragma OPENCL EXTENSION {name} : enable" for name, wanted in extensions.items() if wanted),
        kernel=f"__kernel __attribute__(({group})) void {{name}}({{parameters}})",
        buffer="__global {const}uchar *weft_base_{name}, ulong weft_offset_{name}",
        buffer_entry="__global {const}{type} *const {name} ="
        " (__global {const}{type} *)(weft_base_{name} + weft_offset_{name});",
        size="{type} {name}",
        scopes={
            "local": "{type} {name}[{size}];", "register": "{type} {name}[{size}] __attribute__((aligned(16)));",
            "shared": "__local {type} {name}[{size}] __attribute__((aligned({align})));",
        },
        shared_scopes=frozenset({"shared"}),
        indices={f"{kind}.{axis}": f"{call}({k})" for kind, call in numbers.items() for k, axis in enumerate("xyz")},
        barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
        atomics=_atomics(float64, int64_atomics),
        functions=own,
        suffixes={"int64": "L", "uint64": "UL", "uint32": "U", "float32": "f"} | ({"float16": "h"} if float16 else {}),
        bitcast="as_{to}({value})",
        vectors=_vectors(float64, float16),
        vector_copy="*(({to_space} {type} *)({to})) = *((const {source_space} {type} *)({source}));",
        lanes="{type} {name}[{size}] __attribute__((aligned(16)));",
        unroll="#pragma unroll",
        spaces={"global": "__global", "shared": "__local", "local": "__private", "register": "__private"},
        reserved=frozenset(_WORDS),
    )  # fmt: skip


def by_table(dialect: Dialect, buffers: int) -> Dialect:
    """The language of a kernel with more buffers than a device takes arguments: it gets `BASES` of them, and a table of
    each buffer's base and offset in it."""
    chosen = "".join(f"(k) == {k} ? weft_base_{k} : " for k in range(BASES - 1))
    place = f"WEFT_BASE(weft_at[{{index}}]) + weft_at[{buffers} + {{index}}]"
    return replace(
        dialect,
        header=(*dialect.header, f"#define WEFT_BASE(k) ({chosen}weft_base_{BASES - 1})"),
        buffer="",
        buffer_entry=f"__global {{const}}{{type}} *const {{name}} = (__global {{const}}{{type}} *)({place});",
        more_parameters=(
            *(f"__global uchar *weft_base_{k}" for k in range(BASES)),
            "__global const ulong *weft_at",
            *dialect.more_parameters,
        ),
        reserved=dialect.reserved | {"WEFT_BASE"},
    )
