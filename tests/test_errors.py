"""The one form of errors: what, where, why, hint."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Callable

import pytest

from weft import errors
from weft.errors import FrontendError, ScheduleError, UnsupportedError, WeftError, nearest, raised_in
from weft.expr.parser import parse_expr

KINDS = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, WeftError)]


def test_the_form() -> None:
    error = WeftError("it failed", where="line one\nline two", why="it is broken", hint="mend it")
    assert str(error) == "it failed\n  line one\n  line two\n  why: it is broken\n  hint: mend it"


def test_lines_of_a_reason_and_of_a_hint_are_lines() -> None:
    """What looks like a part of its own stands further in, and what acts on a terminal is an escape."""
    error = WeftError("it failed", why="the compiler says\nline 2: \x1b[2J\nhint: fake\n", hint="do this\n  and that")
    assert str(error).split("\n") == [
        "it failed", "  why: the compiler says", "       line 2: \\u001b[2J", "       hint: fake", "  hint: do this",
            "          and that",
    ]  # fmt: skip
    assert len(str(WeftError("it failed", why="x\n" * 100_000))) < 20_000


def test_parts_that_are_absent_leave_no_line() -> None:
    assert str(WeftError("it failed")) == "it failed"
    assert str(WeftError("it failed", where="", why="", hint="")) == "it failed"
    assert str(WeftError("it failed", hint="mend it")) == "it failed\n  hint: mend it"


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_every_kind_says_what_it_is_for_and_crosses_processes(kind: type[WeftError]) -> None:
    assert kind.__doc__
    error = kind("what", where="where", why="why", hint="hint")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.what, copy.where, copy.why, copy.hint) == ("what", "where", "why", "hint")
    assert str(copy) == str(error)


def test_one_except_catches_all() -> None:
    with pytest.raises(WeftError):
        raise ScheduleError("x")
    assert issubclass(UnsupportedError, FrontendError)


@pytest.mark.parametrize(
    ("word", "expected"), [("lvm", "llvm"), ("LLVM", None), ("quantum", None), ("threads", "-threads")]
)
def test_nearest(word: str, expected: str | None) -> None:
    assert nearest(word, ["llvm", "cuda", "-threads"]) == expected


def test_nearest_of_nothing() -> None:
    assert nearest("x", []) is None


def test_where_foreign_code_was() -> None:
    def of(package: str, work: Callable[[], object]) -> str | None:
        try:
            work()
        except Exception as error:  # noqa: BLE001
            return raised_in(error, package)
        raise AssertionError

    line = inspect.getsourcelines(test_where_foreign_code_was)[1]
    here = "|".join(rf"in tests/test_errors\.py:{line + k}" for k in range(20))
    for package in ("tests", "", "weft_quilt"):
        assert re.fullmatch(here, of(package, lambda: json.loads("{")) or "")  # ours, not the library's that it was in
        assert re.fullmatch(here, of(package, lambda: parse_expr("1 +")) or "")  # nor Weft's
    assert raised_in(ValueError("nobody has raised it")) is None
    error = ValueError("of another process")
    error.__cause__ = Exception(
        'File "/x/weft_quilt/codegen.py", line 12, in emit\nFile "/x/concurrent/process.py", line 7, in call'
    )
    assert raised_in(error, "weft_quilt") == "in weft_quilt/codegen.py:12"
