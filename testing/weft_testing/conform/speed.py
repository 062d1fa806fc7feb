"""Level 9: disasters only. What is measured is the fastest of several runs, in turn with the interpreter, which is slow
on every machine alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.lower.lower import lower_group
from weft_interpreter.interpret import interpret
from weft_testing.conform.kit import Case, Declined, Kit

TIMES = 10.0
"""A sample may take this many times what the interpreter takes for its naive program…"""
FLOOR = 0.05
"""…and this many seconds, which no sample should need."""
ATTEMPTS = 8
PAUSE = 0.05
"""Seconds by which each attempt waits longer than the one before: what else the machine does may be over by then."""
BUSY = 4.0
"""What takes this many times what is allowed, twice, is not slow for being disturbed."""


def test_sample(kit: Kit, case: Case) -> None:
    try:
        compiled = kit.alone(case)
    except Declined as error:
        kit.decline(str(error))
    inputs = case.inputs()
    compiled.executable.run(inputs)  # loads code and constants

    seconds = interpreted = math.inf
    allowed = FLOOR
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE * attempt)
        seconds = min(seconds, fastest(lambda: compiled.executable.run(inputs), 3))
        if seconds <= allowed:
            return
        interpreted = min(interpreted, _interpreted(case))
        allowed = FLOOR + kit.patience * TIMES * interpreted
        if seconds <= allowed:
            return
        if attempt and seconds > BUSY * allowed:
            break
    kit.fail(
        f"{case.name} takes {seconds:.3g} s, {allowed:.3g} s are allowed",
        f"{FLOOR} s and {kit.patience * TIMES:g} times what the interpreter takes",
    )


def fastest(run: Callable[[], Any], times: int) -> float:
    """Seconds of the fastest of `times` runs."""
    best = math.inf
    for _ in range(times):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def _interpreted(case: Case) -> float:
    """Seconds that the interpreter takes for a sample, if its operator is one program; 0 if not."""
    try:
        program = lower_group(case.graph(), "kernel")
        arrays = [a.reshape([int(str(d)) for d in b.shape]) for a, b in zip(case.inputs().values(), program.inputs)]
        with np.errstate(all="ignore"):
            return fastest(lambda: interpret(program, arrays), 1)
    except (WeftError, ValueError):
        return 0.0
