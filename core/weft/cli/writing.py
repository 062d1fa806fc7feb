"""Files that commands write: refused before the work if they cannot be, and replaced only by what is complete."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from weft.errors import InputError
from weft_runtime.files import input_at, obstacle, obstacle_of_folder, replacing


def require_writable(outputs: Iterable[tuple[str, str | Path | None]], inputs: Iterable[str | Path] = ()) -> None:
    """Raises InputError if a file that a command is to write, each with the option that names it, cannot be written, as
    far as one can tell before it is, or is one of `inputs` or of the files before it, by whatever name."""
    read, before = list(map(Path, inputs)), list[tuple[str, Path]]()
    for option, name in outputs:
        if name is None:
            continue
        file = Path(name)
        why = obstacle(file)
        if why is None and (source := input_at(file, read)) is not None:
            why = f"'{source}' is read by this command, and nothing is written over what is read"
        if why is None and (other := next((o for o, f in before if _same(f, file)), None)) is not None:
            why = f"{other} writes that file, too"
        if why is not None:
            raise _refusal(str(name), why, option)
        before.append((option, file))


def _same(a: Path, b: Path) -> bool:
    """Whether the one takes the place of the other. A device, such as /dev/null, takes both."""
    if a.exists() and b.exists():
        return a.is_file() and a.samefile(b)
    return os.path.realpath(a) == os.path.realpath(b)


def files_of(model: str, frontend: str | None = None) -> list[Path]:
    """The files that a command reads of its MODEL: it, and what it refers to."""
    from weft.cli.opening import is_archive
    from weft.errors import FrontendError

    if is_archive(model):
        return [Path(model)]
    from weft.loading import model_files

    try:
        return list(model_files(model, frontend))
    except FrontendError:  # reading it says what is wrong with it
        return [Path(model)]


def require_folder(option: str, folder: str | Path | None) -> None:
    """Raises InputError if no files can be written into the folder of an option, which is made if it is not there."""
    why = None if folder is None else obstacle_of_folder(Path(folder))
    if why is not None:
        raise _refusal(str(folder), why, option)


def _refusal(what: str, why: str, option: str) -> InputError:
    return InputError(f"cannot write '{what}'", why=why, hint=f"give another {option}")


def write(file: str | Path, text: str) -> None:
    """Writes a text, in place of an old one or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with replacing(Path(file)) as sink:
            sink.write(text.encode())
    except OSError as error:
        raise InputError(
            f"cannot write '{file}'", why=obstacle(Path(file)) or error.strerror or str(error), hint="give another file"
        ) from None
