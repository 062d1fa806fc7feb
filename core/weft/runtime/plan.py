"""What an executable is made of, as data: the manifest and the plan in it. Read from JSON with every field checked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from weft.dtypes import dtype
from weft.errors import ArchiveError, WeftError

FORMAT_VERSION = 2
"""2: the weights' hash is that of their pieces' hashes, and tasks know their thread. Code of 1 cannot share a pool with it, and is not read."""
_MAX_INT = (1 << 63) - 1


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. A dimension is an int or the text of a formula over symbols; equal texts, equal sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ConstantInfo:
    """An entry of the table `ctx.constants`; its data lie in the weights under its name."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Native:
    """One call into native code: segment `entry` of code section `section`. `kernels` names its items in order, for people and errors."""

    kind: ClassVar[str] = "native"
    section: str
    entry: str
    items: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"native {self.section}:{self.entry}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})"]
        return "\n".join(lines + [f"  {number:4} {item}" for number, item in enumerate(self.items)])


Step: TypeAlias = Native
STEPS: dict[str, type[Step]] = {"native": Native}


@dataclass(frozen=True)
class SectionInfo:
    """A code section: what it is checked against and where its entries lie."""

    sha256: str
    bytes: int
    entries: Mapping[str, int] = field(default_factory=dict)
    plugin: str = ""
    version: str = ""


@dataclass(frozen=True)
class Manifest:
    """Everything about an executable but its code and weights.

    Attributes:
        target: the resolved target string.
        machine: the architecture that the code is for ("x86_64", "aarch64").
        features: CPU features (LLVM's names) that the code needs.
        checks: error code → (what, hint), templates over {0} … {7}.
        pool: the code section of the worker pool, if any.
        arena: the arena's size as text, for people.
        threads: threads that the target string asked for; None: as many as the process may use.
        weights: sha256 and size of the weights section, if there are constants; set when it is written.
    """

    name: str
    target: str
    machine: str
    features: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    steps: tuple[Step, ...]
    sections: Mapping[str, SectionInfo] = field(default_factory=dict)
    constants: tuple[ConstantInfo, ...] = ()
    checks: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    pool: str | None = None
    arena: str = "0"
    threads: int | None = None
    weights: SectionInfo | None = None
    weft: str = ""
    format: int = FORMAT_VERSION

    def with_(self, **changes: Any) -> Manifest:
        return replace(self, **changes)

    # -- text
    def plan(self) -> str:
        """The steps, for people."""
        head = f"{self.name}({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        narrow = Counter(c.dtype for c in self.constants if dtype(c.dtype).is_float and dtype(c.dtype).bits < 32)
        stored = f" ({', '.join(f'{n} of {name}' for name, n in sorted(narrow.items()))})" if narrow else ""
        facts = f"target {self.target!r}, {len(self.constants)} constants{stored}, arena {self.arena} bytes"
        return "\n".join([head, facts] + [f"step {i}: {step}" for i, step in enumerate(self.steps)])

    # -- JSON
    def to_json(self) -> bytes:
        data: dict[str, Any] = {
            "format": self.format,
            "weft": self.weft,
            "name": self.name,
            "target": self.target,
            "machine": self.machine,
            "features": list(self.features),
            "inputs": [_tensor(t) for t in self.inputs],
            "outputs": [_tensor(t) for t in self.outputs],
            "steps": [{"kind": s.kind, "section": s.section, "entry": s.entry, "items": s.items, "inputs": s.inputs, "outputs": s.outputs} for s in self.steps],
            "checks": {str(code): list(texts) for code, texts in self.checks.items()},
            "sections": {name: _section(s) for name, s in self.sections.items()},
            "constants": [{"name": c.name, "dtype": c.dtype, "shape": c.shape} for c in self.constants],
            "pool": self.pool,
            "arena": self.arena,
            "threads": self.threads,
            "weights": _section(self.weights) if self.weights else None,
        }
        return json.dumps(data, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """The manifest, every field checked.

        Raises:
            ArchiveError: not a manifest, or one of a newer format.
        """
        try:
            data = json.loads(text)
            if b"\\ud" in text.lower():
                json.dumps(data, ensure_ascii=False).encode()  # half of a surrogate pair is no text that could be shown or saved
        except (ValueError, RecursionError) as error:
            raise ArchiveError(f"{where} has an unreadable manifest", why=str(error)) from None
        reader = _Reader(where)
        root = reader.mapping(data, "manifest")
        version = reader.integer(root.get("format"), "format", 1)
        if version < FORMAT_VERSION:
            raise ArchiveError(
                f"{where} was written by an older Weft", why=f"its format is {version}, this Weft reads {FORMAT_VERSION}", hint="compile the model again"
            )
        if version > FORMAT_VERSION:
            raise ArchiveError(
                f"{where} was written by a newer Weft", why=f"its format is {version}, this Weft reads up to {FORMAT_VERSION}", hint="upgrade weft"
            )
        return cls(
            name=reader.text(root.get("name"), "name"),
            target=reader.text(root.get("target"), "target"),
            machine=reader.text(root.get("machine"), "machine"),
            features=reader.texts(root.get("features"), "features"),
            inputs=tuple(reader.tensor(t, f"inputs[{i}]") for i, t in enumerate(reader.sequence(root.get("inputs"), "inputs"))),
            outputs=tuple(reader.tensor(t, f"outputs[{i}]") for i, t in enumerate(reader.sequence(root.get("outputs"), "outputs"))),
            steps=tuple(reader.step(s, f"steps[{i}]") for i, s in enumerate(reader.sequence(root.get("steps"), "steps"))),
            checks={reader.code(k): reader.template(v, f"checks[{k}]") for k, v in reader.mapping(root.get("checks"), "checks").items()},
            sections={name: reader.section(s, f"sections[{name}]") for name, s in reader.mapping(root.get("sections"), "sections").items()},
            constants=tuple(reader.constant(c, f"constants[{i}]") for i, c in enumerate(reader.sequence(root.get("constants"), "constants"))),
            pool=None if root.get("pool") is None else reader.text(root["pool"], "pool"),
            arena=reader.text(root.get("arena"), "arena"),
            threads=None if root.get("threads") is None else reader.integer(root["threads"], "threads", 1, 4096),
            weights=None if root.get("weights") is None else reader.section(root["weights"], "weights"),
            weft=reader.text(root.get("weft"), "weft"),
            format=version,
        )


def _tensor(t: TensorInfo) -> dict[str, Any]:
    return {"name": t.name, "dtype": t.dtype, "shape": t.shape}


def _section(s: SectionInfo) -> dict[str, Any]:
    return {"sha256": s.sha256, "bytes": s.bytes, "entries": dict(s.entries), "plugin": s.plugin, "version": s.version}


class _Reader:
    """Checks JSON values one by one; an archive may come from anybody."""

    def __init__(self, where: str) -> None:
        self.where = where

    def bad(self, field: str, wanted: str, value: object) -> ArchiveError:
        shown = repr(value)
        return ArchiveError(
            f"{self.where} has a malformed manifest", why=f"'{field}' should be {wanted}, got {shown if len(shown) < 80 else shown[:77] + '...'}"
        )

    def mapping(self, value: object, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.bad(field, "an object", value)
        return value

    def sequence(self, value: object, field: str) -> Sequence[Any]:
        if not isinstance(value, list):
            raise self.bad(field, "a list", value)
        return value

    def text(self, value: object, field: str) -> str:
        if not isinstance(value, str):
            raise self.bad(field, "text", value)
        return value

    def texts(self, value: object, field: str) -> tuple[str, ...]:
        return tuple(self.text(v, f"{field}[{i}]") for i, v in enumerate(self.sequence(value, field)))

    def integer(self, value: object, field: str, low: int = 0, high: int = _MAX_INT) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.bad(field, f"an integer from {low} to {high}", value)
        return value

    def code(self, value: str) -> int:
        return self.integer(int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value, "checks")

    def template(self, value: object, field: str) -> tuple[str, str]:
        texts = self.texts(value, field)
        if len(texts) != 2:
            raise self.bad(field, "two texts", value)
        return texts[0], texts[1]

    def dtype(self, value: object, field: str) -> str:
        name = self.text(value, field)
        try:
            known = dtype(name)
        except WeftError:
            known = None
        if known is None or known.lanes != 1 or known.kind in ("string", "handle"):
            raise self.bad(field, "an element type", value)
        return name

    def tensor(self, value: object, field: str) -> TensorInfo:
        data = self.mapping(value, field)
        dims = self.sequence(data.get("shape"), field + ".shape")
        if len(dims) > 64:
            raise self.bad(field + ".shape", "at most 64 dimensions", len(dims))
        shape = tuple(d if isinstance(d, str) else self.integer(d, field + ".shape") for d in dims)
        return TensorInfo(self.text(data.get("name"), field + ".name"), self.dtype(data.get("dtype"), field + ".dtype"), shape)

    def constant(self, value: object, field: str) -> ConstantInfo:
        t = self.tensor(value, field)
        if not all(isinstance(d, int) for d in t.shape):
            raise self.bad(field + ".shape", "constant", t.shape)
        return ConstantInfo(t.name, t.dtype, tuple(int(d) for d in t.shape))

    def section(self, value: object, field: str) -> SectionInfo:
        data = self.mapping(value, field)
        digest = self.text(data.get("sha256"), field + ".sha256")
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise self.bad(field + ".sha256", "64 hexadecimal digits", digest)
        size = self.integer(data.get("bytes"), field + ".bytes")
        entries = self.mapping(data.get("entries"), field + ".entries")
        return SectionInfo(
            sha256=digest,
            bytes=size,
            entries={name: self.integer(at, f"{field}.entries[{name}]", 0, max(0, size - 1)) for name, at in entries.items()},
            plugin=self.text(data.get("plugin"), field + ".plugin"),
            version=self.text(data.get("version"), field + ".version"),
        )

    def step(self, value: object, field: str) -> Step:
        data = self.mapping(value, field)
        kind = self.text(data.get("kind"), field + ".kind")
        if kind not in STEPS:
            raise self.bad(field + ".kind", "one of " + ", ".join(STEPS), kind)
        return Native(
            section=self.text(data.get("section"), field + ".section"),
            entry=self.text(data.get("entry"), field + ".entry"),
            items=self.texts(data.get("items"), field + ".items"),
            inputs=self.texts(data.get("inputs"), field + ".inputs"),
            outputs=self.texts(data.get("outputs"), field + ".outputs"),
        )
