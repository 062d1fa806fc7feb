"""A network and its weights as a graph.

The network is a .prototxt, as Caffe deploys it: layers, of which those of the phase TEST are read, and inputs with
their sizes. The weights are those of a .caffemodel, by the names of layers, as in Caffe's own `CopyTrainedLayersFrom`.
Names of blobs may be given again: a layer whose top has the name of its bottom computes in place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, TensorType, Value
from weft.graph.operator import Array
from weft.tensor.language import Dim
from weft_caffe.plugin import CaffeOptions
from weft_caffe.registry import REGISTRY
from weft_caffe.schema import layer_type, schema
from weft_frontend.archives import read_file
from weft_frontend.context import Context
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Absent
from weft_frontend.protos import MOST_BYTES, parse_binary, parse_text

MOST_TEXT = 64 << 20
"""Bytes of a .prototxt."""
LARGEST = (1 << 31) - 1
"""A size."""
SOURCES = ("Data", "ImageData", "HDF5Data", "MemoryData", "WindowData", "DummyData", "AnnotatedData")
"""Layers that read data where a network is trained."""


def pair(path: Path, options: CaffeOptions) -> list[Path]:
    """The .prototxt and, if it is there, the .caffemodel of a model of which one is given.

    Raises:
        FrontendError: several files could be the other one, or there is no network.
    """
    if path.suffix.lower() == ".caffemodel":
        if options.weights is not None:
            raise FrontendError(
                f"'{path}' holds weights, and weights are given", hint="give the path of the .prototxt as the model"
            )
        network = _beside(path, ".prototxt")
        if network is None:
            raise FrontendError(
                f"'{path}' holds weights alone",
                why="there is no network, a .prototxt, beside it",
                hint="give the path of the network, and the weights as option: --frontend 'caffe -weights=…'",
            )
        return [network, path]
    if options.weights is not None:
        return [path, Path(options.weights)]
    weights = _beside(path, ".caffemodel")
    return [path] if weights is None else [path, weights]


def _beside(path: Path, suffix: str) -> Path | None:
    """The file of a suffix that belongs to another: the one of its name, or the only one in its folder."""
    same = path.with_suffix(suffix)
    if same.is_file():
        return same
    found = sorted(file for file in path.parent.glob(f"*{suffix}") if file.is_file())
    if len(found) > 1:
        names = ", ".join(f"'{file.name}'" for file in found[:5])
        raise FrontendError(
            f"which file belongs to '{path.name}' is not certain",
            why=f"beside it are {names}",
            hint="give the .prototxt as the model, and the option weights",
        )
    return found[0] if found else None


def network_of(source: Any, options: CaffeOptions) -> Any:
    """The message of a network, a path or the bytes of a .prototxt.

    Raises:
        FrontendError: it is none.
    """
    if isinstance(source, Path):
        path = pair(source, options)[0]
        data, what = read_file(path, MOST_TEXT), f"'{path}' is not a Caffe network"
    else:
        data, what = bytes(source), "the bytes are not a Caffe network"
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FrontendError(what, why=f"it is no text: {error}", hint="is the file damaged?") from None
    net = parse_text(schema()["Net"], text, what)
    if not net.layer and not net.layers:
        raise FrontendError(what, why="it has no layers", hint="a solver's .prototxt names the network's")
    return net


def load_network(source: Any, options: CaffeOptions) -> Graph:
    """The graph of a network, a path or the bytes of a .prototxt, with its weights."""
    net = network_of(source, options)
    given = options.weights
    weights = pair(source, options)[1:] if isinstance(source, Path) else [] if given is None else [Path(given)]
    blobs = read_weights(weights[0]) if weights else {}
    return Network(net, blobs, options, str(weights[0]) if weights else None).run()


def read_weights(path: Path) -> dict[str, list[Any]]:
    """The blobs of each layer of a .caffemodel, by name.

    Raises:
        FrontendError: it is not there, or does not parse.
    """
    what = f"'{path}' is not a Caffe model"
    try:
        data = read_file(path, MOST_BYTES)
    except FileNotFoundError:
        raise FrontendError(f"no file '{path}'", hint="give the path of the .caffemodel") from None
    if data[:8] == b"\x89HDF\r\n\x1a\n":
        raise FrontendError(what, why="it is an HDF5 file", hint="save the weights as binary protocol buffers")
    net = parse_binary(schema()["Net"], data, what)
    found: dict[str, list[Any]] = {}
    for layer in (*net.layer, *net.layers):
        if layer.blobs:
            found[layer.name] = list(layer.blobs)
    if not found:
        raise FrontendError(what, why="none of its layers has weights")
    return found


def shape_of(blob: Any) -> tuple[int, ...]:
    """The sizes of a blob; of the older form four of them."""
    if blob.HasField("shape"):
        return tuple(int(d) for d in blob.shape.dim)
    return (blob.num, blob.channels, blob.height, blob.width)


def numbers(blob: Any, where: str) -> Array:
    """The data of a blob, float32 or float64, one dimension.

    Raises:
        FrontendError: there are fewer or more than its sizes say.
    """
    shape = shape_of(blob)
    chunks, dtype = (blob.data, "<f4") if blob.data or not blob.double_data else (blob.double_data, "<f8")
    if any(len(chunk) % np.dtype(dtype).itemsize for chunk in chunks):
        raise FrontendError("a blob ends within a number", where=where)
    parts = [np.frombuffer(chunk, dtype) for chunk in chunks]
    array = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])
    count = 1
    for d in shape:
        count *= d
    if not array.size and count:  # numbers that are not packed have another form
        loose = parse_binary(schema()["Numbers"], blob.SerializeToString(), f"the weights of {where} do not parse")
        array = np.array(loose.data or loose.double_data, np.float64 if loose.double_data else np.float32)
    if min(shape, default=0) < 0 or array.size != count:
        raise FrontendError(f"a blob of shape {shape} has {array.size} numbers", where=where, hint="is the file whole?")
    return array


class Layer(Context):
    """A layer with its bottoms, its parameters and its weights."""

    importer: Network

    def __init__(
        self, importer: Network, message: Any, kind: str, bottoms: Sequence[Any], blobs: Sequence[Any]
    ) -> None:
        name = message.name or kind
        super().__init__(importer, kind, name, bottoms, outputs=len(message.top))
        self.message, self.blobs = message, blobs

    @property
    def place(self) -> str:
        return f"node '{self.name}': {self.op_type}({', '.join(self.message.bottom)}) → {', '.join(self.message.top)}"

    def operand_name(self, k: int) -> str:
        return str(self.message.bottom[k])

    def parameters(self, field: str) -> Any:
        """The parameters of a layer, with defaults for what it does not say."""
        if field not in self.message.DESCRIPTOR.fields_by_name:  # of the older form, which has fewer
            kind = schema()["Layer"].DESCRIPTOR.fields_by_name[field].message_type
            return schema()[kind.name]()
        return getattr(self.message, field)

    def weight(self, k: int, shape: Sequence[int], name: str) -> Value:
        """Blob k in a shape; older models store it with further axes of size 1.

        Raises:
            FrontendError: the weights lack it, or it has another number of elements.
        """
        if k >= len(self.blobs):
            given = self.importer.weights
            raise FrontendError(
                f"the layer has no {name}",
                why="there are no weights" if given is None else f"'{given}' has {len(self.blobs)} blob(s) for it",
                hint="give the .caffemodel: --frontend 'caffe -weights=…'" if given is None else None,
            )
        array = numbers(self.blobs[k], f"layer '{self.name}', {name}")
        count = 1
        for d in shape:
            count *= d
        if array.size != count:
            raise self.error(f"the {name} has {array.size} elements, the layer needs {tuple(shape)}")
        return self.builder.constant(array.reshape(tuple(shape)).astype(np.float32), name)

    def axis(self, axis: int, k: int = 0, extra: int = 0) -> int:
        """An axis of bottom k, counted from the front.

        Args:
            extra: 1 if it may be the one behind the last.
        """
        rank = len(self.shape(k))
        if not -rank <= axis < rank + extra:
            raise self.error(f"axis {axis} of {rank} dimension(s)")
        return axis + rank if axis < 0 else axis

    def fixed(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Sizes that must be numbers."""
        found = tuple(d for d in dims if isinstance(d, int))
        if len(found) < len(dims):
            raise self.unsupported(f"{what} where a size is open")
        return found


class Network(GraphImporter):
    """The state of reading one network."""

    title = "Caffe"
    hint = "give the network as it is deployed; a plugin can convert a layer (hook `converters`)"

    def __init__(
        self, net: Any, blobs: Mapping[str, Sequence[Any]], options: CaffeOptions, weights: str | None
    ) -> None:
        name = re.sub(r"\W+", "_", net.name).strip("_")
        super().__init__(f"n{name}" if name[:1].isdigit() else name or "network", "caffe", REGISTRY, len(net.layer))
        self.net, self.blobs, self.options, self.weights = net, blobs, options, weights
        self.scope: dict[str, Any] = {}
        self.used: dict[str, bool] = {}
        """The blobs in the order in which they were computed, and whether a layer has them as a bottom."""
        self.shared: dict[str, Any] = {}

    def run(self) -> Graph:
        layers = [layer for layer in (self.net.layer or self.net.layers) if self.included(layer)]
        if not self.net.layer and any(layer.HasField("layer") for layer in layers):
            raise UnsupportedError(
                "the network has the form of Caffe before 2014 (V0LayerParameter)",
                hint="Caffe's upgrade_net_proto_text writes it anew",
            )
        self.inputs()
        for message in layers:
            self.add(message)
        if self.unsupported:
            raise self.everything_unsupported()
        ends = [name for name, used in self.used.items() if not used and not isinstance(self.scope[name], Absent)]
        if not ends:
            raise FrontendError("the network has no output", why="every blob is the bottom of a layer")
        for name in ends:
            self.builder.output(self.as_value(self.scope[name], name), name)
        return self.built()

    def included(self, message: Any) -> bool:
        """Whether a layer is part of the network where it is deployed: phase TEST, level 0 and the network's stages."""
        if message.include and message.exclude:
            raise FrontendError("a layer both includes and excludes phases", where=f"layer '{message.name}'")
        rules = message.include or message.exclude
        if not rules:
            return True
        state = self.net.state
        stages = set(state.stage)
        test = schema()["NetState"]().phase
        met = any(
            (not rule.HasField("phase") or rule.phase == (state.phase if state.HasField("phase") else test))
            and (not rule.HasField("min_level") or state.level >= rule.min_level)
            and (not rule.HasField("max_level") or state.level <= rule.max_level)
            and stages.issuperset(rule.stage)
            and stages.isdisjoint(rule.not_stage)
            for rule in rules
        )
        return met == bool(message.include)

    # -- inputs
    def inputs(self) -> None:
        """The inputs that the network names outside of layers."""
        names, dims = list(self.net.input), [int(d) for d in self.net.input_dim]
        shapes = [tuple(shape.dim) for shape in self.net.input_shape]
        if dims and shapes:
            raise FrontendError("the network gives the sizes of its inputs twice, as input_dim and as input_shape")
        if dims:
            if len(dims) != 4 * len(names):
                raise FrontendError(f"{len(names)} input(s) have {len(dims)} sizes (input_dim), expected four for each")
            shapes = [tuple(dims[4 * k : 4 * k + 4]) for k in range(len(names))]
        if len(shapes) != len(names):
            raise FrontendError(f"{len(names)} input(s) have {len(shapes)} shape(s)")
        for name, shape in zip(names, shapes):
            self.input(name, shape)

    def input(self, name: str, shape: Sequence[int]) -> None:
        if not shape or min(shape) < 1 or max(shape) > LARGEST:
            raise FrontendError(f"the input '{name}' has the shape {tuple(shape)}")
        dims: list[Dim] = [int(d) for d in shape]
        if self.options.batch is not None:
            dims[0] = self.options.batch or Var("batch", dt.int64)
        self.define(name, self.builder.input(name, TensorType(dt.float32, tuple(dims))))

    def define(self, name: str, value: Any) -> None:
        self.used.pop(name, None)
        self.scope[name], self.used[name] = value, False

    # -- layers
    def add(self, message: Any) -> None:
        """Reads a layer; its tops get their names."""
        kind = message.type if isinstance(message.type, str) else layer_type(message.type)
        if kind == "Input":
            shapes = [tuple(shape.dim) for shape in message.input_param.shape]
            if len(shapes) not in (1, len(message.top)):
                raise FrontendError(
                    f"{len(message.top)} input(s) have {len(shapes)} shape(s)", where=f"layer '{message.name}'"
                )
            for k, name in enumerate(message.top):
                self.input(name, shapes[k if len(shapes) > 1 else 0])
            return
        if kind in SOURCES:
            raise UnsupportedError(
                f"the layer '{message.name}' reads data ({kind}), as networks do that are trained",
                hint="give the network as it is deployed, whose inputs have sizes (deploy.prototxt)",
            )
        bottoms = []
        for name in message.bottom:
            if name not in self.scope:
                raise FrontendError(
                    f"'{name}' is used and computed by no layer before", where=f"layer '{message.name}'"
                )
            bottoms.append(self.scope[name])
            self.used[name] = True
        layer = Layer(self, message, kind, bottoms, self.parameters_of(message))
        results = list(self.node(layer))
        if len(results) != len(message.top):
            raise FrontendError(
                f"{kind} gives {len(results)} blob(s), the layer has {len(message.top)}", where=layer.place
            )
        last = self.builder.graph.nodes[-1:]
        for name, result in zip(message.top, results):
            if isinstance(result, Value) and result.producer is not None and result.producer in last:
                self.builder.rename(result, name)
            self.define(name, Absent() if result is None else result)

    def parameters_of(self, message: Any) -> list[Any]:
        """The blobs of a layer; those that it shares by name are those of the first layer that has the name."""
        blobs = list(self.blobs.get(message.name, ()))
        names = [p if isinstance(p, str) else p.name for p in message.param]
        for k, name in enumerate(names):
            if not name:
                continue
            if name in self.shared:
                blobs[k : k + 1] = [self.shared[name]]
            elif k < len(blobs):
                self.shared[name] = blobs[k]
        return blobs
