"""Branches, loops, states, and the end of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import TensorType, Type, Value
from weft_coreml.context import Context, Listed, Text, capture
from weft_coreml.converters.lists import stacked
from weft_coreml.program import Program
from weft_coreml.registry import op
from weft_frontend.bodies import Body, Level, build_body, shaped
from weft_frontend.control import fitting
from weft_frontend.operands import Poisoned, Scope, poisoned


def program_of(c: Context) -> Program:
    """The program that is read."""
    assert isinstance(c.importer, Program)
    return c.importer


@op("cond")
def cond(c: Context) -> list[Any]:
    blocks = c.message.blocks
    if len(blocks) != 2:
        raise c.error(f"{len(blocks)} block(s), expected two")
    test = c.content_of("pred")
    if test is not None and test.is_constant:
        chosen = blocks[0 if test.dims()[0] else 1]
        return program_of(c).block(chosen, Scope({}, c.scope), f"{c.name}/")
    bodies = [program_of(c).captured(block, c.scope, f"{c.name}") for block in blocks]
    found = c.builder.add_all(
        ops.If(bodies[0].graph, bodies[1].graph), c.reshape(c.of("pred"), ()), *bodies[0].captured, *bodies[1].captured
    )
    return [shaped(c.builder, v) for v in found]


@op("while_loop")
def while_loop(c: Context) -> list[Any]:
    """The test is made of the first values, and behind each iteration of the next."""
    if len(c.message.blocks) != 2:
        raise c.error(f"{len(c.message.blocks)} block(s), expected two")
    test, step = c.message.blocks
    c.at("loop_vars")
    kinds = c.named["loop_vars"]
    first = [stacked(c, o) if isinstance(o, Listed) else c.as_value(o, "loop_vars") for o in kinds]
    going = _block(c, test, _given(kinds, first), c.scope)[0]

    def make(types: Sequence[Type]) -> Body:
        def results(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
            scope = Scope({}, c.scope, "", lambda o: capture(level, c.importer, o))
            found = _block(c, step, _given(kinds, operands[1:]), scope)
            if any(map(poisoned, found)):
                raise Poisoned
            values = [stacked(c, o) if isinstance(o, Listed) else c.importer.as_value(o) for o in found]
            for k, (value, type) in enumerate(zip(values, types, strict=True)):
                if not _alike(value.type, type) or isinstance(found[k], Listed) != isinstance(kinds[k], Listed):
                    raise c.unsupported(f"value {k} is {type} at first and {value.type} behind an iteration")
            more = _block(c, test, _given(kinds, values), scope)[0]
            going = level.builder.add(ops.Reshape(()), c.importer.as_value(more))
            return [("more", going), *((f"value_{k}", value) for k, value in enumerate(values))]

        given = [("trip", TensorType(dt.int64, ())), *((f"value_{k}", t) for k, t in enumerate(types))]
        return build_body(c.importer, c.name, given, results)

    body = fitting(c, first, 1, make)
    loop = ops.Loop(body.graph, len(first), True, None, (), (), (), ())
    found = c.builder.add_all(loop, None, c.reshape(c.importer.as_value(going), ()), *first, *body.captured)
    return _given(kinds, [shaped(c.builder, v) for v in found])


def _given(kinds: Sequence[Any], values: Sequence[Value]) -> list[Any]:
    """Values that a loop carries, as lists where they are."""
    return [Listed(v, v.shape[0], v.dtype, k.dynamic) if isinstance(k, Listed) else v for k, v in zip(kinds, values)]


def _alike(a: Type, b: Type) -> bool:
    """Whether both are tensors of one element type and rank."""
    return isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype == b.dtype and a.rank == b.rank


def _block(c: Context, block: Any, operands: list[Any], outer: Scope) -> list[Any]:
    if len(block.inputs) != len(operands):
        raise c.error(f"a block takes {len(block.inputs)} value(s), gets {len(operands)}")
    scope = Scope({given.name: o for given, o in zip(block.inputs, operands)}, outer)
    return program_of(c).block(block, scope, f"{c.name}/")


@op("read_state")
def read_state(c: Context) -> Value:
    found = program_of(c).states.read(c, c.at("input"))
    return found


@op("write_state")
def write_state(c: Context) -> list[Value]:
    program_of(c).states.write(c, c.at("input"), c.of("data"))
    return []


@op("classify")
def classify(c: Context) -> list[Any]:
    """The most probable label, and the probabilities in the order of the labels (Core ML gives a dictionary)."""
    p = c.of("probabilities")
    labels = c.at("classes")
    count = len(labels.values) if isinstance(labels, Text) else c.array("classes").size  # type: ignore[union-attr]
    flat = c.reshape(p, (count,))
    best = c(ops.Argmax(0, False), flat)
    if isinstance(labels, Text):
        names = c.builder.add(ops.StringConstant(labels.values, (count,)))
        label = c.builder.add(ops.StringTake(), best, names)
    else:
        label = c(ops.Gather(0), c.of("classes"), best)
    return [label, flat]
