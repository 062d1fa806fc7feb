"""Metal Shading Language as a table: version 3.0 and later, as its specification has it ("Metal Shading Language
Specification", Apple).

Dims come in one table, at the last entry of Metal's 31: what is left is for buffers. Functions are those that the
specification bounds by 4 units in the last place without fast math (its table of accuracies), and what has no formula
without float64; the others are expanded into formulas.
"""

from __future__ import annotations

from functools import cache

from weft.expr.functions import FUNCTIONS
from weft_c_family import Dialect
from weft_metal.families import DIMS
from weft_metal.intrinsics import HEADER, SCOPES, TEMPLATES

_TYPES = {
    "bool": "bool", "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar",
    "uint16": "ushort", "uint32": "uint",
    "uint64": "ulong", "float16": "half", "float32": "float",
}  # fmt: skip
_ARITY = {"copysign": 2, "fmod": 2, "pow": 2, "fma": 3}
_OWN = (
    "sqrt", "floor", "ceil", "trunc", "copysign", "fma", "fmod", "exp", "exp2", "log", "log2", "sin", "cos", "asin",
    "acos", "sinh", "cosh", "asinh", "acosh",
    "tan", "pow",
)  # fmt: skip
_WORDS = """
    main kernel vertex fragment device constant thread threadgroup threadgroup_imageblock ray_data object_data mesh visible intersection metal simd sampler
    texture array vec matrix packed_float4 patch size_t ptrdiff_t atomic_int atomic_uint atomic_float mem_flags memory_order_relaxed as_type precise fast abs
    clamp max min mix saturate sign smoothstep step absdiff addsat clz ctz hadd insert_bits extract_bits mad24 madhi madsat max3 median3 min3 mul24 mulhi
    popcount reverse_bits rhadd rotate subsat cross distance dot length normalize reflect all any isfinite isnormal isordered isunordered not select frexp
    ldexp modf nextafter powr rsqrt sincos sinpi cospi tanpi divide fmax fmin fdim fract rint round ilogb exp10 log10 degrees radians simd_sum simd_shuffle
    simd_max simd_min atan atan2 tanh quad_sum simdgroup_matrix bfloat M_PI_F MAXFLOAT HUGE_VALF
"""  # noqa: E501


def _calls(names: tuple[str, ...]) -> dict[str, str]:
    return {n: f"{n}({', '.join(f'{{{k}}}' for k in range(_ARITY.get(n, 1)))})" for n in names}


def _exchanged(value: str) -> str:
    """An update of a float by exchanging its bits until nobody was quicker: Metal adds floats in one step, but not in
    every memory, and has no minimum."""
    return (
        "{{ {space} atomic_uint *const weft_at = ({space} atomic_uint *)&{buffer}[{index}]; uint weft_seen ="
        " atomic_load_explicit(weft_at, memory_order_relaxed); while (!atomic_compare_exchange_weak_explicit(weft_at,"
        f" &weft_seen, as_type<uint>({value.format(old='as_type<float>(weft_seen)')}), memory_order_relaxed,"
        " memory_order_relaxed)) {{}} }}"
    )


def _atomics() -> dict[str, str]:
    found = {}
    for operation, value in (("add", "{old} + {{value}}"), ("min",
    "{old} < {{value}} || {old} != {old} ? {old} : {{value}}"),
                             ("max", "{old} > {{value}} || {old} != {old} ? {old} : {{value}}")):  # fmt: skip
        found[f"{operation} float32"] = _exchanged(value)
        for d, t in (("int32", "int"), ("uint32", "uint")):
            found[f"{operation} {d}"] = (
                f"atomic_fetch_{operation}_explicit(({{space}} atomic_{t} *)&{{buffer}}[{{index}}], {{value}},"
                " memory_order_relaxed);"
            )
    return found


def _vectors() -> dict[str, str]:
    """Of 4, 8 and 16 bytes: the language's own up to four elements, words beyond."""
    words = {8: "uint2", 16: "uint4"}
    found = {}
    for d, size in (*((d, 1) for d in ("int8", "uint8", "bool")), *((d, 2) for d in ("int16", "uint16", "float16",
    "bfloat16")),
                    *((d, 4) for d in ("int32", "uint32", "float32")), ("int64", 8), ("uint64", 8)):  # fmt: skip
        t = {"bool": "uchar", "bfloat16": "ushort"}.get(d) or _TYPES[d]
        for lanes in (2, 4, 8, 16):
            if 4 <= size * lanes <= 16:
                found[f"{d}x{lanes}"] = f"{t}{lanes}" if lanes <= 4 and size < 8 else words[size * lanes]
    return found


@cache
def dialect(bfloat: bool = True, matrices: bool = True) -> Dialect:
    """The language of a family of GPUs that converts bfloat16 itself, or does not (arithmetic is in float32 either
    way), and has matrices of SIMD groups."""
    return Dialect(
        name="metal",
        header=("#include <metal_stdlib>", "using namespace metal;", *(HEADER if matrices else ())),
        types=_TYPES,
        kernel="[[kernel, max_total_threads_per_threadgroup({threads})]] void {name}({parameters})",
        buffer="device {const}{type} *{name} [[buffer({index})]]",
        size_entry="const {type} {name} = ({type})weft_dims[{number}];",
        more_parameters=(
            f"constant long *weft_dims [[buffer({DIMS})]]", "uint3 weft_group [[threadgroup_position_in_grid]]",
            "uint3 weft_thread [[thread_position_in_threadgroup]]",
        ),
        scopes={
            "local": "alignas(16) {type} {name}[{size}];", "register": "alignas(16) {type} {name}[{size}];",
            "shared": "alignas({align}) threadgroup {type} {name}[{size}];", **(SCOPES if matrices else {}),
        },
        shared_scopes=frozenset({"shared"}),
        indices={f"{kind}.{axis}": f"{name}.{axis}" for kind, name in (("blockIdx", "weft_group"), ("threadIdx",
            "weft_thread")) for axis in "xyz"},
        barrier="threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",
        atomics=_atomics(),
        functions=_calls(_OWN) | {"round": "rint({0})", "abs": "fabs({0})"},
        intrinsics={"shuffle_xor": "simd_shuffle_xor({0}, ushort({1}))", "whole_warp": "true",
            **(TEMPLATES if matrices else {})},
        suffixes={"int64": "L", "uint64": "UL", "uint32": "U", "float32": "f", "float16": "h"},
        bitcast="as_type<{to}>({value})",
        widen={"bfloat16": "float(as_type<bfloat>({0}))"} if bfloat else {},
        narrow={"bfloat16": "as_type<ushort>(bfloat({0}))"} if bfloat else {},
        vectors=_vectors(),
        vector_copy="*(({to_space} {type} *)({to})) = *(({source_space} const {type} *)({source}));",
        lanes="alignas(16) {type} {name}[{size}];",
        unroll="#pragma unroll",
        spaces={"global": "device", "shared": "threadgroup", "local": "thread", "register": "thread"},
        reserved=frozenset({*_WORDS.split(), *FUNCTIONS, "weft_dims", "weft_group", "weft_thread"}),
    )  # fmt: skip
