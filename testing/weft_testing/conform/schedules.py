"""Level 4: what schedules make of programs means what it meant before; intrinsics compute what they say."""

from __future__ import annotations

import math
from inspect import signature
from typing import Any

import numpy as np

from weft.compilation import Kernel
from weft.dtypes import DType
from weft.errors import CodegenError, ExecutionError, ScheduleError, WeftError
from weft.loop.nodes import Program
from weft.scheduling.intrinsic import Intrinsic, meanings
from weft.scheduling.rule import Offer
from weft.scheduling.trace import replay
from weft_interpreter.interpret import interpret
from weft_testing.conform.kernels import runner
from weft_testing.conform.kit import Case, Declined, Kit
from weft_testing.intrinsics import check_intrinsic

MOST_SECONDS = 600.0
"""That a rule may estimate for a kernel of a sample: whoever says more counts operations or cycles."""
MOST_STEPS = 20_000
"""Elements of inputs and outputs of a kernel that is interpreted: the interpreter goes through them one by one."""


def test_intrinsic(kit: Kit, intrinsic: Intrinsic) -> None:
    """The code agrees with the meaning: interpreted, and compiled and run where the target compiles what it is tried in
    and its device is here."""
    if kit.native:
        check_intrinsic(intrinsic, kit.target)
        return
    grid, every = kit.target.machine.grid, kit.target.intrinsics.values()
    warp = grid.warp if grid is not None else 0
    try:
        kit.device()
    except ExecutionError as error:
        check_intrinsic(intrinsic, copies=every)
        kit.skip(f"interpreted only: {error}")
    try:
        check_intrinsic(intrinsic, run=runner(kit), copies=every, warp=warp)
    except CodegenError as error:  # schedules use it on memories that a lone program cannot fill
        check_intrinsic(intrinsic, copies=every)
        kit.skip(f"interpreted only: {error}")


def test_program(kit: Kit, case: Case) -> None:
    """Scheduled = lowered = naive, interpreted, on the sample; and the trace replays."""
    try:
        compiled = kit.alone(case)
    except Declined as error:
        kit.decline(str(error))
    functions = meanings(kit.target.intrinsics.values())
    checked = 0
    for name, kernel in compiled.kernels.items():
        _cost(kit, name, kernel)
        if kernel.scheduled is None or kernel.lowered is None or kernel.naive.dims:
            continue
        inputs = _inputs(kernel.naive, list(case.inputs().values()))
        if sum(a.size for a in inputs) > MOST_STEPS:
            continue
        try:
            want = _interpret(kernel.naive, inputs, {})
        except WeftError:  # indices that only real data keep in range
            continue
        for stage, program in (("scheduled", kernel.scheduled), ("lowered", kernel.lowered)):
            flat = [a.reshape([int(str(d)) for d in b.shape]) for a, b in zip(inputs, program.inputs)]
            try:
                got = _interpret(program, flat, functions)
            except Exception as error:  # noqa: BLE001 - the interpreter checks every access
                kit.fail(
                    f"kernel '{name}' ({kernel.rule}), {stage}, cannot be interpreted",
                    f"{type(error).__name__}: {error}",
                )
            shaped = [g.reshape(w.shape) for g, w in zip(got, want)]
            kit.compare(f"kernel '{name}' ({kernel.rule}), {stage} and interpreted,", shaped, want, case.tolerance())
        if kernel.trace is not None:
            _replay(kit, name, kernel)
        checked += 1
    if not checked:
        kit.skip("no kernel of constant sizes that is small enough to be interpreted")


def _cost(kit: Kit, name: str, kernel: Kernel) -> None:
    """What the kernel's rule offers is a time."""
    rule = next((r for r in kit.target.rules if r.name == kernel.rule), None)
    if rule is None:
        return
    asks = "intrinsics" in signature(type(rule).offer).parameters
    more = {"intrinsics": kit.target.intrinsics} if asks else {}
    answer = rule.offer(kernel.naive, kit.target.machine, **more)
    if isinstance(answer, Offer) and answer.cost > MOST_SECONDS:
        kit.fail(f"rule '{rule.name}' offers kernel '{name}' at {answer.cost:g} seconds: an offer's cost is a time")


def _replay(kit: Kit, name: str, kernel: Kernel) -> None:
    """The trace makes the same program again."""
    assert kernel.scheduled is not None
    n = kernel.naive
    named = Program(kernel.scheduled.name, n.inputs, n.outputs, n.dims, n.body, n.aliases)
    try:
        again = replay(named, kernel.trace, kit.target.intrinsics)
    except ScheduleError as error:
        kit.fail(f"the trace of kernel '{name}' ({kernel.rule}) does not replay", str(error))
    if str(again) != str(kernel.scheduled):
        kit.fail(f"the trace of kernel '{name}' ({kernel.rule}) makes another program than its rule did")


def _inputs(program: Program, sample: list[Any]) -> list[Any]:
    """The sample's arrays where the kernel takes them as they are, else random ones."""
    shapes = [[int(str(d)) for d in b.shape] for b in program.inputs]
    if [a.dtype for a in sample] == [b.dtype.numpy for b in program.inputs] and [a.size for a in sample] == [
        math.prod(s) for s in shapes
    ]:
        return [np.ascontiguousarray(a).reshape(s) for a, s in zip(sample, shapes)]
    return [_values(s, b.dtype, k) for k, (b, s) in enumerate(zip(program.inputs, shapes))]


def _interpret(program: Program, inputs: list[Any], functions: Any) -> list[Any]:
    with np.errstate(all="ignore"):
        found = interpret(program, inputs, intrinsics=functions)
    return [found[b.name] for b in program.outputs]


def _values(shape: list[int], dtype: DType, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return rng.integers(0, 3, shape).astype(dtype.numpy)  # may be indices
    return rng.uniform(0.5, 1.5, shape).astype(dtype.numpy)
