"""Programs that schedules of grids are tried on, machines to try them for, and the comparison with what they meant
before."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from tests.passes.library import run_passes

from weft import dtypes as dt
from weft.dtypes import DType
from weft.errors import WeftError
from weft.expr.evaluate import evaluate
from weft.expr.functions import FUNCTIONS
from weft.graph.group import Group
from weft.loop.nodes import Allocate, For, Program, int_const, stmt_children, walk_stmts
from weft.loop.pipeline import lower_program
from weft.loop.verify import verify
from weft.lower.lower import lower_group
from weft.machine import Machine
from weft.passes.capabilities import Capabilities
from weft.passes.own_outputs import own_outputs
from weft.scheduling import Rule, Schedule, replay, select_rule
from weft.scheduling.scopes import overflow
from weft_gpu.limits import exceeds_grid
from weft_gpu.machines import grid_machine
from weft_gpu.passes import grid_passes
from weft_gpu.schedules import RULES
from weft_interpreter.interpret import interpret
from weft_ops import ALL_OPERATORS
from weft_testing.conform.kit import Case

MACHINES: dict[str, Machine] = {
    "small": grid_machine(
        "gpu", cores=2, shared=16 << 10, threads=64, threads_per_axis=(64, 64, 64), warp=1, resident=256
    ),
    "wide": grid_machine("gpu", cores=4, shared=48 << 10, threads=1024, warp=32, features=("shuffle",)),
    "middle": grid_machine(
        "gpu", cores=3, shared=32 << 10, threads=256, threads_per_axis=(256, 256, 64), warp=64, resident=512
    ),
}
"""By name: few threads and no warps, many and warps of 32 that shuffle, warps of 64."""
MOST_STEPS = 4000
"""Elements of inputs and outputs of a program that is interpreted."""


def cases() -> dict[str, Case]:
    return {
        f"{op.__name__}-{sample.name or k}": Case(op, sample, "", sample.name or str(k))
        for op in ALL_OPERATORS
        for k, sample in enumerate(op.samples())
    }


def stratified(names: Sequence[str], every: int) -> list[str]:
    """One name of `every`, and at least one of each operator, the same every time."""
    order = sorted(names, key=lambda n: zlib.crc32(n.encode()))
    first: dict[str, str] = {}
    for name in order:
        first.setdefault(name.split("-")[0], name)
    chosen = {*first.values(), *order[:: max(1, every)]}
    return [n for n in names if n in chosen]


def programs(graph: Any) -> list[Program]:
    """The naive program of each kernel of a graph, for a target that claims nothing."""
    found = []
    for node in own_outputs(run_passes(graph, Capabilities())).nodes:
        if isinstance(node.op, Group) and not node.op.view:
            found.append(lower_group(node.op.body, "kernel"))
    return found


def scheduled(program: Program, machine: Machine, rules: Sequence[Rule] = RULES) -> tuple[str, Schedule]:
    """The rule that takes a program, and its schedule, every step verified; its trace makes it again."""
    rule, _ = select_rule(rules, program, machine)
    s = Schedule(program, machine, checked=True)
    rule.apply(s)
    within_limits(s.program, machine)
    assert str(replay(program, s.trace)) == str(s.program)
    return rule.name, s


def within_limits(program: Program, machine: Machine) -> None:
    """No launch is wider than the machine, no memory larger; threads have constant extents, and each axis is there once
    on a path."""
    assert machine.grid is not None
    assert overflow(program, machine) is None
    assert exceeds_grid(program, machine) is None
    for group in _nests(program.body, {}):
        threads = {k: n for k, n in group.items() if k.startswith("threadIdx")}
        for k, n in threads.items():
            assert isinstance(n, int) and n <= machine.grid.threads_per_axis["xyz".index(k[-1])], (k, n)
        assert math.prod(threads.values()) <= machine.grid.threads
    verify(program)


def _nests(stmt: Any, around: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The axes that are bound around each innermost statement, with their extents."""
    here = dict(around)
    if isinstance(stmt, For) and "Idx" in stmt.kind:
        assert stmt.kind not in here, f"{stmt.kind} twice on a path"
        assert not (stmt.kind.startswith("blockIdx") and any(k.startswith("threadIdx") for k in here)), (
            "a group inside a thread"
        )
        here[stmt.kind] = int_const(stmt.extent)
    if isinstance(stmt, Allocate) and stmt.buffer.scope == "global":
        assert not here, f"'{stmt.buffer.name}' is in global memory and allocated by a group"
    children = stmt_children(stmt)
    return [x for c in children for x in _nests(c, here)] if children else [here]


def axes_of(program: Program) -> list[tuple[str, str]]:
    """The bound loops in order: axis and extent."""
    return [(x.kind, str(x.extent)) for x in walk_stmts(program.body) if isinstance(x, For) and "Idx" in x.kind]


def random_inputs(program: Program, dims: Mapping[str, int] | None = None, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [_values(rng, shape_of(b, dims or {}), b.dtype) for b in program.inputs]


def shape_of(buffer: Any, dims: Mapping[str, int]) -> list[int]:
    return [int(evaluate(d, dict(dims))) for d in buffer.shape]


def _values(rng: Any, shape: list[int], dtype: DType) -> Any:
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return rng.integers(0, 3, shape).astype(dtype.numpy)
    return rng.uniform(0.5, 1.5, shape).astype(dtype.numpy)


def meaning(
    program: Program, inputs: Sequence[Any], dims: Mapping[str, int] | None = None, seed: int | None = None
) -> list[Any]:
    with np.errstate(all="ignore"):
        found = interpret(program, inputs, dims, shuffle_seed=seed)
    return [found[b.name] for b in program.outputs]


def sample_inputs(program: Program, case: Case) -> list[Any] | None:
    """A sample's arrays if the program takes them as they are, else random ones; None: it is too large to interpret."""
    shapes = [shape_of(b, {}) for b in program.inputs]
    given = list(case.inputs().values())
    if [a.dtype for a in given] == [b.dtype.numpy for b in program.inputs] and [a.size for a in given] == [
        math.prod(x) for x in shapes
    ]:
        found = [np.ascontiguousarray(a).reshape(x) for a, x in zip(given, shapes)]
    else:
        found = random_inputs(program)
    size = sum(a.size for a in found) + sum(math.prod(shape_of(b, {})) for b in program.outputs)
    return found if size <= MOST_STEPS else None


def agree(got: Sequence[Any], want: Sequence[Any], units: float, what: str) -> None:
    """Integers are equal, floats within so many units in the last place of the greatest element."""
    for g, w in zip(got, want):
        g, w = np.asarray(g).reshape(np.shape(w)), np.asarray(w)
        kind_of = dt.dtype(w.dtype)
        if kind_of.is_integer or kind_of.is_bool:
            np.testing.assert_array_equal(g, w, err_msg=what)
            continue
        kind = np.complex128 if w.dtype.kind == "c" else np.float64
        wide, other = w.astype(kind), g.astype(kind)
        finite = wide[np.isfinite(wide)]
        greatest = float(np.abs(finite).max(initial=0.0))
        np.testing.assert_allclose(
            other, wide, rtol=0, atol=units * _epsilon(w.dtype) * max(greatest, 1e-30), equal_nan=True, err_msg=what
        )


def _epsilon(dtype: Any) -> float:
    narrow = {np.dtype(np.complex64): np.float32, np.dtype(np.complex128): np.float64}.get(np.dtype(dtype), dtype)
    return float(ml_dtypes.finfo(narrow).eps)


def lowered(program: Program) -> Program:
    """As the threads of a group run it, with barriers."""
    return lower_program(program, frozenset(FUNCTIONS), extra=grid_passes())


def lowered_meaning(
    program: Program, inputs: Sequence[Any], dims: Mapping[str, int] | None = None, seed: int | None = None
) -> list[Any]:
    """What a scheduled program gives once it is lowered: threads run from barrier to barrier, in random order."""
    return meaning(lowered(program), [np.reshape(a, -1) for a in inputs], dims, seed)


@cache
def sample_programs(name: str) -> tuple[tuple[Program, Any, Any], ...]:
    """Per kernel of a sample: its naive program, inputs, and what it gives."""
    case = cases()[name]
    try:
        found = programs(case.graph())
    except WeftError:
        return ()
    result = []
    for p in found:
        if p.dims:
            continue
        inputs = sample_inputs(p, case)
        if inputs is None:
            continue
        try:
            want = meaning(p, inputs)
        except WeftError:  # indices that only real data keep in range
            continue
        result.append((p, inputs, want))
    return tuple(result)
