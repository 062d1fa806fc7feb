"""Options of targets and frontends: what a field may be, from text and from Python, and what is said of the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from weft.errors import FrontendError, TargetError
from weft.options import NoOptions, make_options, misdeclared_options, parse_options, print_options


@dataclass(frozen=True)
class Options:
    size: int = 1
    scale: float = 0.5
    fast: bool = False
    mode: Literal["speed", "size"] = "speed"
    names: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    weights: str | os.PathLike[str] | bytes | None = None
    array: bytes | None = None

    def __post_init__(self) -> None:
        if self.size > 9:
            raise ValueError(f"size is at most 9, got {self.size}")


def parse(*words: str) -> Any:
    return parse_options(Options, words, "frontend 'f'", " ".join(("f", *words)), FrontendError)


def make(**values: Any) -> Any:
    return make_options(Options, values, "frontend 'f'", FrontendError)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], Options()),
        (["-size=2", "-fast", "-scale=3"], Options(size=2, fast=True, scale=3.0)),
        (["-dims=batch=4,a=b=2"], Options(dims={"batch": 4, "a=b": 2})),
        (["-names=x,y", "-mode=size"], Options(names=("x", "y"), mode="size")),
        (["-weights=a b"], Options(weights="a b")),
    ],
)
def test_text_and_back(words: list[str], options: Options) -> None:
    import shlex

    assert parse(*words) == options
    assert parse(*shlex.split(" ".join(print_options(options)))) == options


def test_python_gives_what_no_text_can() -> None:
    assert make(weights=Path("w"), array=b"x", dims={"n": 1}, scale=2) == Options(
        weights=Path("w"), array=b"x", dims={"n": 1}, scale=2
    )
    assert make(weights=None) == Options()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-sise=2"], "frontend 'f' has no option '-sise'\n  f -sise=2\n  hint: did you mean '-size'?"),
        (["-dims=batch"], "option '-dims' takes name=value,…, got 'batch'\n  f -dims=batch"),
        (["-dims=batch=many"], "option '-dims' takes an integer, got 'many'\n  f -dims=batch=many"),
        (["-array=x"], "option '-array' takes bytes, which cannot be written, got 'x'\n  f -array=x"),
        (["-size"], "option '-size' needs a value\n  f -size\n  hint: write -size=value"),
        (["-size=10"], "frontend 'f' has no such options\n  f -size=10\n  why: size is at most 9, got 10"),
        (
            ["size=1"],
            (
                "expected an option, got 'size=1'\n  f size=1\n  hint: options are written -name=value; 'f' has -size,"
                " -scale, -fast, -mode"
            ),
        ),
    ],
)
def test_text_that_does_not_fit(words: list[str], said: str) -> None:
    with pytest.raises(FrontendError) as caught:
        parse(*words)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sise": 2}, "frontend 'f' has no option 'sise'\n  hint: did you mean 'size'?"),
        ({"size": "2"}, "option 'size' of frontend 'f' takes an integer, got '2'"),
        ({"size": True}, "option 'size' of frontend 'f' takes an integer, got True"),
        ({"size": None}, "option 'size' of frontend 'f' takes an integer, got None"),
        ({"mode": "fast"}, "option 'mode' of frontend 'f' takes one of speed, size, got 'fast'"),
        (
            {"dims": {"n": "4"}},
            "option 'dims' of frontend 'f' takes a mapping from names, each value an integer, got {'n': '4'}",
        ),
        ({"names": ["x"]}, "option 'names' of frontend 'f' takes a tuple, each element a text, got ['x']"),
        ({"weights": 1}, "option 'weights' of frontend 'f' takes a text or PathLike or bytes, got 1"),
        ({"array": "x" * 99}, "option 'array' of frontend 'f' takes bytes, got a str"),
        ({"size": 10}, "frontend 'f' has no such options\n  why: size is at most 9, got 10"),
    ],
)
def test_values_that_do_not_fit(values: dict[str, Any], said: str) -> None:
    with pytest.raises(FrontendError) as caught:
        make(**values)
    assert str(caught.value) == said


def test_what_has_no_options_says_so() -> None:
    with pytest.raises(TargetError, match="target 't' has no option '-x'\n  t -x\n  hint: 't' has no options"):
        parse_options(NoOptions, ["-x"], "target 't'", "t -x", TargetError)


def test_options_are_a_frozen_dataclass() -> None:
    @dataclass
    class Thawed:
        size: int = 1

    @dataclass(frozen=True)
    class Unknown:
        size: Sise = 1  # type: ignore[name-defined] # noqa: F821

    assert misdeclared_options(Unknown) == "have annotations that cannot be read: name 'Sise' is not defined"
    assert misdeclared_options(Options) is None
    assert misdeclared_options(Thawed) == "are not frozen: write @dataclass(frozen=True)"
    assert misdeclared_options(dict) == "are the class dict: they are a frozen dataclass"
    assert misdeclared_options(None) == "are None: they are a frozen dataclass"
