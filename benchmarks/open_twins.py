"""Twins of the models whose batch, height and width, or length are open.

A twin writes its sizes into shapes, tables and masks. It is therefore built for a length that no other size of it has,
by which what depends on the length is known; a batch is 1 and stands first. Shapes are then computed from the input's,
and what is as long as the length is cut to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.models import twin

if TYPE_CHECKING:
    import onnx

PICTURE, TOKENS = {0: "batch", 2: "height", 3: "width"}, {0: "batch", 1: "length"}
OPEN: dict[str, Mapping[int, str]] = {
    "resnet18": PICTURE,
    "resnet50": PICTURE,
    "mobilenet_v1": PICTURE,
    "mobilenet_v2": PICTURE,
    "efficientnet_b0": PICTURE,
    "resnext_deeplab": PICTURE,
    "convnext_tiny": PICTURE,
    "resnet8": PICTURE,
    "bert_base_s128": TOKENS,
    "gpt2_s128": TOKENS,
    "llama_prefill": TOKENS,
    "lstm": {1: "length"},
    "mlp": {0: "batch"},
}
"""Sizes of each model that can be open, by the axis of its input. The twins of swin_tiny and whisper_encoder hold their
sizes in more than shapes."""
LONGEST = 509
"""Elements: a prime, and no other size."""


def open_twin(
    name: str, symbols: tuple[str, ...], *, layers: int | None = None, seed: int = 0
) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """A twin whose input has `symbols` for sizes, of those in `OPEN[name]`, and inputs of the usual size.

    A length is at most `LONGEST`.

    Raises:
        KeyError: no twin of that name can have open sizes.
        ValueError: it cannot have one of the symbols open.
    """
    if name not in OPEN:
        raise KeyError(f"no model '{name}' with open sizes: there are {', '.join(OPEN)}")
    axes = {axis: symbol for axis, symbol in OPEN[name].items() if symbol in symbols}
    if unknown := [s for s in symbols if s not in axes.values()]:
        raise ValueError(f"{name} has no {unknown[0]} to leave open: it has {', '.join(OPEN[name].values())}")
    length = {"length": LONGEST} if "length" in symbols else {}
    model, inputs = twin(name, layers=layers, seed=seed, **length)
    _Opened(model, axes).run()
    if length:
        inputs = {n: x[:, :128] for n, x in inputs.items()}
    return model, inputs


class _Opened:
    """Makes sizes of a model open, in place."""

    def __init__(self, model: onnx.ModelProto, axes: Mapping[int, str]) -> None:
        from onnx import numpy_helper

        self.graph, self.axes = model.graph, {symbol: axis for axis, symbol in axes.items()}
        self.constants = {t.name: numpy_helper.to_array(t) for t in self.graph.initializer if t.dims != [0]}
        self.nodes: list[Any] = []
        self.first: dict[str, str] = {}

    def run(self) -> None:
        import onnx

        (given,) = self.graph.input
        for symbol, axis in self.axes.items():
            given.type.tensor_type.shape.dim[axis].dim_param = symbol
        for axis, size in enumerate(self.graph.output[0].type.tensor_type.shape.dim):
            size.dim_param = f"out_{axis}"  # nothing is known of it here
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in self.graph.node]
        for node in nodes:
            for k, value in enumerate(node.input):
                if value in self.constants:
                    node.input[k] = self._opened(node, k, value)
            self.nodes.append(node)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        used = {value for n in self.nodes for value in n.input}
        for tensor in [t for t in self.graph.initializer if t.name not in used]:
            self.graph.initializer.remove(tensor)

    def _opened(self, node: Any, operand: int, name: str) -> str:
        """What takes the place of the constant `name`, an operand of `node`."""
        array = self.constants[name]
        if node.op_type in ("Reshape", "Expand") and operand == 1:
            return self._shape(node.op_type, array.tolist(), name)
        if node.op_type == "Resize" and operand == 3 and {"height", "width"} & self.axes.keys():
            node.input[2] = self._constant(f"{name}_scales", np.array([1, 1, 16, 16], np.float32))  # of 14² to 224²
            return ""
        if "length" in self.axes and LONGEST in array.shape:
            return self._cut(name, array)
        return name

    def _shape(self, kind: str, shape: list[int], name: str) -> str:
        parts: list[int | str] = list(shape)
        if "batch" in self.axes and parts[0] == 1 and kind == "Reshape":
            parts[0] = -1 if -1 not in shape else self._size("batch")
        if "length" in self.axes:
            parts = [self._size("length") if p == LONGEST else p for p in parts]
            if shape[0] == LONGEST and "batch" in self.axes:
                parts[0] = -1  # rows of every sequence of the batch
        if parts == shape:
            return name
        names = [p if isinstance(p, str) else self._constant(f"size_{p}", np.array([p])) for p in parts]
        return self._node("Concat", f"{name}_open", *names, axis=0)

    def _size(self, symbol: str) -> str:
        axis = self.axes[symbol]
        return self._node("Shape", f"size_{symbol}", self.graph.input[0].name, start=axis, end=axis + 1)

    def _cut(self, name: str, array: np.ndarray[Any, Any]) -> str:
        axes = [k for k, n in enumerate(array.shape) if n == LONGEST]
        start = self._constant(f"zeros_{len(axes)}", np.zeros(len(axes), np.int64))
        ends = self._node("Concat", f"ends_{len(axes)}", *[self._size("length")] * len(axes), axis=0)
        return self._node("Slice", f"{name}_cut", name, start, ends, self._constant(f"axes_{axes}", np.array(axes)))

    def _constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        from onnx import numpy_helper

        if name not in self.first:
            self.graph.initializer.append(numpy_helper.from_array(array, name))
            self.first[name] = name
        return name

    def _node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        if name not in self.first:
            self.nodes.append(helper.make_node(kind, inputs, [name], name=f"node_{name}", **attributes))
            self.first[name] = name
        return name
