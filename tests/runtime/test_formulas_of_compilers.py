"""Formulas of manifests: those that the compiler prints, and their postfix code as C evaluates it."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.test_formulas import BAD, NAMES, NUMBERS, codes, meaning, outcome

from weft import dtypes as dt
from weft.errors import ArchiveError
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Expr, Var, const, floordiv, floormod, maximum, minimum
from weft.expr.printer import print_expr
from weft_runtime import header
from weft_runtime.formulas import formula, from_postfix, symbol_of, to_postfix

N, ODD, DATA = Var("n", dt.int64), Var("a.b-c", dt.int64), Var("s.0", dt.int64)


def exprs() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.integers(-9, 9).map(const), st.sampled_from([N, ODD, DATA]))

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        pairs = st.tuples(inner, inner)
        positive = st.tuples(inner, st.integers(1, 9).map(const))
        return st.one_of(
            pairs.map(lambda p: p[0] + p[1]), pairs.map(lambda p: p[0] - p[1]), pairs.map(lambda p: p[0] * p[1]),
            pairs.map(lambda p: minimum(*p)), pairs.map(lambda p: maximum(*p)),
            positive.map(lambda p: floordiv(*p)), positive.map(lambda p: floormod(*p)),
        )  # fmt: skip

    return st.recursive(leaves, grow, max_leaves=12)


@given(exprs(), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_a_printed_formula_means_the_same(e: Expr, n: int, odd: int, data: int) -> None:
    env = {"n": n, "a.b-c": odd, "s.0": data}
    assert formula(print_expr(e))(env) == int(evaluate(e, env))


@pytest.mark.parametrize(
    "name", ["class", "True", "None", "v0", "min", "select", "ﬁ", "é", "_quoted_0", "true", "not", "a b", " v0 ", "x.0"]
)
def test_a_symbol_may_have_any_name(name: str) -> None:
    # Python takes "ﬁ" for "fi".
    e = Var(name, dt.int64) * 2 + minimum(Var(name, dt.int64), const(3))
    assert formula(print_expr(e))({name: 4, "fi": 9}) == 11
    assert from_postfix(to_postfix(print_expr(e), {name: 0}.__getitem__), (name,)) == print_expr(e)
    assert symbol_of(print_expr(Var(name, dt.int64))) == name
    assert symbol_of(print_expr(e)) is None


# -- in C


@cache
def library() -> ctypes.CDLL:
    import tempfile

    from weft_c.toolchain import compiler, default_command

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "weft_abi.h").write_text(header.abi_header())
        text = '#include "weft_abi.h"\nint value(const char *, const int64_t *, int64_t, int64_t *);\n'
        text += (
            "int value(const char *code, const int64_t *symbols, int64_t count, int64_t *result) { return"
            " weft_formula(code, symbols, count, result); }\n"
        )
        (Path(folder) / "f.c").write_text(text)
        command = compiler(default_command(), "c99", "1", None).command
        traps = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
        options = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1", *traps, "-shared", "-fPIC")
        done = subprocess.run(
            [*command, *options, "f.c", "-o", "f.so"], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[:4000]
        return ctypes.CDLL(str(Path(folder) / "f.so"))


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    library()  # outside of what hypothesis measures


def in_c(code: str, symbols: tuple[int, ...]) -> int | str:
    result = ctypes.c_int64(77)
    status = library().value(
        code.encode(), (ctypes.c_int64 * len(symbols))(*symbols), ctypes.c_int64(len(symbols)), ctypes.byref(result)
    )
    return result.value if status == 0 else ("OverflowError", "ZeroDivisionError", "malformed")[status - 1]


@given(codes(), NUMBERS, NUMBERS, NUMBERS)
def test_c_means_the_same(code: str, n: int, odd: int, data: int) -> None:
    assert in_c(code, (n, odd, data)) == outcome(meaning, code, (n, odd, data))


WORDS = [
    "$0",
    "$3",
    "1",
    "-1",
    "-0",
    "007",
    "9223372036854775808",
    "-9223372036854775808",
    "+",
    "and",
    "select",
    "neg",
    "",
    "x",
]


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_the_reader_and_c_refuse_the_same_code(words: list[str]) -> None:
    code = " ".join(words)
    try:
        from_postfix(code, NAMES)
        good = True
    except ArchiveError:
        good = False
    assert (in_c(code, (1, 2, 3)) != "malformed") == good


@pytest.mark.parametrize("code", [code for code, _ in BAD])
def test_c_refuses_other_code(code: str) -> None:
    assert in_c(code, (1, 2, 3)) == "malformed"
