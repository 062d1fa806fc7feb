"""What a converter sees of a TFLite operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.dtypes import DType
from weft.graph.nodes import Value
from weft_frontend.activations import ACTIVATIONS
from weft_frontend.context import Context as GraphContext
from weft_tflite.model_file import OperatorInfo, Quantization, SubGraph, TensorInfo
from weft_tflite.registry import COMPLEX, CUSTOM, QUANTIZED
from weft_tflite.tensors import dtype_of

if TYPE_CHECKING:
    from weft_tflite.importer import Importer

FUSED = ("linear", "relu", "relu_n1_to_1", "relu6", "tanh")
"""ActivationFunctionType by number, but for the last (SIGN_BIT)."""
SMALL = ("INT8", "UINT8", "INT16", "INT4", "INT2", "UINT4")
"""Element types of quantised tensors."""


@dataclass(frozen=True, eq=False)
class Complex:
    """An operand of complex numbers: its real and its imaginary parts, values of one shape."""

    real: Value
    imaginary: Value


class Context(GraphContext):
    """An operator: operands, and what its options and tensors say.

    Args:
        importer: of the model that is read.
        graph: the sub-graph that it is in.
        op: the operator.
        name: as errors show it.
        operands: what stands for its inputs.
    """

    importer: Importer

    def __init__(
        self, importer: Importer, graph: SubGraph, op: OperatorInfo, name: str, operands: Sequence[Any]
    ) -> None:
        self.graph, self.op = graph, op
        infos = [self.input(k) for k in range(len(op.inputs))]
        infos += [self.output(k) for k in range(len(op.outputs))]
        self.quantized = any(i is not None and is_quantized(i) for i in infos)
        domain = CUSTOM if op.name == "CUSTOM" else QUANTIZED if self.quantized else ""
        if any(isinstance(o, Complex) for o in operands):
            domain = COMPLEX
        title = op.custom if op.name == "CUSTOM" else op.name
        super().__init__(importer, title, name, operands, domain=domain, version=op.version, outputs=len(op.outputs))

    # -- options
    def integer(self, name: str) -> int:
        return int(self.op.options[name])

    def flag(self, name: str) -> bool:
        return bool(self.op.options[name])

    def real(self, name: str) -> float:
        """A float32 in its shortest decimal form: 0.1, not 0.10000000149011612."""
        return float(str(np.float32(self.op.options[name])))

    def integers(self, name: str) -> tuple[int, ...]:
        return tuple(self.op.options[name])

    @property
    def activation(self) -> str:
        """The fused activation, by the kit's name.

        Raises:
            Unsupported: there is none of this number, or it is SIGN_BIT.
        """
        number = self.integer("fused_activation_function")
        if not 0 <= number < len(FUSED):
            raise self.unsupported(f"fused activation {number}")
        return FUSED[number]

    def activated(self, x: Value) -> Value:
        """`x` after the fused activation."""
        return ACTIVATIONS[self.activation](self, x)

    def op_operands(self, *chosen: int) -> None:
        """From here on operand k is what operand chosen[k] was; those that there are not are left out."""
        inputs, operands = self.op.inputs, self.operands
        have = [k for k in chosen if k < len(inputs)]
        self.op = replace(self.op, inputs=tuple(inputs[k] for k in have))
        self.operands = [operands[k] for k in have]

    # -- tensors as the file declares them
    def input(self, k: int) -> TensorInfo | None:
        """The tensor of input k; None: it is left out."""
        inputs = self.op.inputs
        return self.graph.tensors[inputs[k]] if k < len(inputs) and inputs[k] >= 0 else None

    def output(self, k: int = 0) -> TensorInfo:
        return self.graph.tensors[self.op.outputs[k]]

    def output_dtype(self, k: int = 0) -> DType:
        return dtype_of(self.output(k))

    def scale(self, k: int) -> Quantization:
        """Scale and zero point of input k.

        Raises:
            FrontendError: it has none.
        """
        return self._scale(self.input(k), f"input {k}")

    def output_scale(self, k: int = 0) -> Quantization:
        return self._scale(self.output(k), f"output {k}")

    def _scale(self, info: TensorInfo | None, what: str) -> Quantization:
        if info is None or info.quantization is None:
            raise self.error(f"{what} has no scale")
        return info.quantization

    def same_scales(self) -> bool:
        """Whether all quantised operands and results have one scale and zero point for all elements."""
        infos = [i for k in range(len(self.op.inputs)) if (i := self.input(k)) is not None and is_quantized(i)]
        infos += [i for k in range(len(self.op.outputs)) if is_quantized(i := self.output(k))]
        found = [(i.type, i.quantization) for i in infos]
        first_type, first = found[0]
        return all(
            type == first_type
            and q is not None
            and first is not None
            and not q.per_axis
            and not first.per_axis
            and q.scale[0] == first.scale[0]
            and q.zero[0] == first.zero[0]
            for type, q in found
        )

    def operand_name(self, k: int) -> str:
        info = self.input(k)
        return info.name if info is not None and info.name else "shape"


def is_quantized(info: TensorInfo) -> bool:
    """Whether a tensor holds quantised numbers: small integers with a scale."""
    return info.quantization is not None and info.type in SMALL and float(info.quantization.scale[0]) > 0


__all__ = ["Complex", "Context", "is_quantized"]
