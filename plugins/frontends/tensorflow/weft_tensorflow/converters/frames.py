"""Branches and loops of the first version of TensorFlow: nodes among the others, as bodies of operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import weft_ops as ops
from weft import dtypes as dt
from weft.graph.nodes import Value
from weft_frontend import contents as ct
from weft_frontend.bodies import Body, Level, build_body
from weft_frontend.control import chosen
from weft_frontend.operands import Poisoned, poisoned
from weft_tensorflow.context import Context
from weft_tensorflow.converters.control import inside, repeated, tensors, truth
from weft_tensorflow.frames import Join, LoopNodes, node_of
from weft_tensorflow.lists import TensorList
from weft_tensorflow.registry import tf_op


@tf_op("Switch", "RefSwitch")
def switch(c: Context) -> list[Any]:
    """Only those whose branches end in a Merge are known; of others it has to be known which output there is."""
    test = truth(c, 1)
    if not isinstance(test, bool):
        raise c.unsupported("a result of a branch that no Merge ends")
    return [None, c.operands[0]] if test else [c.operands[0], None]


@tf_op("LoopCond")
def loop_cond(c: Context) -> Any:
    return c.operands[0]


@tf_op("Enter", "RefEnter", "NextIteration", "RefNextIteration")
def part_of_loop(c: Context) -> Any:
    raise c.unsupported("a value of a loop is used outside of it, without Exit")


# -- branches ---------------------------------------------------------------------------------------------------------


@tf_op("Merge", "RefMerge")
def merge(c: Context) -> list[Any]:
    """The end of the branch that is taken, and which operand that is."""
    join = c.scope.frames.join(c.node.name)
    c.operands = [c.importer.find(c.scope, join.condition, c.place)]
    if poisoned(c.operands[0]):
        raise Poisoned
    test = truth(c)
    if isinstance(test, bool):
        return [end(c, join, None, int(test)), ct.content(dt.int32, [join.places[test]], ())]
    ends: list[Any] = [None, None]

    def make(k: int, level: Level, _: list[Any]) -> list[tuple[str, Value]]:
        ends[k] = end(c, join, level, k)
        return [("result", v) for v in tensors(c, ends[k])]

    bodies: list[Body] = [build_body(c.importer, c.node.name, (), partial(make, k)) for k in (0, 1)]
    if isinstance(ends[0], TensorList) != isinstance(ends[1], TensorList):
        raise c.unsupported("branches of which one gives a list of tensors")
    (found,) = chosen(c, test, bodies[1], bodies[0])
    which = c(ops.Where(), test, *(c.builder.constant(np.array(join.places[k], np.int32)) for k in (1, 0)))
    if isinstance(ends[0], TensorList):
        return [TensorList(ends[0].dtype, found.shape[0], found), which]
    return [found, which]


def end(c: Context, join: Join, level: Level | None, k: int) -> Any:
    """What a branch gives, in the graph of this level, or where the branches are, None."""

    def here(operand: Any) -> Any:
        return operand if level is None else inside(c, level, operand)

    values = {name: list(map(here, c.scope.values[name])) for name in join.outside if name not in join.switches}
    for name, ref in join.switches.items():
        values[name] = [here(c.importer.find(c.scope, ref, c.place))] * 2
    return read(c, values, [join.ends[k]])[0]


def read(c: Context, values: Mapping[str, Any], refs: list[str]) -> list[Any]:
    """Tensors of the graph, some of whose nodes have these results.

    Raises:
        Poisoned: what is not supported gives one.
    """
    scope = c.scope.within(values)
    found = c.importer.nested(c, scope, refs)
    if any(map(poisoned, found)):
        raise Poisoned
    return found


# -- loops ------------------------------------------------------------------------------------------------------------


@tf_op("Exit", "RefExit")
def leave(c: Context) -> Any:
    """What the loop carries last; all that it carries is found at once."""
    loop = c.scope.frames.loop(c.node.name)
    if loop.name not in c.scope.loops:
        c.scope.loops[loop.name] = run(c, loop)
    return c.scope.loops[loop.name][node_of(c.node.input[0])]


def run(c: Context, loop: LoopNodes) -> dict[str, Any]:
    """What a loop gives, by the nodes that are Switch."""
    scope, importer = c.scope, c.importer
    outer = importer.level
    c.operands = [importer.referenced(c, importer.find(scope, v.first, c.place)) for v in loop.variables]
    fixed = {name: importer.find(scope, ref, c.place) for name, ref in loop.constants.items()}
    if any(map(poisoned, (*c.operands, *fixed.values()))):
        raise Poisoned

    def within(given: list[Any]) -> dict[str, Any]:
        level = importer.level
        values: dict[str, Any] = {
            name: [operand if level is outer else inside(c, level, operand)] for name, operand in fixed.items()
        }
        for variable, operand in zip(loop.variables, given):
            values[variable.merge] = values[variable.switch] = [operand, operand]
        return values

    found = repeated(
        c,
        loop.name,
        lambda given: read(c, within(given), [loop.condition]),
        lambda given: read(c, within(given), [v.following for v in loop.variables]),
    )
    return {v.switch: result for v, result in zip(loop.variables, found)}
