"""The one form of every error: what happened, where, why, and a hint."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class WeftError(Exception):
    """Base of all errors that Weft raises on purpose.

    Args:
        what: one sentence: what was attempted and failed.
        where: the place: a node, a file, a program excerpt (may span lines).
        why: the reason, if `what` does not already give it.
        hint: what the reader can do next.
    """

    def __init__(self, what: str, *, where: str | None = None, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.hint = what, None if where is None else str(where), why, hint

    def __str__(self) -> str:
        lines = [shown(self.what)]
        if self.where:
            # A line break of a name does not make a part of its own: what looks like one stands further in.
            lines += [
                ("    " if line.startswith(("why:", "hint:")) else "  ") + shown(line)
                for line in self.where.rstrip("\n").split("\n")
            ]
        for label, text in (("  why: ", self.why), ("  hint: ", self.hint)):
            if text:
                first, *more = shown_lines(_shortened(str(text).rstrip("\n"))).split("\n")
                lines += [label + first, *(" " * len(label) + line for line in more)]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.why, self.hint))


def _rebuild(cls: type[WeftError], what: str, where: str | None, why: str | None, hint: str | None) -> WeftError:
    return cls(what, where=where, why=why, hint=hint)


class ExprError(WeftError):
    """An ill-typed scalar formula, or an element type that does not exist."""


class CacheWarning(UserWarning):
    """The cache on disk keeps nothing, for the reason given: results are right, the next compilation takes as long."""


class InputError(WeftError):
    """An argument of a run that does not fit the executable."""


class ExecutionError(WeftError):
    """A run that failed."""


class ArchiveError(WeftError):
    """A saved executable that cannot be read, trusted or run here."""


class SettingError(WeftError):
    """An environment variable with a value that cannot be used."""


@contextmanager
def enough_memory(doing: str) -> Iterator[None]:
    """Also a decorator. What runs out of memory, or of threads, is an error that says what was being done.

    Raises:
        ExecutionError: a MemoryError was raised, or a thread could not be started.
    """
    try:
        yield
    except RuntimeError as error:
        if not no_thread(error):
            raise
        hint = "end other processes, or allow more: ulimit -u, the pids.max of the process's control group"
        raise ExecutionError(f"there is no thread left {doing}", why=str(error), hint=hint) from error
    except MemoryError as error:
        raise ExecutionError(
            f"there is not enough memory {doing}", why=str(error) or None, hint="give smaller sizes, or more memory"
        ) from error


def no_thread(error: BaseException) -> bool:
    """Whether it is what Python raises where the system gives no more threads."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


def expect(
    value: object,
    kinds: type | tuple[type, ...],
    what: str,
    wanted: str,
    error: type[WeftError] = InputError,
    hint: str | None = None,
) -> None:
    """That an argument of a public function is of one of `kinds`.

    Args:
        what: the argument is called in the error, `wanted` what it should be.

    Raises:
        error: it is of another type.
    """
    if not isinstance(value, kinds):
        raise error(f"{what} is {wanted}, got {type(value).__name__}", hint=hint)


def expect_path(value: object, what: str, error: type[WeftError]) -> Path:
    """The path that an argument gives.

    Raises:
        error: it is none.
    """
    expect(value, (str, os.PathLike), what, "a path", error, 'a str or pathlib.Path, for example "model.weft"')
    path = os.fspath(value)  # type: ignore[call-overload]  # `expect` has looked at it
    expect(path, str, what, "a path of text", error)
    if not path or "\0" in path:
        raise error(f"{what} is no path: {shown(repr(path), 80)}", hint='for example "model.weft"')
    return Path(path)


def shown(text: object, most: int = 4000) -> str:
    """A text of one line that may hold names from a model or a file, safe for a terminal: what cannot be printed, or
    acts on a terminal or on the direction of writing, stands as an escape of JSON (`\\u001b`, `\\n`, `\\u202e`); of
    more than `most` characters the middle is left out.
    """
    text = _shortened(str(text), most)
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _shortened(text: str, most: int = 4000) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - most // 2 :]}"


def shown_lines(text: object) -> str:
    """A text of several lines, each as `shown`, of any length."""
    return "\n".join(shown(line, len(line)) for line in str(text).split("\n"))


def literal(text: object) -> str:
    """A text that stands in a template for itself: `fill` reads nothing in it."""
    return str(text).replace("{", "{{").replace("}", "}}")


def fill(template: str, args: Sequence[object]) -> str:
    """A template with `{0}` … `{7}` replaced and doubled braces made single; never `str.format`, whose fields reach
    into objects."""

    def one(match: re.Match[str]) -> str:
        word = match[0]
        return word[0] if len(word) == 2 else str(args[int(word[1])]) if int(word[1]) < len(args) else word

    return re.sub(r"\{\{|\}\}|\{[0-7]\}", one, template)


def nearest(word: str, known: Iterable[object]) -> str | None:
    """The entry of `known` (as text) closest to `word`, if any is close."""
    import difflib

    close = difflib.get_close_matches(word, [str(k) for k in known], n=1, cutoff=0.5)
    return close[0] if close else None


def from_signal(error: BaseException) -> bool:
    """Whether a handler of signals raised it, in the middle of what was being done: a time limit, or the end of the
    program. It is nobody's failure."""
    handlers = [getattr(h, "func", h) for h in map(signal.getsignal, signal.valid_signals()) if callable(h)]
    codes = {getattr(h, "__code__", None) or getattr(type(h).__call__, "__code__", None) for h in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def raised_in(error: BaseException, package: str = "") -> str | None:
    """Where foreign code was when it raised: "in weft_quilt/codegen.py:234", the innermost line of its own.

    Args:
        package: the code's top-level package; without it, or if no line is in it, the innermost that is neither Weft's,
            Python's nor numpy's.
    """
    lines = []  # (top-level package, file, line)
    for text in re.findall(
        r'File "([^"]+)", line (\d+)', str(error.__cause__)
    ):  # of another process, where only the text of the way came from
        lines.append((package if f"/{package}/" in Path(text[0]).as_posix() else "", *text))
    for frame, line in traceback.walk_tb(error.__traceback__):
        lines.append((str(frame.f_globals.get("__name__", "")).partition(".")[0], frame.f_code.co_filename, str(line)))
    known = {
        "",
        "weft",
        "weft_runtime",
        "weft_ops",
        "weft_testing",
        "weft_c_family",
        "weft_interpreter",
        "weft_queues",
        "numpy",
        *sys.stdlib_module_names,
    } - {"__main__"}
    own = [x for x in lines if package and x[0] == package] or [x for x in lines if x[0] not in known]
    if not own:
        return None
    name, file, line = own[-1]
    parts = Path(file).parts
    inside = [k for k, part in enumerate(parts[:-1]) if part == name]
    return f"in {'/'.join(parts[inside[-1] :] if inside else parts[-1:])}:{line}"
