"""Small models, written with the frontend's own description of the format."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft_coreml.model_file import BLOBS
from weft_coreml.schema import schema

KINDS = {
    np.dtype(np.bool_): ("BOOL", "bools"), np.dtype(np.float32): ("FLOAT32", "floats"),
    np.dtype(np.float64): ("FLOAT64", "doubles"), np.dtype(np.int32): ("INT32", "ints"),
    np.dtype(np.int64): ("INT64", "longInts"), np.dtype(np.float16): ("FLOAT16", "bytes"),
    np.dtype(np.int8): ("INT8", "bytes"), np.dtype(np.uint8): ("UINT8", "bytes"),
    np.dtype(np.int16): ("INT16", "bytes"), np.dtype(np.uint16): ("UINT16", "bytes"),
}  # fmt: skip
Dims = Sequence[int | None]


def number_of(kind: str) -> int:
    """The number of an element type in programs."""
    field = schema()["MIL_TensorType"].DESCRIPTOR.fields_by_name["dataType"]
    return int(field.enum_type.values_by_name[kind].number)


def tensor_type(kind: str, shape: Dims) -> Any:
    """A tensor's type; None: an open size."""
    message = schema()["MIL_ValueType"]()
    message.tensorType.dataType = number_of(kind)
    message.tensorType.rank = len(shape)
    for d in shape:
        size = message.tensorType.dimensions.add()
        if d is None:
            size.unknown.variadic = False
        else:
            size.constant.size = d
    return message


def listed(kind: str, shape: Dims) -> Any:
    """The type of a list of tensors."""
    message = schema()["MIL_ValueType"]()
    message.listType.type.CopyFrom(tensor_type(kind, shape))
    return message


def value(given: Any, kind: str | None = None) -> Any:
    """A constant: an array, a number, a string, or a list of strings. `kind`: its element type, of less than 8 bits."""
    message = schema()["MIL_Value"]()
    if isinstance(given, list) and given and isinstance(given[0], str):
        message.type.listType.type.CopyFrom(tensor_type("STRING", ()))
        for text in given:
            message.immediateValue.list.values.add().CopyFrom(value(text))
        return message
    if isinstance(given, str):
        message.type.CopyFrom(tensor_type("STRING", ()))
        message.immediateValue.tensor.strings.values.append(given)
        return message
    array = plain(given)
    name, field = KINDS[array.dtype]
    message.type.CopyFrom(tensor_type(kind or name, array.shape))
    numbers = getattr(message.immediateValue.tensor, field)
    if field == "bytes":
        numbers.values = packed(array, kind)
    else:
        numbers.values.extend(array.reshape(-1).tolist())
        numbers.SetInParent()
    return message


def plain(given: Any) -> Any:
    """Numbers as an array of an element type that programs have."""
    array = np.asarray(given)
    if array.dtype == np.int64 and not isinstance(given, (np.ndarray, np.generic)):
        array = array.astype(np.int32)
    if array.dtype == np.float64 and not isinstance(given, (np.ndarray, np.generic)):
        array = array.astype(np.float32)
    return array


def packed(array: Any, kind: str | None) -> bytes:
    """Numbers as they are stored; those of less than 8 bits from the lowest bit on."""
    if kind is None:
        return bytes(array.tobytes())
    bits = int(kind.removeprefix("UINT").removeprefix("INT"))
    rows = np.unpackbits(array.reshape(-1, 1).view(np.uint8), axis=1, bitorder="little")[:, :bits]
    return np.packbits(rows.reshape(-1), bitorder="little").tobytes()


def type_of(made: Any) -> Any:
    """The type of an array, of (kind, shape), or a type itself."""
    if hasattr(made, "SerializeToString"):
        return made
    return tensor_type(*made) if isinstance(made, tuple) else tensor_type(KINDS[made.dtype][0], made.shape)


class Block:
    """A block of a program, or its function's."""

    def __init__(self, message: Any) -> None:
        self.message = message

    def const(self, name: str, given: Any, kind: str | None = None) -> str:
        """A constant of a name."""
        message = given if hasattr(given, "SerializeToString") else value(given, kind)
        op = self.message.operations.add(type="const")
        op.outputs.add(name=name).type.CopyFrom(message.type)
        op.attributes.add(key="val").value.CopyFrom(message)
        return name

    def op(self, kind: str, named: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
        """An operator. Operands are names, `("=", constant)`, or a list of such; outputs arrays or (kind, shape)."""
        message = self.message.operations.add(type=kind)
        for key, given in named.items():
            entry = message.inputs.add(key=key)
            for one in given if isinstance(given, list) else [given]:
                binding = entry.value.arguments.add()
                if isinstance(one, str):
                    binding.name = one
                else:
                    binding.value.CopyFrom(one[1] if hasattr(one[1], "SerializeToString") else value(one[1]))
        for name, made in outputs.items():
            message.outputs.add(name=name).type.CopyFrom(type_of(made))
        return message


class Program(Block):
    """A program of one function."""

    def __init__(self, inputs: Mapping[str, tuple[str, Dims]], version: int = 8) -> None:
        self.model = schema()["Model"](specificationVersion=version)
        self.model.description.SetInParent()
        self.model.mlProgram.version = 1
        function = self.model.mlProgram.functions.add(key="main").value
        function.opset = "CoreML7"
        super().__init__(function.block_specializations.add(key="CoreML7").value)
        self.function = function
        for name, (kind, shape) in inputs.items():
            function.inputs.add(name=name).type.CopyFrom(tensor_type(kind, shape))
            self.model.description.input.add(name=name).type.multiArrayType.SetInParent()

    def state(self, name: str, kind: str, shape: Dims) -> None:
        """A state of the function."""
        type = self.function.inputs.add(name=name).type
        type.stateType.wrappedType.CopyFrom(tensor_type(kind, shape))

    def bytes(self, *outputs: str) -> bytes:
        """The .mlmodel with these outputs."""
        del self.message.outputs[:]
        self.message.outputs.extend(outputs)
        return bytes(self.model.SerializeToString())

    def package(self, folder: Path, weights: bytes, *outputs: str) -> Path:
        """An .mlpackage with a file of weights."""
        root = folder / "model.mlpackage"
        inner = root / "Data" / "com.apple.CoreML"
        (inner / "weights").mkdir(parents=True)
        (inner / "model.mlmodel").write_bytes(self.bytes(*outputs))
        (inner / "weights" / "weight.bin").write_bytes(weights)
        entries = {"a": {"path": "com.apple.CoreML/model.mlmodel", "name": "model.mlmodel"}}
        manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": "a"}
        (root / "Manifest.json").write_text(json.dumps(manifest))
        return root


def stored(kind: str, shape: Sequence[int], offset: int, name: str = "@model_path/weights/weight.bin") -> Any:
    """A constant in a file of weights."""
    message = schema()["MIL_Value"]()
    message.type.CopyFrom(tensor_type(kind, shape))
    message.blobFileValue.fileName, message.blobFileValue.offset = name, offset
    return message


def weights(*blobs: tuple[str, Any]) -> tuple[bytes, list[int]]:
    """A file of weights, and where each of them is."""
    data, places = struct.pack("<II", len(blobs), 2).ljust(64, b"\0"), []
    numbers = {name: number for number, name in BLOBS.items()}
    for kind, array in blobs:
        small = kind.removeprefix("U").removeprefix("INT") in ("1", "2", "3", "4", "6")
        content = packed(np.asarray(array), kind if small else None)
        places.append(len(data))
        data += struct.pack("<IIQQQ", 0xDEADBEEF, numbers[kind], len(content), len(data) + 64, 0).ljust(64, b"\0")
        data += content + b"\0" * (-len(content) % 64)
    return data, places


def one(kind: str, operands: Mapping[str, Any], constants: Mapping[str, Any], results: Sequence[Any]) -> bytes:
    """A program of one operator: arrays are inputs, the others constants."""
    program = Program({name: (KINDS[a.dtype][0], a.shape) for name, a in inputs_of(operands).items()})
    named: dict[str, Any] = {}
    for key, given in operands.items():
        named[key] = [f"{key}_{k}" for k in range(len(given))] if isinstance(given, list) else key
    for key, given in constants.items():
        named[key] = program.const(f"{key}_c", given)
    names = [f"result_{k}" for k in range(len(results))]
    program.op(kind, named, dict(zip(names, results)))
    return program.bytes(*names)


def inputs_of(operands: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of such a program."""
    found: dict[str, Any] = {}
    for key, given in operands.items():
        found |= {f"{key}_{k}": a for k, a in enumerate(given)} if isinstance(given, list) else {key: given}
    return found


def network(
    kind: str, parameters: Mapping[str, Any], inputs: Mapping[str, Any], outputs: int = 1, weights: Any = ()
) -> bytes:
    """A neural network of one layer. Parameters are numbers, lists, or mappings of such; `weights` names arrays."""
    model = schema()["Model"](specificationVersion=5)
    network = model.neuralNetwork
    network.arrayInputShapeMapping = 1
    layer = network.layers.add(name="layer")
    for name, array in inputs.items():
        feature = model.description.input.add(name=name).type.multiArrayType
        feature.dataType = 65568
        feature.shape.extend(array.shape)
        layer.input.append(name)
    for k in range(outputs):
        model.description.output.add(name=f"out_{k}").type.multiArrayType.dataType = 65568
        layer.output.append(f"out_{k}")
    message = getattr(layer, kind)
    message.SetInParent()
    fill(message, parameters)
    for path, array in dict(weights).items():
        part = message
        for step in path.split("."):
            part = part[int(step)] if step.isdigit() else getattr(part, step)
        part.floatValue.append(np.asarray(array, np.float32).tobytes())
    return bytes(model.SerializeToString())


def fill(message: Any, parameters: Mapping[str, Any]) -> None:
    """Sets fields of a message."""
    for name, given in parameters.items():
        if isinstance(given, Mapping):
            getattr(message, name).SetInParent()
            fill(getattr(message, name), given)
        elif isinstance(given, list) and given and isinstance(given[0], Mapping):
            for one in given:
                fill(getattr(message, name).add(), one)
        elif isinstance(given, list):
            getattr(message, name).extend(given)
        else:
            setattr(message, name, given)
