"""A process that measures: loads executables, runs them in turns, and says how long each of their kernels took.

    python -m weft_tuning.worker

Reads one line of JSON for each job on its standard input, and writes one on its standard output. It needs the runtime
only. What a candidate does to it, a crash or an endless loop, costs that job: its parent starts another.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft_runtime.dtypes import dtype
from weft_runtime.errors import InputError, WeftError

PROFILE = "weft.profile"
"""The output of an executable that has clocks around its kernels (`weft.codegen.profile`)."""
WARM = 2
"""Runs of each executable that are not counted."""
LEAST_RUNS = 3
GRACE = 2
"""Seconds after the limit of a job until the process ends itself. Its parent ends it before, unless it was killed."""


def write_inputs(path: str | os.PathLike[str], inputs: Mapping[str, Any]) -> None:
    """Writes inputs to an .npz file that `read_inputs` reads, whatever they are called, and of every dtype of numbers.

    Raises:
        InputError: one is a text, a sequence or an optional.
        OSError: the file cannot be written.
    """
    named, arrays = [], {}
    for k, (name, value) in enumerate(inputs.items()):
        array = np.asarray(value) if not isinstance(value, (list, tuple)) and value is not None else None
        if array is None or array.dtype.kind not in "biufcV":
            raise InputError(
                f"the input '{name}' cannot be given to the process that measures",
                why="it is a text, a sequence or an optional",
                hint="tune the part that computes with numbers",
            )
        named.append((name, array.dtype.name))
        # numpy's files know no dtypes but its own: bfloat16 would come back as two bytes of nothing in particular.
        arrays[f"input{k}"] = array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
    np.savez(path, names=np.array(json.dumps(named)), **arrays)  # type: ignore[arg-type]  # numpy's stub


def read_inputs(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The inputs that `write_inputs` has written, by name."""
    with np.load(path, allow_pickle=False) as file:
        named = json.loads(str(file["names"]))
        return {name: file[f"input{k}"].view(dtype(of).numpy) for k, (name, of) in enumerate(named)}


def measure(
    archives: list[str], inputs: str, seconds: float, most: int, floats: float, integers: float
) -> dict[str, Any]:
    """Runs executables in turns.

    Args:
        archives: files; the first is the one that the others have to agree with.
        inputs: a file of inputs, see `write_inputs`.
        seconds: no turn is begun after this long.
        most: turns at most.
        floats: greatest difference of float outputs from the first executable's, over the largest of them.
        integers: greatest share of elements of other outputs that may differ.

    Returns:
        `calls`: per archive, turn and kernel call the ticks it took; `totals`: per archive and turn seconds; or
        `differs`: how the results of an archive differ.
    """
    from weft_runtime.executable import Executable

    arrays = read_inputs(inputs)
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
        job = json.loads(line)
        # The signal ends native code, too, which may be an endless loop that nobody waits for any more.
        signal.alarm(math.ceil(job.pop("limit")) + GRACE)
        try:
            answer = measure(**job)
        except (WeftError, OSError, MemoryError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        signal.alarm(0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
