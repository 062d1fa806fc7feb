"""`weft export`: a model to one self-contained file of another format."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.arguments import FrontendOption, Model, RecordsOption, ShapeOption, shapes
from weft.cli.terminal import say
from weft.cli.writing import files_of, require_writable


def export_model(
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
) -> None:
    """Writes a model as one self-contained file: code, weights and plan.

    The formats are those of plugins; `weft plugins -v` lists them. No compiler, linker or other tool is needed.
    MODEL may be an archive that was compiled for the machine of the format.
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
    started = time.perf_counter()
    if is_archive(model):
        given = {"--target": target, "--frontend": frontend, "--input-shape": input_shape, "--records": records}
        not_of_archives(model, **given)
        executable = export(Executable.open(model), output, chosen.name)
    else:
        with Progress(f"compiling {Path(model).name}") as progress:
            executable = export(
                model, output, chosen.name, target=target, frontend=frontend, input_shapes=shapes(input_shape) or None,
                records=records, on_stage=progress.on_stage,
            )  # fmt: skip
    say(
        f"{executable.manifest.name}: written in {shown(time.perf_counter() - started)} for"
        f" {brief(executable.manifest.target)}"
    )
    code = sum(s.bytes for s in executable.manifest.sections.values())
    say(f"{output}: {size(Path(output).stat().st_size)}, code {size(code)}")
