"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when it is complete: readers see the old one or the new one, and
    a failure leaves the old one alone.

    A link stays a link. What is no file (a device, a pipe) is written itself, as nothing may take its place.

    Args:
        durable: not before it is on the disk.

    Raises:
        OSError: it cannot be written.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        with open(place, "wb") as file:
            yield file
        return
    temporary = None
    candidate = place.parent / f".{place.name[:100]}.{secrets.token_hex(8)}.tmp"
    try:
        with open(
            candidate, "x+b"
        ) as file:  # with the permissions of any new file; tempfile's would be the owner's alone
            temporary = candidate
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(candidate, place)
        temporary = None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def obstacle(path: Path) -> str | None:
    """Why no file can be written at a path, as far as one can tell before it is done; None if nothing speaks against
    it."""
    place = Path(os.path.realpath(path))
    if place.is_dir():
        return f"'{path}' is a folder"
    if place.exists():
        return None if os.access(place, os.W_OK) else f"'{path}' may not be written"
    return obstacle_of_folder(path.parent) if path.parent.exists() else f"there is no folder '{path.parent}'"


def obstacle_of_folder(folder: Path) -> str | None:
    """Why no file can be made in a folder, which may be one that has to be made first; None if nothing speaks against
    it."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"'{there}' is no folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"nothing may be written into '{there}'"


def input_at(path: Path, inputs: Iterable[Path]) -> Path | None:
    """The first of `inputs` that is the file at `path`, by whatever name or link; None if no input would be written
    over."""
    for file in inputs:
        with contextlib.suppress(OSError):  # one of them is not there
            if os.path.samefile(path, file):
                return file
    return None
