"""Formulas of one's own: schedules that the tuner finds by generic moves alone beside schedules written by hand.

    python -m benchmarks.formulas [--formulas stencil,…] [--threads N] [--tune S] [--seconds S] [--json FILE]

Each formula is tuned with the rule `searched` only, which knows no operator. Its best candidate, its default, the
schedule by hand below and, where it is faster than a hundred milliseconds, the target's own choice run in turns on the
same inputs; times are of the fastest run, and results are compared.

Limit: what is found takes at most 1.5 of the time of the schedule by hand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks.arguments import chosen, judge, machine, write_report
from benchmarks.int8 import fastest
from weft.expr.functions import call
from weft.expr.nodes import eq, select
from weft.kernel import Kernel, KernelSchedule
from weft.loop.nodes import int_const
from weft.scheduling.run_rules import run_recorded
from weft.scheduling.schedule import Schedule
from weft.tensor.language import Tensor
from weft_tuning.measuring import LocalWorker
from weft_tuning.searched import NAME
from weft_tuning.spaces import Candidate, Pick, Space
from weft_tuning.store import Store, kept
from weft_tuning.tuner import Tuner
from weft_tuning.work import FormulaWork

LIMIT = 1.5
SLOW = 0.1
HAND, FOUND, DEFAULT, OWN = "by hand", "found", "its default", "the target's rule"

SIDE, RADIUS = 2000, 2
BATCH, ORDER = 8192, 4
HEADS, TOKENS, WIDTH = 8, 512, 64


def stencil() -> Tensor:
    """A weighted mean of 25 neighbours, of 4 million points."""
    side: int = 2 * RADIUS + 1
    weights = [1.0 / (2 + abs(a - RADIUS) + abs(b - RADIUS)) for a in range(side) for b in range(side)]
    x = weft.placeholder((SIDE + 2 * RADIUS, SIDE + 2 * RADIUS), name="x")

    def at(i: Any, j: Any) -> Any:
        total = x[i, j] * weights[0]
        for k in range(1, side * side):
            total = total + x[i + k // side, j + k % side] * weights[k]
        return total

    y: Tensor = weft.compute((SIDE, SIDE), at, name="y")
    return y


def inverse() -> Tensor:
    """The inverses of 4 × 4 matrices by Gauss-Jordan elimination in place, without pivoting: a compute for each
    pivot."""
    m = weft.placeholder((BATCH, ORDER, ORDER), name="a")
    for p in range(ORDER):

        def at(b: Any, i: Any, j: Any, m: Tensor = m, p: int = p) -> Any:
            pivot = 1.0 / m[b, p, p]
            row = select(eq(j, p), pivot, m[b, p, j] * pivot)
            rest = select(eq(j, p), -m[b, i, p] * pivot, m[b, i, j] - m[b, i, p] * (m[b, p, j] * pivot))
            return select(eq(i, p), row, rest)

        m = weft.compute((BATCH, ORDER, ORDER), at, name=f"step{p}")
    return m


def attention() -> Tensor:
    """Attention by sigmoids rather than a softmax, with a bias against distance."""
    shape = HEADS, TOKENS, WIDTH
    q, k, v = (weft.placeholder(shape, name=n) for n in "qkv")
    c, t = weft.reduce_axis(WIDTH), weft.reduce_axis(TOKENS)
    scores = weft.compute(
        (HEADS, TOKENS, TOKENS), lambda h, i, j: weft.sum(q[h, i, c] * k[h, j, c], axis=c), name="scores"
    )

    def weight(h: Any, i: Any, j: Any) -> Any:
        far = call("abs", (i - j).astype("float32")) * 0.05
        return 1.0 / (1.0 + call("exp", far - scores[h, i, j] * WIDTH**-0.5))

    weights = weft.compute((HEADS, TOKENS, TOKENS), weight, name="weights")
    return weft.compute(shape, lambda h, i, e: weft.sum(weights[h, i, t] * v[h, t, e], axis=t), name="y")


def stencil_by_hand(s: Schedule) -> None:
    """Six rows of a vector at once, so that a loaded row serves several; in strips whose rows stay in the first cache;
    bands of rows on threads."""
    lanes = s.machine.lanes(s.program.outputs[0].dtype)
    i, j = s.loops("y")
    band, row = s.split(i, [None, 6])
    strip, column, lane = s.split(j, [None, 64, lanes])
    s.reorder(strip, band, column, row, lane)
    s.unroll(row)
    s.vectorize(lane)
    s.parallel(s.fuse(strip, band))


def inverse_by_hand(s: Schedule) -> None:
    """Four matrices at once, a row of each in a vector; all steps in registers."""
    *steps, last = s.blocks()
    batch, row, lane = s.loops(last)
    few, one = s.split(batch, [None, 4])
    inside = {last: [one, row, lane]}
    for name in reversed(steps):
        s.compute_at(name, few)
        inside[name] = s.loops(name)[1:]
    for name in steps:
        s.compact_buffer(s.buffers(name)[0])
        s.set_scope(name, "register")
    for *around, lanes in inside.values():
        for loop in around:
            s.unroll(loop)
        s.vectorize(lanes)
    group, _ = s.split(few, [None, 64])
    s.parallel(group)


def attention_by_hand(s: Schedule) -> None:
    """Per tile of queries the weights of all keys, in the first cache, then the second product; both products have
    their sums in registers, and keys are turned once, so that scores lie along lanes."""
    lanes = s.machine.lanes(s.program.outputs[0].dtype)
    columns = min(WIDTH // lanes, 4)
    rows = (s.machine.vector_registers - columns - 1) // columns
    copy = s.cache_write("y", "register")
    turned = s.cache_read("scores", "k", "local", (0, 2, 1))
    marks: list[tuple[list[str], str]] = []

    def tile(name: str, i: str, j: str, *sums: str) -> list[str]:
        """Loops of a tile around which the others are; what is around it."""
        outer, row = s.split(i, [None, rows]) if name == copy else ("", i)
        group, column, lane = s.split(j, [None, columns, lanes])
        s.reorder(*([outer] if outer else []), group, *sums, row, column, lane)
        if sums:
            start = s.decompose_reduction(name, sums[0])
            a, b, c = s.loops(start)[-3:]
            marks.append(([a, b], c))
        marks.append(([row, column], lane))
        return [outer, group]

    head, i, e = s.loops(copy)
    queries, group = tile(copy, i, e)
    s.compute_at("y", group)
    i, column, t = s.loops("y")[-3:]
    vectors, lane = s.split(column, [None, lanes])
    s.reorder(t, i, vectors, lane)
    start = s.decompose_reduction("y", t)
    marks += [([i, vectors], lane), (s.loops(start)[-3:-1], s.loops(start)[-1])]
    s.compute_at("weights", queries)
    i, j = s.loops("weights")[-2:]
    _, keys = tile("weights", i, j)
    s.compute_at("scores", keys)
    i, column, c = s.loops("scores")[-3:]
    vectors, lane = s.split(column, [None, lanes])
    s.reorder(c, i, vectors, lane)
    start = s.decompose_reduction("scores", c)
    marks += [([i, vectors], lane), (s.loops(start)[-3:-1], s.loops(start)[-1])]
    for buffer in ("scores", "weights", "y_register"):
        s.compact_buffer(buffer, lanes)
    s.set_scope("scores_init", "register")
    s.set_scope("weights", "local")
    for unrolled, lane in marks:
        for loop in unrolled:
            s.unroll(loop)
        s.vectorize(lane)
    heads, _, tokens = s.loops(turned)
    _, lane = s.split(tokens, [None, lanes])
    s.vectorize(lane)
    s.parallel(heads)
    s.parallel(s.fuse(head, queries))


FORMULAS: Mapping[str, tuple[Callable[[], Tensor], Callable[[Schedule], None]]] = {
    "stencil": (stencil, stencil_by_hand),
    "inverse": (inverse, inverse_by_hand),
    "attention": (attention, attention_by_hand),
}


class Only(Space):
    """The choices of the rule `searched`."""

    def __init__(self, naive: Any, target: Any) -> None:
        self.naive, self.target = naive, target
        self.default = self.pick(lambda name, options, default: default)

    def pick(self, pick: Pick) -> Candidate:
        return super().pick(lambda name, options, default: NAME if name == "rule" else pick(name, options, default))


class Work(FormulaWork):
    """A formula that the rule `searched` schedules."""

    def __init__(self, s: KernelSchedule, inputs: Mapping[str, Any]) -> None:
        super().__init__(s.program, s.target, inputs=inputs)
        self._space = Only(self.program, self.target)
        self.base = self.build({})


def inputs_of(s: Schedule, name: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {b.name: tuple(int_const(d) or 0 for d in b.shape) for b in s.program.inputs}
    found = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    if name == "inverse":  # no pivot is near 0
        found["a"] += 8 * np.eye(ORDER, dtype=np.float32)
    return found


def measured(name: str, threads: int, tune: float, seconds: float, folder: Path) -> dict[str, Any]:
    """Least seconds of every schedule, trials, and the greatest difference of results over their size."""
    make, by_hand = FORMULAS[name]
    target = f"llvm -threads={threads}"
    fresh = partial(weft.schedule, make(), target=target)
    inputs = inputs_of(fresh(), name)
    work = Work(fresh(), inputs)
    (key,) = work.calls
    store = Store(folder / f"{name}.json", work.target.machine_key, work.target.versions)
    with LocalWorker() as worker:
        report = Tuner(work, worker, store, seconds=tune, limits=False).run()
    best = next((k.record for k in kept(folder / f"{name}.json")), None)
    hand, own = fresh(), fresh().auto()
    by_hand(hand)
    kernels = {
        HAND: weft.build(hand),
        FOUND: _built(work, best.choices if best is not None else work.space(key).default.choices),
        DEFAULT: _built(work, work.space(key).default.choices),
        OWN: weft.build(own),
    }
    results: dict[str, Any] = {n: k(*(inputs[i.name] for i in k.executable.inputs)) for n, k in kernels.items()}
    size = float(np.abs(results[HAND]).max())
    off = max(float(np.abs(r - results[HAND]).max()) / size for r in results.values())
    calls = {n: partial(k, *(inputs[i.name] for i in k.executable.inputs)) for n, k in kernels.items()}
    if fastest({OWN: calls[OWN]}, 0.0)[OWN] > SLOW:
        del calls[OWN]
    return {
        "formula": name,
        "seconds": fastest(calls, seconds),
        "trials": report.trials,
        "failures": report.failures,
        "apart": off,
        "choices": dict(best.choices) if best is not None else {},
    }


def _built(work: Work, choices: Mapping[str, Any]) -> Kernel:
    t = work.target
    made = run_recorded(t.rules, work.program, t.machine, t.intrinsics, t.exceeds, choices)
    return weft.build(KernelSchedule(made.schedule.program, t))


def main(arguments: Sequence[str] | None = None) -> int:
    from weft.cli.terminal import print_table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.formulas", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--formulas", default=",".join(FORMULAS), help="by commas [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="of every schedule [%(default)s]")
    parser.add_argument("--tune", type=float, default=300.0, help="seconds of tuning for each formula [%(default)s]")
    parser.add_argument("--seconds", type=float, default=5.0, help="of comparing, for each formula [%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen(options.formulas, list(FORMULAS), "formula"):
            print(f"{name} …", file=sys.stderr, flush=True)
            results.append(measured(name, options.threads, options.tune, options.seconds, Path(folder)))
    table, over = [], []
    for r in results:
        times = r["seconds"]
        ratio = times[FOUND] / times[HAND]
        over += [r["formula"]] if ratio > LIMIT else []
        shown = [f"{times[n] * 1e3:.3f}" if n in times else "" for n in (HAND, FOUND, DEFAULT, OWN)]
        table.append([r["formula"], *shown, f"{ratio:.2f}", judge(ratio, LIMIT), str(r["trials"]), f"{r['apart']:.1e}"])
    heads = ["", *(f"{n} ms" for n in (HAND, FOUND, DEFAULT, OWN)), "of by hand", f"{LIMIT}", "trials", "apart"]
    print_table(f"formulas, {machine()['cpu']}, {options.threads} thread(s)", heads, table, right=(1, 2, 3, 4, 5, 7, 8))
    write_report(options, limit=LIMIT, results=results)
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
