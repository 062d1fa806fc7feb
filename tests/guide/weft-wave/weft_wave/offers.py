"""What wave takes of a model and how long that takes, where it is asked to take only what is faster there
(`-prefer=faster`)."""

from __future__ import annotations

from weft.errors import WeftError
from weft.graph.nodes import Graph, GraphBuilder, Node
from weft.loop.nodes import Program, int_const
from weft.lower.lower import lower_group
from weft.machine import Machine
from weft.passes.place import Offers, Refuse, Take
from weft.scheduling.schedule import Schedule

from weft_wave.schedules import why_not

START = 2e-6
"""Seconds from one kernel to the next."""
UNKNOWN = 64
"""What a size known only at run time is taken for."""


def offers(graph: Graph, machine: Machine, mhz: int) -> Offers:
    """An offer or a refusal for every node."""
    return [_offer(node, machine, mhz) for node in graph.nodes]


def _offer(node: Node, machine: Machine, mhz: int) -> Take | Refuse:
    try:
        program = alone(node)
    except WeftError as error:
        return Refuse(node, "form", str(error).splitlines()[0])
    reason = why_not(program, machine)
    if reason is not None:
        return Refuse(node, reason.code, reason.reason)
    return Take((node,), START + cycles(program) / (mhz * 1e6))


def alone(node: Node) -> Program:
    """The kernel of one node."""
    g = GraphBuilder("alone")
    inputs = [None if v is None else g.input(f"x{n}", v.type) for n, v in enumerate(node.inputs)]
    for n, value in enumerate(g.add_all(node.op, *inputs)):
        g.output(value, f"y{n}")
    return lower_group(g.build())


def cycles(program: Program) -> float:
    """An element a cycle for each step of each block: what feeds the units is one way to memory."""
    s = Schedule(program)
    total = 0.0
    for block in s.blocks():
        steps = 1
        for loop in s.loops(block):
            steps *= int_const(s.loop(loop).extent) or UNKNOWN
        total += steps
    return total
