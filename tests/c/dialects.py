"""Tables of the GPU languages, as far as tests need them, each with the C++ that makes its texts run on a CPU, one
thread after another.

They show that a table says enough: what a plugin for the language adds is a device, schedules and instructions.
"""

from __future__ import annotations

from weft_c_family import Dialect

_FLOATS = ("sqrt", "floor", "ceil", "trunc", "copysign", "fma", "fmod")


def _calls(names: tuple[str, ...], suffix: str) -> dict[str, str]:
    arity = {"copysign": 2, "fmod": 2, "fma": 3}
    return {n: f"{n}{suffix}({', '.join(f'{{{k}}}' for k in range(arity.get(n, 1)))})" for n in names}


CUDA = Dialect(
    name="cuda",
    types={
        "bool": "bool", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
        "uint8": "unsigned char", "uint16": "unsigned short",
        "uint32": "unsigned int", "uint64": "unsigned long long", "float32": "float", "float64": "double",
    },
    kernel='extern "C" __global__ void {name}({parameters})',
    buffer="{const}{type} *__restrict__ {name}",
    size="{type} {name}",
    function="static __device__ __forceinline__",
    scopes={"local": "{type} {name}[{size}];", "register": "{type} {name}[{size}];",
        "shared": "__shared__ __align__({align}) {type} {name}[{size}];"},
    shared_scopes=frozenset({"shared"}),
    indices={f"{kind}.{axis}": f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"},
    barrier="__syncthreads();",
    atomics={f"add {d}": "atomicAdd(&{buffer}[{index}], {value});" for d in ("int32", "uint32", "float32", "float64")},
    functions=_calls(_FLOATS, "{f}") | {"round": "rint{f}({0})", "abs": "fabs{f}({0})"},
    intrinsics={"shuffle_xor": "__shfl_xor_sync(0xffffffffu, {0}, {1})"},
    vectors={"float32x4": "float4", "float32x2": "float2", "int32x4": "int4"},
    vector_copy="*reinterpret_cast<{type} *>({to}) = *reinterpret_cast<const {type} *>({source});",
    lanes="__align__(16) {type} {name}[{size}];",
    unroll="#pragma unroll",
    infinity="__int_as_float(0x7f800000)",
    nan="__int_as_float(0x7fc00000)",
)  # fmt: skip

OPENCL = Dialect(
    name="opencl",
    types={
        "bool": "bool", "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar",
        "uint16": "ushort", "uint32": "uint",
        "uint64": "ulong", "float32": "float", "float64": "double",
    },
    kernel="__kernel void {name}({parameters})",
    buffer="__global {const}{type} *restrict {name}",
    size="{type} {name}",
    scopes={
        "local": "{type} {name}[{size}];", "register": "{type} {name}[{size}];",
        "shared": "__local {type} {name}[{size}] __attribute__((aligned({align})));",
    },
    shared_scopes=frozenset({"shared"}),
    indices={f"{kind}.{axis}": f"{call}({k})" for kind, call in (("blockIdx", "get_group_id"), ("threadIdx",
        "get_local_id")) for k, axis in enumerate("xyz")},
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    atomics={"add int32": "atomic_add(&{buffer}[{index}], {value});"},
    functions=_calls(_FLOATS, "") | {"round": "rint({0})", "abs": "fabs({0})"},
    suffixes={"int64": "L", "uint64": "UL", "uint32": "U", "float32": "f"},
    bitcast="as_{to}({value})",
    widen={"float16": "vload_half(0, (const half *)&{0})"},
    vectors={"float32x4": "float4"},
    vector_copy="*(({to_space} {type} *)({to})) = *((const {source_space} {type} *)({source}));",
    lanes="{type} {name}[{size}] __attribute__((aligned(16)));",
    spaces={"global": "__global", "shared": "__local", "local": "__private"},
)  # fmt: skip

METAL = Dialect(
    name="metal",
    header=("#include <metal_stdlib>", "using namespace metal;"),
    types={
        "bool": "bool", "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar",
        "uint16": "ushort", "uint32": "uint",
        "uint64": "ulong", "float32": "float", "float16": "half", "bfloat16": "bfloat",
    },
    kernel="kernel void {name}({parameters})",
    buffer="device {const}{type} *{name} [[buffer({index})]]",
    size="constant {type} &{name} [[buffer({index})]]",
    more_parameters=("uint3 group [[threadgroup_position_in_grid]]", "uint3 thread [[thread_position_in_threadgroup]]"),
    scopes={"local": "{type} {name}[{size}];", "register": "{type} {name}[{size}];",
        "shared": "threadgroup {type} {name}[{size}];"},
    shared_scopes=frozenset({"shared"}),
    indices={f"{kind}.{axis}": f"{name}.{axis}" for kind, name in (("blockIdx", "group"), ("threadIdx",
        "thread")) for axis in "xyz"},
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup);",
    functions=_calls(_FLOATS, "") | {"round": "rint({0})", "abs": "fabs({0})"},
    suffixes={"int64": "L", "uint64": "UL", "uint32": "U", "float32": "f"},
    bitcast="as_type<{to}>({value})",
    reserved=frozenset({"group", "thread", "device", "constant", "threadgroup", "metal"}),
)  # fmt: skip

_GRID = """
#include <cmath>
#include <cstdint>
#include <cstring>
using std::sqrt; using std::floor; using std::trunc; using std::fma;
struct uint3 { unsigned x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
static uint3 grid_group, grid_thread;
"""
SHIMS = {
    "cuda": _GRID
    + """
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)
#define blockIdx grid_group
#define threadIdx grid_thread
template <class T> static void atomicAdd(T *at, T value) { *at += value; }
static float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
""",
    "opencl": _GRID
    + """
#define __kernel extern "C"
#define __global
#define __local static
#define __private
#define restrict __restrict__
typedef unsigned char uchar; typedef unsigned short ushort;
static unsigned get_group_id(int k) { return k == 0 ? grid_group.x : k == 1 ? grid_group.y : grid_group.z; }
static unsigned get_local_id(int k) { return k == 0 ? grid_thread.x : k == 1 ? grid_thread.y : grid_thread.z; }
template <class T> static void atomic_add(T *at, T value) { *at += value; }
using uint = unsigned int;
static uint as_uint(float x) { uint y; std::memcpy(&y, &x, 4); return y; }
static float as_float(uint x) { float y; std::memcpy(&y, &x, 4); return y; }
""",
    "metal": _GRID
    + """
#define kernel extern "C"
#define device
#define constant const
#define threadgroup static
typedef unsigned char uchar; typedef unsigned short ushort; typedef _Float16 half;
template <class B, class A> static B as_type(A x) { B y; std::memcpy(&y, &x, sizeof y); return y; }
""",
}
