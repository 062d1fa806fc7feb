"""Compiled models as files of other formats, which plugins write."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import ExecutionError, InputError, nearest
from weft.plugins import host
from weft_runtime.errors import expect, expect_path
from weft_runtime.executable import Executable
from weft_runtime.files import input_at, obstacle, replacing

if TYPE_CHECKING:
    from weft.hooks import Exporter, OnStage


def exporters() -> dict[str, Exporter]:
    """Every format by name, but those that two plugins claim."""
    return {name: item.value for name, item in host().named("exporters", "format")[0].items()}


def exporter(name: str | None, path: Path) -> Exporter:
    """The writer of a format, by its name or else by the suffix of the file.

    Raises:
        InputError: there is none; lists all.
        PluginError: two plugins claim it.
    """
    known, clashes = host().named("exporters", "format")
    if name in clashes:
        raise clashes[name]
    every: dict[str, Exporter] = {n: item.value for n, item in known.items()}
    if name is not None and name in every:
        return every[name]
    if name is None:
        fitting = [e for e in every.values() if e.suffix == path.suffix]
        if len(fitting) == 1:
            return next(iter(fitting))
    lines = "\n".join(f"{n}: {e.about} ({e.suffix})" for n, e in sorted(every.items()))
    close = nearest(name, every) if name is not None else None
    raise InputError(
        f"no plugin writes the format '{name}'" if name is not None else f"the suffix of '{path}' names no format",
        where=lines or "no plugin that is installed writes any",
        hint=f"did you mean '{close}'?" if close else "name one with --format, or format=",
    )


def export(
    model: Any,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    target: str | None = None,
    frontend: str | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    records: str | os.PathLike[str] | None = None,
    on_stage: OnStage | None = None,
) -> Executable:
    """Writes a model as one self-contained file: code, weights and plan. The file is written whole or not at all.

    Args:
        model: what `weft.compile` takes, or an Executable.
        path: the file.
        format: e.g. "wasm"; by default that of the file's suffix.
        target: what to compile for; by default the format's own. Not for an Executable, which is compiled.
        frontend, input_shapes, records, on_stage: as those of `weft.compile`.

    Returns:
        The executable that was written.

    Raises:
        InputError: no plugin writes the format, or the model is written over.
        ExecutionError: the file cannot be written.
        UnsupportedError: the format cannot hold a part of the model; says which and why.
        TargetError: the format is of another machine than the executable.
    """
    from weft.pipeline import compile

    place = expect_path(path, "the file of an export", InputError)
    expect(format, (str, type(None)), "format", "the name of a format", hint='for example "wasm"')
    chosen = exporter(format, place)
    why = obstacle(place)
    if why is not None:
        raise ExecutionError(f"cannot write {place}", why=why)
    if isinstance(model, Executable):
        executable = model
        if target is not None:
            raise InputError("an executable is compiled already, `target` does not apply", hint="give the model")
    else:
        executable = compile(
            model, target or chosen.target, frontend=frontend, input_shapes=input_shapes, records=records,
            on_stage=on_stage,
        )  # fmt: skip
    read = [*executable.sources, *([Path(model)] if isinstance(model, (str, os.PathLike)) else [])]
    source = input_at(place, read)
    if source is not None:
        raise InputError(f"cannot write {place}", why="the model was read from it", hint="give another name")
    parts = iter(chosen.parts(executable))
    try:
        with replacing(place) as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise ExecutionError(f"cannot write {place}", why=error.strerror or str(error)) from error
    return executable


__all__ = ["export", "exporter", "exporters"]
