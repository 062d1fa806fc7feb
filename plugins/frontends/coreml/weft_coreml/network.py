"""A neural network (layers, the older form of Core ML's networks) as a graph; converters/layers*.py say how each layer
is read: most as the operator of programs that it is.

All values are float32, indices and sizes included, as Core ML has them; sizes stay formulas while the model is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError
from weft.graph.nodes import Graph, Value
from weft.graph.operator import Array
from weft_coreml.context import Context, Text
from weft_coreml.importer import Importer
from weft_coreml.model_file import ModelFile
from weft_coreml.plugin import CoreMLOptions
from weft_coreml.registry import NETWORK, REGISTRY
from weft_coreml.schema import chosen
from weft_coreml.types import ARRAYS, count_of, label_list
from weft_frontend.contents import Content
from weft_frontend.operands import Poison, Scope, poisoned
from weft_ops import Argmax, Cast, Reshape
from weft_ops.composing import Composer

COLOURS = {10: 1, 20: 3, 30: 3, 40: 1}
"""Channels of images by the number of their colour space: grey, RGB, BGR, grey in half precision."""


def import_network(file: ModelFile, options: CoreMLOptions, kind: str) -> Graph:
    """The graph of a network.

    Raises:
        FrontendError: it is ill-formed.
        UnsupportedError: everything unsupported, at once.
    """
    return Network(file, options, getattr(file.message, kind)).run()


class Layer(Context):
    """A layer with its inputs, in their order, and its parameters."""

    importer: Network

    def __init__(self, importer: Network, message: Any, kind: str, operands: Sequence[Any], scope: Scope) -> None:
        name = message.name or kind
        declared: list[Any] = [(None, None)] * len(message.output)
        super().__init__(importer, message, kind, name, {"in": list(operands)}, declared, NETWORK)
        self.parameters, self.scope = getattr(message, kind), scope

    @property
    def place(self) -> str:
        return f"node '{self.name}': {self.op_type}({', '.join(self.message.input)}) → {', '.join(self.message.output)}"

    def x(self, k: int = 0) -> Value:
        """Input k, as float32."""
        if k >= len(self.operands):
            raise self.error(f"input {k} is missing")
        return self.cast(self.as_value(self.operands[k], "x"), dt.float32)

    def integers_of(self, k: int) -> Any:
        """Input k, which holds sizes or indices: as integers."""
        if k >= len(self.operands):
            raise self.error(f"input {k} is missing")
        operand = self.operands[k]
        if isinstance(operand, Value) and operand.dtype.is_float:
            if operand.constant is not None:
                return self.importer.kept(operand.constant.astype(np.int32), "indices")
            return self.cast(operand, dt.int32)
        return operand

    def weights(self, message: Any, shape: Sequence[int], what: str = "weights") -> Value:
        """Weights of a layer, in a shape."""
        return self.builder.constant(weights_of(message, tuple(int(d) for d in shape), self.place), what)

    def mil(self, kind: str, *, results: Any = 1, dtype: Any = dt.float32, **named: Any) -> Any:
        """What an operator of programs gives. Operands are values, a tuple of them, or constants."""
        operands = {key: self._operands(given) for key, given in named.items() if given is not None}
        declared = [(dtype, None)] * results
        c = Context(self.importer, self.message, kind, self.name, operands, declared)
        found = REGISTRY.find("", kind)
        assert found is not None
        return found(c)

    def _operands(self, given: Any) -> list[Any]:
        if isinstance(given, tuple):
            return list(given)
        if isinstance(given, (Value, Content)):
            return [given]
        if isinstance(given, str):
            return [Text((given,))]
        array = np.asarray(given)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        return [self.importer.kept(array.astype(np.int32) if array.dtype.kind in "iu" else array, "c")]


def weights_of(message: Any, shape: tuple[int, ...], place: str) -> Array:
    """The numbers of weights, as float32.

    Raises:
        FrontendError: there are fewer or more than the shape has.
        UnsupportedError: they are stored in a way that is not read.
    """
    count = count_of(shape)
    field = chosen(message, ("floatValue", "float16Value", "rawValue", "int8RawValue"))
    if field == "floatValue":
        data: Array = np.frombuffer(b"".join(message.floatValue), np.float32)
    elif field == "float16Value":
        data = np.frombuffer(message.float16Value, np.float16).astype(np.float32)
    elif field == "rawValue" and message.HasField("quantization"):
        data = _quantized(message, shape, place)
    elif field is None:
        data = np.zeros(0, np.float32)
    else:
        raise UnsupportedError(f"weights are stored as {field}", where=place)
    if data.size != count:
        raise FrontendError(
            f"there are {data.size} weights, the layer has {count}", where=place, hint="is the file whole?"
        )
    return data.reshape(shape)


def _quantized(message: Any, shape: tuple[int, ...], place: str) -> Array:
    quantization = message.quantization
    bits, count = int(quantization.numberOfBits), count_of(shape)
    if not 1 <= bits <= 8:
        raise FrontendError(f"weights of {bits} bits", where=place)
    # Here the first number of a byte is in its highest bits.
    stored = np.unpackbits(np.frombuffer(message.rawValue, np.uint8))
    if stored.size < count * bits or stored.size >= count * bits + 8:
        raise FrontendError(f"{len(message.rawValue)} bytes hold no {count} weights of {bits} bits", where=place)
    weights = (1 << np.arange(bits)[::-1]).astype(np.uint8)
    found = (stored[: count * bits].reshape(count, bits) * weights).sum(axis=1, dtype=np.uint8)
    if quantization.HasField("lookupTableQuantization"):
        table = np.array(list(quantization.lookupTableQuantization.floatValue), np.float32)
        if count and int(found.max()) >= table.size:
            raise FrontendError(f"a table of {table.size} numbers for weights of {bits} bits", where=place)
        return np.asarray(table[found])
    scale, bias = (np.array(list(getattr(quantization.linearQuantization, n)), np.float32) for n in ("scale", "bias"))
    rows = found.astype(np.float32).reshape((shape[0] if shape else 1), -1)
    if scale.size not in (1, rows.shape[0]) or bias.size not in (0, 1, rows.shape[0]):
        raise FrontendError(f"{scale.size} scales for {rows.shape[0]} rows of weights", where=place)
    return np.asarray(rows * scale.reshape(-1, 1) + (bias.reshape(-1, 1) if bias.size else 0)).reshape(-1)


def sizes_of(array: Any) -> list[int | None]:
    """The sizes of an array that a model takes; None: open ones."""
    sizes: list[int | None] = [int(d) for d in array.shape]
    flexible = [(s.lowerBound, s.upperBound) for s in array.shapeRange.sizeRanges]
    for shape in array.enumeratedShapes.shapes:
        flexible = flexible or [(int(d), int(d)) for d in shape.shape]
        flexible = [(min(lo, int(d)), max(hi, int(d))) for (lo, hi), d in zip(flexible, shape.shape)]
    return [lo if lo == hi else None for lo, hi in flexible] if flexible else sizes


class Network(Importer):
    """The state of reading one network."""

    title = "Core ML"

    def __init__(self, file: ModelFile, options: CoreMLOptions, network: Any) -> None:
        super().__init__(file, options, len(network.layers))
        self.network = network
        self.exact = network.arrayInputShapeMapping == 1
        self.scope = Scope()

    def run(self) -> Graph:
        return self.finished(self.results())

    def results(self) -> list[tuple[str, Any]]:
        """What the network gives, by name; of one that uses what is not supported poison."""
        description = self.file.message.description
        before = sum(map(len, self.unsupported.values()))
        for feature in description.input:
            self.scope.values[feature.name] = self.input_of(feature)
        for message in self.network.layers:
            self.add(message, self.scope)
        if sum(map(len, self.unsupported.values())) > before:
            return [(f.name, Poison()) for f in description.output]
        return self.outputs(description)

    # -- inputs and outputs
    def input_of(self, feature: Any) -> Value:
        kind = chosen(feature.type, ("imageType", "multiArrayType"))
        if kind == "imageType":
            return self.image(feature)
        if kind is None:
            raise UnsupportedError(f"input '{feature.name}' of a network is no array and no image")
        array = feature.type.multiArrayType
        dtype = ARRAYS.get(array.dataType)
        if dtype is None:
            raise FrontendError(f"input '{feature.name}' has the element type {array.dataType}")
        sizes = sizes_of(array)
        x = self.input(feature.name, dtype, sizes)
        x = x if dtype == dt.float32 else self.builder.add(Cast(dt.float32), x)
        if self.exact:
            return x
        if len(sizes) not in (1, 3):
            raise UnsupportedError(f"input '{feature.name}' of rank {len(sizes)} in a network whose arrays have 5 axes")
        c = Composer(self.builder)
        return c.reshape(x, (1, 1, *x.shape, *([1] * (3 - len(sizes)))))

    def image(self, feature: Any) -> Value:
        """The pixels' numbers, 0 to 255, [1, channels, height, width], scaled as the network says."""
        image = feature.type.imageType
        channels = COLOURS.get(image.colorSpace)
        if channels is None:
            raise FrontendError(f"image '{feature.name}' has no colours")
        flexible = image.HasField("imageSizeRange") or image.HasField("enumeratedSizes")
        sizes = (1, channels, None, None) if flexible else (1, channels, int(image.height), int(image.width))
        c = Composer(self.builder)
        x = self.input(feature.name, dt.float32, sizes)
        for given in self.network.preprocessing:
            if given.featureName not in ("", feature.name):
                continue
            if given.HasField("meanImage"):
                mean = np.array(list(given.meanImage.meanImage), np.float32)
                shape = tuple(int(d) for d in x.shape[1:] if isinstance(d, int))
                if len(shape) < 3 or mean.size != count_of(shape):
                    raise FrontendError(f"the mean image of '{feature.name}' has {mean.size} numbers")
                x = c.sub(x, self.builder.constant(mean.reshape(1, *shape)))
            else:
                s = given.scaler
                scale = s.channelScale if s.HasField("channelScale") else 1.0
                bias = [s.grayBias] if channels == 1 else [s.redBias, s.greenBias, s.blueBias]
                bias = bias[::-1] if image.colorSpace == 30 else bias
                x = c.add(c.mul(x, scale), self.builder.constant(np.array(bias, np.float32).reshape(1, -1, 1, 1)))
        return x if self.network.imageInputShapeMapping == 1 else c.reshape(x, (1, *x.shape))

    def outputs(self, description: Any) -> list[tuple[str, Any]]:
        """What the model gives, as its description says; of a classifier the label, and the probabilities in the order
        of the labels."""
        found: list[tuple[str, Any]] = []
        label, probabilities = description.predictedFeatureName, description.predictedProbabilitiesName
        for feature in description.output:
            if feature.name == label or (feature.name == probabilities and feature.name not in self.scope.values):
                continue
            if feature.name not in self.scope.values:
                raise FrontendError(f"output '{feature.name}' is computed by no layer")
            found.append((feature.name, self.as_output(feature, self.scope.values[feature.name])))
        return found + (self.classified(label, probabilities) if label else [])

    def as_output(self, feature: Any, operand: Any) -> Any:
        value = self.as_value(operand, feature.name)
        array = feature.type.multiArrayType
        c = Composer(self.builder)
        if not self.exact and array.shape and len(array.shape) < len(value.shape) and value.tensor.is_static:
            if count_of(tuple(array.shape)) == count_of(tuple(int(d) for d in value.shape if isinstance(d, int))):
                value = c.reshape(value, tuple(int(d) for d in array.shape))
        dtype = ARRAYS.get(array.dataType, dt.float32)
        return c.cast(value, dtype)

    def classified(self, label: str, probabilities: str) -> list[tuple[str, Any]]:
        labels = label_list(self.network)
        name = self.network.labelProbabilityLayerName or probabilities
        if name not in self.scope.values:
            name = list(self.network.layers)[-1].output[0]
        b = self.builder
        flat = b.add(Reshape((len(labels),)), self.as_value(self.scope.values[name]))
        best = b.add(Argmax(0, False), flat)
        return [(label, self.labelled(labels, best)), (probabilities or "probabilities", flat)]

    # -- layers
    def add(self, message: Any, scope: Scope) -> None:
        """Converts a layer; names of its outputs are put into the scope."""
        kind = chosen(message, tuple(f.name for f in message.DESCRIPTOR.fields if f.number >= 100))
        if kind is None:
            raise FrontendError("a layer has no kind", where=f"layer '{message.name}'")
        operands = []
        for name in message.input:
            found = scope.find(name)
            if found is None:
                raise FrontendError(
                    f"'{name}' is used and computed by no layer before", where=f"layer '{message.name}'"
                )
            operands.append(found)
        layer = Layer(self, message, kind, operands, scope)
        results = list(self.node(layer))
        if len(results) < len(message.output):
            raise FrontendError(f"{kind} gives {len(results)} result(s)", where=layer.place)
        for name, result in zip(message.output, results):
            scope.values[name] = Poison() if result is None else self.as_float(result)

    def as_float(self, result: Any) -> Any:
        if poisoned(result) or isinstance(result, Content):
            return result
        return result if result.dtype == dt.float32 else self.refined(self.builder.add(Cast(dt.float32), result))


__all__ = ["COLOURS", "Layer", "Network", "import_network", "sizes_of", "weights_of"]
