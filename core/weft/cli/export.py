"""`weft export`: a model to one self-contained file of another format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.arguments import FrontendOption, Model, RecordsOption, ShapeOption, shapes
from weft.cli.terminal import say
from weft.cli.writing import files_of, require_writable
from weft.errors import InputError


def export_model(
    context: typer.Context,
    model: Model,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format", "-f", metavar="NAME", help="What to write, e.g. wasm [default: by the suffix of the file]."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="The target to compile for [default: the format's own]."),
    ] = None,
    input_shape: ShapeOption = None,
    frontend: FrontendOption = None,
    records: RecordsOption = None,
    report: Annotated[bool, typer.Option("--report", help="Prints figures of what was written.")] = False,
) -> None:
    """Writes a model as one self-contained file: code, weights and plan.

    The formats are those of plugins; `weft plugins` lists them, with their options: --NAME VALUE. No compiler,
    linker or other tool is needed. MODEL may be an archive that was compiled for the machine of the format.
    """
    from weft.cli.opening import is_archive, not_of_archives
    from weft.cli.terminal import Progress, brief, size
    from weft.cli.terminal import seconds as shown
    from weft.exporting import export, exporter
    from weft_runtime.executable import Executable

    require_writable(
        [("--output", output)], [*files_of(model, frontend), *([] if records is None else [Path(records)])]
    )
    chosen = exporter(format, Path(output))
    options = _options(context.args)
    started = time.perf_counter()
    if is_archive(model):
        given = {"--target": target, "--frontend": frontend, "--input-shape": input_shape, "--records": records}
        not_of_archives(model, **given)
        executable = export(Executable.open(model), output, chosen.name, options=options)
    else:
        with Progress(f"compiling {Path(model).name}") as progress:
            executable = export(
                model, output, chosen.name, target=target, options=options, frontend=frontend,
                input_shapes=shapes(input_shape) or None, records=records, on_stage=progress.on_stage,
            )  # fmt: skip
    say(
        f"{executable.manifest.name}: written in {shown(time.perf_counter() - started)} for"
        f" {brief(executable.manifest.target)}"
    )
    code = sum(s.bytes for s in executable.manifest.sections.values())
    say(f"{output}: {size(Path(output).stat().st_size)}, code {size(code)}")
    if report and chosen.report is not None:
        rows = chosen.report(executable, options)
        width = max((len(name) for name, _ in rows), default=0)
        for name, figure in rows:
            say(f"  {name:{width}}  {figure}")


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options of the format, from `--NAME VALUE` and `--NAME=VALUE`."""
    found: dict[str, str] = {}
    left = iter(words)
    for word in left:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise InputError(f"unexpected argument '{word}'", hint="options of a format are --NAME VALUE")
        given = value if equals else next(left, None)
        if given is None:
            raise InputError(f"the option --{name} needs a value")
        found[name] = given
    return found
