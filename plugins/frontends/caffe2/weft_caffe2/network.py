"""Two networks as a graph: predict_net, which computes, and init_net, whose operators fill blobs with weights.

A blob's name may be given again: an operator whose output has the name of its input computes in place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import FrontendError
from weft.expr.nodes import Var
from weft.graph.nodes import Graph, TensorType, Value
from weft.tensor.language import Dim
from weft_caffe2.plugin import DTYPES, Caffe2Options
from weft_caffe2.registry import REGISTRY
from weft_caffe2.schema import schema
from weft_frontend.archives import read_file
from weft_frontend.context import Context
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Absent
from weft_frontend.protos import MOST_BYTES, parse_binary

LARGEST = (1 << 31) - 1
"""A size."""
TENSOR_DTYPES = {
    1: "float32", 2: "int32", 3: "uint8", 5: "bool", 6: "uint8", 7: "int8", 8: "uint16", 9: "int16", 10: "int64",
    12: "float16", 13: "float64",
}  # fmt: skip
"""Numbers of TensorProto.DataType."""
OF_ENGINES = {
    "algo", "convolution_transform_strategy", "cudnn_exhaustive_search", "enable_tensor_core", "exhaustive_search",
    "float16_compute", "init_params", "net_name", "nnpack_precompute", "shared_buffer", "ws_nbytes_limit", "fuse_type",
    "use_cudnn", "save_mean", "save_inv_std", "device_id", "no_cudnn", "cudnn_state",
}  # fmt: skip
"""Arguments that choose among implementations, or matter to training alone."""


def pair(path: Path, options: Caffe2Options) -> list[Path]:
    """predict_net and, if it is there, init_net of a model of which one is given.

    Raises:
        FrontendError: what is given is init_net, and there is no predict_net.
    """
    name = path.name
    if "init" in name and "predict" not in name:
        network = path.with_name(name.replace("init", "predict"))
        if options.init is not None or not network.is_file():
            raise FrontendError(
                f"'{path}' holds weights alone",
                why=f"there is no '{network.name}' beside it" if options.init is None else "weights are given, too",
                hint="give the path of predict_net.pb, and the weights as option: --frontend 'caffe2 -init=…'",
            )
        return [network, path]
    if options.init is not None:
        return [path, Path(options.init)]
    weights = path.with_name(name.replace("predict", "init"))
    return [path, weights] if weights != path and weights.is_file() else [path]


def read_net(source: Path | bytes) -> Any:
    """The message of a network, of a file or of bytes.

    Raises:
        FrontendError: it is none.
    """
    name = f"'{source!s}' is" if isinstance(source, Path) else "the bytes are"
    what = f"{name} not a Caffe2 network"
    try:
        data = read_file(source, MOST_BYTES) if isinstance(source, Path) else source
    except FileNotFoundError:
        raise FrontendError(f"no file '{source!s}'", hint="give the path of init_net.pb") from None
    net = parse_binary(schema()["Net"], data, what)
    if not net.op or not all(op.type for op in net.op):
        raise FrontendError(what, why="an operator has no type" if net.op else "it has no operators")
    return net


def load_network(source: Any, options: Caffe2Options) -> Graph:
    """The graph of a network, a path or the bytes of a predict_net.pb, with its weights."""
    if isinstance(source, Path):
        network, *weights = pair(source, options)
        nets = [read_net(network), *map(read_net, weights)]
    else:
        nets = [read_net(bytes(source)), *([] if options.init is None else [read_net(Path(options.init))])]
    return Network(nets[0], nets[1] if len(nets) > 1 else None, options).run()


class Node(Context):
    """An operator with its inputs and arguments. Arguments that its converter does not ask for are refused."""

    importer: Network

    def __init__(self, importer: Network, message: Any, operands: Sequence[Any], label: str) -> None:
        super().__init__(importer, message.type, label, operands, outputs=len(message.output))
        self.message, self.asked = message, set[str]()
        self.arguments: dict[str, Any] = {a.name: a for a in message.arg}

    @property
    def place(self) -> str:
        inputs, outputs = (", ".join(names)[:200] for names in (self.message.input, self.message.output))
        return f"{self.op_type}({inputs}) → {outputs}"

    def operand_name(self, k: int) -> str:
        return str(self.message.input[k])

    # -- arguments
    def argument(self, name: str) -> Any:
        """The message of an argument; None: it is absent."""
        self.asked.add(name)
        return self.arguments.get(name)

    def has(self, name: str) -> bool:
        return self.argument(name) is not None

    def integer(self, name: str, default: int) -> int:
        found = self.argument(name)
        if found is None:
            return default
        if not found.HasField("i"):
            raise self.error(f"argument '{name}' is not an integer")
        return int(found.i)

    def real(self, name: str, default: float) -> float:
        """A number: in its shortest decimal form, 1e-5 and not 9.99999974737875e-06."""
        found = self.argument(name)
        if found is None:
            return default
        if not found.HasField("f") and not found.HasField("i"):
            raise self.error(f"argument '{name}' is not a number")
        return float(str(np.float32(found.f))) if found.HasField("f") else float(found.i)

    def text(self, name: str, default: str) -> str:
        found = self.argument(name)
        return default if found is None else found.s.decode("utf-8", "replace")

    def integers(self, name: str) -> tuple[int, ...] | None:
        found = self.argument(name)
        return None if found is None else tuple(int(i) for i in found.ints)

    def channels_last(self) -> bool:
        """The argument `order`."""
        order = self.text("order", "NCHW")
        if order not in ("NCHW", "NHWC"):
            raise self.error(f"order is '{order[:60]}', expected NCHW or NHWC")
        return order == "NHWC"

    def dtype_argument(self, name: str, default: DType) -> DType:
        """A dtype: the number that TensorProto gives it, or its name."""
        found = self.argument(name)
        if found is None:
            return default
        word = found.s.decode("utf-8", "replace").lower() if found.HasField("s") else TENSOR_DTYPES.get(found.i, "")
        word = {"float": "float32", "double": "float64", "int": "int32"}.get(word, word)
        if word not in DTYPES:
            raise self.unsupported(f"{name} {found.s or found.i}")
        return dt.dtype(word)

    def unread(self) -> list[str]:
        """Arguments that the converter did not ask for."""
        return sorted(set(self.arguments) - self.asked - OF_ENGINES)

    # -- operands
    def axis(self, axis: int, k: int = 0, extra: int = 0) -> int:
        """An axis of operand k, counted from the front; `extra`: 1 if it may be the one behind the last."""
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

    def first(self, x: Value) -> Value:
        """Channels last → channels first."""
        rank = len(x.shape)
        return self.transpose(x, (0, rank - 1, *range(1, rank - 1)))

    def last(self, x: Value) -> Value:
        """Channels first → channels last."""
        rank = len(x.shape)
        return self.transpose(x, (0, *range(2, rank), 1))


class Network(GraphImporter):
    """The state of reading one model."""

    title = "Caffe2"

    def __init__(self, net: Any, weights: Any, options: Caffe2Options) -> None:
        name = re.sub(r"\W+", "_", net.name).strip("_")
        count = len(net.op) + (len(weights.op) if weights is not None else 0)
        super().__init__(f"n{name}" if name[:1].isdigit() else name or "network", "caffe2", REGISTRY, count)
        self.net, self.weights, self.options = net, weights, options
        self.scope: dict[str, Any] = {}
        self.used: dict[str, bool] = {}
        """Blobs in the order in which predict_net computed them, and whether an operator takes them."""

    def run(self) -> Graph:
        if self.weights is not None:
            # Some inputs it fills with something, so that they exist.
            filled = [op for op in self.weights.op if op.input or not set(op.output) <= set(self.options.shapes)]
            for message in filled:
                self.add(message, "init_net")
        self.used.clear()
        for name in self.options.shapes:
            if name not in {*self.net.external_input, *(i for op in self.net.op for i in op.input)}:
                raise FrontendError(f"shapes gives '{name}', which is no input of the network")
            if name in self.scope:
                raise FrontendError(f"shapes gives '{name}', which init_net computes")
        for message in self.net.op:
            self.add(message, "predict_net")
        if self.unsupported:
            raise self.everything_unsupported()
        ends = [name for name, used in self.used.items() if not used and not isinstance(self.scope[name], Absent)]
        names = list(self.net.external_output) or ends
        if not names:
            raise FrontendError("the network has no output")
        for name in dict.fromkeys(names):
            if name not in self.scope:
                raise FrontendError(f"the output '{name}' is computed by no operator")
            self.builder.output(self.as_value(self.scope[name], name), name)
        return self.built()

    def input(self, name: str, where: str) -> Value:
        """What no operator has computed: an input."""
        shape = self.options.shapes.get(name)
        if shape is None:
            why = "init_net does not compute it" if self.weights is not None else "there is no init_net"
            raise FrontendError(
                f"the sizes of the input '{name}' are not known",
                where=where,
                why=f"{why}, and networks do not say them",
                hint=f"give them, e.g. --frontend 'caffe2 -shapes={name}=1x3x224x224'"
                + ("" if self.weights is not None else ", and the weights: -init=init_net.pb"),
            )
        dims: list[Dim] = [int(size) for size in shape.split("x")]
        if self.options.batch is not None:
            dims[0] = self.options.batch or Var("batch", dt.int64)
        if any(isinstance(d, int) and not 0 < d <= LARGEST for d in dims):
            raise FrontendError(f"shapes gives '{name}' the sizes {shape}")
        dtype = dt.dtype(self.options.dtypes.get(name, "float32"))
        found = self.scope[name] = self.builder.input(name, TensorType(dtype, tuple(dims)))
        return found

    def add(self, message: Any, net: str) -> None:
        """Reads an operator; its outputs get their names."""
        where = f"{net}: {message.type} → {', '.join(message.output)[:200]}"
        operands = []
        for name in message.input:
            operands.append(self.scope[name] if name in self.scope else self.input(name, where))
            self.used[name] = True
        node = Node(self, message, operands, message.name or (message.output[0] if message.output else message.type))
        results = list(self.node(node))
        unread = node.unread()
        if unread and all(r is not None for r in results[:1]) and self.reads(message.type):
            self.unsupported.setdefault(f"operator {message.type}: argument {', '.join(unread)}", []).append(node.label)
        last = self.builder.graph.nodes[-1:]
        for k, name in enumerate(message.output):
            result = results[k] if k < len(results) else None
            if isinstance(result, Value) and result.producer is not None and result.producer in last:
                self.builder.rename(result, name)
            self.scope[name] = Absent() if result is None else result
            self.used.pop(name, None)
            self.used[name] = False

    def reads(self, kind: str) -> bool:
        return ("", kind) in REGISTRY.supported()
