"""The order of the loop passes: from a scheduled Program to one that code generation takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.errors import LoopError, nearest
from weft.loop.nodes import Program
from weft.loop.passes.block_sums import block_sums
from weft.loop.passes.expand_math import expand_math
from weft.loop.passes.flatten_buffers import flatten_buffers
from weft.loop.passes.guard_loads import guard_loads
from weft.loop.passes.hoist_invariants import hoist_invariants
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.partition_loops import partition_loops
from weft.loop.passes.relax_masks import relax_masks
from weft.loop.passes.simplify import simplify
from weft.loop.passes.start_empty_reductions import start_empty_reductions
from weft.loop.passes.unroll_loops import unroll_loops
from weft.loop.passes.unswitch_loops import unswitch_loops
from weft.loop.passes.vectorize_loops import vectorize_loops


@dataclass(frozen=True)
class Stage:
    """A named step of the pipeline and what holds after it. `run` takes the functions that the target has, too."""

    name: str
    after: str
    run: Callable[[Program, frozenset[str]], Program]


def _without_functions(function: Callable[[Program], Program]) -> Callable[[Program, frozenset[str]], Program]:
    """A pass that does not ask which functions the target has, as a stage calls it."""
    return lambda program, functions: function(program)


def _stage(function: Callable[[Program], Program], after: str) -> Stage:
    return Stage(function.__name__, after, _without_functions(function))


STAGES: tuple[Stage, ...] = (
    _stage(start_empty_reductions, "the start value of a reduction that may have no iteration is stored"),
    _stage(lower_blocks, "no Block"),
    _stage(simplify, "formulas are simplified by ranges and conditions; no loop of zero or one iteration"),
    _stage(block_sums, "a sum of floats is a chain of bounded length, or one of blocks"),
    _stage(
        unswitch_loops, "invariant conditions of loops annotated `unswitch` are evaluated once, outside of two copies"
    ),
    _stage(partition_loops, "the main part of a loop has no condition that divides its range"),
    _stage(flatten_buffers, "every buffer has one dimension"),
    _stage(guard_loads, "a Load that a Select keeps in bounds has a predicate"),
    _stage(vectorize_loops, "no vectorized loop"),
    _stage(unroll_loops, "no unrolled loop"),
    _stage(relax_masks, "vectors in registers are computed whole if they are read under one mask only"),
    _stage(hoist_invariants, "costly invariant formulas are Lets outside their loop"),
    Stage("expand_math", "every Call names a function that the target has", expand_math),
)


@dataclass(frozen=True)
class LoopPass:
    """A pass of a plugin: Program → Program of the same meaning.

    Args:
        name: of the stage that it is.
        function: the pass.
        after: the stage, or other pass, behind which it runs; "" for the first place.
        holds: what holds after it, for people.
    """

    name: str
    function: Callable[[Program], Program]
    after: str = ""
    holds: str = ""


def lower_program(
    program: Program,
    functions: frozenset[str],
    on_stage: Callable[[str, Program], None] | None = None,
    extra: Sequence[LoopPass] = (),
) -> Program:
    """`program` through all stages.

    Args:
        functions: the names of `expr.functions` that the target has.
        on_stage: called with the name and result of every stage.
        extra: passes of plugins, in the given order where several follow the same stage.

    Raises:
        LoopError: a pass follows a stage that does not exist, or a name that several have.
    """
    for stage in ordered(extra):
        program = stage.run(program, functions)
        if on_stage is not None:
            on_stage(stage.name, program)
    return program


def _of_plugin(p: LoopPass) -> Stage:
    def run(program: Program, functions: frozenset[str]) -> Program:
        result = p.function(program)
        if not isinstance(result, Program):
            what = f"the loop pass '{p.name}' returned {result!r}, not a Program"
            raise LoopError(what, hint="a pass returns the Program that it was given, or another")
        return result

    return Stage(p.name, p.holds, run)


def ordered(extra: Sequence[LoopPass]) -> tuple[Stage, ...]:
    """The stages with the passes of plugins in their places, which may follow each other.

    Of several passes that follow the same stage, each comes behind those given before it and what follows these.

    Raises:
        LoopError: a pass follows a stage that does not exist, or a name that several have.
    """
    order = list(STAGES)
    followers: dict[str, int] = {}  # stage → passes that stand behind it because of it
    before: dict[str, str] = {}  # pass → what it follows
    pending = list(extra)
    while pending:
        left = []
        for p in pending:
            names = ["", *(s.name for s in order)]
            if p.after not in names:
                left.append(p)
                continue
            if names.count(p.after) > 1:
                what = (
                    f"the loop pass '{p.name}' runs after '{p.after}', which {names.count(p.after)} passes are called"
                )
                raise LoopError(what, hint="give each of them a name of its own: LoopPass(name, function, after)")
            at = names.index(p.after) + followers.get(p.after, 0)
            order.insert(at, _of_plugin(p))
            if p.name not in names:
                before[p.name] = p.after
            behind: str | None = p.after
            while behind is not None:
                followers[behind] = followers.get(behind, 0) + 1
                behind = before.get(behind)
        if len(left) == len(pending):
            names = [s.name for s in order]
            close = nearest(left[0].after, names)
            hint = f"did you mean '{close}'?" if close else "the stages are " + ", ".join(names)
            raise LoopError(
                f"the loop pass '{left[0].name}' runs after '{left[0].after}', which does not exist", hint=hint
            )
        pending = left
    return tuple(order)
