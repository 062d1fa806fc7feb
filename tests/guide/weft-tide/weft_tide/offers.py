"""What tide takes of a model, and in what time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.graph.nodes import Graph, Node, TensorType
from weft.lower.offers import offer_by_rules
from weft.machine import Machine
from weft.passes.capabilities import CLAIMED
from weft.passes.place import Offers, Refuse, Take
from weft.scheduling.intrinsic import Intrinsic

from weft_tide.instructions import COLUMNS, PAIRS, ROWS, STEP
from weft_tide.layouts import LAYOUTS
from weft_tide.schedules import RULES

CLOCK = 1e9
START = 5e-6
"""Seconds before a kernel runs."""
SCALAR = 4
"""Cycles of the scalar core for one element."""


def offers(graph: Graph, machine: Machine, intrinsics: Mapping[str, Intrinsic]) -> Offers:
    """Products by their sizes alone; the rules are asked about everything else."""
    found: list[Take | Refuse] = []
    for node in graph.nodes:
        cycles = product_cycles(node, machine)
        if cycles is not None:
            found.append(Take((node,), cost=START + cycles / CLOCK))
        else:
            cost = START + SCALAR * elements(node) / CLOCK
            found.append(offer_by_rules(node, RULES, machine, intrinsics=intrinsics, claims=CLAIMED, cost=cost, layouts=LAYOUTS))
    return found


def product_cycles(node: Node, machine: Machine) -> float | None:
    """Cycles of a matrix product on the arrays; None: it is none, or of dtypes that they do not multiply."""
    if type(node.op).__name__ != "MatMul" or len(node.inputs) != 2:
        return None
    left, right = (v.type for v in node.inputs if v is not None)
    if not isinstance(left, TensorType) or not isinstance(right, TensorType) or len(left.shape) < 2 or len(right.shape) < 2:
        return None
    if (left.dtype, right.dtype) not in [pair[:2] for pair in PAIRS.values()]:
        return None
    *batch, rows, terms = (known(d) for d in left.shape)
    columns = known(right.shape[-1])
    if min(rows, columns) < 2 or terms < 2:
        return None
    tiles = math.prod(batch) * -(-rows // ROWS) * -(-columns // COLUMNS)
    return -(-tiles // machine.levels["array"].units) * (ROWS + -(-terms // STEP) * 4.0) + rows * columns * math.prod(batch)


def elements(node: Node) -> int:
    """Of the largest tensor that the node reads or writes."""
    types = [v.type for v in (*node.inputs, *node.outputs) if v is not None]
    return max((math.prod(known(d) for d in t.shape) for t in types if isinstance(t, TensorType)), default=1)


def known(size: object) -> int:
    """An open size counts as 64."""
    return size if isinstance(size, int) else 64
