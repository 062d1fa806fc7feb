"""The choice of an algorithm for each class of operator in a group that has several."""

from __future__ import annotations

from weft.choices import Choices
from weft.graph.nodes import Graph, Node


def choose_group_algorithms(body: Graph, choices: Choices) -> dict[str, str]:
    """The recorded algorithms by operator, as `lower_group` takes them; all choices that there are stand in `choices`.

    The choice `algorithm.NAME` is of all operators NAME of the group; by default it is the first that applies.

    Raises:
        ChoiceError: the record names an algorithm that does not apply.
    """
    nodes: dict[str, list[Node]] = {}
    for node in body.nodes:
        if len(node.op.algorithms()) > 1:
            nodes.setdefault(node.op.operator_name, []).append(node)
    chosen: dict[str, str] = {}
    for operator, of_it in nodes.items():
        able = [_applicable(node) for node in of_it]
        options = [name for name in able[0] if all(name in names for names in able)]
        if len(options) < 2 or any(names[0] != options[0] for names in able):
            continue
        name = f"algorithm.{operator}"
        value = choices.choose(name, options, options[0])
        if choices.made[name].recorded:
            chosen[operator] = value
    return chosen


def _applicable(node: Node) -> list[str]:
    types = [None if v is None else v.type for v in node.inputs]
    return [name for name in node.op.algorithms() if node.op.applies(name, *types) is None]
