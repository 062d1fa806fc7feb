"""TFLite models for tests, written byte by byte after the schema's tables."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft_tflite.schema import BUILTINS, LAYOUTS, OPTIONS, OPTIONS_2, TYPES, options_of

NAMES = {
    "float32": "FLOAT32", "float16": "FLOAT16", "float64": "FLOAT64", "bool": "BOOL", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32",
}  # fmt: skip
Field = tuple[str, Any]
"""A letter of `struct` and a number, or: "t" a table, "T" tables, "s" a string, "[x" a vector of the letter x."""


class Writer:
    """A FlatBuffer, from the root on: what a table refers to is written behind it."""

    def __init__(self) -> None:
        self.data = bytearray(8)
        self.data[4:8] = b"TFL3"

    def root(self, table: Mapping[int, Field]) -> bytes:
        struct.pack_into("<I", self.data, 0, self.table(table))
        return bytes(self.data)

    def align(self, to: int, behind: int = 0) -> None:
        while (len(self.data) + behind) % to:
            self.data.append(0)

    def table(self, fields: Mapping[int, Field]) -> int:
        count = max(fields, default=-1) + 1
        self.align(8, 4 + 2 * count)
        vtable = len(self.data)
        places: dict[int, int] = {}
        size = 4
        for slot, (form, _) in sorted(fields.items()):
            width = struct.calcsize(form) if form in "?bBhHiIqQfd" else 4
            size += -size % width
            places[slot] = size
            size += width
        self.data += struct.pack(f"<HH{count}H", 4 + 2 * count, size, *(places.get(k, 0) for k in range(count)))
        at = len(self.data)
        self.data += bytes(size)
        struct.pack_into("<i", self.data, at, at - vtable)
        for slot, (form, value) in sorted(fields.items()):
            here = at + places[slot]
            if form in "?bBhHiIqQfd":
                struct.pack_into(f"<{form}", self.data, here, value)
            else:
                found = self.reference(form, value)
                struct.pack_into("<I", self.data, here, found - here)
        return at

    def reference(self, form: str, value: Any) -> int:
        if form == "t":
            return self.table(value)
        if form == "T":
            self.align(4)
            at = len(self.data)
            self.data += struct.pack("<I", len(value)) + bytes(4 * len(value))
            for k, table in enumerate(value):
                here = at + 4 + 4 * k
                found = self.table(table)
                struct.pack_into("<I", self.data, here, found - here)
            return at
        if form == "s":
            value = value.encode()
            self.align(4)
            at = len(self.data)
            self.data += struct.pack("<I", len(value)) + value + b"\0"
            return at
        packed = struct.pack(f"<{len(value)}{form[1]}", *value) if form != "[B" else bytes(value)
        self.align(16, 4)
        at = len(self.data)
        self.data += struct.pack("<I", len(value)) + packed
        return at


@dataclass
class Scale:
    """Scale and zero point of a tensor; several are along `axis`."""

    scale: Any
    zero: Any = 0
    axis: int = 0

    def table(self) -> dict[int, Field]:
        scales = np.atleast_1d(self.scale).astype(float).tolist()
        zeros = np.broadcast_to(np.atleast_1d(self.zero), len(scales)).tolist()
        return {2: ("[f", scales), 3: ("[q", zeros), 6: ("i", self.axis)}


@dataclass
class Graph:
    """A sub-graph that is being built; tensors are known by their indices."""

    model: ModelWriter
    name: str = "main"
    tensors: list[dict[int, Field]] = field(default_factory=list)
    operators: list[dict[int, Field]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(
        self, type: str, shape: Sequence[int], *, name: str = "", scale: Scale | None = None, buffer: int = 0,
        more: Mapping[int, Field] | None = None,
    ) -> int:  # fmt: skip
        open_ = [1 if d < 0 else d for d in shape]
        fields: dict[int, Field] = {
            0: ("[i", open_),
            1: ("b", TYPES.index(NAMES.get(type, type))),
            2: ("I", buffer),
            3: ("s", name or f"t{len(self.tensors)}"),
            8: ("?", True),
            **(more or {}),
        }
        if list(shape) != open_:
            fields[7] = ("[i", list(shape))
        if scale is not None:
            fields[4] = ("t", scale.table())
        self.tensors.append(fields)
        return len(self.tensors) - 1

    def input(self, type: str, shape: Sequence[int], **more: Any) -> int:
        self.inputs.append(self.tensor(type, shape, **more))
        return self.inputs[-1]

    def constant(self, array: Any, **more: Any) -> int:
        array = np.asarray(array)
        self.model.buffers.append(array.tobytes())
        return self.tensor(
            more.pop("type", array.dtype.name),
            more.pop("shape", array.shape),
            buffer=len(self.model.buffers) - 1,
            **more,
        )

    def op(
        self, name: str, inputs: Sequence[int], results: Sequence[Mapping[str, Any]], *, version: int = 1,
        custom: str = "", intermediates: Sequence[int] = (), **options: Any,
    ) -> list[int]:  # fmt: skip
        """An operator; its results as the arguments of `tensor`."""
        made = [self.tensor(**r) for r in results]
        fields: dict[int, Field] = {
            0: ("I", self.model.code(name, version, custom)), 1: ("[i", list(inputs)), 2: ("[i", made),
        }  # fmt: skip
        if intermediates:
            fields[8] = ("[i", list(intermediates))
        table = options_of(name)
        if table:
            slots = {n: (k, form) for k, (n, form, _) in enumerate(LAYOUTS[table])}
            content = {slots[n][0]: (slots[n][1], value) for n, value in options.items()}
            for slot, known in ((3, OPTIONS), (11, OPTIONS_2)):
                number = next((k for k, (n, _) in enumerate(known) if n == table), None)
                if number is not None:
                    fields[slot], fields[slot + 1] = ("B", number), ("t", content)
        self.operators.append(fields)
        return made

    def table(self) -> dict[int, Field]:
        return {
            0: ("T", self.tensors), 1: ("[i", self.inputs), 2: ("[i", self.outputs), 3: ("T", self.operators),
            4: ("s", self.name),
        }  # fmt: skip


class ModelWriter:
    """A model that is being built."""

    def __init__(self) -> None:
        self.buffers: list[bytes] = [b""]
        self.codes: list[tuple[str, int, str]] = []
        self.graphs: list[Graph] = []
        self.signatures: list[dict[int, Field]] = []

    def graph(self, name: str = "main") -> Graph:
        self.graphs.append(Graph(self, name))
        return self.graphs[-1]

    def code(self, *code: Any) -> int:
        if code not in self.codes:
            self.codes.append(code)
        return self.codes.index(code)

    def signature(self, key: str, inputs: Mapping[str, int], outputs: Mapping[str, int], graph: int = 0) -> None:
        maps = [[{0: ("s", n), 1: ("I", i)} for n, i in m.items()] for m in (inputs, outputs)]
        self.signatures.append({0: ("T", maps[0]), 1: ("T", maps[1]), 2: ("s", key), 4: ("I", graph)})

    def bytes(self, version: int = 3) -> bytes:
        codes = []
        for name, op_version, custom in self.codes:
            number = BUILTINS.index(name)
            entry: dict[int, Field] = {0: ("b", min(number, 127)), 2: ("i", op_version), 3: ("i", number)}
            if custom:
                entry[1] = ("s", custom)
            codes.append(entry)
        fields: dict[int, Field] = {
            0: ("I", version), 1: ("T", codes), 2: ("T", [g.table() for g in self.graphs]), 3: ("s", "test"),
            4: ("T", [{0: ("[B", b)} if b else {} for b in self.buffers]),
        }  # fmt: skip
        if self.signatures:
            fields[7] = ("T", self.signatures)
        return Writer().root(fields)


def one_op(
    name: str, inputs: Sequence[Any], results: Sequence[Mapping[str, Any]], scales: Mapping[int, Scale] = {},
    version: int = 1, **options: Any,
) -> bytes:  # fmt: skip
    """A model of one operator. An input is an array (an input of the model), a constant in a list, or None."""
    model = ModelWriter()
    graph = model.graph()
    given = []
    for k, x in enumerate(inputs):
        if x is None:
            given.append(-1)
        elif isinstance(x, list):
            given.append(graph.constant(x[0], scale=scales.get(k)))
        else:
            given.append(graph.input(x.dtype.name, x.shape, name=f"x{k}", scale=scales.get(k)))
    made = graph.op(name, given, [{"name": f"y{k}", **r} for k, r in enumerate(results)], version=version, **options)
    graph.outputs = made
    return model.bytes()
