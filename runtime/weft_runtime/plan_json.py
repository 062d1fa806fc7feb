"""The parts of a manifest as JSON: written, and read with every field checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from weft_runtime.dtypes import dtype
from weft_runtime.errors import ArchiveError, WeftError
from weft_runtime.formulas import from_postfix, to_postfix
from weft_runtime.plan_steps import (
    PLACES,
    STEPS,
    Branch,
    Condition,
    ConstantInfo,
    Copy,
    DataSymbol,
    DeviceCall,
    HostCall,
    Launch,
    Native,
    ObjectInfo,
    Place,
    Plan,
    Repeat,
    SectionInfo,
    Step,
    TensorInfo,
)

if TYPE_CHECKING:
    from weft_runtime.plan import Manifest

_MAX_INT = (1 << 63) - 1
_MOST_ALIGN = 1 << 30


class Writer:
    """Writes plans with their sizes as postfix code, in which symbols are numbered in the order of `numbers`."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def plan(self, p: Plan | Manifest) -> dict[str, Any]:
        return {
            "inputs": [self.tensor(t) for t in p.inputs],
            "outputs": [self.tensor(t) for t in p.outputs],
            "values": [self.tensor(t) for t in p.values],
            "symbols": [asdict(s) for s in p.symbols],
            "steps": [self.step(s) for s in p.steps],
        }

    def code(self, size: int | str) -> int | str:
        return (
            size
            if isinstance(size, int)
            else to_postfix(size, lambda name: self.numbers.setdefault(name, len(self.numbers)))
        )

    def size(self, size: int | str) -> int | str | dict[str, str]:
        """A dimension. A size that only native code can compute is text for people."""
        try:
            return self.code(size)
        except ArchiveError:
            return {"text": str(size)}

    def tensor(self, t: TensorInfo) -> dict[str, Any]:
        found: dict[str, Any] = {"name": t.name, "dtype": t.dtype, "shape": [self.size(d) for d in t.shape]}
        return {**found, "within": t.within, "rank": t.rank} if isinstance(t, ObjectInfo) else found

    def step(self, s: Step) -> dict[str, Any]:
        if not isinstance(s, DeviceCall):
            found = {"kind": s.kind, **asdict(s)}
            if not found.get("overwrites"):
                found.pop("overwrites", None)
            return found
        changed = replace(
            s,
            places=tuple(replace(p, offset=self.code(p.offset), bytes=self.code(p.bytes)) for p in s.places),
            launches=tuple(replace(x, dims=tuple(map(self.code, x.dims))) for x in s.launches),
            conditions=tuple(
                replace(c, holds=str(self.code(c.holds)), args=tuple(map(self.code, c.args))) for c in s.conditions
            ),
            arena=self.code(s.arena),
        )
        return {"kind": s.kind, **asdict(changed)}


def section_data(s: SectionInfo) -> dict[str, Any]:
    return {"sha256": s.sha256, "bytes": s.bytes, "entries": dict(s.entries), "plugin": s.plugin, "version": s.version}


class Reader:
    """Checks JSON values one by one; an archive may come from anybody."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.names: tuple[str, ...] = ()

    def bad(self, field: str, wanted: str, value: object) -> ArchiveError:
        shown = repr(value)
        return ArchiveError(
            f"{self.where} has a malformed manifest",
            why=f"'{field}' should be {wanted}, got {shown if len(shown) < 80 else shown[:77] + '...'}",
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

    def power(self, value: object, field: str) -> int:
        """A power of two, of bytes that buffers begin at multiples of."""
        found = self.integer(value, field, 1, _MOST_ALIGN)
        if found & (found - 1):
            raise self.bad(field, "a power of two", value)
        return found

    def code(self, value: str) -> int:
        return self.integer(int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value, "checks")

    def template(self, value: object, field: str) -> tuple[str, str]:
        texts = self.texts(value, field)
        if len(texts) != 2:
            raise self.bad(field, "two texts", value)
        return texts[0], texts[1]

    def flag(self, value: object, field: str) -> bool:
        if not isinstance(value, bool):
            raise self.bad(field, "true or false", value)
        return value

    def dtype(self, value: object, field: str, strings: bool = False) -> str:
        name = self.text(value, field)
        try:
            known = dtype(name)
        except WeftError:
            known = None
        if known is None or known.lanes != 1 or known.kind == "handle" or (known.kind == "string" and not strings):
            raise self.bad(field, "an element type", value)
        return name

    def plan(self, data: dict[str, Any], field: str) -> Plan:
        def each(key: str, read: Callable[[object, str], Any]) -> tuple[Any, ...]:
            return tuple(read(v, f"{field}{key}[{i}]") for i, v in enumerate(self.sequence(data.get(key), field + key)))

        inputs, outputs, values = (each(key, self.value) for key in ("inputs", "outputs", "values"))
        return Plan(inputs, outputs, each("steps", self.step), values, each("symbols", self.symbol))

    def value(self, value: object, field: str) -> TensorInfo:
        data = self.mapping(value, field)
        if "within" not in data:
            return self.tensor(value, field, strings=True)
        within = self.texts(data["within"], field + ".within")
        if len(within) > 8 or not set(within) <= {"sequence", "optional"}:
            raise self.bad(field + ".within", "at most 8 of sequence, optional", within)
        rank = None if data.get("rank") is None else self.integer(data["rank"], field + ".rank", 0, 64)
        return ObjectInfo(
            self.text(data.get("name"), field + ".name"),
            self.dtype(data.get("dtype"), field + ".dtype", True),
            (),
            within,
            rank,
        )

    def tensor(self, value: object, field: str, strings: bool = False) -> TensorInfo:
        data = self.mapping(value, field)
        dims = self.sequence(data.get("shape"), field + ".shape")
        if len(dims) > 64:
            raise self.bad(field + ".shape", "at most 64 dimensions", len(dims))
        shape = tuple(self.size(d, field + ".shape") for d in dims)
        return TensorInfo(
            self.text(data.get("name"), field + ".name"),
            self.dtype(data.get("dtype"), field + ".dtype", strings),
            shape,
        )

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
            entries={
                name: self.integer(at, f"{field}.entries[{name}]", 0, max(0, size - 1)) for name, at in entries.items()
            },
            plugin=self.text(data.get("plugin"), field + ".plugin"),
            version=self.text(data.get("version"), field + ".version"),
        )

    def symbol(self, value: object, field: str) -> DataSymbol:
        data = self.mapping(value, field)
        name, source = (self.text(data.get(key), f"{field}.{key}") for key in ("name", "value"))
        return DataSymbol(name, source, self.integer(data.get("index"), field + ".index"))

    def symbols(self, value: object, field: str) -> tuple[str, ...]:
        """Names of symbols, by their numbers."""
        names = self.texts(value, field)
        if any("`" in n for n in names):
            raise self.bad(field, "names without backquotes", next(n for n in names if "`" in n))
        return names

    def size(self, value: object, field: str) -> int | str:
        if isinstance(value, dict):
            return self.text(value.get("text"), field)
        return self.formula(value, field)

    def formula(self, value: object, field: str) -> int | str:
        if not isinstance(value, str):
            return self.integer(value, field)
        try:
            return from_postfix(value, self.names)
        except ArchiveError as error:
            raise self.bad(field, f"postfix code ({error.what}: {error.why})", value) from None

    def formulas(self, value: object, field: str) -> tuple[int | str, ...]:
        return tuple(self.formula(v, f"{field}[{i}]") for i, v in enumerate(self.sequence(value, field)))

    def step(self, value: object, field: str) -> Step:
        data = self.mapping(value, field)
        kind = self.text(data.get("kind"), field + ".kind")
        if kind not in STEPS:
            raise self.bad(field + ".kind", "one of " + ", ".join(STEPS), kind)
        read: Callable[[dict[str, Any], str], Step] = getattr(self, f"_{kind}")
        return read(data, field)

    def _native(self, data: dict[str, Any], field: str) -> Step:
        return Native(
            section=self.text(data.get("section"), field + ".section"),
            entry=self.text(data.get("entry"), field + ".entry"),
            items=self.texts(data.get("items"), field + ".items"),
            inputs=self.texts(data.get("inputs"), field + ".inputs"),
            outputs=self.texts(data.get("outputs"), field + ".outputs"),
            constants=self.texts(data.get("constants"), field + ".constants"),
            checks={
                self.code(k): self.template(v, f"{field}.checks[{k}]")
                for k, v in self.mapping(data.get("checks"), field + ".checks").items()
            },
            overwrites=self.pairs(data.get("overwrites", []), field + ".overwrites"),
        )

    def pairs(self, value: object, field: str) -> tuple[tuple[int, int], ...]:
        """Pairs of places in lists."""
        found = []
        for k, pair in enumerate(self.sequence(value, field)):
            numbers = [self.integer(n, f"{field}[{k}]") for n in self.sequence(pair, f"{field}[{k}]")]
            if len(numbers) != 2:
                raise self.bad(f"{field}[{k}]", "two numbers", pair)
            found.append((numbers[0], numbers[1]))
        return tuple(found)

    def _copy(self, data: dict[str, Any], field: str) -> Step:
        return Copy(*(self.text(data.get(key), f"{field}.{key}") for key in ("value", "source", "target")))

    def _device(self, data: dict[str, Any], field: str) -> Step:
        places = tuple(
            self._place(p, f"{field}.places[{i}]")
            for i, p in enumerate(self.sequence(data.get("places"), field + ".places"))
        )
        launches, conditions = (self.sequence(data.get(key), f"{field}.{key}") for key in ("launches", "conditions"))
        return DeviceCall(
            device=self.text(data.get("device"), field + ".device"),
            section=self.text(data.get("section"), field + ".section"),
            inputs=self.texts(data.get("inputs"), field + ".inputs"),
            outputs=self.texts(data.get("outputs"), field + ".outputs"),
            places=places,
            launches=tuple(self._launch(v, f"{field}.launches[{i}]", len(places)) for i, v in enumerate(launches)),
            conditions=tuple(self._condition(v, f"{field}.conditions[{i}]") for i, v in enumerate(conditions)),
            arena=self.formula(data.get("arena"), field + ".arena"),
            align=self.power(data.get("align", 1), field + ".align"),
        )

    def _host(self, data: dict[str, Any], field: str) -> Step:
        attributes = {
            k: tuple(v) if isinstance(v, list) else v
            for k, v in self.mapping(data.get("attributes"), field + ".attributes").items()
        }
        function = self.text(data.get("function"), field + ".function")
        return HostCall(function, *self._ends(data, field), attributes)

    def _if(self, data: dict[str, Any], field: str) -> Step:
        then, orelse = (self.integer(data.get(key), f"{field}.{key}") for key in ("then", "orelse"))
        return Branch(then, orelse, *self._ends(data, field))

    def _loop(self, data: dict[str, Any], field: str) -> Step:
        def each(key: str, read: Callable[..., Any], *limits: int) -> tuple[Any, ...]:
            return tuple(
                read(v, f"{field}.{key}[{i}]", *limits)
                for i, v in enumerate(self.sequence(data.get(key), f"{field}.{key}"))
            )

        return Repeat(
            self.integer(data.get("body"), field + ".body"),
            *self._ends(data, field),
            carried=self.integer(data.get("carried"), field + ".carried"),
            tests=self.flag(data.get("tests"), field + ".tests"),
            item_axes=each("item_axes", self.integer, -1, 64),
            item_backward=each("item_backward", self.flag),
            result_axes=each("result_axes", self.integer, -1, 64),
            result_backward=each("result_backward", self.flag),
        )

    def _ends(self, data: dict[str, Any], field: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        inputs, outputs = (self.texts(data.get(key), f"{field}.{key}") for key in ("inputs", "outputs"))
        return inputs, outputs

    def _place(self, value: object, field: str) -> Place:
        data = self.mapping(value, field)
        given = self.text(data.get("where"), field + ".where")
        where = next((w for w in PLACES if w == given), None)
        if where is None:
            raise self.bad(field + ".where", "value, constant or arena", given)
        name, offset, size = self.text(data.get("name"), field + ".name"), data.get("offset"), data.get("bytes")
        return Place(where, name, self.formula(offset, field + ".offset"), self.formula(size, field + ".bytes"))

    def _launch(self, value: object, field: str, places: int) -> Launch:
        data = self.mapping(value, field)
        numbers = self.sequence(data.get("buffers"), field + ".buffers")
        buffers = tuple(self.integer(b, f"{field}.buffers[{i}]", 0, places - 1) for i, b in enumerate(numbers))
        return Launch(
            self.text(data.get("kernel"), field + ".kernel"), buffers, self.formulas(data.get("dims"), field + ".dims")
        )

    def _condition(self, value: object, field: str) -> Condition:
        data = self.mapping(value, field)
        what, hint = (self.text(data.get(key), f"{field}.{key}") for key in ("what", "hint"))
        holds = str(self.formula(data.get("holds"), f"{field}.holds"))
        return Condition(holds, what, hint, self.formulas(data.get("args"), field + ".args"))
