"""Recurrent networks."""

from __future__ import annotations

from typing import Any

import weft_ops as ops
from weft_onnx.importer import Context
from weft_onnx.registry import onnx_op


@onnx_op("LSTM", "GRU", "RNN")
def recurrent(c: Context) -> Any:
    hidden = c.integer("hidden_size", 0)
    if not hidden:
        size = c.shape(2)[2]
        if not isinstance(size, int):
            raise c.unsupported("no hidden_size")
        hidden = size
    options: dict[str, Any] = {}
    if c.op_type == "LSTM":
        options["input_forget"] = c.flag("input_forget")
    elif c.op_type == "GRU":
        options["linear_before_reset"] = c.flag("linear_before_reset")
    op = {"LSTM": ops.LSTM, "GRU": ops.GRU, "RNN": ops.RNN}[c.op_type](
        hidden,
        c.string("direction", "forward"),
        c.strings("activations") or (),
        c.reals("activation_alpha") or (),
        c.reals("activation_beta") or (),
        c.real("clip") if c.has("clip") else None,
        c.integer("layout", 0),
        **options,
    )
    operands = [c.optional(k) for k in range(8 if c.op_type == "LSTM" else 6)]
    if operands[4] is not None:
        operands[4] = c.within(operands[4], 0, c.shape(0)[1 if c.integer("layout", 0) else 0], "length")
    return c.all(op, *operands)
