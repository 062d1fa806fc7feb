"""Schedules of what is no product: what is stored, what is recomputed, and which loop gives the lanes."""

from __future__ import annotations

from weft.expr.nodes import Call, walk
from weft.graph.group import Group
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.loop.nodes import Block, stmt_exprs, walk_stmts
from weft.lower.lower import lower_group
from weft.machine import Machine
from weft.ops.image import Resize
from weft.passes.pipeline import run_passes
from weft.scheduling.rule import Rule
from weft.scheduling.schedule import Schedule
from weft_llvm.schedules.access import blocks_of, target
from weft_llvm.schedules.elementwise import ElementwiseRule

MACHINE = Machine("cpu", 256, 16, fma=True)


def scheduled(graph: Graph, rule: Rule) -> Schedule:
    (node,) = run_passes(graph).nodes
    assert isinstance(node.op, Group)
    s = Schedule(lower_group(node.op.body), MACHINE)
    rule.apply(s)
    return s


def writer(s: Schedule) -> Block:
    """The block that writes the program's output."""
    (block,) = [b for b in blocks_of(s.program) if target(b).buffer.name == s.program.outputs[0].name]
    return block


def test_tables_that_every_row_reads_are_stored() -> None:
    b = GraphBuilder()
    b.output(b.add(Resize((3, 16, 12), "linear"), b.input("x", tensor_type("float32", (3, 8, 6)))))
    s = scheduled(b.build(), ElementwiseRule())
    assert len(s.blocks()) > 2
    assert not [n for x in walk_stmts(writer(s).body) for e in stmt_exprs(x) for n in walk(e) if isinstance(n, Call)]
