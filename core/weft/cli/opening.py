"""From the file that a command is given to an executable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import InputError

if TYPE_CHECKING:
    from weft_runtime.executable import Executable

SUFFIX = ".weft"


def is_archive(path: str) -> bool:
    """Whether a file is there and a saved executable, by its name or its first bytes. Several model formats are zips:
    theirs hold no plan at the front, or, as older archives, no manifest."""
    if path.endswith(SUFFIX):
        return Path(path).is_file()
    try:
        if not Path(path).is_file():
            return False  # to open a pipe would wait for who writes into it
        with Path(path).open("rb") as file:
            head = file.read(68)
    except OSError:
        return False
    return head[:4] == b"PK\3\4" and (head[64:68] == b"weft" or head[30:43] == b"manifest.json")


def not_of_archives(model: str, **options: object) -> None:
    """Raises InputError if one of the options, by name, is given: None is one that is not."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InputError(
            f"{model} is compiled already, {given[0]} does not apply", hint="give the model that it was compiled from"
        )


def open_executable(
    model: str,
    target: str | None = None,
    *,
    frontend: str | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    strict: bool = False,
    expect: str | None = None,
    records: str | None = None,
    tuned: bool = False,
) -> tuple[Executable, dict[str, float]]:
    """An archive loaded or a model compiled, with progress; and the seconds that its stages took ("cache" alone: it
    came from the cache).

    Args:
        expect: "sha256:<hex>" of an archive.
        records: a file of choices to follow.
        tuned: that nothing is recorded of the model is an error.

    Raises:
        InputError: a target, frontend, shapes or records for an archive, which is compiled already; `expect` for a
            model.
    """
    from weft.cli.terminal import Progress

    if is_archive(model):
        given = {
            "--target": target,
            "--frontend": frontend,
            "--input-shape": input_shapes,
            "--strict": strict or None,
            "--records": records,
        }
        not_of_archives(model, **given)
        from weft_runtime.executable import Executable

        return Executable.load(model, expect), {}
    if expect is not None:
        raise InputError(f"{model} is no archive, --expect does not apply", hint="`weft compile` writes archives")
    from weft.pipeline import compile

    with Progress(f"compiling {Path(model).name}") as progress:
        executable = compile(
            model,
            target or "llvm",
            on_stage=progress.on_stage,
            frontend=frontend,
            input_shapes=input_shapes,
            strict=strict,
            records=records,
            tuned=tuned,
        )
    return executable, progress.seconds
