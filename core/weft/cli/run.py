"""`weft run`: a model or an archive, once."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.arguments import (
    FrontendOption,
    Model,
    RecordsOption,
    SeedOption,
    ShapeOption,
    StrictOption,
    TargetOption,
    named,
    shapes,
)
from weft.cli.terminal import say
from weft.cli.writing import files_of, require_folder, require_writable
from weft.errors import InputError
from weft_runtime.files import obstacle_of_folder, replacing

if TYPE_CHECKING:
    import numpy as np


def run(
    model: Model,
    target: TargetOption = None,
    strict: StrictOption = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=FILE.npy", help="File of an input; inputs without one are random."),
    ] = None,
    output_dir: Annotated[
        str | None, typer.Option("--output-dir", "-d", help="Directory for the outputs, one .npy file each.")
    ] = None,
    input_shape: ShapeOption = None,
    frontend: FrontendOption = None,
    records: RecordsOption = None,
    seed: SeedOption = 0,
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="sha256:HEX", help="Refuse an archive with another hash.")
    ] = None,
) -> None:
    """Runs a model or an archive once.

    An archive holds machine code, which runs with your rights: run only archives that you trust. The hashes in an
    archive detect damage, not malice;
    --expect accepts only the file with that hash.
    """
    from weft.cli.inputs import make_inputs
    from weft.cli.opening import open_executable
    from weft.cli.terminal import brief, print_table
    from weft.cli.terminal import seconds as shown

    files, sizes = named("--input", inputs, "x=x.npy"), shapes(input_shape)
    require_folder("--output-dir", output_dir)
    started = time.perf_counter()
    executable, stages = open_executable(
        model, target, frontend=frontend, strict=strict, expect=expect, records=records
    )
    opened = time.perf_counter() - started
    arrays, origins = make_inputs(executable.inputs, files, sizes, seed)
    started = time.perf_counter()
    outputs = executable.run(arrays)
    ran = time.perf_counter() - started
    # Before anything is printed: who reads the report may stop reading, as head does.
    read = [*files_of(model, frontend), *map(Path, files.values())]
    written = write_arrays(outputs, Path(output_dir), read) if output_dir is not None else {}
    how = "loaded" if not stages else "taken from the cache" if "fuse" not in stages else "compiled"
    say(
        f"{executable.manifest.name}: {how} in {shown(opened)}, ran in {shown(ran)} on"
        f" {brief(executable.manifest.target)}"
    )
    print_table("", ["input", "type", "from"], [(n, _type(a), origins[n]) for n, a in arrays.items()])
    print_table(
        "",
        ["output", "type", "min", "mean", "max"],
        [(n, _type(a), *_summary(a)) for n, a in outputs.items()],
        right=(2, 3, 4),
    )
    for name, file in written.items():
        say(f"{name} → {file}")


def _type(value: Any) -> str:
    """Of a tensor, a sequence, or an optional, which is None where it has no element."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"sequence of {len(value)}" + (f": {', '.join(dict.fromkeys(map(_type, value)))}" if value else "")
    return f"{'string' if _is_text(value) else value.dtype}[{', '.join(map(str, value.shape))}]"


def _is_text(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "OSTU"


def _summary(array: Any) -> tuple[str, str, str]:
    if array is None or isinstance(array, list) or array.size == 0 or array.dtype.kind == "c" or _is_text(array):
        return "", "", ""
    wide = array.astype("float64")
    return f"{wide.min():.6g}", f"{wide.mean():.6g}", f"{wide.max():.6g}"


LONGEST = 60
"""Characters of a file's name: file systems take 255 bytes, and a character has up to four."""


def write_arrays(values: Mapping[str, Any], folder: Path, inputs: Sequence[Path] = ()) -> dict[str, Path]:
    """One .npy file per array, named like it as far as file systems allow; of a sequence one per element, of an
    optional without one none.

    Args:
        inputs: files that the command reads.

    Raises:
        InputError: the folder cannot be written, or a file would take the place of one of `inputs`. Nothing is written
            then.
    """
    import numpy as np

    arrays = dict(_flat(values))
    written: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in arrays:
            base = re.sub(r"[^\w.\-]", "_", name).lstrip(".")[:LONGEST] or "output"
            taken = {p.name for p in written.values()}
            file = next(
                f for f in (f"{base}{'' if k == 0 else f'_{k}'}.npy" for k in range(len(arrays) + 1)) if f not in taken
            )
            written[name] = folder / file
        require_writable([("--output-dir", file) for file in written.values()], inputs)
        for name, array in arrays.items():
            with replacing(written[name]) as sink:
                np.save(
                    sink, array.astype(np.str_) if _is_text(array) else array
                )  # strings of objects would be a pickle, which nobody should have to trust
    except OSError as error:
        raise InputError(
            f"cannot write outputs to '{folder}'",
            why=obstacle_of_folder(folder) or error.strerror or str(error),
            hint="give another --output-dir",
        ) from None
    return written


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Tensors with their names: elements of sequences have a number behind theirs."""
    for name, value in values.items():
        if isinstance(value, list):
            yield from _flat({f"{name}.{k}": element for k, element in enumerate(value)})
        elif value is not None:
            yield name, value
