"""The one form of errors: what, where, why, hint."""

from __future__ import annotations

import pickle

import pytest

from weft import errors
from weft.errors import FrontendError, ScheduleError, UnsupportedError, WeftError, nearest

KINDS = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, WeftError)]


def test_the_form() -> None:
    error = WeftError("it failed", where="line one\nline two", why="it is broken", hint="mend it")
    assert str(error) == "it failed\n  line one\n  line two\n  why: it is broken\n  hint: mend it"


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


@pytest.mark.parametrize(("word", "expected"), [("lvm", "llvm"), ("LLVM", None), ("quantum", None), ("threads", "-threads")])
def test_nearest(word: str, expected: str | None) -> None:
    assert nearest(word, ["llvm", "cuda", "-threads"]) == expected


def test_nearest_of_nothing() -> None:
    assert nearest("x", []) is None
