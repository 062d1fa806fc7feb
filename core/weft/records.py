"""Records: values of named choices, by what they are of and for which machine.

A tuner writes them, or a person; a compilation follows them.

    {"version": 1, "records": [{"program": "<32 hex digits>", "machine": "llvm-<12 hex digits>", "choices": {…}}]}

`program` is the hash of a kernel's naive program (`program_key`). A record of choices of graph passes has `graph`
instead (`graph_key`), and so has one of the algorithms that a group of operators is lowered by (`group_key`). `choices`
has values by name, for example `"tile_rows": 4`. `weft inspect --stage records` prints those of a model. A file comes
from anywhere, so everything in it is checked and bounded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weft.choices import Value
from weft.errors import ChoiceError, InputError, nearest, shown

if TYPE_CHECKING:
    from weft.graph.nodes import Graph
    from weft.loop.nodes import Program
    from weft.machine import Machine

VERSION = 1
MOST_BYTES = 16 << 20
"""Bytes of a file."""
MOST_RECORDS = 20_000
"""Records in a file."""
MOST_CHOICES = 10_000
"""Choices in a record."""
LONGEST_NAME, LONGEST_TEXT = 128, 512
"""Characters of a choice's name, and of a value that is text."""
MOST_INTEGER = 2**63 - 1
"""Greatest size of a value that is an integer."""
SUBJECTS = ("program", "graph")
_KEY = re.compile(r"[0-9a-f]{32}")
_MACHINE = re.compile(r"[A-Za-z0-9_.+-]{1,64}-[0-9a-f]{12}")
_HINT = "`weft inspect --stage records` prints such a file"
_NOT_OF_THE_MACHINE = ("rates", "transfer")
"""Fields of a Machine that are measured, so that they differ from one run to the next."""


@dataclass(frozen=True)
class Record:
    """The choices of one kernel or graph on one machine. `subject` is "program" or "graph", `key` its hash."""

    subject: str
    key: str
    machine: str
    choices: Mapping[str, Value]
    source: str = field(default="", compare=False)
    """The file that it comes from, for messages."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", MappingProxyType(dict(self.choices)))

    def __hash__(self) -> int:
        return hash((self.subject, self.key, self.machine))

    def __str__(self) -> str:
        return f"the record of {self.subject} {self.key}" + (f" in {self.source}" if self.source else "")

    @property
    def digest(self) -> str:
        """A hash of its content."""
        text = json.dumps(
            [self.subject, self.key, self.machine, sorted((k, type(v).__name__, v) for k, v in self.choices.items())]
        )
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Records:
    """Records, at most one of a program (or graph) and machine.

    Raises:
        InputError: two are of the same.
    """

    records: tuple[Record, ...] = ()

    def __post_init__(self) -> None:
        for r in self.records:
            if self._by_key[r.subject, r.key, r.machine] is not r:
                why = "which of the two holds is not known"
                raise InputError(
                    f"there are two records of {r.subject} {r.key} on {r.machine}",
                    where=r.source or None,
                    why=why,
                    hint="delete one",
                )

    def __bool__(self) -> bool:
        return bool(self.records)

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], Record]:
        return {(r.subject, r.key, r.machine): r for r in self.records}

    def of_program(self, program: Program, machine: str) -> Record | None:
        """The record of a naive program on a machine (`machine_key`), None if there is none."""
        return self._by_key.get(("program", program_key(program), machine)) if self.records else None

    def of_graph(self, graph: Graph, machine: str) -> Record | None:
        """The record of a graph, as it is before its passes, on a machine."""
        return self._of(graph_key, graph, machine)

    def of_group(self, body: Graph, machine: str) -> Record | None:
        """The record of a group of operators, as it is before it is lowered, on a machine."""
        return self._of(group_key, body, machine)

    def _of(self, key: Callable[[Graph], str], graph: Graph, machine: str) -> Record | None:
        known = any(r.subject == "graph" and r.machine == machine for r in self.records)
        return self._by_key.get(("graph", key(graph), machine)) if known else None

    @property
    def digest(self) -> str:
        """A hash of the content, whatever the order; empty without records."""
        return (
            hashlib.sha256("".join(sorted(r.digest for r in self.records)).encode()).hexdigest() if self.records else ""
        )

    def over(self, others: Records) -> Records:
        """These, and those of `others` that these have nothing of."""
        return (
            Records((*self.records, *(r for k, r in others._by_key.items() if k not in self._by_key)))
            if others
            else self
        )

    def to_json(self) -> str:
        """The text of a file."""
        records = [{r.subject: r.key, "machine": r.machine, "choices": dict(r.choices)} for r in self.records]
        return json.dumps({"version": VERSION, "records": records}, indent=1)

    @staticmethod
    def from_json(text: str | bytes, source: str = "") -> Records:
        """Reads `to_json`.

        Raises:
            InputError: the text is not of this form, or exceeds a bound; says what, and where in it.
        """
        return Records(tuple(_Reader(source).read(text)))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Records:
        """Reads a file.

        Raises:
            InputError: there is no such file, it cannot be read, or is no file of records.
        """
        file = Path(path)
        try:
            if not file.is_file():
                raise InputError(
                    f"no file of records '{path}'", why="it is a folder" if file.is_dir() else None, hint=_HINT
                )
            with file.open("rb") as stream:
                data = stream.read(MOST_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: a null character in the name
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"the file of records '{path}' cannot be read", why=why, hint="may this user read it?"
            ) from None
        return Records.from_json(data, str(path))


def said(error: ChoiceError) -> str:
    """Why a record is not followed, in one line."""
    return "; ".join(filter(None, (error.what, error.why, error.hint)))


def program_key(program: Program) -> str:
    """The hash of a naive program's text, whatever its name."""
    return hashlib.sha256(str(replace(program, name="kernel")).encode()).hexdigest()[:32]


def graph_key(graph: Graph) -> str:
    """The hash of a graph's text, whatever its name."""
    _, _, text = str(graph).partition("(")
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def group_key(body: Graph) -> str:
    """The hash of a group of operators, whatever its values are called."""
    from weft.graph.group import kernel_text

    return hashlib.sha256(kernel_text(body).encode()).hexdigest()[:32]


def machine_key(kind: str, machine: Machine) -> str:
    """The kind of target, and a hash of what of the machine choices depend on.

    That is sizes, arithmetic, features and cores, and nothing that is measured.
    """
    described = {
        f.name: _ordered(getattr(machine, f.name)) for f in fields(machine) if f.name not in _NOT_OF_THE_MACHINE
    }
    return f"{kind}-{hashlib.sha256(repr(sorted(described.items())).encode()).hexdigest()[:12]}"


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((k, repr(v)) for k, v in value.items())
    return sorted(value) if isinstance(value, frozenset) else value


@dataclass(frozen=True)
class _Reader:
    source: str

    def read(self, text: str | bytes) -> list[Record]:
        if len(text) > MOST_BYTES:
            raise self.error("it is too large", "", f"it has more than {MOST_BYTES >> 20} MiB")
        try:
            data = json.loads(
                text, object_pairs_hook=self.unique, parse_float=self.no_float, parse_constant=self.no_float
            )
        except (ValueError, RecursionError) as error:
            raise self.error("it is no JSON text", "", " ".join(str(error).split())[:200]) from None
        self.fields(data, ("version", "records"), "the file")
        if data["version"] != VERSION or isinstance(data["version"], bool):
            why = f"this version of Weft reads version {VERSION}"
            raise self.error(
                f"its version is {shown(repr(data['version']), 40)}", "version", why, "record the choices again"
            )
        records = data["records"]
        if not isinstance(records, list) or len(records) > MOST_RECORDS:
            raise self.error(f"'records' is no list of up to {MOST_RECORDS:,} records", "records")
        return [self.record(r, f"records[{k}]") for k, r in enumerate(records)]

    def record(self, data: Any, where: str) -> Record:
        subjects = [s for s in SUBJECTS if isinstance(data, dict) and s in data]
        if isinstance(data, dict) and len(subjects) != 1:
            raise self.error(
                "a record is of either a program or a graph",
                where,
                f"this one has {' and '.join(subjects) or 'neither'}",
            )
        self.fields(data, (*subjects, "machine", "choices"), where)
        (subject,) = subjects
        for name, pattern, form in (
            (subject, _KEY, "32 hex digits"),
            ("machine", _MACHINE, "the target's kind, a hyphen and 12 hex digits"),
        ):
            if not isinstance(data[name], str) or not pattern.fullmatch(data[name]):
                raise self.error(
                    f"'{name}' is {shown(repr(data[name]), 60)}", f"{where}.{name}", f"it has to be {form}"
                )
        choices = data["choices"]
        if not isinstance(choices, dict) or not 1 <= len(choices) <= MOST_CHOICES:
            raise self.error(f"'choices' holds no 1 to {MOST_CHOICES:,} values by name", f"{where}.choices")
        for name, value in choices.items():
            if not name or len(name) > LONGEST_NAME or not name.isprintable():
                why = f"it has 1 to {LONGEST_NAME} printable characters"
                raise self.error(f"the name {shown(repr(name), 60)} is none of a choice", f"{where}.choices", why)
            wrong = self.misfit(value)
            if wrong is not None:
                raise self.error(f"the choice '{name}' is {shown(repr(value), 60)}", f"{where}.choices", wrong)
        return Record(subject, data[subject], data["machine"], choices, self.source)

    def misfit(self, value: Any) -> str | None:
        if isinstance(value, str):
            return (
                None
                if len(value) <= LONGEST_TEXT and value.isprintable()
                else f"a text has up to {LONGEST_TEXT} printable characters"
            )
        if not isinstance(value, int):
            return "a choice is an integer, a text, true or false"
        return None if abs(value) <= MOST_INTEGER else "an integer has up to 64 bits"

    def fields(self, data: Any, wanted: tuple[str, ...], where: str) -> None:
        if not isinstance(data, dict):
            raise self.error(f"{where} is no object", where, f"it has the fields {', '.join(wanted)}")
        for name in data:
            if name not in wanted:
                close = nearest(name, wanted)
                hint = f"did you mean '{close}'?" if close else f"the fields are {', '.join(wanted)}"
                raise self.error(f"{where} has the field {shown(repr(name), 60)}, which is unknown", where, None, hint)
        for name in wanted:
            if name not in data:
                raise self.error(f"{where} lacks the field '{name}'", where)

    def unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"the name {shown(repr(name), 60)} stands twice in an object")
            found[name] = value
        return found

    def no_float(self, text: str) -> Any:
        raise ValueError(f"{text[:40]} is no integer")

    def error(self, what: str, where: str, why: str | None = None, hint: str | None = None) -> InputError:
        place = " at ".join(x for x in (self.source, where) if x)
        return InputError(f"invalid file of records: {what}", where=place or None, why=why, hint=hint or _HINT)


__all__ = ["Record", "Records", "graph_key", "group_key", "machine_key", "program_key"]
