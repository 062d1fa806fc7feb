"""A `.tflite` file as data: every index and size in it is checked here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from weft.errors import FrontendError
from weft_tflite.flatbuffer import Buffer, Table, fields
from weft_tflite.schema import BUILTINS, LAYOUTS, OPTIONS, OPTIONS_2, TYPES, options_of

IDENTIFIER = b"TFL3"
VERSION = 3
MOST_AXES = 64
MOST_ELEMENTS = 1 << 48
"""Of a tensor, an axis of no elements counted as one."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Quantization:
    """x = scale · (q - zero); several scales are along `axis`. float32 and int64 vectors of one length."""

    scale: np.ndarray[Any, Any]
    zero: np.ndarray[Any, Any]
    axis: int

    @property
    def per_axis(self) -> bool:
        return len(self.scale) > 1


@dataclass(frozen=True)
class Sparse:
    """How a tensor's data is stored: see TFLite's SparsityParameters. Of each level: whether it is sparse, its dense
    size, segments and indices."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[tuple[bool, int, Sequence[int], Sequence[int]], ...]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a sub-graph. `shape`: -1 for an axis that is open; None: the rank is open. `data`: of a constant."""

    name: str
    type: str
    shape: tuple[int, ...] | None
    data: np.ndarray[Any, Any] | None = field(repr=False)
    quantization: Quantization | None = None
    variable: bool = False
    sparse: Sparse | None = None
    declared: tuple[int, ...] = ()
    """`shape` with the sizes that open axes have in the file."""


@dataclass(frozen=True)
class OperatorInfo:
    """An operator of a sub-graph; operands that are left out are -1."""

    name: str
    version: int
    custom: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class SubGraph:
    name: str
    tensors: tuple[TensorInfo, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[OperatorInfo, ...]


@dataclass(frozen=True)
class Signature:
    """Names of the inputs and outputs of a sub-graph: index of the tensor by name."""

    key: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    graph: int


@dataclass(frozen=True)
class Model:
    name: str
    graphs: tuple[SubGraph, ...]
    signatures: tuple[Signature, ...]


def read_model(source: Any) -> Model:
    """A model of a path or of bytes.

    Raises:
        FrontendError: it cannot be read, or is no model that is whole.
    """
    if isinstance(source, Path):
        try:
            empty = not source.stat().st_size
            data = memoryview(b"") if empty else np.memmap(source, np.uint8, "r").data
        except OSError as error:
            raise FrontendError(f"cannot read '{source}'", why=error.strerror) from error
        return _Reader(data, f"'{source}'", source.stem).model()
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _Reader(memoryview(source).cast("B"), "the model", "model").model()
    raise FrontendError(
        f"cannot read a TensorFlow Lite model from a {type(source).__name__}",
        hint="give the path of a .tflite, or its bytes",
    )


class _Reader:
    """The state of reading one file."""

    def __init__(self, data: memoryview, what: str, name: str) -> None:
        self.what, self.name, self.data = what, name, data
        if len(data) < 8 or bytes(data[4:8]) != IDENTIFIER:
            raise FrontendError(
                f"{what} is no TensorFlow Lite model",
                why=f"its bytes 4 to 8 are {bytes(data[4:8])!r}, expected {IDENTIFIER!r}",
                hint="was it cut short? copy it again",
            )
        self.buffer = Buffer(data, what)
        self.constants: list[np.ndarray[Any, Any]] = []

    def bad(self, why: str) -> FrontendError:
        return FrontendError(
            f"{self.what} is not a valid TensorFlow Lite model", why=why, hint="is it damaged? copy it again"
        )

    def model(self) -> Model:
        root = self.buffer.root()
        version = root.scalar(0, "I")
        if version != VERSION:
            raise FrontendError(
                f"{self.what} is of version {version} of the TensorFlow Lite schema, expected {VERSION}",
                hint="a newer version of weft-tflite may read it" if version > VERSION else "convert it again",
            )
        self.constants = [self.constant(b, k) for k, b in enumerate(root.tables(4, "buffer"))]
        codes = [self.code(c) for c in root.tables(1, "operator code")]
        tables = root.tables(2, "sub-graph")
        graphs = tuple(self.graph(g, k, codes) for k, g in enumerate(tables))
        if not graphs:
            raise self.bad("it has no sub-graph")
        signatures = tuple(self.signature(s, graphs) for s in root.tables(7, "signature"))
        return Model(self.name, graphs, signatures)

    def constant(self, table: Table, k: int) -> np.ndarray[Any, Any]:
        """The bytes of a buffer: in the table, or behind the tables of a large model."""
        offset, size = table.scalar(1, "Q"), table.scalar(2, "Q")
        if offset > 1:
            if offset + size > len(self.data):
                raise self.buffer.damaged(f"buffer {k} is at byte {offset:,}, {size:,} long, of {len(self.data):,}")
            return np.frombuffer(self.data, np.uint8, size, offset)
        found = table.numbers(0, "u1", f"buffer {k}")
        return np.empty(0, np.uint8) if found is None else found

    def code(self, table: Table) -> tuple[str, int, str]:
        """Name, version and custom name of an operator code; codes up to 127 stood in one byte at first."""
        number = max(table.scalar(0, "b"), table.scalar(3, "i"))
        if not 0 <= number < len(BUILTINS):
            raise FrontendError(
                f"{self.what} uses builtin operator {number}, the newest known is {len(BUILTINS) - 1}",
                hint="a newer version of weft-tflite may read it",
            )
        return BUILTINS[number], table.scalar(2, "i", 1), table.string(1, "custom code")[:200]

    def graph(self, table: Table, k: int, codes: Sequence[tuple[str, int, str]]) -> SubGraph:
        where = f"sub-graph {k}"
        tensors = tuple(self.tensor(t, f"{where}, tensor {j}") for j, t in enumerate(table.tables(0, "tensor")))

        def indices(t: Table, slot: int, what: str, optional: bool = False) -> tuple[int, ...]:
            found = t.integers(slot, what) or ()
            for index in found:
                if not (0 <= index < len(tensors) or (optional and index == -1)):
                    raise self.bad(f"{where}: {what} names tensor {index} of {len(tensors)}")
            return found

        operators = []
        for j, op in enumerate(table.tables(3, "operator")):
            code = op.scalar(0, "I")
            if code >= len(codes):
                raise self.bad(f"{where}, operator {j} has operator code {code} of {len(codes)}")
            name, version, custom = codes[code]
            operators.append(
                OperatorInfo(
                    name,
                    version,
                    custom,
                    indices(op, 1, f"operator {j} ({name})", True),
                    indices(op, 2, f"operator {j} ({name})"),
                    indices(op, 8, f"operator {j} ({name})", True),
                    self.options(op, name, f"{where}, operator {j}"),
                )
            )
        inputs, outputs = indices(table, 1, "its inputs"), indices(table, 2, "its outputs")
        return SubGraph(table.string(4, "name"), tensors, inputs, outputs, tuple(operators))

    def options(self, op: Table, name: str, where: str) -> Mapping[str, Any]:
        """The options of an operator by name, defaults where it has none.

        Raises:
            FrontendError: it has those of another operator.
        """
        wanted = options_of(name)
        for slot, known in ((3, OPTIONS), (11, OPTIONS_2)):
            number = op.scalar(slot, "B")
            if number >= len(known):
                raise self.bad(f"{where} ({name}) has options of type {number}, the newest known is {len(known) - 1}")
            given, layout = known[number]
            if number and given == wanted:
                return fields(op.table(slot + 1, f"{where}: options"), layout)
            # Converters give Pad's to PadV2, and some operators options that are empty.
            if number and layout and wanted:
                raise self.bad(f"{where} is {name} with options of {given}")
        return fields(None, LAYOUTS[wanted]) if wanted else NOTHING

    def tensor(self, table: Table, where: str) -> TensorInfo:
        number = table.scalar(1, "b")
        if not 0 <= number < len(TYPES):
            raise self.bad(f"{where} has element type {number}, the newest known is {len(TYPES) - 1}")
        declared = table.integers(0, f"{where}: shape")
        signature = table.integers(7, f"{where}: shape signature")
        shape = declared or ()
        buffer = table.scalar(2, "I")
        if buffer >= max(len(self.constants), 1):
            raise self.bad(f"{where} names buffer {buffer} of {len(self.constants)}")
        data = self.constants[buffer] if buffer and len(self.constants[buffer]) else None
        if table.field(10) is not None and table.scalar(10, "I"):
            raise self.bad(f"{where} is in another file, which is not read")
        if any(d < 0 for d in shape) or len(shape) > MOST_AXES or math.prod(max(d, 1) for d in shape) > MOST_ELEMENTS:
            raise self.bad(f"{where} has shape {list(shape)[:MOST_AXES]}")
        if data is not None and math.prod(shape) > 8 * len(data) and table.field(6) is None:
            raise self.bad(f"{where} has shape {list(shape)} and {len(data):,} bytes of data")
        open_shape = self.open_shape(shape, signature, where) if data is None else shape
        return TensorInfo(
            table.string(3, f"{where}: name"),
            TYPES[number],
            open_shape,
            data,
            self.quantization(table.table(4, f"{where}: quantisation"), shape, where),
            bool(table.scalar(5, "?")),
            self.sparse(table.table(6, f"{where}: sparsity"), len(shape), where),
            shape,
        )

    def open_shape(self, shape: tuple[int, ...], signature: tuple[int, ...] | None, where: str) -> tuple[int, ...]:
        if not signature:
            return shape
        if len(signature) != len(shape) or any(s != -1 and s != d for s, d in zip(signature, shape)):
            raise self.bad(f"{where} has shape {list(shape)} and shape signature {list(signature)[:MOST_AXES]}")
        return signature

    def quantization(self, table: Table | None, shape: tuple[int, ...], where: str) -> Quantization | None:
        """Scales and zero points; None: the tensor is not quantised."""
        if table is None:
            return None
        if table.scalar(4, "B"):
            raise self.bad(f"{where} is quantised by blocks or in another way that is not read")
        scale, zero = table.numbers(2, "f4", f"{where}: scale"), table.numbers(3, "i8", f"{where}: zero point")
        if scale is None or not len(scale):
            return None
        axis = table.scalar(6, "i")
        zero = np.zeros(len(scale), np.int64) if zero is None or not len(zero) else zero
        if len(zero) == 1 < len(scale):
            zero = np.repeat(zero, len(scale))
        along = shape[axis] if 0 <= axis < len(shape) else 1
        if len(zero) != len(scale) or (len(scale) > 1 and len(scale) != along):
            raise self.bad(
                f"{where} has shape {list(shape)}, {len(scale)} scales and {len(zero)} zero points along axis {axis}"
            )
        if not np.all(np.isfinite(scale)) or np.any(scale < 0):
            raise self.bad(f"{where} has a scale that is negative or no number")
        return Quantization(scale.astype(np.float32), zero.astype(np.int64), axis if len(scale) > 1 else 0)

    def sparse(self, table: Table | None, rank: int, where: str) -> Sparse | None:
        if table is None:
            return None
        order = table.integers(0, f"{where}: traversal order") or ()
        blocks = table.integers(1, f"{where}: block map") or ()
        levels = []
        for level in table.tables(2, f"{where}: level"):
            parts: list[Sequence[int]] = []
            for slot in (2, 4):
                kind = level.scalar(slot, "B")
                vector = level.table(slot + 1, where)
                if kind > 3:
                    raise self.bad(f"{where} has indices of an unknown type")
                numbers = None if vector is None else vector.numbers(0, ("u1", "i4", "u2", "u1")[kind], where)
                if numbers is not None:
                    self.buffer.spend(numbers.nbytes, where)
                parts.append(() if numbers is None else numbers.tolist())
            levels.append((bool(level.scalar(0, "b")), level.scalar(1, "i"), parts[0], parts[1]))
        if (
            len(levels) != len(order)
            or sorted(order) != list(range(len(order)))
            or len(order) != rank + len(blocks)
            or any(not 0 <= b < rank for b in blocks)
        ):
            raise self.bad(f"{where} has {rank} axes and is sparse over {list(order)}, blocks {list(blocks)}")
        return Sparse(order, blocks, tuple(levels))

    def signature(self, table: Table, graphs: Sequence[SubGraph]) -> Signature:
        key, graph = table.string(2, "signature"), table.scalar(4, "I")
        if graph >= len(graphs):
            raise self.bad(f"signature '{key[:200]}' is of sub-graph {graph} of {len(graphs)}")
        maps: list[dict[str, int]] = []
        for slot in (0, 1):
            entries = [(e.string(0, "name"), e.scalar(1, "I")) for e in table.tables(slot, "signature entry")]
            for name, index in entries:
                if index >= len(graphs[graph].tensors):
                    raise self.bad(f"signature '{key[:200]}' names tensor {index} for '{name[:200]}'")
            maps.append(dict(entries))
        return Signature(key, maps[0], maps[1], graph)


__all__ = ["Model", "OperatorInfo", "Quantization", "Signature", "Sparse", "SubGraph", "TensorInfo", "read_model"]
