"""Compiled models as files of other formats, which plugins write."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import ExecutionError, InputError, nearest
from weft.plugins import Contribution, host
from weft_runtime.errors import expect, expect_path
from weft_runtime.executable import Executable
from weft_runtime.files import input_at, obstacle, replacing

if TYPE_CHECKING:
    from weft.hooks import Exporter, OnStage


def _contribution(name: str | None, path: Path) -> Contribution:
    known, clashes = host().named("exporters", "format")
    if name in clashes:
        raise clashes[name]
    if name is not None and name in known:
        return known[name]
    if name is None:
        fitting = [c for c in known.values() if c.value.suffix == path.suffix]
        if len(fitting) == 1:
            return fitting[0]
    lines = "\n".join(f"{n}: {c.value.about} ({c.value.suffix})" for n, c in sorted(known.items()))
    close = nearest(name, known) if name is not None else None
    raise InputError(
        f"no plugin writes the format '{name}'" if name is not None else f"the suffix of '{path}' names no format",
        where=lines or "no plugin that is installed writes any",
        hint=f"did you mean '{close}'?" if close else "name one with --format, or format=",
    )


def exporter(name: str | None, path: Path) -> Exporter:
    """The writer of a format, by its name or else by the suffix of the file.

    Raises:
        InputError: there is none, or the suffix is that of several; lists all.
        PluginError: two plugins claim it.
    """
    contribution = _contribution(name, path)
    found: Exporter = contribution.value
    if found.report is None:
        return found
    return replace(found, report=host().blamed(contribution, found.report, "to report what it wrote"))


def _check_options(chosen: Exporter, options: Mapping[str, str]) -> None:
    known = {o.name: o for o in chosen.options}
    for name, value in options.items():
        if name not in known:
            close = nearest(name, known)
            raise InputError(
                f"the format '{chosen.name}' has no option '{name}'",
                where="\n".join(f"{o.name}: {o.about}" for o in chosen.options) or "it has none",
                hint=f"did you mean '{close}'?" if close else None,
            )
        if not isinstance(value, str) or (known[name].values and value not in known[name].values):
            raise InputError(
                f"the option '{name}' of the format '{chosen.name}' has no value {value!r}",
                hint=f"it is one of {', '.join(known[name].values)}" if known[name].values else "give a string",
            )


def export(
    model: Any,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    target: str | None = None,
    options: Mapping[str, str] | None = None,
    frontend: str | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    records: str | os.PathLike[str] | None = None,
    on_stage: OnStage | None = None,
) -> Executable:
    """Writes a model as one self-contained file: code, weights and plan. Every file is written whole or not at all.

    Args:
        model: what `weft.compile` takes, or an Executable.
        path: the file. A format that has more files (a header) writes them beside it.
        format: e.g. "wasm"; by default that of the file's suffix.
        target: what to compile for; by default the format's own. Not for an Executable, which is compiled.
        options: of the format.
        frontend, input_shapes, records, on_stage: as those of `weft.compile`. Not for an Executable.

    Returns:
        The executable that was written.

    Raises:
        InputError: no plugin writes the format, it has no such option, or the model is written over.
        ExecutionError: a file cannot be written.
        UnsupportedError: the format cannot hold a part of the model; says which and why.
        TargetError: the format is of another machine than the executable.
        PluginError: the plugin that writes the format failed.
    """
    from weft.pipeline import compile

    place = expect_path(path, "the file of an export", InputError)
    expect(format, (str, type(None)), "format", "the name of a format", hint='for example "wasm"')
    contribution = _contribution(format, place)
    chosen: Exporter = contribution.value
    given = dict(options or {})
    _check_options(chosen, given)
    _require_free(place, [Path(model)] if isinstance(model, (str, os.PathLike)) else [])
    doing = f"to write the format '{chosen.name}'"
    if isinstance(model, Executable):
        executable = model
        others = {
            "target": target, "frontend": frontend, "input_shapes": input_shapes, "records": records,
            "on_stage": on_stage,
        }  # fmt: skip
        for name, value in others.items():
            if value is not None:
                raise InputError(f"an executable is compiled already, `{name}` does not apply", hint="give the model")
    else:
        if target is None:
            with host().blame(contribution.plugin.name, doing):
                target = chosen.target if isinstance(chosen.target, str) else chosen.target(given)
        executable = compile(
            model, target, frontend=frontend, input_shapes=input_shapes, records=records, on_stage=on_stage
        )
    with host().blame(contribution.plugin.name, doing):
        contents = {suffix: iter(parts) for suffix, parts in chosen.files(executable, place.stem, given).items()}
    places = {suffix: place if suffix == chosen.suffix else place.with_suffix(suffix) for suffix in contents}
    if len(set(places.values())) < len(places):
        raise InputError(
            f"cannot write {place}",
            why=f"the format '{chosen.name}' writes {', '.join(contents)}, two of them would be this file",
            hint=f"give it the suffix {chosen.suffix}",
        )
    for one in places.values():
        _require_free(one, executable.sources)
    _write(contents, places, contribution, doing)
    return executable


def _write(
    contents: Mapping[str, Iterator[bytes | memoryview]],
    places: Mapping[str, Path],
    contribution: Contribution,
    doing: str,
) -> None:
    """Every file takes its place when all are complete."""
    place = ""
    try:
        with ExitStack() as opened:
            for suffix, parts in contents.items():
                place = str(places[suffix])
                file = opened.enter_context(replacing(places[suffix]))
                while True:
                    with host().blame(contribution.plugin.name, doing):
                        part = next(parts, None)
                    if part is None:
                        break
                    file.write(part)
    except OSError as error:
        raise ExecutionError(f"cannot write {place}", why=error.strerror or str(error)) from error


def _require_free(place: Path, read: Sequence[Path]) -> None:
    """Raises unless a file can be written there and is none that the model was read from."""
    why = obstacle(place)
    if why is not None:
        raise ExecutionError(f"cannot write {place}", why=why)
    if input_at(place, read) is not None:
        raise InputError(f"cannot write {place}", why="the model was read from it", hint="give another name")


__all__ = ["export", "exporter"]
