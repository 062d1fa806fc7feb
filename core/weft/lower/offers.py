"""The answer of schedule rules about one node of a graph: the offer of a target without a hook `offload`, also
available to such a hook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.errors import PluginError, ScheduleError, WeftError
from weft.graph.nodes import Graph, Node, TensorType, Value
from weft.graph.operator import Operator
from weft.lower.lower import lower_group
from weft.passes.capabilities import ANY, Claims, LayoutRule, is_claimed, layout_rule, warn_of_names
from weft.passes.decompose import decomposition
from weft.passes.place import Refuse, Take
from weft.scheduling.rule import Rule, select_rule

if TYPE_CHECKING:
    from weft.machine import Machine
    from weft.scheduling.intrinsic import Intrinsic


def offer_by_rules(
    node: Node,
    rules: Sequence[Rule],
    machine: Machine,
    *,
    intrinsics: Mapping[str, Intrinsic] | None = None,
    claims: Claims = (),
    cost: float = 0.0,
    layouts: Mapping[type[Operator] | str, LayoutRule] | None = None,
) -> Take | Refuse:
    """Whether one of a target's rules takes a node by itself, as one kernel.

    Args:
        rules: of the target, those that its hook `schedules` gives.
        machine, intrinsics: its own; rules get them.
        claims: composites that it computes itself (`Capabilities.claims`).
        cost: seconds, of the Take.
        layouts: its own (`Capabilities.layouts`): a node that cannot be row-major (`LayoutOffer.only`) is put to the
            rules in each of the ways offered.
    """
    warn_of_names(claims, layouts)
    kind = type(node.op)
    if kind.kind == "composite" and not is_claimed(kind, claims) and decomposition(node) is not None:
        return Refuse(node, "not_claimed", "the target does not claim this composite")
    refused: Refuse | None = None
    for graph in _ways(node, layout_rule(kind, layouts)):
        try:
            select_rule(rules, lower_group(graph, "kernel"), machine, intrinsics)
            return Take((node,), cost)
        except PluginError:
            raise
        except ScheduleError as error:
            refused = refused or Refuse(node, "no_rule", error.why or error.what)
        except WeftError as error:
            refused = refused or Refuse(node, "not_lowered", error.what)
    assert refused is not None
    return refused


def _ways(node: Node, layouts: LayoutRule | None) -> Iterator[Graph]:
    """The node alone, row-major; or, if that is impossible, in each layout that is offered."""
    offers = layouts(node) if layouts is not None else []
    if not any(o.only for o in offers):
        yield alone(node)
        return
    for offer in offers:
        graph = alone(node)
        (copy,) = graph.nodes
        for v, layout in zip((*copy.inputs, *copy.outputs), (*offer.inputs, *offer.outputs)):
            if v is not None and isinstance(v.type, TensorType) and layout is not None and layout is not ANY:
                v.type = v.type.with_layout(layout)
        yield graph


def alone(node: Node) -> Graph:
    """A graph of one node."""
    # As in the groups of `fuse`: a constant of more than one element is an input of its kernel.
    inputs: dict[int, Value] = {}
    for v in (v for v in node.inputs if v is not None):
        inputs[id(v)] = Value(
            v.name, v.type, constant=v.constant if v.constant is not None and v.constant.size == 1 else None
        )
    outputs = [Value(v.name, v.type) for v in node.outputs]
    copy = Node(node.op, [None if v is None else inputs[id(v)] for v in node.inputs], outputs, node.names)
    return Graph(
        "node",
        [v for v in inputs.values() if v.constant is None],
        outputs,
        [copy],
        output_names=[v.name for v in outputs],
    )
