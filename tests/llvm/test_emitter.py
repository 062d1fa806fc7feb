"""Compiled means the same as interpreted."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import dtypes as dt
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.expr.evaluate import evaluate
from weft.expr.functions import FUNCTIONS as TABLE
from weft.expr.functions import call
from weft.loop.nodes import (
    Allocate,
    AtomicUpdate,
    Buffer,
    Evaluate,
    For,
    IntrinsicCall,
    Let,
    Load,
    Program,
    Stmt,
    Store,
    Var,
    buffer,
    int64,
    seq,
)
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft.target import parse_target
from weft_interpreter.calls import sentinel
from weft_interpreter.interpret import interpret
from weft_llvm.codegen import LlvmCodegen
from weft_llvm.emitter import FUNCTIONS
from weft_llvm.target import LlvmTarget
from weft_llvm.toolchain import undefined_symbols

N = 64
KIND = LlvmTarget()
# The plainest x86-64 runs everywhere and takes the long way round wherever this machine has an instruction.
OPTIONS = ["", "-mcpu=x86-64"] if KIND.isa(parse_target("llvm", [KIND])).arch == "x86_64" else [""]
NUMBERS = [d for d in dt.all_dtypes() if d.kind in ("bool", "int", "uint", "float", "complex")]
REALS = [d for d in NUMBERS if d.is_integer or d.is_float]


def codegen(options: str = "") -> LlvmCodegen:
    found = KIND.codegen(parse_target(f"llvm {options}".strip(), [KIND]))
    assert isinstance(found, LlvmCodegen)
    return found


def data(d: dt.DType, seed: int) -> np.ndarray[Any, Any]:
    r = np.random.default_rng(seed)
    if d.is_bool:
        return r.integers(0, 2, N).astype(bool)
    if d.is_integer:
        lo, hi = (0, 2**d.bits - 1) if d.kind == "uint" else (-(2 ** (d.bits - 1)), 2 ** (d.bits - 1) - 1)
        v = r.integers(lo, hi, N, dtype=np.uint64 if hi >= 2**63 else np.int64, endpoint=True)
        v[::3] = np.clip(v[::3] % 11, lo, hi)
        v[0], v[1] = lo, hi
        return v.astype(d.numpy)
    if d.kind == "complex":
        return (r.standard_normal(N) + 1j * r.standard_normal(N)).astype(d.numpy)
    v = r.standard_normal(N) * 10 ** r.uniform(-3, 3, N)
    v[:13] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 2.5, 1e-8, 448, 65504, 1e-40, 3.0]
    return v.astype(np.float32 if d.bits < 32 else d.numpy).astype(d.numpy)


def same(got: Any, want: Any, d: dt.DType, exact: bool = True) -> bool:
    if d.kind == "complex":
        # A product of complex numbers is where contraction shows.
        return bool(np.allclose(got, want, rtol=1e-5 if d.bits == 64 else 1e-13, equal_nan=True))
    if d.is_float:
        got, want = got.astype(np.float64), want.astype(np.float64)
        return bool(
            np.array_equal(got, want, equal_nan=True)
            if exact
            else np.allclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
        )
    return bool(np.array_equal(got, want))


def compiled(program: Program, options: str = "") -> Callable[..., dict[str, Any]]:
    """The program as a function of inputs, dims and threads; what is never stored holds the interpreter's sentinel."""
    cg = codegen(options)
    code = cg.compile(program)
    assert undefined_symbols(code.object) == []
    kernel = cg.jit(program, code)

    def call_it(inputs: list[Any], dims: dict[str, int] | None = None, threads: int = 0) -> dict[str, Any]:
        outputs = {
            b.name: np.full([int(evaluate(n, dims or {})) for n in b.shape], sentinel(b.dtype), b.dtype.numpy)
            for b in program.outputs
        }
        assert kernel([*inputs, *outputs.values()], dims or {}, threads) == 0
        return outputs

    return call_it


def run(program: Program, inputs: list[Any], dims: dict[str, int] | None = None) -> dict[str, Any]:
    return compiled(program)(inputs, dims)


def agree(
    program: Program,
    inputs: list[Any],
    dims: dict[str, int] | None = None,
    exact: bool = True,
    threads: tuple[int, ...] = (0, 3),
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = interpret(program, inputs, dims)
    for options in OPTIONS:
        kernel = compiled(program, options)
        for t in threads:
            got = kernel(inputs, dims, t)
            for b in program.outputs:
                assert same(got[b.name], want[b.name], b.dtype, exact), (
                    f"{b.name} {options} threads={t}\n{got[b.name]}\n{want[b.name]}\n{program}"
                )


def lowered(text: str, functions: frozenset[str] = FUNCTIONS) -> Program:
    return lower_program(parse_program(text), functions)


# -- every formula of every dtype
# ---------------------------------------------------------------------------------------


def elementwise(
    formulas: list[tuple[str, Any, list[int]]], inputs: list[dt.DType], results: list[dt.DType], lanes: int
) -> Program:
    """One loop that stores every formula into an output of its own."""
    ins = tuple(buffer(f"x{k}", (N,), d) for k, d in enumerate(inputs))
    outs = tuple(buffer(f"y{k}", (N,), d) for k, d in enumerate(results))
    i = Var("i")
    index: ex.Expr = i if lanes == 1 else ex.Ramp(ex.mul(i, lanes), int64(1), lanes)
    stores: list[Stmt] = [
        Store(y, (index,), f(*(Load(ins[k], (index,)) for k in use))) for y, (_, f, use) in zip(outs, formulas)
    ]
    return Program("k", ins, outs, (), For(i, int64(N // lanes), seq(*stores)))


def binary_classes(d: dt.DType) -> list[type[ex.Binary]]:
    found = []
    for cls in ex.BUILDERS:
        s = cls.symbol
        if s in ("==", "!="):
            ok = True
        elif s in ("<", "<=", "min", "max"):
            ok = d.kind != "complex"
        elif s in ("and", "or"):
            ok = d.is_bool
        elif s in ("+", "-", "*"):
            ok = not d.is_bool
        elif s == "/":
            ok = d.kind in ("float", "complex")
        elif s in ("%", "truncmod"):
            ok = d.is_integer or d.is_float
        else:
            ok = d.is_integer
        # ml_dtypes gives fp4, which has no NaN, an arbitrary number for it.
        if ok and not (d.name == "float4_e2m1fn" and s in ("/", "%", "truncmod")):
            found.append(cls)
    return found


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("d", NUMBERS, ids=str)
def test_every_node(d: dt.DType, lanes: int) -> None:
    """x0, x1 anything; x2 a good divisor; x3 a shift amount, past the width too; x4 bool."""
    divisor = data(d, 2)
    if d.is_integer:
        divisor[divisor == 0] = 1
    shift = ((np.arange(N) % (d.bits + 3)) - 1).astype(d.numpy) if d.is_integer else data(d, 4)
    arrays = [data(d, 0), data(d, 1), divisor, shift, data(dt.bool_, 3)]
    formulas: list[tuple[str, Any, list[int]]] = []
    results = []
    for cls in binary_classes(d):
        second = 2 if cls.symbol in ("//", "%", "truncdiv", "truncmod") else 3 if cls.symbol in ("<<", ">>") else 1
        formulas.append((cls.__name__, cls, [0, second]))
        results.append(dt.bool_ if cls.result_bool else d)
    formulas.append(("Select", lambda a, b, c: ex.Select(c, a, b), [0, 1, 4]))
    results.append(d)
    if d.is_bool:
        formulas.append(("Not", ex.Not, [0]))
        results.append(d)
    for other in NUMBERS:
        if other.bits == d.bits >= 8 and other.kind != "complex" and d.kind != "complex":
            formulas.append(("Bitcast", lambda v, o=other: ex.Bitcast(v, o.with_lanes(lanes)), [0]))
            results.append(other)
    agree(elementwise(formulas, [*[d] * 4, dt.bool_], results, lanes), arrays, threads=(0,))


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("d", NUMBERS, ids=str)
def test_every_cast(d: dt.DType, lanes: int) -> None:
    """Float to integer only in range: beyond it there is no right answer."""
    x = data(d, 3)
    arrays, formulas, results = [], [], []
    for to in NUMBERS:
        if (d.kind == "complex") != (to.kind == "complex") and d.kind == "complex":
            continue
        v = x
        if d.is_float and to.is_integer:
            limit = min(2.0 ** (to.bits - 1) - 1, 1e6)
            wide = np.nan_to_num(x.astype(np.float64), nan=1, posinf=1, neginf=1)
            wide = np.where((wide > limit) | (wide < (0 if to.kind == "uint" else -limit)), 1, wide)
            v = wide.astype(d.numpy)
        if to.name == "float4_e2m1fn" and d.is_float:
            v = np.where(np.isnan(x.astype(np.float64)), np.ones(N, d.numpy), x)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                v.astype(to.numpy)
        except TypeError:
            continue  # ml_dtypes has no such conversion
        arrays.append(v)
        formulas.append(("Cast", lambda e, t=to: ex.Cast(e, t.with_lanes(lanes)), [len(arrays) - 1]))
        results.append(to)
    agree(elementwise(formulas, [d] * len(arrays), results, lanes), arrays, threads=(0,))


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("d", REALS, ids=str)
def test_every_function(d: dt.DType, lanes: int) -> None:
    formulas, results = [], []
    for name in sorted(FUNCTIONS):
        function = TABLE[name]
        if (d.is_integer and name not in ("abs", "popcount")) or (d.is_float and name == "popcount"):
            continue
        if (d.name == "float4_e2m1fn" and name == "sqrt") or (d.name.endswith("fnuz") and name == "copysign"):
            continue  # no NaN; the sign of NaN
        if d.bits < 8 and name == "popcount":
            continue  # numpy knows no words that small
        formulas.append((name, lambda *v, n=name: call(n, *v), list(range(function.arity))))
        results.append(dt.bool_ if function.result == "bool" else d)
    arrays = [data(d, k) for k in range(3)]
    agree(elementwise(formulas, [d] * 3, results, lanes), arrays, threads=(0,))


def test_fp16_from_fp64_rounds_once() -> None:
    """Through fp32 these would be ties: 1 + 2^-11 plus a little rounds up, not to even."""
    x = np.array([1 + 2**-11 + 2**-40, 1 + 2**-11 - 2**-40, 2**-25 + 2**-60, 65520 - 2**-30] * 2, np.float64)
    for to in (dt.float16, dt.bfloat16):
        a, y = buffer("a", (8,), dt.float64), buffer("y", (8,), to)
        i = Var("i")
        p = Program("k", (a,), (y,), (), For(i, int64(8), Store(y, (i,), ex.Cast(a[i], to))))
        got = run(p, [x])["y"]
        if to is dt.float16:
            assert np.array_equal(got, x.astype(np.float16))
        else:
            assert float(got[0]) == 1.0


# -- loops, memory, control
# ---------------------------------------------------------------------------------------------

f32 = np.float32


def rand(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def test_parallel_loop_over_a_dim() -> None:
    p = lowered(
        "program p(x: float32[n], s: float32[1]) -> (y: float32[n]) dims(n) { for i in n parallel { y[i] = x[i]*s[0] +"
        " float32(i + n) } }"
    )
    for n in (0, 1, 3, 23, 24, 25, 47, 100):  # three threads have 24 tasks, of equal size or the first ones larger
        agree(p, [rand(n), rand(1)], {"n": n})


def test_parallel_with_scratch_per_thread() -> None:
    p = lowered("""program p(x: float32[n, m]) -> (y: float32[n, m]) dims(n, m) {
      allocate g: float32[n, m] {
        for i in n parallel {
          allocate t: float32[m] in local {
            for j in m { t[j] = x[i, j]*2.0f32 }
            for j2 in m { g[i, j2] = t[m - 1 - j2] }
          }
        }
        for i2 in n parallel { for j3 in m parallel { y[i2, j3] = g[i2, j3] + 1.0f32 } }
      }
    }""")
    agree(p, [rand(37 * 5)], {"n": 37, "m": 5})
    sizes = codegen().emit(p).scratch
    assert len(sizes) == 2
    assert "call.threads" not in str(sizes[0]) and "call.threads" in str(sizes[1])


def test_vector_tails_and_gathers() -> None:
    p = lowered(
        """program p(x: float32[n], t: float32[40], k: int64[n]) -> (y: float32[n], z: float32[n], w: float32[n*3]) dims(n) {
      for i in (n + 7)//8 {
        for j in 8 vectorized {
          if i*8 + j < n {
            y[i*8 + j] = x[i*8 + j] + t[k[i*8 + j]]
            z[n - 1 - (i*8 + j)] = x[i*8 + j]
            w[(i*8 + j)*3 + 1] = t[((i*8 + j) % 13)*3]
          }
        }
      }
    }"""  # noqa: E501
    )
    for n in (1, 8, 29):
        agree(p, [rand(n), rand(40), np.random.default_rng(n).integers(0, 40, n)], {"n": n})


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.float16, dt.int8, dt.bool_])
def test_one_element_for_the_lanes_of_a_condition(dtype: dt.DType) -> None:
    """It is read once, not gathered lane by lane, and not at all where no lane wants it: there it would lie far outside
    of the array."""
    p = lowered(f"""program p(x: {dtype}[64], w: {dtype}[2]) -> (y: {dtype}[64]) {{
      for k in 64 {{ y[k] = x[63 - k] }}
      for i in 8 {{ for j in 8 vectorized {{ if i*8 + j < 5 {{ y[i*8 + j] = select(x[i*8 + j] == w[i*{1 << 40}], x[i*8 + j], w[i*{1 << 40} + 1]) }} }} }}
    }}""")  # noqa: E501
    agree(p, [np.resize(data(dtype, 3), 64), data(dtype, 3)[:2].copy()], threads=(0,))
    assert "masked.gather" not in codegen().source(p)


@pytest.mark.parametrize("stride", [-8, -5, -4, -3, -2, -1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int8, dt.bool_])
def test_lanes_close_to_each_other(dtype: dt.DType, stride: int) -> None:
    """All lanes, and those of a condition: nothing beyond the first and the last of them is read."""
    first = 0 if stride > 0 else 28 * -stride
    p = lowered(f"""program p(x: {dtype}[{28 * abs(stride) + 1}]) -> (y: {dtype}[29]) {{
      for i in 4 {{ for j in 8 vectorized {{ if i*8 + j < 29 {{ y[i*8 + j] = x[i*{8 * stride} + j*{stride} + {first}] }} }} }}
    }}""")  # noqa: E501
    agree(p, [np.resize(data(dtype, 3), 28 * abs(stride) + 1)], threads=(0,))


@pytest.mark.parametrize("n", range(2, 10))
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.float16, dt.int8, dt.bool_])
def test_stores_that_fill_each_others_gaps(dtype: dt.DType, n: int) -> None:
    """They are one store, of whole vectors and of partial ones; in whatever order they come."""
    order = [(k * 3 + 1) % n if n % 3 else k for k in range(n)]
    stores = "\n".join(f"y[(i*8 + j)*{n} + {k}] = x[{k * 29} + i*8 + j]" for k in order)
    p = lowered(f"""program p(x: {dtype}[{29 * n}]) -> (y: {dtype}[{29 * n}]) {{
      for i in 4 {{ for j in 8 vectorized {{ if i*8 + j < 29 {{ {stores} }} }} }}
    }}""")
    agree(p, [np.resize(data(dtype, 3), 29 * n)], threads=(0,))
    scattered = re.findall(r"@llvm\.masked\.scatter", codegen().source(p))
    assert not scattered if n <= 8 else scattered


def test_stores_that_others_read_stay_apart() -> None:
    p = lowered("""program p(x: float32[16]) -> (y: float32[17]) {
      for i in 17 { y[i] = 0.0f32 }
      for j in 8 vectorized { y[j*2] = x[j] }
      for k in 8 vectorized { y[k*2 + 1] = y[k*2] + x[k] }
    }""")
    agree(p, [rand(16)], threads=(0,))


def test_vectors_of_every_stored_type() -> None:
    """Masked and strided accesses of types that are not one machine word."""
    for d in (
        dt.bool_,
        dt.int8,
        dt.int4,
        dt.uint16,
        dt.float16,
        dt.bfloat16,
        dt.float8_e4m3fn,
        dt.float64,
        dt.complex64,
    ):
        p = lowered(f"""program p(x: {d}[n], q: {d}[60]) -> (y: {d}[n], z: {d}[n]) dims(n) {{
          for i in (n + 7)//8 {{
            for j in 8 vectorized {{
              if i*8 + j < n {{ y[i*8 + j] = x[i*8 + j]
                z[i*8 + j] = q[(i*8 + j)*2] }}
            }}
          }}
        }}""")
        agree(p, [data(d, 1)[:29].copy(), data(d, 2)[:60].copy()], {"n": 29}, threads=(0,))


def test_select_guards_its_loads() -> None:
    """The unchosen side's load would leave the array by far."""
    x, y, i = buffer("x", (16,), dt.float32), buffer("y", (N,), dt.float32), Var("i")
    far = ex.mul(i, 1 << 40)
    scalar = Program(
        "p", (x,), (y,), (), For(i, int64(N), Store(y, (i,), ex.select(i < 1, x[far] + x[i], ex.const(2.0))))
    )
    agree(scalar, [rand(16)])
    lanes = ex.Ramp(ex.mul(i, 8), int64(1), 8)
    guarded = ex.select(
        ex.lt(lanes, 16),
        ex.Mul(Load(x, (lanes,)), ex.Broadcast(Load(x, (ex.mul(i, 8),)), 8)),
        ex.Broadcast(ex.const(-1.0), 8),
    )
    vector = Program("p", (x,), (y,), (), For(i, int64(8), Store(y, (lanes,), guarded)))
    agree(vector, [rand(16)])


def test_division_by_zero_in_unchosen_lanes_does_not_trap() -> None:
    a, b, y, i = buffer("a", (N,), dt.int32), buffer("b", (N,), dt.int32), buffer("y", (N,), dt.int32), Var("i")
    p = Program(
        "p",
        (a, b),
        (y,),
        (),
        For(i, int64(N), Store(y, (i,), ex.select(ex.eq(b[i], 0), ex.const(7, dt.int32), a[i] // b[i]))),
    )
    agree(p, [data(dt.int32, 1), np.arange(N, dtype=np.int32) % 5])


def test_while_let_if() -> None:
    p = lowered("""program collatz(x: int64[n]) -> (y: int64[n]) dims(n) {
      for i in n parallel {
        allocate v: int64[2] in local {
          v[0] = x[i]
          v[1] = 0
          while v[0] != 1 {
            let odd: int64 = v[0] % 2 {
              if odd == 1 { v[0] = v[0]*3 + 1 } else { v[0] = v[0]//2 }
            }
            v[1] = v[1] + 1
          }
          y[i] = v[1]
        }
      }
    }""")
    agree(p, [np.arange(1, 40)], {"n": 39})


@pytest.mark.parametrize(
    "d", [dt.int32, dt.uint8, dt.float32, dt.float64, dt.float16, dt.bfloat16, dt.complex64], ids=str
)
def test_atomic_updates(d: dt.DType) -> None:
    ops = ["add"] if d.kind == "complex" else ["add", "min", "max"]
    x, k, y, i = buffer("x", (N,), d), buffer("k", (N,), dt.int64), buffer("y", (12,), d), Var("i")
    z = Var("z")
    index = lambda j: ex.add(ex.mul(k[i], 3), j)
    updates = seq(*(AtomicUpdate(y, (index(j),), op, x[i]) for j, op in enumerate(ops)))  # type: ignore[arg-type]
    for kind in ("serial", "parallel"):
        body = seq(For(z, int64(12), Store(y, (z,), ex.const(0, d))), For(i, int64(N), updates, kind))  # type: ignore[arg-type]
        p = Program("p", (x, k), (y,), (), body)
        values = (np.arange(N) % 7 - (3 if d.kind != "uint" else 0)).astype(d.numpy)
        agree(p, [values, np.arange(N) % 4])


def test_microkernel_stays_in_registers() -> None:
    p = lowered("""program mm(a: float32[k, 6], b: float32[k, 16]) -> (c: float32[6, 16]) dims(k) {
      allocate acc: float32[6, 16] in register {
        for i in 6 unrolled { for j in 16 vectorized { acc[i, j] = 0.0f32 } }
        for r in k { for i2 in 6 unrolled { for j2 in 16 vectorized { acc[i2, j2] = acc[i2, j2] + a[r, i2]*b[r, j2] } } }
        for i3 in 6 unrolled { for j3 in 16 vectorized { c[i3, j3] = acc[i3, j3] } }
      }
    }""")  # noqa: E501
    agree(p, [rand(300), rand(800)], {"k": 50}, exact=False)
    assembly = codegen("-mcpu=haswell -mtriple=x86_64-unknown-linux-gnu").assembly(p)
    # LLVM writes the loop twice: for one block of the sum, and for several (`block_sums`).
    loops = [block for block in re.split(r"^\.LBB\w+:", assembly, flags=re.M) if "vfmadd" in block]
    assert loops
    for loop in loops:
        body = loop[: re.search(r"\tj\w+\s", loop).end()]  # type: ignore[union-attr]
        assert len(re.findall("vfmadd", body)) == 12 and "rsp" not in body


def test_microkernel_speed() -> None:
    """Measured and printed (pytest -s), not asserted: the machine is shared. Peak is FMA width × 2 × clock."""
    p = lowered("""program mm(a: float32[k, 6], b: float32[k, 16]) -> (c: float32[6, 16]) dims(k, times) {
      for t in times {
        allocate acc: float32[6, 16] in register {
          for i in 6 unrolled { for j in 16 vectorized { acc[i, j] = 0.0f32 } }
          for r in k { for i2 in 6 unrolled { for j2 in 16 vectorized { acc[i2, j2] = acc[i2, j2] + a[r, i2]*b[r, j2] } } }
          for i3 in 6 unrolled { for j3 in 16 vectorized { c[i3, j3] = acc[i3, j3] } }
        }
      }
    }""")  # noqa: E501
    k, times = 256, 1000
    call_it = codegen().jit(p).prepare([rand(k, 6), rand(k, 16), rand(6, 16)], {"k": k, "times": times})
    best = min(_timed(call_it) for _ in range(5))
    print(f"6 x 16 microkernel: {2 * 96 * k * times / best / 1e9:.0f} GFLOP/s")


def _timed(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def test_register_lanes_and_parts() -> None:
    """Scalars and half vectors inside slots of the widest access."""
    r = Buffer("r", (int64(16),), dt.float32, "register")
    x, y = buffer("x", (16,), dt.float32), buffer("y", (16,), dt.float32)

    def ramp(at: int, lanes: int) -> ex.Expr:
        return ex.Ramp(int64(at), int64(1), lanes)

    body = Allocate(
        r,
        seq(
            Store(r, (ramp(0, 8),), Load(x, (ramp(0, 8),))),
            Store(r, (ramp(8, 8),), Load(x, (ramp(8, 8),))),
            Store(r, (ramp(4, 4),), ex.Mul(Load(r, (ramp(8, 4),)), Load(r, (ramp(0, 4),)))),
            Store(r, (int64(15),), r[3] + r[4]),
            Store(r, (ramp(8, 4),), ex.Broadcast(ex.const(9.0), 4), ex.Lt(ramp(0, 4), ex.Broadcast(int64(2), 4))),
            Store(y, (ramp(0, 8),), Load(r, (ramp(0, 8),))),
            Store(y, (ramp(8, 8),), Load(r, (ramp(8, 8),))),
        ),
    )
    agree(Program("p", (x,), (y,), (), body), [rand(16)])


def test_in_place_aliases() -> None:
    """Declared aliases really may be one array; undeclared ones let LLVM reorder."""
    p = parse_program(
        "program p(x: float32[64]) -> (y: float32[64]) { for i in 63 { y[i + 1] = x[i] + x[i + 1] } y[0] = 0.0f32 }"
    )
    aliased = Program(p.name, p.inputs, p.outputs, p.dims, p.body, ((0, 0),))
    x = rand(64)
    want = x.copy()
    for i in range(63):
        want[i + 1] = want[i] + want[i + 1]
    want[0] = 0
    buf = x.copy()
    cg = codegen()
    assert cg.jit(aliased)([buf, buf]) == 0
    assert np.allclose(buf, want)
    assert "!noalias" in cg.emit(p).ir and "!noalias" not in cg.emit(aliased).ir


def test_relu_is_one_instruction() -> None:
    p = lowered("""program p(x: float32[64]) -> (y: float32[64], z: float32[64]) { for i in 8 { for j in 8 vectorized {
      y[i*8 + j] = select(x[i*8 + j] < 0.0f32, 0.0f32, x[i*8 + j])
      z[i*8 + j] = min(max(x[i*8 + j], 0.0f32), 6.0f32)
    } } }""")
    assembly = codegen("-mcpu=haswell -mtriple=x86_64-unknown-linux-gnu").assembly(p)
    # The two zeros differ only in which is kept, so LLVM may share the maximum.
    assert 1 <= len(re.findall("vmaxps", assembly)) <= 2 and len(re.findall("vminps", assembly)) == 1
    assert "cmp" not in assembly.replace("cmpq", "") and "blend" not in assembly
    x = rand(64)
    x[:2] = np.nan, -0.0
    agree(p, [x])


def test_cheap_index_division() -> None:
    p = lowered("program p(x: float32[64]) -> (y: float32[64]) { for i in 64 { y[i//8*8 + 7 - i % 8] = x[i] } }")
    assembly = codegen().assembly(p)
    assert "div" not in assembly
    agree(p, [rand(64)])


def test_cross_compiles_to_aarch64_with_fused_multiply() -> None:
    p = lowered("""program p(x: float32[64], w: float32[64]) -> (y: float32[64]) { for i in 8 { for j in 8 vectorized {
      y[i*8 + j] = x[i*8 + j]*w[i*8 + j] + y[i*8 + j] } } }""")
    cg = codegen("-mtriple=aarch64-linux-gnu -mcpu=cortex-a72")
    assert "fmla" in cg.assembly(p)
    assert undefined_symbols(cg.compile(p).object) == []


def test_no_calls_of_a_library() -> None:
    """Fills, copies, remainders, rounding and conversions on the plainest CPU of each family."""
    p = lowered("""program p(x: float32[4096], h: float16[4096], b: bfloat16[4096], d: float64[4096])
        -> (y: float32[4096], z: float32[4096], v: float16[4096], w: bfloat16[4096], u: float16[4096], r: float64[4096]) {
      for i in 4096 {
        y[i] = 0.0f32
        z[i] = x[i]
        v[i] = float16(x[i] % 3.0f32)
        w[i] = bfloat16(d[i])
        u[i] = float16(d[i])*h[i]
        r[i] = floor(d[i]) + truncmod(d[i], 7.0f64) + float64(b[i])
      }
      for i2 in 4096 { y[i2] = 0.0f32 }
    }""")  # noqa: E501
    for options in ("", "-mcpu=x86-64", "-mtriple=aarch64-linux-gnu -mcpu=cortex-a72"):
        assert undefined_symbols(codegen(options).compile(p).object) == [], options


def test_prefetch() -> None:
    p = parse_program("program p(x: float32[64]) -> (y: float32[64]) { for i in 64 { y[i] = x[i] } }")
    assert isinstance(p.body, For)
    more = p.with_body(
        For(
            p.body.var,
            p.body.extent,
            seq(Evaluate(IntrinsicCall("prefetch", (p.inputs[0][p.body.var], int64(2)))), p.body.body),
        )
    )
    assert "prefetch" in codegen().assembly(more)
    assert np.array_equal(run(more, [rand(64)])["y"], rand(64))


# -- random programs
# ----------------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Nests with tiled loops of every kind over a few buffers; bounds by construction."""
    n, m = draw(st.integers(1, 3)), draw(st.sampled_from([4, 8, 16]))
    kinds = [draw(st.sampled_from(["", "parallel", "unrolled"])), draw(st.sampled_from(["", "vectorized", "unrolled"]))]
    atom = st.sampled_from(
        [
            "x[i, j]",
            "x[i, 0]",
            "t[j]",
            f"t[{m} - 1 - j]",
            "float32(i*3 + j)",
            "1.5f32",
            "x[i, (j*3) % M]",
            "t[(i*7 + j*5) // 4 % M]",
        ]
    )

    def formula(depth: int) -> str:
        if depth == 0:
            return draw(atom).replace("M", str(m))
        op = draw(st.sampled_from(["+", "-", "*", "max", "min", "select", "abs"]))
        a, b = formula(depth - 1), formula(depth - 1)
        if op == "select":
            guard = draw(st.sampled_from(["j < 2", "(i + j) % 3 == 1", f"{a} < {b}"]))
            return f"select({guard}, {a}, {b})"
        return f"abs({a})" if op == "abs" else f"{op}({a}, {b})" if op in ("max", "min") else f"({a} {op} {b})"

    guard = draw(st.sampled_from(["", "if i*M + j < n {".replace("M", str(m)), "if j < n % 7 {"]))
    update = draw(st.sampled_from(["y[i, j] = F", "y[i, j] = y[i, j] + F"])).replace(
        "F", formula(draw(st.integers(1, 3)))
    )
    scope = (
        draw(st.sampled_from(["in local", "", "in register"]))
        if kinds[0] == "" and kinds[1] != ""
        else draw(st.sampled_from(["in local", ""]))
    )
    middle = f"{guard} {update} {'}' if guard else ''}"
    if draw(st.booleans()):
        extra = f"allocate a: float32[{m}] {scope} {{ for j0 in {m} {kinds[1]} {{ a[j0] = t[j0]*2.0f32 }}\n"
        extra += f"for j1 in {m} {kinds[1]} {{ y[i, j1] = y[i, j1] + a[j1] }} }}"
    else:
        extra = ""
    return f"""program p(x: float32[{n}, {m}], t: float32[{m}]) -> (y: float32[{n}, {m}]) dims(n) {{
      for z in {n} {{ for q in {m} {{ y[z, q] = 0.5f32 }} }}
      for i in {n} {kinds[0]} {{
        for j in {m} {kinds[1]} {{ {middle} }}
        {extra}
      }}
    }}"""


@settings(max_examples=40, deadline=None)
@given(programs(), st.integers(0, 30))
def test_random_programs(text: str, n: int) -> None:
    naive = parse_program(text)
    shape = [int(d.value) for d in naive.inputs[0].shape]  # type: ignore[attr-defined]
    inputs = [rand(*shape, seed=n), rand(shape[1], seed=n + 1)]
    program = lower_program(naive, FUNCTIONS)
    want = interpret(naive, inputs, {"n": n})["y"]
    kernel = compiled(program)
    for threads in (0, 2):
        got = kernel([x.reshape(-1) for x in inputs], {"n": n}, threads)["y"]
        assert np.allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5), text


# -- errors
# -------------------------------------------------------------------------------------------------------------


def fails(text: str, lower: bool = True) -> str:
    with pytest.raises(CodegenError) as error:
        codegen().emit(lowered(text) if lower else parse_program(text))
    return str(error.value)


def test_what_is_lacking_is_listed_at_once() -> None:
    p = parse_program("""program p(x: float32[8]) -> (y: float32[8]) {
      for i in 8 vectorized { y[i] = exp(x[i]) + tanh(x[i]) }
      allocate s: float32[4] in shared { s[0] = 1.0f32 }
    }""")
    with pytest.raises(CodegenError) as error:
        codegen().emit(p)
    text = str(error.value)
    assert "LLVM code cannot express kernel 'p'" in text
    for line in (
        "vectorized loop i",
        "function exp",
        "function tanh",
        "scope shared of buffer s",
        "hint: run the loop passes first",
    ):
        assert line in text


def test_register_with_an_index_at_run_time() -> None:
    text = fails(
        "program p(x: float32[8]) -> (y: float32[8]) { allocate r: float32[8] in register { for i in 8 { r[i] = x[i] }"
        " y[0] = r[0] } }"
    )
    assert (
        "buffer 'r' is in registers but its index is not constant" in text
        and "r[i] in kernel 'p'" in text
        and "unroll the loops over it" in text
    )


def test_register_across_vectors() -> None:
    text = fails("""program p(x: float32[16]) -> (y: float32[16]) { allocate r: float32[16] in register {
      for i in 8 vectorized { r[i] = x[i] }
      for j in 8 vectorized { y[j] = r[j + 4] } } }""")
    assert "buffer 'r' is in registers but is not accessed by whole vectors" in text
    assert "not a run of elements inside one vector of 8" in text


def test_register_out_of_bounds() -> None:
    text = fails(
        "program p(x: float32[8]) -> (y: float32[8]) { allocate r: float32[2] in register { r[3] = x[0] y[0] ="
        " r[0] } }",
        lower=False,
    )
    assert "an index is out of bounds" in text


def test_register_of_unknown_size() -> None:
    text = fails(
        "program p(x: float32[n]) -> (y: float32[n]) dims(n) { allocate r: float32[n] in register { r[0] = x[0] y[0] ="
        " r[0] } }",
        lower=False,
    )
    assert "buffer 'r' is in registers but its size is not constant" in text


def test_register_used_by_another_thread() -> None:
    text = fails("""program p(x: float32[8]) -> (y: float32[8]) { allocate r: float32[1] in register { r[0] = x[0]
      for i in 8 parallel { y[i] = r[0] } } }""")
    assert (
        "buffer 'r' is in registers but is used inside the parallel loop 'i'" in text
        and "registers belong to one thread" in text
    )


def test_register_complex_and_atomic() -> None:
    r = Buffer("r", (int64(4),), dt.complex64, "register")
    y = buffer("y", (4,), dt.complex64)
    body = Allocate(r, seq(Store(r, (int64(0),), ex.const(1j)), Store(y, (int64(0),), r[0])))
    with pytest.raises(CodegenError, match="buffer 'r' of complex64 cannot be in registers"):
        codegen().emit(Program("p", (), (y,), (), body))
    q = Buffer("q", (int64(4),), dt.float32, "register")
    with pytest.raises(CodegenError, match="buffer 'q' is in registers but is updated atomically"):
        codegen().emit(Program("p", (), (y,), (), Allocate(q, AtomicUpdate(q, (int64(0),), "add", ex.const(1.0)))))


def test_size_that_depends_on_a_loop() -> None:
    text = fails(
        """program p(x: float32[n]) -> (y: float32[n]) dims(n) { for i in n { allocate t: float32[i + 1] in local { t[i] = x[i] y[i] = t[i] } } }"""  # noqa: E501
    )
    assert (
        "the size of buffer 't' is not known before kernel 'p' starts" in text
        and "it depends on 'i', which is no dimension of the kernel" in text
    )


def test_undefined_names() -> None:
    y, i = buffer("y", (4,), dt.float32), Var("i")
    with pytest.raises(CodegenError, match="variable 'i' of kernel 'p' has no value here"):
        codegen().emit(Program("p", (), (y,), (), Store(y, (i,), ex.const(1.0))))
    with pytest.raises(CodegenError, match="buffer 'x' of kernel 'p' is not allocated here"):
        codegen().emit(Program("p", (), (y,), (), Store(y, (int64(0),), buffer("x", (4,), dt.float32)[0])))


def test_meaningless_arithmetic() -> None:
    y, b = buffer("y", (4,), dt.bool_), buffer("b", (4,), dt.bool_)
    with pytest.raises(CodegenError, match="'-' of bools has no meaning"):
        codegen().emit(Program("p", (b,), (y,), (), Store(y, (int64(0),), ex.Sub(b[0], b[1]))))
    c = buffer("c", (4,), dt.complex64)
    with pytest.raises(CodegenError, match="'min' of complex64 has no meaning"):
        codegen().emit(Program("p", (c,), (c,), (), Store(c, (int64(0),), ex.Min(c[0], c[1]))))
    k = buffer("k", (4,), dt.int32)
    with pytest.raises(CodegenError, match="sqrt of int32 has no meaning"):
        codegen().emit(Program("p", (k,), (k,), (), Store(k, (int64(0),), ex.Call("sqrt", (k[0],), dt.int32))))


def test_prefetch_takes_an_element() -> None:
    with pytest.raises(CodegenError, match="prefetch takes an element of a buffer"):
        codegen().emit(Program("p", (), (), (), Evaluate(IntrinsicCall("prefetch", (int64(1),)))))
    r = Buffer("r", (int64(4),), dt.float32, "register")
    with pytest.raises(CodegenError, match="buffer 'r' is in registers and has no address"):
        codegen().emit(Program("p", (), (), (), Allocate(r, Evaluate(IntrinsicCall("prefetch", (r[0],))))))


def test_a_long_formula() -> None:
    """Hundreds of names, one in the other's scope: Python's own limit on nesting is not far."""
    x, y = buffer("x", (N,), "float64"), buffer("y", (N,), "float64")
    i = Var("i", dt.int64)
    names = [Var(f"t{k}", dt.float64) for k in range(700)]
    body: Stmt = Store(y, (i,), ex.mul(names[-1], names[-1]))
    for t, before in zip(names[:0:-1], names[-2::-1]):
        body = Let(t, ex.add(before, ex.const(1.0, dt.float64)), body)
    body = For(i, int64(N), Let(names[0], Load(x, (i,)), body))
    v = np.linspace(-1, 1, N)
    got = run(Program("long", (x,), (y,), (), body), [v])["y"]
    want = v
    for _ in names[1:]:
        want = want + 1.0
    np.testing.assert_array_equal(got, want * want)
