"""What goes wrong."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The kind of an error; the numbers are those of weft.h."""

    ARGUMENT = 1
    """A name of a tensor, or a path where none is taken."""
    INPUT = 2
    """An input of another dtype, rank, size or device."""
    OUTPUT = 3
    """Storage for an output that does not fit."""
    MEMORY = 4
    FILE = 5
    """A file cannot be read, or a library loaded."""
    ARCHIVE = 6
    """No archive, or one that is damaged, cut short, or not the expected one."""
    VERSION = 7
    """Written by another version of Weft."""
    MACHINE = 8
    """Compiled for another architecture, or a processor with more instructions."""
    UNSUPPORTED = 9
    """A step of the model runs where weft_runtime is: strings, pictures, other devices."""
    RUN = 10
    """The run itself failed."""
    SYSTEM = 11
    """The system refuses: executable memory is forbidden, for example."""


class WeftError(Exception):
    """What went wrong.

    Args:
        code: its kind.
        message: what, then lines "where: ", "why: ", "hint: " as far as they are known.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return self.message
