"""Formulas of manifests: what they mean as text and as postfix code, and what is refused. Needs the runtime
alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_runtime.errors import ArchiveError
from weft_runtime.formulas import DEEPEST, LEAST, LONGEST, MOST, formula, from_postfix, symbol_of, to_postfix

NAMES = ("n", "a.b-c", "s.0")


# -- postfix code: random code against Python's own integers

NUMBERS = st.one_of(
    st.integers(-9, 9), st.sampled_from([LEAST, LEAST + 1, MOST, MOST - 1, 1 << 31, 1 << 32, -(1 << 62), 3037000500])
)


def codes() -> st.SearchStrategy[str]:
    leaves = st.one_of(NUMBERS.map(str), st.sampled_from(["$0", "$1", "$2"]))

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        two = st.sampled_from(
            ["+", "-", "*", "//", "%", "truncdiv", "truncmod", "min", "max", "<", "<=", "==", "!=", "and", "or"]
        )
        return st.one_of(
            st.tuples(inner, inner, two).map(" ".join),
            st.tuples(inner, st.sampled_from(["not", "neg"])).map(" ".join),
            st.tuples(inner, inner, inner).map(lambda p: " ".join((*p, "select"))),
        )

    return st.recursive(leaves, grow, max_leaves=16)


def meaning(code: str, symbols: tuple[int, ...]) -> int:
    """The value by a tree walk that computes only what is asked for. Raises OverflowError, ZeroDivisionError."""
    stack: list[tuple] = []
    for word in code.split(" "):
        count = {"not": 1, "neg": 1, "select": 3}.get(word, 0 if word.lstrip("-").isdigit() or word[0] == "$" else 2)
        operands, stack = stack[len(stack) - count :], stack[: len(stack) - count]
        stack.append((word, *operands))
    (root,) = stack
    return walked(root, symbols)


def walked(node: tuple, symbols: tuple[int, ...]) -> int:
    word, *operands = node
    of = [lambda o=o: walked(o, symbols) for o in operands]
    if not operands:
        return symbols[int(word[1:])] if word[0] == "$" else int(word)
    if word == "select":
        return of[1]() if of[0]() else of[2]()
    if word in ("and", "or"):
        return int(bool(of[0]() and of[1]())) if word == "and" else int(bool(of[0]() or of[1]()))
    if word == "not":
        return int(not of[0]())
    a, b = (0, of[0]()) if word == "neg" else (of[0](), of[1]())
    if word in ("//", "%", "truncdiv", "truncmod"):
        quotient = a // b if word in ("//", "%") or (a < 0) == (b < 0) else -(-a // b)
        value = quotient if word in ("//", "truncdiv") else a - quotient * b
    else:
        value = {
            "+": a + b, "-": a - b, "neg": a - b, "*": a * b, "min": min(a, b), "max": max(a, b), "<": a < b,
            "<=": a <= b, "==": a == b, "!=": a != b,
        }[word]  # fmt: skip
    if not LEAST <= value <= MOST:
        raise OverflowError(word)
    return int(value)


def outcome(function: object, *arguments: object) -> int | str:
    try:
        return function(*arguments)  # type: ignore[operator]
    except (OverflowError, ZeroDivisionError) as error:
        return type(error).__name__


@given(codes(), NUMBERS, NUMBERS, NUMBERS)
def test_code_means_what_its_operators_say(code: str, n: int, odd: int, data: int) -> None:
    symbols = (n, odd, data)
    text = from_postfix(code, NAMES)
    assert outcome(formula(text), dict(zip(NAMES, symbols))) == outcome(meaning, code, symbols)
    assert to_postfix(text, NAMES.index) == code, "its text is read back to the same code"


BAD = [
    ("1 2", "it leaves 2 values"), ("", "'' is no operator, symbol or integer of 64 bits"), ("1 +",
        "there are too few operands for '\\+'"),
    ("1 2 select", "there are too few operands for 'select'"), ("$3", "there are 3 symbols, and no \\$3"), ("$-1",
        "'\\$-1' is no operator"),
    ("01", "'01' is no operator"), ("1  2 +", "'' is no operator"), ("9223372036854775808",
        "is no operator, symbol or integer of 64 bits"),
    ("1e3", "'1e3' is no operator"), ("٣", "is no operator"), (" ".join(["1"] * 65 + ["+"] * 64),
        f"more than {DEEPEST} values are on the stack"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "why"), BAD)
def test_other_code_is_refused(code: str, why: str) -> None:
    with pytest.raises(ArchiveError, match=f"is no code of a formula\n  why: .*{why}"):
        from_postfix(code, NAMES)


def test_code_is_bounded() -> None:
    with pytest.raises(
        ArchiveError, match=rf"a formula has {LONGEST + 1} characters\n  why: the longest that is read has {LONGEST}"
    ):
        from_postfix("1" + " neg" * (LONGEST // 4), ())
    with pytest.raises(ArchiveError, match=r"a formula has \d+ characters"):
        from_postfix("$0" + " $0 +" * 40, ("n" * 300,))
    with pytest.raises(ArchiveError, match=r"a formula has \d+ characters"):
        to_postfix("n" + " + n" * 1500 + "*-1" * 800, lambda name: 1 << 20)


@given(st.lists(st.sampled_from(["neg", "not", "$0 +", "$0 <", "$0 -", "1 $0 select", "min"]), max_size=200))
def test_a_text_that_is_written_can_be_read(words: list[str]) -> None:
    """However deep it is: code is refused with its text, or both are read."""
    for first in ("$0", "5", "$0 " * 40 + "$0"):
        code = " ".join([first, *words, *(["max"] * 40 if " " in first else [])])
        try:
            text = from_postfix(code, NAMES)
        except ArchiveError:
            continue
        assert to_postfix(text, NAMES.index) == code


def test_code_of_a_formula() -> None:
    assert to_postfix("batch*4096 + min(n, 16)//4", ("batch", "n").index) == "$0 4096 * $1 16 min 4 // +"
    assert to_postfix("int64(a > 3) - -2", ("a",).index) == "3 $0 < -2 -"
    assert from_postfix("$0 $1 $0 - -", ("a", "class x")) == "a - (`class x` - a)"
    assert from_postfix("$0 neg neg 5 neg < not", ("a",)) == "not --a < -(5)"


# -- text


def test_conditions_and_selects() -> None:
    assert formula("select(n < 4 and not n == 2, n, -1)")({"n": 3}) == 3
    assert formula("select(n < 4 and not n == 2, n, -1)")({"n": 2}) == -1
    assert formula("n >= 1 or n != 0")({"n": 0}) == 0
    assert formula("truncdiv(n, 2) + truncmod(n, 2)*10")({"n": -7}) == -13
    assert formula(7)({}) == 7


def test_what_is_not_asked_for_may_be_wrong() -> None:
    assert formula("select(n == 0, 7, 8//n)")({"n": 0}) == 7
    assert formula("n != 0 and 8//n > 2")({"n": 0}) == 0
    assert formula("n == 0 or m")({"n": 0}) == 1
    for text, env, error in (
        ("8//n", {"n": 0}, ZeroDivisionError),
        ("n*n", {"n": 1 << 40}, OverflowError),
        ("n + m", {"n": 0}, KeyError),
    ):
        with pytest.raises(error):
            formula(text)(env)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("__import__('os')", "there is no function __import__"),
        ("n.real()", "there is no function n.real"),
        ("[1][0]", r"invalid syntax at '\[1"),
        ("1.5", "invalid syntax at '.5'"),
        ("2**n", r"invalid syntax at '\*'"),
        ("lambda: 0", "invalid syntax at ': 0'"),
        ("n if m else k", "invalid syntax at 'if'"),
        ("12`n`", "invalid syntax at '`n`'"),
        ("`n``m`", "invalid syntax"),
        ("n +", "invalid syntax at its end"),
        ("1 < n < 3", "invalid syntax at '<'"),
        ("n + not n", "invalid syntax at 'not'"),
        ("min()", r"invalid syntax at '\)'"),
        ("select(1, 2)", "select takes 3 operands, not 2"),
        ("9223372036854775808", "9223372036854775808 is beyond 64 bits"),
        ("(" * 300 + "n" + ")" * 300, f"more than {DEEPEST} parentheses, calls and `not` are inside"),
        ("not " * 300 + "n", f"more than {DEEPEST} parentheses, calls and `not` are inside"),
        ("(n + " * 64 + "n" + ")" * 64, f"more than {DEEPEST} values are needed at once"),
        ("", "invalid syntax at its end"),
    ],
)
def test_anything_else_is_refused(text: str, why: str) -> None:
    with pytest.raises(ArchiveError, match=rf"is no formula over sizes\n  why: .*{why}"):
        formula(text)


def test_long_formulas_are_refused() -> None:
    with pytest.raises(
        ArchiveError, match=rf"a formula has {LONGEST + 1} characters\n  why: the longest that is read has {LONGEST}"
    ):
        formula("n" * (LONGEST + 1))


def test_truth_is_a_number() -> None:
    assert (formula("true")({}), formula("select(false, 1, 2)")({})) == (1, 2)
    assert symbol_of("true") is None
