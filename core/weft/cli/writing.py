"""Files that commands write: refused before the work if they cannot be, and replaced only by what is complete."""

from __future__ import annotations

from pathlib import Path

from weft.errors import InputError
from weft.runtime.files import obstacle, obstacle_of_folder, replacing


def require_writable(option: str, file: str | Path | None) -> None:
    """Raises InputError if the file of an option cannot be written, as far as one can tell before it is."""
    why = None if file is None else obstacle(Path(file))
    if why is not None:
        raise _refusal(str(file), why, option)


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
