"""What tests of choices share: graphs of one operator, their kernels with and without records."""

from __future__ import annotations

import warnings
from typing import Any

from weft.compilation import Compilation, Kernel
from weft.graph.group import Group
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.graph.operator import Operator
from weft.kernel_cache import KernelCache
from weft.records import Record, Records, program_key
from weft.resolve import resolve_targets


def of(op: Operator, *shape: int) -> Graph:
    """A graph of one operator of one float32 input."""
    return over(op, shape)


def over(op: Operator, *shapes: tuple[int, ...]) -> Graph:
    """A graph of one operator of float32 inputs; its first result is the output."""
    b = GraphBuilder("model")
    results = b.add_all(op, *(b.input(f"x{k}", tensor_type("float32", s)) for k, s in enumerate(shapes)))
    b.output(results[0], "y")
    return b.build()


def kernel_of(graph: Graph, target: str, records: Records | None = None) -> tuple[Compilation, Kernel]:
    """The scheduled kernel of a graph that has one."""
    (resolved,) = resolve_targets(target, records=records)
    compilation = Compilation(resolved, cache=False)
    (node,) = [n for n in compilation.optimize(graph).nodes if isinstance(n.op, Group) and not n.op.view]
    _, found = compilation._kernel(node, KernelCache(resolved.fingerprint, enabled=False))
    compilation.schedule(found)
    return compilation, found


def record_of(made: tuple[Compilation, Kernel], choice: str, value: Any) -> tuple[str, Records]:
    """The full name of the first choice that ends so, and a record of it."""
    compilation, found = made
    full = next(c.name for c in found.choices if c.name.rpartition(".")[2] == choice)
    record = Record("program", program_key(found.naive), compilation.target.machine_key, {full: value})
    return full, Records((record,))


def follows_record(before: tuple[Compilation, Kernel], graph: Graph, target: str, choice: str, value: Any) -> None:
    """Asserts that a record of another option is followed without a warning, and changes the program."""
    full, records = record_of(before, choice, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, after = kernel_of(graph, target, records)
    (made,) = [c for c in after.choices if c.name == full]
    assert (made.value, made.recorded) == (value, True) and made.default != value and not after.refused
    assert str(after.scheduled).replace(after.name, before[1].name) != str(before[1].scheduled)
