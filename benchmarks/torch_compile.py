"""Latency of `torch.compile(model, backend="weft")` beside Inductor: `python -m benchmarks.torch_compile [NAME…]`.

Each architecture of `benchmarks.torch_architectures` runs in this process with both backends in turn; the medians of
interleaved turns are compared. With `--check` only Weft's answers are, with those of eager mode.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.torch_architectures import build, names

RTOL, ATOL = 2e-3, 2e-4


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a model's result."""
    leaves = torch.utils._pytree.tree_leaves(dict(result) if hasattr(result, "to_tuple") else result)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def difference(got: Any, wanted: Any) -> str:
    """What is different; empty: nothing."""
    pairs = list(zip(tensors(got), tensors(wanted), strict=True))
    for a, b in pairs:
        if not torch.allclose(a, b, rtol=RTOL, atol=ATOL * max(1.0, float(b.abs().max()))):
            return f"differs by {(a - b).abs().max():.2g} of {b.abs().max():.2g}"
    return ""


ROUNDS, PAUSE = 5, 0.1
"""Turns of each function; seconds before each, in which the threads of the one before go to sleep."""


def medians(functions: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """Of calls in seconds, in interleaved turns of several calls, whose first is not counted."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(ROUNDS):
        for function, found in zip(functions, times):
            time.sleep(PAUSE)
            function()
            end = time.perf_counter() + seconds / ROUNDS
            while True:
                begun = time.perf_counter()
                function()
                found.append(time.perf_counter() - begun)
                if time.perf_counter() > end:
                    break
    return [statistics.median(found) for found in times]


def one(name: str, options: argparse.Namespace) -> tuple[str, float | None]:
    """A line about an architecture, and Inductor's time by Weft's."""
    torch._dynamo.reset()
    model, inputs = build(name)
    wanted = model(**inputs)
    begun = time.perf_counter()
    ours = torch.compile(model, backend="weft", options={"target": options.target})
    problem = difference(ours(**inputs), wanted)
    took = time.perf_counter() - begun
    if options.check or problem:
        return f"{problem or 'agrees'}, first call {took:.1f} s", None
    torch._dynamo.reset()
    begun = time.perf_counter()
    peer = torch.compile(model, backend="inductor")
    peer(**inputs)
    theirs = time.perf_counter() - begun
    ours = torch.compile(build(name)[0], backend="weft", options={"target": options.target})
    ours(**inputs)
    a, b, eager = medians([lambda: ours(**inputs), lambda: peer(**inputs), lambda: model(**inputs)], options.seconds)
    return (
        f"weft {a * 1e3:8.2f} ms, inductor {b * 1e3:8.2f}, eager {eager * 1e3:8.2f}, × {b / a:5.2f}"
        f" (first calls {took:.0f}, {theirs:.0f} s)"
    ), b / a


def main() -> int:
    """1 if an architecture fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; none for all")
    parser.add_argument("--check", action="store_true", help="compare answers with eager mode, and no times")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measurement of each backend")
    parser.add_argument("--limit", type=float, default=1e9, help="begin no other after these seconds")
    parser.add_argument("--target", default="llvm -threads=2")
    options = parser.parse_args()
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    ratios, bad, begun = [], 0, time.perf_counter()
    for name in options.names or names():
        if time.perf_counter() - begun > options.limit:
            break
        try:
            with torch.no_grad():
                line, ratio = one(name, options)
        except Exception as error:  # noqa: BLE001 - it is reported
            line, ratio = f"fails: {type(error).__name__}: {str(error)[:1500]}", None
        bad += line.startswith(("fails", "differs"))
        ratios += [ratio] if ratio else []
        print(f"{name:45} {line}", flush=True)
    if ratios:
        print(f"{len(ratios)} architectures, geometric mean × {math.exp(statistics.fmean(map(math.log, ratios))):.2f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
