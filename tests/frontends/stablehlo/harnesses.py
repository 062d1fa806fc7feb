"""How much of JAX's own list of primitives is read: `python -m tests.frontends.stablehlo.harnesses [--every N]
[GROUP…]`.

Each of the harnesses by which JAX tests its exports is lowered, converted, run and compared with what JAX computes.
Prints a line for each that does not agree, and the totals, also by group.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

os.environ.setdefault("JAX_ENABLE_X64", "1")
import jax
from jax._src.internal_test_util import test_harnesses
from tests.frontends.stablehlo.coverage import TOLERANCES, Result

import weft
from weft.errors import UnsupportedError, WeftError
from weft.graph.evaluate import evaluate
from weft_testing.frontend import compare


def harnesses() -> list[Any]:
    """Those that JAX implements on CPUs."""
    return [h for h in test_harnesses.all_harnesses if not _refused(h)]


def _refused(harness: Any) -> bool:
    return any(
        limit.filter(device="cpu", dtype=harness.dtype) and limit.skip_run for limit in harness.jax_unimplemented
    )


def real(array: Any) -> np.ndarray[Any, Any]:
    """An array as the graph has it: complex numbers with a last axis of both parts."""
    array = np.asarray(array)
    if array.dtype.kind != "c":
        return array
    return np.stack([array.real, array.imag], -1)


def judged(harness: Any, target: str | None = None) -> Result:
    """What becomes of a harness."""
    name = harness.fullname
    try:
        arguments = harness.dyn_args_maker(np.random.RandomState(0))
        jitted = jax.jit(harness.dyn_fun)
        wanted = [real(y) for y in jax.tree.leaves(jitted(*arguments))]
        lowered = jitted.lower(*arguments)
        kept = sorted(lowered._lowering.compile_args["kept_var_idx"])
    except Exception as error:  # noqa: BLE001 - whatever JAX raises
        return Result(name, "not lowered", f"{type(error).__name__}: {str(error)[:150]}".replace("\n", " "))
    given = [real(jax.tree.leaves(arguments)[k]) for k in kept]
    try:
        graph = weft.load(lowered)
        got = weft.compile(graph, target, cache=False)(*given) if target else evaluate(graph, given)
    except UnsupportedError as error:
        return Result(name, "refused", str(error.where).replace("\n", "; ")[:200])
    except WeftError as error:
        return Result(name, "failed", f"{error.what[:160]} {error.why or ''}".replace("\n", " ")[:300])
    except Exception as error:  # noqa: BLE001 - a defect, which is counted
        return Result(name, "failed", f"{type(error).__name__}: {str(error)[:160]}")
    for value, want in zip(got if isinstance(got, (list, tuple)) else [got], wanted, strict=True):
        rtol, atol = TOLERANCES.get(want.dtype.name, (0.0, 0.0))
        try:
            assert np.asarray(value).dtype == want.dtype, f"dtype {np.asarray(value).dtype}, JAX has {want.dtype}"
            if want.dtype.name in TOLERANCES:
                value, want = np.asarray(value, np.float64), np.asarray(want, np.float64)
            compare({"y": np.asarray(value)}, {"y": want}, "run", rtol, atol)
        except AssertionError as error:
            return Result(name, "wrong", str(error)[:200])
    return Result(name, "agrees")


def run(chosen: Sequence[Any], target: str | None = None) -> Iterator[tuple[Any, Result]]:
    """Results one after another."""
    for k, harness in enumerate(chosen):
        if k % 50 == 0:
            jax.clear_caches()
        yield harness, judged(harness, target)


def main() -> int:
    """Prints the results; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help="names of groups; none for all")
    parser.add_argument("--every", type=int, default=1, help="only every N-th harness")
    parser.add_argument("--first", type=int, default=0, help="the number of the first harness")
    parser.add_argument("--target", help="compile for it instead of interpreting")
    options = parser.parse_args()
    chosen = [h for h in harnesses() if not options.groups or h.group_name in options.groups]
    started, counts, groups = time.perf_counter(), Counter[str](), Counter[str]()
    bad: Counter[str] = Counter()
    for harness, result in run(chosen[options.first :: options.every], options.target):
        counts[result.verdict] += 1
        groups[harness.group_name] += 1
        if result.verdict != "agrees":
            bad[harness.group_name] += 1
            print(f"{result.verdict:12} {result.name[:90]:60} {result.reason}", flush=True)
    print(f"{len(groups)} groups, of which {len(groups) - len(bad)} agree throughout")
    print(", ".join(f"{n} {v}" for v, n in counts.most_common()), f"in {time.perf_counter() - started:.0f} s")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
