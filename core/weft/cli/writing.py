"""Files that commands write: refused before the work if they cannot be, and replaced only by what is complete."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from weft.errors import InputError
from weft.runtime.files import input_at, obstacle, obstacle_of_folder, replacing


def require_writable(option: str, file: str | Path | None, inputs: Iterable[str | Path] = ()) -> None:
    """Raises InputError if the file of an option cannot be written, as far as one can tell before it is, or is one of `inputs`, by whatever name."""
    why = None if file is None else obstacle(Path(file))
    if file is not None and why is None:
        source = input_at(Path(file), map(Path, inputs))
        why = None if source is None else f"'{source}' is read by this command, and nothing is written over what is read"
    if why is not None:
        raise _refusal(str(file), why, option)


def files_of(model: str, frontend: str | None = None) -> list[Path]:
    """The files that a command reads of its MODEL: it, and what it refers to."""
    from weft.cli.opening import is_archive
    from weft.errors import FrontendError

    if is_archive(model):
        return [Path(model)]
    from weft.pipeline import model_files

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
        raise InputError(f"cannot write '{file}'", why=obstacle(Path(file)) or error.strerror or str(error), hint="give another file") from None
