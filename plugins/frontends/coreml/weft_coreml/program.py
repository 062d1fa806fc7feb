"""An ML program (MIL) as a graph, one operator at a time; converters/ says how each is converted.

Operators have operands by name; constants are operators of their own, whose numbers are in the program or in a file of
weights. Branches and loops hold blocks, which see the names around them. An image is taken as a program does: as a
tensor [1, channels, height, width] of its pixels' numbers, 0 to 255.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError, UnsupportedError, nearest
from weft.graph.nodes import Graph, TensorType, Value
from weft.graph.operator import Array
from weft_coreml.context import Context, Text, capture
from weft_coreml.importer import Importer
from weft_coreml.model_file import ModelFile
from weft_coreml.plugin import CoreMLOptions
from weft_coreml.schema import chosen, entries
from weft_coreml.state import States, Stored
from weft_coreml.types import KINDS, Kind, count_of, shaped_array, unpacked
from weft_frontend.bodies import Body, Level, build_body
from weft_frontend.operands import Poison, Poisoned, Scope, poisoned

MOST_DEPTH = 32
"""Blocks inside of blocks."""
MOST_RANK = 16
NUMBERS = {"floats": np.float32, "ints": np.int32, "bools": np.bool_, "longInts": np.int64, "doubles": np.float64}
"""Lists of numbers in a program."""


def import_program(file: ModelFile, options: CoreMLOptions) -> Graph:
    """The graph of an ML program.

    Raises:
        FrontendError: it is ill-formed, or has no function of this name.
        UnsupportedError: everything unsupported, at once.
    """
    functions = entries(file.message.mlProgram.functions)
    count = sum(len(b.value.operations) for f in functions.values() for b in f.block_specializations)
    return Program(file, options, count).run(function_of(file, functions, options.function))


def function_of(file: ModelFile, functions: Mapping[str, Any], name: str | None) -> Any:
    """The function of a name; None: the program's own choice."""
    default = file.message.description.defaultFunctionName or "main"
    wanted = name if name is not None else default
    if wanted in functions:
        return functions[wanted]
    if name is None and len(functions) == 1:
        return next(iter(functions.values()))
    close = nearest(wanted, functions)
    raise FrontendError(
        f"the program has no function '{wanted}'",
        hint=f"did you mean '{close}'?" if close else f"its functions: {', '.join(sorted(functions)) or 'none'}",
    )


class Program(Importer):
    """The state of reading one program."""

    def __init__(self, file: ModelFile, options: CoreMLOptions, count: int) -> None:
        super().__init__(file, options, count)
        self.states = States(self, options.state)
        self.opset = ""
        self.depth = 0

    def run(self, function: Any) -> Graph:
        found = self.results_of(function)
        return self.finished([] if any(poisoned(o) for _, o in found) else found)

    def results_of(self, function: Any) -> list[tuple[str, Any]]:
        """What a function gives, and what becomes of its states, by name."""
        self.opset = function.opset
        blocks = entries(function.block_specializations)
        block = blocks.get(function.opset) or (next(iter(blocks.values())) if len(blocks) == 1 else None)
        if block is None:
            raise FrontendError(f"the function has no block for its operators ('{function.opset}')")
        scope = Scope()
        for given in function.inputs:
            if given.name in scope.values:
                raise FrontendError(f"two inputs have the name '{given.name}'")
            scope.values[given.name] = self.input_of(given)
        results = self.block(block, scope, "")
        return [*zip(block.outputs, results), *self.states.results()]

    # -- types
    def input_of(self, given: Any) -> Any:
        kind = chosen(given.type)
        if kind == "stateType":
            dtype, shape = self.tensor_type(given.type.stateType.wrappedType.tensorType, given.name)
            if None in shape:
                raise UnsupportedError(f"state '{given.name}' has an open size")
            return self.states.begin(given.name, TensorType(dtype.dtype, tuple(d or 0 for d in shape)))
        if kind != "tensorType":
            raise UnsupportedError(f"input '{given.name}' is no tensor ({kind or 'of no type'})")
        dtype, shape = self.tensor_type(given.type.tensorType, given.name)
        return self.input(given.name, dtype.dtype, shape)

    def tensor_type(self, message: Any, name: str) -> tuple[Kind, tuple[int | None, ...]]:
        """The element type and the sizes of a tensor; None: an open size.

        Raises:
            FrontendError: it has an element type that is none, or other sizes than its rank says.
            UnsupportedError: its rank is open.
        """
        values = message.DESCRIPTOR.fields_by_name["dataType"].enum_type.values_by_number
        found = values.get(message.dataType)
        kind = KINDS.get(found.name if found is not None else "")
        if kind is None:
            raise FrontendError(f"'{name}' has the element type {found.name if found else message.dataType}")
        if message.rank < 0 or any(d.unknown.variadic for d in message.dimensions):
            raise UnsupportedError(f"'{name}' has any number of dimensions")
        sizes = tuple(None if d.HasField("unknown") else int(d.constant.size) for d in message.dimensions)
        if message.rank != len(sizes) or len(sizes) > MOST_RANK:
            raise FrontendError(f"'{name}' has rank {message.rank} and {len(sizes)} size(s)")
        return kind, sizes

    def declared(self, given: Any) -> tuple[DType | None, tuple[int | None, ...] | None]:
        """What a program says of a result: element type and sizes; None where it is no tensor, or of open rank."""
        if chosen(given.type) != "tensorType":
            return None, None
        message = given.type.tensorType
        name = message.DESCRIPTOR.fields_by_name["dataType"].enum_type.values_by_number.get(message.dataType)
        if (
            name is None
            or name.name == "STRING"
            or message.rank < 0
            or any(d.unknown.variadic for d in message.dimensions)
        ):
            return None, None
        kind, sizes = self.tensor_type(message, given.name)
        return kind.dtype, sizes

    # -- constants
    def constant(self, message: Any, name: str) -> Any:
        """What stands for a value that the program holds."""
        kind = chosen(message.type)
        if kind == "listType" or (kind == "tupleType"):
            items = message.immediateValue.list.values or message.immediateValue.tuple.values
            return self.items([self.constant(v, name) for v in items], name)
        if kind != "tensorType":
            raise FrontendError(f"constant '{name}' is no tensor")
        tensor = message.type.tensorType
        strings = message.immediateValue.tensor.strings
        if message.immediateValue.tensor.HasField("strings"):
            shape = tuple(int(d.constant.size) for d in tensor.dimensions)
            if count_of(shape) != len(strings.values):
                raise FrontendError(f"constant '{name}' has {len(strings.values)} strings, its shape is {shape}")
            return Text(strings.values, shape)
        element, sizes = self.tensor_type(tensor, name)
        shape = tuple(d for d in sizes if d is not None)
        if len(shape) < len(sizes) or count_of(shape) > LARGEST_CONSTANT:
            raise FrontendError(f"constant '{name}' has the shape {sizes}")
        array = self.numbers(message, element, shape, name)
        return self.kept(array, name)

    def items(self, found: Sequence[Any], name: str) -> Any:
        """A list of strings or of numbers, as one value."""
        if all(isinstance(o, Text) and len(o.values) == 1 for o in found):
            return Text([o.values[0] for o in found], (len(found),))
        made = [o.constant if isinstance(o, Value) else o.array() for o in found if not isinstance(o, Text)]
        arrays = [a for a in made if a is not None and a.size == 1]
        if len(arrays) < len(found):
            raise FrontendError(f"constant '{name}' is a list of something else than strings or numbers")
        return self.kept(np.array([a.reshape(-1)[0] for a in arrays]), name)

    def numbers(self, message: Any, kind: Kind, shape: tuple[int, ...], name: str) -> Array:
        count = count_of(shape)
        if message.HasField("blobFileValue"):
            blob = message.blobFileValue
            return self.file.weights(blob.fileName, blob.offset, kind, count).reshape(shape)
        tensor = message.immediateValue.tensor
        field = chosen(tensor)
        if field == "bytes":
            return unpacked(tensor.bytes.values, kind, count).reshape(shape)
        if field is None:  # no numbers at all
            return shaped_array(np.zeros(0, kind.dtype.numpy), shape, f"constant '{name}'")
        found: Array = np.array(list(getattr(tensor, field).values), NUMBERS[field])
        if kind.dtype.kind != dt.dtype(found.dtype).kind and not (kind.dtype.is_integer and found.dtype.kind == "i"):
            raise FrontendError(f"constant '{name}' is {kind.name} and has {field}")
        return shaped_array(found.astype(kind.dtype.numpy), shape, f"constant '{name}'")

    # -- operators
    def block(self, block: Any, scope: Scope, where: str) -> list[Any]:
        """What stands for the outputs of a block, whose operators are put here."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise UnsupportedError(f"blocks are more than {MOST_DEPTH} inside of each other")
        for k, message in enumerate(block.operations):
            self.operation(message, scope, where, k)
        self.depth -= 1
        return [self.found(scope, name, f"output of block '{where}'") for name in block.outputs]

    def found(self, scope: Scope, name: str, place: str) -> Any:
        operand = scope.find(name)
        if operand is None:
            raise FrontendError(f"'{name}' is used and computed by no operator before", where=place)
        return operand

    def operation(self, message: Any, scope: Scope, where: str, number: int) -> None:
        label = message.outputs[0].name if message.outputs else f"{message.type}_{number}"
        place = f"node '{where}{label}': {message.type}"
        for given in message.outputs:
            if given.name in scope.values:
                raise FrontendError(f"'{given.name}' is computed twice", where=place)
        if message.type == "const":
            self.constants(message, scope, place)
            return
        named: dict[str, list[Any]] = {}
        for entry in message.inputs:
            named[entry.key] = [
                self.found(scope, b.name, place) if not b.HasField("value") else self.constant(b.value, entry.key)
                for b in entry.value.arguments
            ]
        if message.type.startswith("constexpr_"):
            named |= {e.key: [self.constant(e.value, e.key)] for e in message.attributes if e.key != "name"}
        declared = [self.declared(given) for given in message.outputs]
        c = Context(self, message, message.type, f"{where}{label}", named, declared)
        c.scope = scope
        results = list(self.node(c))
        if len(results) != len(message.outputs):
            raise FrontendError(
                f"{message.type} gives {len(results)} result(s), {len(declared)} are named", where=place
            )
        for given, result, (dtype, shape) in zip(message.outputs, results, declared):
            found = Poison() if result is None else self.as_declared(result, dtype, shape, place)
            last = self.builder.graph.nodes[-1:]
            if isinstance(found, Value) and found.producer is not None and found.producer in last:
                self.builder.rename(found, given.name)
            scope.values[given.name] = found

    def constants(self, message: Any, scope: Scope, place: str) -> None:
        values = {e.key: e.value for e in message.attributes if e.key == "val"}
        values |= {e.key: e.value.arguments[0].value for e in message.inputs if e.key == "val" and e.value.arguments}
        if len(message.outputs) != 1 or "val" not in values:
            raise FrontendError("a constant has no value", where=place)
        scope.values[message.outputs[0].name] = self.constant(values["val"], message.outputs[0].name)

    # -- blocks of branches and loops
    def captured(self, block: Any, scope: Scope, where: str) -> Body:
        """A block without inputs of its own, as a graph that captures what it uses."""

        def make(level: Level, _: list[Any]) -> list[tuple[str, Value]]:
            inner = Scope({}, scope, "", lambda o: capture(level, self, o))
            return self.results(self.block(block, inner, f"{where}/"))

        return build_body(self, where, (), make)

    def results(self, found: Sequence[Any]) -> list[tuple[str, Value]]:
        if any(map(poisoned, found)):
            raise Poisoned
        if any(isinstance(o, Stored) for o in found):
            raise UnsupportedError("a state leaves a block")
        return [(f"result_{k}", self.as_value(o)) for k, o in enumerate(found)]


LARGEST_CONSTANT = 1 << 36
"""Numbers of a constant."""

__all__ = ["Program", "function_of", "import_program"]
