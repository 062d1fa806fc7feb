"""Compiled C means the same as interpreted: the cases of the LLVM emitter, through C, without a warning and without
undefined behaviour."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.c.running import UNDEFINED, kernel, sanitizes
from tests.llvm import test_emitter as cases
from tests.loop.programs import collatz, histogram, matmul_relu, row_sums, vectorized

from weft import dtypes as dt
from weft.errors import CodegenError
from weft.expr import nodes as ex
from weft.loop.nodes import AtomicUpdate, For, Let, Load, Program, Store, Var, buffer, int64, seq
from weft.loop.parser import parse_program
from weft.loop.pipeline import lower_program
from weft_c.dialect import C
from weft_c_family import Emitter
from weft_interpreter.interpret import interpret

EMITTER = Emitter(C)
# Vectors are loops over lanes, so one dtype of each kind shows what they add.
VECTORS = {"bool", "int64", "uint8", "int4", "float32", "float16", "complex64"}


@pytest.fixture(scope="module")
def options() -> tuple[str, ...]:
    return UNDEFINED if sanitizes() else ()


@pytest.fixture(autouse=True)
def through_c(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> Iterator[None]:
    monkeypatch.setattr(cases, "compiled", lambda program, _="": kernel(program, *options))
    monkeypatch.setattr(cases, "OPTIONS", [""])
    yield
    assert "runtime error" not in capfd.readouterr().err


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lanes" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full")
        every = [(d, lanes) for d in cases.NUMBERS for lanes in (1, 8) if full or lanes == 1 or d.name in VECTORS]
        metafunc.parametrize(("d", "lanes"), every, ids=lambda x: str(x))


def test_every_node(d: dt.DType, lanes: int) -> None:
    cases.test_every_node(d, lanes)


def test_every_cast(d: dt.DType, lanes: int) -> None:
    cases.test_every_cast(d, lanes)


def test_every_function(d: dt.DType, lanes: int) -> None:
    if d.is_integer or d.is_float:
        cases.test_every_function(d, lanes)


def test_rounding_once() -> None:
    cases.test_fp16_from_fp64_rounds_once()


@pytest.mark.parametrize(
    "case",
    [
        cases.test_parallel_loop_over_a_dim, cases.test_vector_tails_and_gathers,
        cases.test_vectors_of_every_stored_type, cases.test_select_guards_its_loads,
        cases.test_division_by_zero_in_unchosen_lanes_does_not_trap, cases.test_while_let_if,
        cases.test_register_lanes_and_parts,
    ],
    ids=lambda f: f.__name__[5:],
)  # fmt: skip
def test_case(case: Any) -> None:
    case()


@pytest.mark.parametrize("d", [dt.int32, dt.uint8, dt.float32, dt.float16, dt.complex64], ids=str)
def test_atomic_updates(d: dt.DType) -> None:
    cases.test_atomic_updates(d)


def agree(text: str | Program, inputs: list[Any], dims: dict[str, int] | None = None) -> str:
    """Compiled = interpreted; gives the text."""
    program = lower_program(parse_program(text), EMITTER.functions) if isinstance(text, str) else text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = interpret(program, inputs, dims)
    got = cases.compiled(program)(inputs, dims)
    for b in program.outputs:
        assert cases.same(got[b.name], want[b.name], b.dtype), f"{got[b.name]}\n{want[b.name]}\n{program}"
    return EMITTER.emit(program).source


def test_lanes_are_read_before_any_is_written() -> None:
    """A vector that moves along its own buffer, one that turns it round, and one that only looks at its own place."""
    x, y = buffer("x", (16,), dt.float32), buffer("y", (16,), dt.float32)

    def ramp(at: int, step: int = 1) -> ex.Expr:
        return ex.Ramp(int64(at), int64(step), 8)

    body = seq(
        *(Store(y, (ramp(at),), Load(x, (ramp(at),))) for at in (0, 8)),
        Store(y, (ramp(1),), Load(y, (ramp(0),))),
        Store(y, (ramp(15, -1),), Load(y, (ramp(8),))),
        Store(y, (ramp(0),), ex.Add(Load(y, (ramp(0),)), Load(y, (ramp(0),)))),
        AtomicUpdate(y, (ramp(3, 0),), "add", Load(y, (ramp(0),))),
        Store(
            y,
            (ramp(2),),
            ex.Add(Load(y, (ramp(1),)), Load(y, (ramp(3),))),
            ex.Lt(Load(y, (ramp(5),)), ex.Broadcast(ex.const(9.0), 8)),
        ),
    )
    text = agree(Program("p", (x,), (y,), (), body), [np.arange(16, dtype=np.float32)])
    assert "y[lane] = y[lane] + y[lane];" in text  # no copy where none is needed


def test_formulas_that_are_used_twice_are_written_once() -> None:
    """A formula that is used four times, seven times over, is a few constants, not 4^7 words; on a side that is not
    chosen nothing is loaded."""
    x, y, i = buffer("x", (4,), dt.float32), buffer("y", (8,), dt.float32), Var("i")
    value: ex.Expr = Load(x, (i,))
    for k in range(7):
        value = ex.Max(ex.Mul(value, ex.const(0.5 + k / 100)), ex.Sub(value, ex.Mul(value, value)))
    p = Program(
        "p",
        (x,),
        (y,),
        (),
        For(i, int64(8), Store(y, (i,), ex.Select(ex.lt(i, 4), value, ex.Mul(ex.const(2.0), ex.const(1.0))))),
    )
    text = agree(p, [np.linspace(0, 1, 4, dtype=np.float32)])
    assert len(text) < 2500
    assert "if (i < 4) {" in text


def test_vectors_that_are_defined_by_what_is_used_twice() -> None:
    x, y, b = buffer("x", (8,), dt.float32), buffer("y", (8,), dt.float32), Var("b")
    at = ex.Ramp(ex.mul(b, 4), int64(1), 4)
    t = Var("t", dt.float32.with_lanes(4))
    part = ex.Add(ex.Mul(Load(x, (at,)), ex.Broadcast(ex.const(3.0), 4)), Load(x, (at,)))
    value = ex.Add(ex.Max(part, ex.Broadcast(ex.const(0.0), 4)), ex.Mul(part, part))
    p = Program("p", (x,), (y,), (), For(b, int64(2), Let(t, value, Store(y, (at,), ex.Mul(t, t)))))
    agree(p, [np.arange(-4, 4, dtype=np.float32)])


def test_integers_wrap_and_indices_are_plain() -> None:
    text = agree(
        "program p(x: int32[n], k: int64[n]) -> (y: int32[n*2], z: int64[n]) dims(n) { for i in n { y[i*2] = x[i]*x[i]"
        " + 2147483647i32 y[i*2 + 1] = int32(i % 7)*3i32 - 1i32 z[i] = k[i]*k[i] - 3*i } }",
        [np.array([-(2**31), 2**31 - 1, 46341, -5], np.int32), np.array([-(2**63), 2**63 - 1, 2**32 + 1, 3])],
        {"n": 4},
    )
    assert "y[i * 2] = (int32_t)((uint32_t)x[i] * (uint32_t)x[i] + 2147483647U);" in text
    assert "y[i * 2 + 1] = (int32_t)(i % 7) * 3 - 1;" in text  # its range shows that it need not wrap


def test_conditions_of_loops_with_shared_formulas() -> None:
    agree(
        """program p(x: float32[n]) -> (y: float32[n]) dims(n) {
          for i in n {
            y[i] = x[i]
            while max(y[i]*y[i]*y[i] + y[i]*2.0f32, 1.0f32) < max(y[i]*y[i]*y[i] + y[i]*2.0f32, 1.0f32)*(y[i] + 1.0f32) { y[i] = y[i] - 0.25f32 }
          }
        }""",  # noqa: E501
        [np.linspace(0, 3, 7, dtype=np.float32)],
        {"n": 7},
    )


def test_names_that_c_has_for_itself() -> None:
    """Keywords, functions that the text calls, names that are no identifiers, and two that become the same."""
    text = agree(
        "program `while`(int: float32[4], `a.b`: float32[4]) -> (a_b: float32[4], floor: float32[4]) {"
        " for fabsf in 4 { a_b[fabsf] = abs(int[fabsf]) + `a.b`[fabsf] floor[fabsf] = floor(int[fabsf]) } }",
        [np.linspace(-2, 2, 4, dtype=np.float32), np.ones(4, np.float32)],
    )
    assert (
        "int32_t while_(" in text
        and "floor_[fabsf_] = floorf(int_[fabsf_]);" in text
        and "const float *const a_b_2" not in text
    )


def test_large_buffers_are_scratch_and_small_ones_are_not() -> None:
    text = """program p(x: float32[n]) -> (y: float32[n]) dims(n) {
      allocate big: float32[5000] in local
      allocate mine: float32[n] in local
      allocate few: float32[4] in register
      allocate shared: float32[2]
      few[0] = 1.0f32 shared[1] = 2.0f32
      for j in 5000 { big[j] = float32(j) }
      for i in n { mine[i] = x[i] + big[i] + few[0] y[i] = mine[i] + shared[1] }
    }"""
    agree(text, [np.arange(6, dtype=np.float32)], {"n": 6})
    emitted = EMITTER.emit(lower_program(parse_program(text), EMITTER.functions))
    assert [str(n) for n in emitted.scratch] == ["20032", "(4*n + 63)//64*64", "64"]
    assert "float few[4];" in emitted.source


@pytest.mark.parametrize("make", [matmul_relu, row_sums, histogram, collatz, vectorized], ids=lambda f: f.__name__)
def test_text(make: Callable[[], Program], golden: Callable[[str, str], None]) -> None:
    golden(make.__name__, EMITTER.emit(lower_program(make(), EMITTER.functions)).source)


def fails(text: str, lower: bool = True) -> str:
    p = parse_program(text)
    with pytest.raises(CodegenError) as error:
        EMITTER.emit(lower_program(p, EMITTER.functions) if lower else p)
    return str(error.value)


def test_what_is_lacking_is_listed_at_once() -> None:
    text = fails(
        "program p(x: string[4]) -> (y: float32[4]) { allocate z: float32[4] in shared for i in 4 vectorized { z[i] ="
        " exp(1.0f32) y[i] = @magic(i) } }",
        False,
    )
    assert (
        text
        == "'c' cannot express kernel 'p'\n  dtype string\n  scope shared of buffer z\n  vectorized loop i\n  function"
        " exp\n  intrinsic magic\n  hint: run the loop passes first"
    )


def test_a_size_that_depends_on_a_loop() -> None:
    text = fails(
        "program p(x: float32[n]) -> (y: float32[n]) dims(n) { for i in n { allocate t: float32[i + 1] in local { t[i]"
        " = x[i] y[i] = t[i] } } }"
    )
    assert text.startswith("the size of buffer 't' is not known before kernel 'p' starts\n  allocate t: ")
    assert "why: it depends on 'i', which is no dimension of the kernel" in text


def test_undefined_names() -> None:
    x, y = buffer("x", (4,), dt.float32), buffer("y", (4,), dt.float32)
    with pytest.raises(CodegenError, match="'j' has no value here"):
        EMITTER.emit(Program("p", (x,), (y,), (), Store(y, (Var("j"),), x[0])))


def test_a_long_formula() -> None:
    cases.test_a_long_formula()
