"""`weft compile`: a model to an archive."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.arguments import FrontendOption, Model, RecordsOption, ShapeOption, StrictOption, TargetOption, shapes
from weft.cli.terminal import say
from weft.cli.writing import files_of, require_writable


def compile_model(
    model: Model,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The archive to write, usually named .weft.")
    ],
    target: TargetOption = None,
    strict: StrictOption = False,
    input_shape: ShapeOption = None,
    frontend: FrontendOption = None,
    records: RecordsOption = None,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Refuse to compile unless `weft tune` has recorded something of the model.")
    ] = False,
) -> None:
    """Compiles a model to an archive.

    The archive runs without the compiler. --input-shape fixes shapes, which may make it faster.

    An archive holds machine code: run only archives that you trust. `weft run --expect` takes the sha256 of the file,
    as sha256sum prints it.
    """
    from weft.cli.opening import is_archive, open_executable
    from weft.cli.terminal import brief, size
    from weft.cli.terminal import seconds as shown
    from weft.errors import InputError

    require_writable(
        [("--output", output)], [*files_of(model, frontend), *([] if records is None else [Path(records)])]
    )
    if is_archive(model):
        raise InputError(f"{model} is compiled already", hint="give the model that it was compiled from")
    started = time.perf_counter()
    sizes = shapes(input_shape) or None
    executable, stages = open_executable(
        model, target, frontend=frontend, input_shapes=sizes, strict=strict, records=records, tuned=tuned
    )
    executable.save(output)
    how = "compiled" if "fuse" in stages else "taken from the cache"
    say(
        f"{executable.manifest.name}: {how} in {shown(time.perf_counter() - started)} for"
        f" {brief(executable.manifest.target)}"
    )
    say(f"{output}: {size(Path(output).stat().st_size)}, {len(executable.manifest.constants)} constants")
    say(f"run it with: weft run {output}")
