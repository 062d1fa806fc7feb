"""Recurrent layers step by step: cells of any kind, and masks of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.control import Loop
from weft.graph.nodes import TensorType, Value
from weft_frontend.bodies import Level, build_body
from weft_frontend.operands import Poisoned, poisoned

if TYPE_CHECKING:
    from weft_keras.call import Call


def begun(c: Call, layer: Any, x: Value, initial: Any) -> list[Value]:
    """The states before the first step, in the dtype of the cell: those given, or the cell's own for any batch."""
    dtype = dt.dtype(layer.cell.compute_dtype)
    tree = c.importer.keras.tree
    if initial is not None:
        return [c.as_tensor(s, dtype) for s in tree.flatten(initial)]
    states = []
    for state in tree.flatten(layer.get_initial_state(batch_size=1)):
        array = c.importer.array(state, dtype)
        constant = c.builder.constant(array, "state")
        states.append(c.broadcast(constant, (x.shape[0], *array.shape[1:])))
    return states


def masked(c: Call, mask: Value, new: Value, old: Value) -> Value:
    """`new` where a step counts, else `old`; a mask [batch]."""
    return c(ops.Where(), c.reshape(mask, (mask.shape[0], *(1,) * (len(new.shape) - 1))), new, old)


def stepped(c: Call, layer: Any, x: Value, initial: Any, mask: Value | None) -> list[Value]:
    """The results of a recurrent layer: its outputs [b, t, …], or the last of them, then its states if it returns them.

    A step that the mask leaves out keeps the states, and gives the output before it, zeros at first; or zeros, where
    the layer says so.
    """
    importer, tree = c.importer, c.importer.keras.tree
    first = begun(c, layer, x, initial)
    dtype = first[0].dtype
    given = tree.pack_sequence_as(layer.get_initial_state(batch_size=1), first)
    zero = bool(layer.zero_output_for_mask)
    known = tuple(d if isinstance(d, int) else None for d in x.shape)
    shape = layer.compute_output_shape(known)
    shape = shape[0] if isinstance(shape[0], (tuple, list)) else shape
    sizes = c.fixed(shape[2 if layer.return_sequences else 1 :], "an output")
    before = [c.broadcast(c.number(0.0, dtype), (x.shape[0], *sizes))]
    carried = [*before, *first]
    items = [c.cast(x, dtype) if x.dtype.is_float else x, *([] if mask is None else [c.as_tensor(mask, dt.bool_)])]

    def make(level: Level, operands: list[Any]) -> Sequence[tuple[str, Value]]:
        last, states, now = operands[1], operands[2 : 1 + len(carried)], operands[1 + len(carried) :]
        packed = tree.pack_sequence_as(given, states)
        output, new = importer.traced(importer.call_of(layer.cell), (now[0], packed), {}, layer.cell.name)
        found = [output, *tree.flatten(new)]
        if any(poisoned(v) for v in found):
            raise Poisoned
        b = c.here()
        y, *after = (b.as_tensor(v, dtype) for v in found)
        if mask is not None:
            y = masked(b, now[1], y, last)
            after = [masked(b, now[1], a, s) for a, s in zip(after, states, strict=True)]
            nothing = b.broadcast(b.number(0.0, dtype), y.shape)
            y = masked(b, now[1], y, nothing) if zero else y
        results = [("output", y), *((f"state_{k}", v) for k, v in enumerate(after))]
        return [*results, *([("step", y)] if layer.return_sequences else [])]

    types = [TensorType(v.dtype, v.shape) for v in carried]
    taken = [TensorType(v.dtype, (v.shape[0], *v.shape[2:])) for v in items]
    names = [("last", types[0]), *((f"state_{k}", t) for k, t in enumerate(types[1:]))]
    inputs = [("trip", TensorType(dt.int64, ())), *names, *zip(("x", "mask"), taken)]
    body = build_body(importer, layer.cell.name, inputs, make)
    backward = bool(layer.go_backwards)
    collects = int(layer.return_sequences)
    op = Loop(body.graph, len(carried), False, x.shape[1], (1,) * len(items), (backward,) * len(items),
              (1,) * collects, (False,) * collects)  # fmt: skip
    found = list(c.builder.add_all(op, None, None, *carried, *items, *body.captured))
    y = found[len(carried)] if collects else found[0]
    return [y, *found[1 : len(carried)]] if layer.return_state else [y]


__all__ = ["stepped"]
