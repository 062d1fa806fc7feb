"""A process that measures: loads executables, runs them in turns, and says how long each of their kernels took.

    python -m weft_tuning.worker

Reads one line of JSON for each job on its standard input, and writes one on its standard output. It needs the runtime
only. What a candidate does to it, a crash or an endless loop, costs that job: its parent starts another.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from weft_runtime.errors import WeftError

PROFILE = "weft.profile"
"""The output of an executable that has clocks around its kernels (`weft.codegen.profile`)."""
WARM = 2
"""Runs of each executable that are not counted."""
LEAST_RUNS = 3


def measure(
    archives: list[str], inputs: str, seconds: float, most: int, floats: float, integers: float
) -> dict[str, Any]:
    """Runs executables in turns.

    Args:
        archives: files; the first is the one that the others have to agree with.
        inputs: an .npz file of inputs by name.
        seconds: no turn is begun after this long.
        most: turns at most.
        floats: greatest difference of float outputs from the first executable's, over the largest of them.
        integers: greatest share of elements of other outputs that may differ.

    Returns:
        `calls`: per archive, turn and kernel call the ticks it took; `totals`: per archive and turn seconds; or
        `differs`: how the results of an archive differ.
    """
    from weft_runtime.executable import Executable

    with np.load(inputs, allow_pickle=False) as file:
        arrays = dict(file)
    loaded = [Executable.load(path) for path in archives]
    expected: dict[str, Any] = {}
    for k, executable in enumerate(loaded):
        for _ in range(WARM):
            found = executable.run(arrays)
        results = {name: np.array(value) for name, value in found.items() if name != PROFILE}
        if k == 0:
            expected = results
            continue
        wrong = [w for name in expected if (w := difference(expected[name], results[name], floats, integers))]
        if wrong:
            return {"differs": f"output {wrong[0]}"}
    calls: list[list[list[int]]] = [[] for _ in loaded]
    totals: list[list[float]] = [[] for _ in loaded]
    ends = time.perf_counter() + seconds
    while len(totals[0]) < LEAST_RUNS or (time.perf_counter() < ends and len(totals[0]) < most):
        order = range(len(loaded)) if len(totals[0]) % 2 == 0 else reversed(range(len(loaded)))
        for k in order:
            began = time.perf_counter()
            stamps = loaded[k].run(arrays)[PROFILE]
            totals[k].append(time.perf_counter() - began)
            calls[k].append((stamps[:, 1] - stamps[:, 0]).tolist())
    return {"calls": calls, "totals": totals}


def difference(expected: Any, found: Any, floats: float, integers: float) -> str | None:
    """How a result differs from the expected one by more than it may; None if it does not."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{found.dtype}{list(found.shape)} in place of {expected.dtype}{list(expected.shape)}"
    if not expected.size:
        return None
    if expected.dtype.kind not in "fcV":
        share = float(np.mean(expected != found))
        return f"differs in {share:.1%} of its elements" if share > integers else None
    a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (expected, found))
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return "is not finite in other elements"
    a, b = (np.where(np.isfinite(x), x, 0) for x in (a, b))
    largest = float(np.max(np.abs(a)))
    error = float(np.max(np.abs(a - b)))
    wrong = error > floats * max(largest, 1e-30)
    return f"differs by {error:.3g} where the largest is {largest:.3g}" if wrong else None


def main() -> None:
    # What native code or a library prints must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        try:
            answer = measure(**json.loads(line))
        except (WeftError, OSError, MemoryError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
