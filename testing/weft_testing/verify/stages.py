"""Which stage of a kernel departs: its program after each is interpreted on the inputs that the kernel got; if all are
right, the machine code is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.codegen.base import require
from weft.errors import LoopError, ScheduleError, WeftError
from weft.loop.nodes import Program
from weft.loop.pipeline import lower_program, ordered
from weft.loop.work import count_work
from weft.resolve import ResolvedTarget, resolve_target, target_kinds
from weft.scheduling.intrinsic import meanings
from weft.scheduling.trace import Trace, replay
from weft_interpreter.interpret import interpret
from weft_testing.alone import ready_alone
from weft_testing.verify.measure import Difference, worst
from weft_testing.verify.part import Trial

LOWER, SCHEDULE, CODE = "lower_group", "schedule", "codegen"
SPEED = 1e6
"""Operations that the interpreter does in a second, about."""


@dataclass(frozen=True)
class WrongStage:
    """The first stage whose result is wrong.

    Attributes:
        name: "lower_group", "schedule", a loop pass, or "codegen"; empty: they were not looked at, `why` says why.
        step: of a schedule, the first step that departs; empty if the rule's program is no result of its steps.
        difference: of what the stage's result gives.
        why: what speaks for it, as a sentence.
    """

    name: str
    step: str
    difference: Difference | None
    why: str


def first_wrong_stage(trial: Trial, patience: float, show: Callable[[str], None]) -> WrongStage:
    """The first wrong stage of a kernel whose machine code is wrong.

    Args:
        patience: seconds that one interpretation may take, by an estimate.
    """
    target, kernel = trial.part.target, trial.kernel
    seconds = _seconds(trial)
    if seconds > patience:
        return _wrong_compiled(trial, seconds, show)
    look = _Interpreted(trial)
    show(f"{kernel.name} as it was lowered")
    found = look(kernel.naive)
    if found is None:
        return WrongStage("", "", None, f"its program cannot be interpreted: {look.trouble}")
    if found.wrong:
        return WrongStage(
            LOWER, "", found, "the kernel's program departs from the operators' references before any schedule"
        )
    assert kernel.scheduled is not None
    show(f"{kernel.name} as it was scheduled")
    found = look(kernel.scheduled)
    if found is not None and found.wrong:
        return _wrong_step(trial, look, found, show)
    functions = target.codegen().functions
    programs: list[tuple[str, Program]] = []
    program = kernel.scheduled
    for stage in ordered(target.loop_passes()):
        program = stage.run(program, functions)
        programs.append((stage.name, program))
    # What is wrong stays wrong: bisection. A program that cannot be interpreted tells nothing, and counts as right.
    seen: dict[int, Difference | None] = {}

    def wrong(k: int) -> bool:
        if k not in seen:
            show(f"{kernel.name} after {programs[k][0]}")
            seen[k] = look(programs[k][1])
        result = seen[k]
        return result is not None and result.wrong > 0

    last = next((k for k in reversed(range(len(programs))) if wrong(k) or seen[k] is not None), None)
    if last is None or not wrong(last):
        blind = [name for name, _ in programs[(last if last is not None else -1) + 1 :]]
        why = "the program that it was made from is right when it is interpreted"
        if blind:
            why = (
                f"its programs are right as far as they can be interpreted, which those after {', '.join(blind)}"
                f" cannot: {look.trouble}"
            )
        race = look(kernel.scheduled, shuffled=True)
        if race is not None and race.wrong:
            return WrongStage(SCHEDULE, "", race, "its parallel loops give other results in another order: a race")
        return WrongStage(CODE, "", worst(trial.differences), why)
    low, high = -1, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wrong(middle) else (middle, high)
    return WrongStage(
        programs[high][0],
        "",
        seen[high],
        "the program before this loop pass is right when it is interpreted, the one after it is not",
    )


class _Interpreted:
    """How far a kernel's program departs, by interpreting it; None where that is not possible, `trouble` says why."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.trouble = ""
        self.meanings: Mapping[str, Any] = meanings(trial.part.target.intrinsics.values())

    def __call__(self, program: Program, shuffled: bool = False) -> Difference | None:
        trial = self.trial
        arrays, seed = trial.stored_inputs(program.inputs), 1 if shuffled else None
        try:
            outputs = interpret(program, arrays, trial.dims, intrinsics=self.meanings, shuffle_seed=seed)
        except LoopError as error:
            if "out of bounds" in error.what or "division by zero" in error.what:
                return Difference(
                    1, 1, float("inf"), float("inf"), float("inf"), got=error.what, want="an access in bounds"
                )
            self.trouble = error.what
            return None
        return worst(trial.judge([outputs[b.name] for b in program.outputs]))


class _Compiled:
    """How far a kernel's program departs, compiled for another target of the host's processor; None where that
    cannot."""

    def __init__(self, trial: Trial, target: ResolvedTarget) -> None:
        self.trial, self.target = trial, target
        self.codegen = target.codegen()

    def __call__(self, program: Program) -> Difference | None:
        trial = self.trial
        try:
            lowered = lower_program(program, self.codegen.functions)
            require(self.codegen, lowered, str(self.target.target))
            run = ready_alone(self.target, self.codegen.compile(self.target.taken(lowered)), program, trial.dims)
            return worst(trial.judge(run(trial.stored_inputs(program.inputs))))
        except WeftError:
            return None


def _wrong_compiled(trial: Trial, seconds: float, show: Callable[[str], None]) -> WrongStage:
    """Of a kernel too large to be interpreted: whether its schedule or its code is wrong, as far as another target's
    code for it tells."""
    kernel = trial.kernel
    slow = f"to interpret its program once would take about {seconds:,.0f} s"
    for kind in sorted(target_kinds()):
        if kind == trial.part.target.target.kind:
            continue
        try:
            other = resolve_target(kind)
            if not other.native:
                continue
            show(f"{kernel.name}, compiled for {kind}")
            look = _Compiled(trial, other)
            lowered = look(kernel.naive)
        except WeftError:  # it cannot compile here
            continue
        if lowered is None or lowered.wrong:
            continue
        assert kernel.scheduled is not None
        scheduled = look(kernel.scheduled)
        if scheduled is not None and scheduled.wrong:
            found = _wrong_step(trial, look, scheduled, show)
            return replace(found, why=f"{found.why} ({slow}: compiled for '{kind}')")
        if scheduled is not None:
            why = (
                f"compiled for '{kind}', the scheduled program is right ({slow}, which would separate the target's loop"
                " passes from its machine code)"
            )
            return WrongStage(CODE, "", worst(trial.differences), why)
    return WrongStage("", "", None, f"{slow}: smaller inputs, or more --patience, are needed to find the stage")


def _wrong_step(
    trial: Trial, look: Callable[[Program], Difference | None], found: Difference, show: Callable[[str], None]
) -> WrongStage:
    """The step of a schedule that departs, by bisection over its trace."""
    kernel, intrinsics = trial.kernel, trial.part.target.intrinsics
    naive, steps = kernel.naive, [s for s in kernel.trace if s.do != "choose"]
    start = Program(kernel.name, naive.inputs, naive.outputs, naive.dims, naive.body, naive.aliases)

    def program(count: int) -> Difference | None:
        show(f"{kernel.name} after step {count} of {len(steps)} of its schedule")
        return look(replay(start, Trace(steps[:count]), intrinsics))

    try:
        whole = program(len(steps))
    except (ScheduleError, WeftError):
        whole = None
    rule = f"the rule '{kernel.rule}' makes a program that departs"
    if whole is None or not whole.wrong:
        return WrongStage(SCHEDULE, "", found, f"{rule}, and its steps do not: it changes the program beside them")
    low, high = 0, len(steps)
    while high - low > 1:
        middle = (low + high) // 2
        result = program(middle)
        low, high = (low, middle) if result is not None and result.wrong else (middle, high)
    return WrongStage(SCHEDULE, str(steps[high - 1]), found, f"{rule}, from this step on")


def _seconds(trial: Trial) -> float:
    """About what one interpretation takes."""
    program = trial.kernel.naive
    sizes = [a.size for a in (*trial.arrays, *trial.want)]
    work = count_work(program, frozenset(), trial.dims)
    return (sum(sizes) + (work.flop if work is not None else 0.0)) / SPEED
