"""The target "cuda": options, architectures, the dialect, NVRTC and what it says of texts that it does not take."""

from __future__ import annotations

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cuda.test_device import chain

import weft
from weft.errors import CodegenError
from weft.expr.functions import FUNCTIONS
from weft.loop.parser import parse_program
from weft_cuda import dialect
from weft_cuda.architectures import ARCHITECTURES, architecture
from weft_cuda.code import unpack_code
from weft_cuda.dialect import CUDA
from weft_cuda.nvrtc import build, cubin, supported, with_dynamic_memory
from weft_testing.plugin import resolve_target

ELF = b"\x7fELF"


def test_options() -> None:
    for text in ("sm_90", "9.0", "90"):
        assert resolve_target(f"cuda -arch={text}").target.options.arch == "sm_90"
    assert resolve_target("cuda -arch=sm_90a").target.options.arch == "sm_90a"
    assert str(resolve_target("cuda -arch=sm_80 -processors=6").target) == "cuda -arch=sm_80 -processors=6"
    assert resolve_target("cuda -arch=sm_80 -device=2").target.kind == "cuda"


@pytest.mark.parametrize(
    "options, said",
    [
        ("-arch=hopper", "'hopper' is no architecture: it is written as sm_90"),
        ("-arch=sm_90 -device=-1", "-device=-1 is no number of a GPU"),
        ("-arch=sm_90 -maxrregcount=3", "-maxrregcount=3 is not between 16 and 255"),
        ("-arch=sm_90 -processors=0", "-processors=0 is no number of multiprocessors"),
        ("-arch=sm_50", r"(?s)'sm_50' is an architecture that NVRTC \d+\.\d+ does not support.*sm_80.*sm_90"),
        ("-arc=sm_90", "did you mean '-arch'"),
    ],
)
def test_options_that_do_not_fit(options: str, said: str) -> None:
    with pytest.raises(weft.WeftError, match=said):
        resolve_target(f"cuda {options}")


def test_machines_come_from_the_table() -> None:
    h100 = resolve_target("cuda -arch=sm_90").machine
    assert (h100.cores, h100.grid.warp, h100.grid.resident) == (132, 32, 2048)  # type: ignore[union-attr]
    assert {"shuffle", "mma", "cp.async", "wgmma", "tma"} <= h100.features
    a100 = resolve_target("cuda -arch=sm_80").machine
    assert "cp.async" in a100.features and not {"tma", "wgmma"} & a100.features
    assert resolve_target("cuda -arch=sm_80 -processors=56").machine.cores == 56
    assert "cp.async" not in resolve_target("cuda -arch=sm_75").machine.features
    for number in supported():
        found = resolve_target(f"cuda -arch=sm_{number}").machine
        of, grid = architecture(number), found.grid
        assert (
            48 << 10 <= (found.scopes["shared"].size or 0) == of.group_shared - (128 if "tma" in of.features else 0)
            and of.number <= number
        )
        assert grid is not None and of.group_shared <= (grid.shared or 0) + (2048 if number >= 80 else 0) == of.shared
    numbers = [a.number for a in ARCHITECTURES]
    assert numbers == sorted(numbers)
    with pytest.raises(ValueError, match="sm_70 is older than sm_75"):
        architecture(70)


def test_fingerprints_follow_what_changes_code() -> None:
    def fingerprint(text: str) -> str:
        found = resolve_target(f"cuda {text}")
        return found.kind.fingerprint(found.target)

    given = [
        "-arch=sm_90",
        "-arch=sm_80",
        "-arch=sm_90a",
        "-arch=sm_90 -maxrregcount=64",
        "-arch=sm_90 -lineinfo",
        "-arch=sm_90 -processors=7",
    ]
    assert len({fingerprint(g) for g in given}) == len(given)
    assert fingerprint("-arch=sm_90 -device=1") == fingerprint("-arch=9.0")


def test_a_dialect_is_a_short_table() -> None:
    assert len(inspect.getsource(dialect).splitlines()) < 200
    assert CUDA.functions.keys() >= FUNCTIONS.keys() - {"isnan", "isinf", "popcount"}


def test_a_text_that_does_not_compile_shows_its_line() -> None:
    text = '// twice\nextern "C" __global__ void twice(float *x) {\n  x[0] = 2 * y;\n}\n'
    with pytest.raises(
        CodegenError,
        match=(
            r"(?s)NVRTC does not take 'twice'.*-arch=sm_90.*kernel.cu\(3\): error: .*\"y\" is undefined.*x\[0\] = 2"
            r" \* y;"
        ),
    ):
        cubin(text, "sm_90", "twice")
    greedy = (
        '// k\nextern "C" __global__ void k(float *x) {\n  __shared__ float y[20000];\n  y[threadIdx.x] = *x;\n '
        " __syncthreads();\n  *x = y[1];\n}\n"
    )
    with pytest.raises(CodegenError, match="too much shared data"):
        cubin(greedy, "sm_90", "k")


def test_code_is_the_same_every_time_on_any_thread() -> None:
    text = (
        '#include "weft_cuda.h"\nextern "C" __global__ void k(unsigned short *x) { x[0] ='
        " weft_f16_narrow(weft_f16_widen(x[1]) * 3); }\n"
    )
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: cubin(text, "sm_90", "k"), range(6)))
    assert made[0][:4] == ELF
    assert len(set(made)) == 1
    assert cubin(text, "sm_80", "k") != made[0]


def test_a_compiled_model_is_saved_where_no_gpu_is(tmp_path: object) -> None:
    exe = weft.compile(chain(), target="cuda -arch=sm_80", cache=False)
    again = weft.compile(chain(), target="cuda -arch=sm_80", cache=False)
    (name,) = (n for n in exe.manifest.sections)
    assert exe._code[name] == again._code[name]
    assert exe._code[name].count(ELF) == len(exe.manifest.steps[1].launches)  # type: ignore[union-attr]


NARROW = """program k(x: {d}[64], y: {d}[64]) -> (z: {d}[64]) {{
  for b in 1 blockIdx.x {{ for t in 64 threadIdx.x {{ z[t] = x[t]*y[t] + x[t] }} }}
}}"""


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int64", "complex64", "float64", "bool"]
)
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_every_dtype_compiles(dtype: str, arch: str) -> None:
    from weft_gpu.image import Kernel

    codegen = resolve_target(f"cuda -arch={arch}").codegen()
    program = parse_program(NARROW.format(d=dtype))
    assert codegen.check(program) == []
    (launch,) = Kernel.from_bytes(codegen.compile(program).object, "k").launches
    assert launch.code[:4] == ELF and launch.group == (64, 1, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_function_compiles(dtype: str) -> None:
    codegen = resolve_target("cuda -arch=sm_90").codegen()
    for name, function in FUNCTIONS.items():
        if name == "popcount":
            continue
        result = "bool" if function.result == "bool" else dtype
        arguments = ", ".join(["x[t]"] * function.arity)
        program = parse_program(
            f"program k(x: {dtype}[64]) -> (z: {result}[64]) {{ for t in 64 threadIdx.x {{ z[t] = {name}({arguments})"
            " } }"
        )
        assert codegen.check(program) == []
        codegen.compile(program)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float32"])
def test_atomic_updates_compile(dtype: str) -> None:
    codegen = resolve_target("cuda -arch=sm_80").codegen()
    for op in ("+=", "min=", "max="):
        body = f"for b in 4 blockIdx.x {{ for t in 32 threadIdx.x {{ atomic y[t] {op} x[b*32 + t] }} }}"
        program = parse_program(f"program k(x: {dtype}[128]) -> (y: {dtype}[32]) {{ {body} }}")
        assert codegen.check(program) == []
        codegen.compile(program)


def test_a_device_needs_no_compiler() -> None:
    """A saved model runs without it."""
    compiler = (
        "weft.loop",
        "weft.graph",
        "weft.codegen",
        "weft.scheduling",
        "weft.expr",
        "weft_gpu.schedules",
        "weft_gpu.codegen",
    )
    code = f"import sys, weft_cuda.device; print([m for m in sys.modules if m.startswith({compiler})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


LARGE = """// k
#include "weft_cuda.h"

extern "C" __global__ void __launch_bounds__(64) k(const float *__restrict__ x, float *__restrict__ y) {
  __shared__ __align__(64) float a[13];
  __shared__ __align__(64) unsigned short b[9];
  __shared__ __align__(64) float c[20000];
  c[threadIdx.x * 300] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = c[(63 - threadIdx.x) * 300] + (b[0] = 1) + (a[0] = 2);
}
"""


def test_more_shared_memory_than_code_may_have_is_asked_for_at_the_launch() -> None:
    text, size = with_dynamic_memory(LARGE)
    assert size == 64 + 64 + 4 * 20000
    for offset, of, array in ((0, "float", "a"), (64, "unsigned short", "b"), (128, "float", "c")):
        assert f"  {of} *const {array} = reinterpret_cast<{of} *>(weft_shared + {offset});" in text
    code = build(LARGE, "sm_90", "k")
    cubin_, shared = unpack_code(code, "k")
    assert (cubin_[:4], shared) == (ELF, size)
    small = LARGE.replace("20000", "2000").replace("300", "30")
    assert with_dynamic_memory(small) == (small, 0)
    assert build(small, "sm_90", "k")[:4] == ELF
    with pytest.raises(weft.WeftError, match=r"(?s)code of kernel 'k' is damaged.*it needs 4294967295 bytes"):
        unpack_code(b"WSHM" + b"\xff" * 8, "k")
    with pytest.raises(weft.WeftError, match="is damaged"):
        unpack_code(b"WSHM", "k")
