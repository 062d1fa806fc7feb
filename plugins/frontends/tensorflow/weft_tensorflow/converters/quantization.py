"""Numbers rounded as if they were quantised."""

from __future__ import annotations

import numpy as np

import weft_ops as ops
from weft.graph.nodes import Value
from weft_frontend.activations import clipped
from weft_tensorflow.context import Context
from weft_tensorflow.registry import tf_op


def nudged(low: np.float32, high: np.float32, bits: int, narrow: bool) -> tuple[np.float32, np.float32, np.float32]:
    """Limits moved so that 0 is one of the steps between them, and the size of a step."""
    least, most = np.float32(1 if narrow else 0), np.float32((1 << bits) - 1)
    scale = np.float32((high - low) / (most - least))
    zero = np.float32(least - np.float32(low / scale))
    zero = least if zero < least else most if zero > most else np.float32(np.floor(zero + np.float32(0.5)))
    return np.float32((least - zero) * scale), np.float32((most - zero) * scale), scale


def fake_quantized(c: Context, x: Value, low: np.float32, high: np.float32, bits: int, narrow: bool) -> Value:
    """Rounded to as many steps as integers of these bits have."""
    if not 2 <= bits <= 16 or not low < high:
        raise c.error(f"{bits} bits between {low} and {high}")
    least, most, scale = nudged(low, high, bits, narrow)
    x = clipped(c, x, float(least), float(most))
    steps = c.mul(c.sub(x, float(least)), float(np.float32(1) / scale))
    return c.add(c.mul(c(ops.Floor(), c.add(steps, 0.5)), float(scale)), float(least))


@tf_op("FakeQuantWithMinMaxArgs")
def fake_quant_args(c: Context) -> Value:
    low, high = np.float32(c.real("min", -6.0)), np.float32(c.real("max", 6.0))
    return fake_quantized(c, c.value(0), low, high, c.integer("num_bits", 8), c.flag("narrow_range"))


@tf_op("FakeQuantWithMinMaxVars")
def fake_quant_vars(c: Context) -> Value:
    limits = [c.constant(k) for k in (1, 2)]
    if limits[0] is None or limits[1] is None:
        raise c.unsupported("limits that are no constants")
    low, high = (np.float32(v.reshape(())) for v in limits if v is not None)
    return fake_quantized(c, c.value(0), low, high, c.integer("num_bits", 8), c.flag("narrow_range"))


@tf_op("FakeQuantWithMinMaxVarsPerChannel")
def fake_quant_per_channel(c: Context) -> Value:
    x, lows, highs = c.value(0), c.constant(1), c.constant(2)
    if lows is None or highs is None:
        raise c.unsupported("limits that are no constants")
    bits, narrow = c.integer("num_bits", 8), c.flag("narrow_range")
    if not 2 <= bits <= 16 or np.any(lows >= highs):
        raise c.error(f"{bits} bits between limits that do not ascend")
    found = [nudged(np.float32(a), np.float32(b), bits, narrow) for a, b in zip(lows, highs)]
    least, most, scale = (c.builder.constant(np.array([f[k] for f in found], np.float32)) for k in range(3))
    x = c(ops.Minimum(), c(ops.Maximum(), x, least), most)
    steps = c.mul(c.sub(x, least), c.builder.constant(np.array([np.float32(1) / f[2] for f in found], np.float32)))
    return c.add(c.mul(c(ops.Floor(), c.add(steps, 0.5)), scale), least)


@tf_op("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4")
def quantize_and_dequantize(c: Context) -> Value:
    """Rounded to the steps of integers, whose scale the limit decides that needs the larger steps; limits are given, or
    the least and the greatest element."""
    x = c.value(0)
    bits = c.number_at(3, "the bits") if c.op_type == "QuantizeAndDequantizeV3" else c.integer("num_bits", 8)
    if not 2 <= bits <= 24:
        raise c.error(f"{bits} bits")
    signed = c.flag("signed_input", True)
    most = (1 << (bits - signed)) - 1
    least = -most - (not c.flag("narrow_range")) if signed else 0
    axis = c.integer("axis", -1)
    given = c.flag("range_given")
    others = tuple(k for k in range(len(x.shape)) if axis == -1 or k != axis)
    if given:
        shape = tuple(1 if k in others else d for k, d in enumerate(x.shape))
        low, high = (c.reshape(c.value(k), shape) for k in (1, 2))
    else:
        low, high = c(ops.ReduceMin(others, True), x), c(ops.ReduceMax(others, True), x)
    step = step_of(c, low, high, float(least), float(most))
    if given:
        x = c(ops.Minimum(), c(ops.Maximum(), x, c.mul(step, float(least))), c.mul(step, float(most)))
    scaled = c.div(x, step)
    if c.choice("round_mode", "HALF_TO_EVEN", ("HALF_TO_EVEN", "HALF_UP")) == "HALF_UP":
        return c.mul(c(ops.Floor(), c.add(scaled, 0.5)), step)
    return c.mul(c(ops.Round(), scaled), step)


def step_of(c: Context, low: Value, high: Value, least: float, most: float) -> Value:
    """The size of a step with which both limits are among the integers from the least to the most."""
    above = c.div(c(ops.Maximum(), high, 0.0), most)
    if not least:
        step = above
    else:
        step = c(ops.Maximum(), above, c.div(c(ops.Minimum(), low, 0.0), least))
    return c(ops.Where(), c(ops.Greater(), step, 0.0), step, c.number(1, step.dtype))
