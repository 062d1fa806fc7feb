"""Options that several commands share, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from weft.errors import InputError, TargetError

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or an archive written by `weft compile`.")]


def _named(target: str | None) -> str | None:
    """An empty text is most often a variable that is not set: no target, and not the default one."""
    if target is not None and not target.strip(" ,"):
        raise TargetError("--target names no target", hint="leave it out for this machine, or see `weft targets`")
    return target


TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        callback=_named,
        help=(
            'The target to compile for, e.g. "llvm -mcpu=znver4 -threads=2", or several, preferred first, separated by'
            " commas [default: llvm]."
        ),
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--input-shape", metavar="NAME=1,3,224,224", help="The shape of an input; may be repeated."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="With several targets: fail if the first does not take the whole model.")
]
FrontendOption = Annotated[
    str | None,
    typer.Option(
        "--frontend",
        help=(
            'The frontend that reads the model, or options for it, e.g. "onnx -dims=batch=4" or "-dims=n=4" [default:'
            " by the file]."
        ),
    ),
]
RecordsOption = Annotated[
    str | None,
    typer.Option("--records", metavar="FILE", help="File of choices, as `weft inspect --stage records` prints them."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random inputs.")]


def named(option: str, texts: Sequence[str] | None, example: str) -> dict[str, str]:
    """The name=value pairs of a repeated option.

    Raises:
        InputError: one that is no pair, or a name given twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        # Names of inputs may hold '=' themselves; values never do but for paths.
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise InputError(f"{option} takes NAME=VALUE, got '{text}'", hint=f"for example {option} {example}")
        if name in found:
            raise InputError(f"{option} names '{name}' twice")
        found[name] = value
    return found


def shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """The sizes of `--input-shape`.

    Raises:
        InputError: not a list of sizes.
    """
    found = {}
    for name, value in named("--input-shape", texts, "x=1,3,224,224").items():
        try:
            sizes = tuple(int(part) for part in value.strip("[]()").replace("x", ",").split(",") if part.strip())
        except ValueError:
            sizes = (-1,)
        if any(d < 0 for d in sizes):
            raise InputError(
                f"--input-shape gives '{name}' the sizes '{value}', which are no list of numbers",
                hint="for example --input-shape x=1,3,224,224",
            )
        found[name] = sizes
    return found
