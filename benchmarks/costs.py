"""What the cost models know: random kernels, predicted and measured.

    python -m benchmarks.costs [--count 60] [--seed N] [--kinds matmul,conv,…] [--threads 1] [--candidates 24]
        [--json FILE]

Cases are those of `benchmarks.sweep_cases`. Of each case the kernel that takes most of the time is scheduled as a
compilation would, by every other rule that offers, and by candidates that are drawn from the choices of its rules. All
are measured beside the default in turns. Printed are, for each rule, how well its costs order what was measured
(Spearman's rank correlation) and the worst predictions, and for each kind what choosing by the models loses: the time
of the default over that of the best candidate.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import judge, machine, write_report
from benchmarks.sweep_cases import KINDS, Case, draw, model_of

LOSS = 1.10
"""Limit of the 90th percentile of losses."""
SECONDS = 0.15
"""Of one measurement."""


@dataclass(frozen=True)
class Measured:
    """One candidate: `rule`, its cost where a rule states one, and seconds, None if it failed."""

    rule: str
    predicted: float | None
    seconds: float | None
    choices: Mapping[str, Any]


@dataclass(frozen=True)
class Kernel:
    """The kernel of a case: the default comes first."""

    kind: str
    case: str
    name: str
    candidates: tuple[Measured, ...]

    @property
    def loss(self) -> float | None:
        """The default's time over that of the best candidate."""
        known = [c.seconds for c in self.candidates if c.seconds]
        default = self.candidates[0].seconds
        return None if default is None or not known else default / min(known)


def measure(case: Case, target: str, candidates: int, seed: int) -> Kernel:
    """The kernel of a case that takes most of the time, by the models and otherwise.

    Raises:
        WeftError: the case cannot be compiled or measured.
    """
    import onnx

    from weft.errors import ExecutionError, WeftError
    from weft.resolve import resolve_target
    from weft_tuning.measuring import Failed, LocalWorker
    from weft_tuning.work import ModelWork

    with tempfile.TemporaryDirectory() as folder, closing(LocalWorker()) as worker:
        path = Path(folder) / "case.onnx"
        model, inputs = model_of(case)
        onnx.save(model, path)
        files = {name: str(Path(folder) / f"{name}.npy") for name in inputs}
        for name, array in inputs.items():
            np.save(files[name], array)
        work = ModelWork(path, resolve_target(target), files=files)
        worker.begin(work.base, work.inputs)
        (times,) = worker.measure([work.base], SECONDS, 120.0)
        if isinstance(times, Failed):
            raise ExecutionError(f"the case '{case.text}' cannot be measured", why=times.why)
        ticks: dict[str, float] = {}
        for key, median in zip(work.calls, np.median(times.base, axis=0)):
            ticks[key] = ticks.get(key, 0.0) + float(median)
        key = max(ticks, key=ticks.__getitem__)
        tick = tick_seconds(work.base, work.inputs)
        calls = work.calls.count(key)
        found = [Measured(*of_default(work, key), ticks[key] * tick / calls, work.space(key).default.choices)]
        for rule, cost, choices in others(work, key, candidates, seed):
            seconds = None
            try:
                (times,) = worker.measure([work.build({key: choices})], SECONDS, 60.0)
            except WeftError:
                times = Failed("it cannot be compiled")
            if not isinstance(times, Failed):
                columns = [k for k, name in enumerate(work.calls) if name == key]
                base, other = (float(np.median(t[:, columns], axis=0).sum()) for t in (times.base, times.candidate))
                seconds = (found[0].seconds or 0.0) * other / base
            found.append(Measured(rule, cost, seconds, choices))
    return Kernel(case.kind, case.text, work.names[key], tuple(found))


def tick_seconds(executable: Any, inputs: Any) -> float:
    """What a tick of the kernels' clock lasts."""
    from weft.codegen.profile import PROFILE
    from weft_testing.bench.profile import seconds_per_tick

    stamp = int(executable.run(inputs)[PROFILE][-1, 1])
    return float(seconds_per_tick(executable, inputs, stamp, time.perf_counter()))


def of_default(work: Any, key: str) -> tuple[str, float | None]:
    """The rule that a compilation takes, and its cost."""
    rule, cost, _ = rules_of(work, key)[0]
    return rule, cost


def rules_of(work: Any, key: str) -> list[tuple[str, float, dict[str, Any]]]:
    """Every rule that offers for a kernel, the cheapest first: name, cost in seconds, its own default choices."""
    from weft.errors import WeftError
    from weft.scheduling.rule import offers_of

    space = work.space(key)
    offers, _ = offers_of(space.target.rules, space.naive, space.target.machine, space.target.intrinsics)
    found = []
    for rule, offer in offers:
        try:
            made = space.pick(lambda name, options, default, rule=rule: rule.name if name == "rule" else default)
        except WeftError:
            continue
        found.append((rule.name, offer.cost, dict(made.choices)))
    return found


def others(work: Any, key: str, count: int, seed: int) -> list[tuple[str, float | None, dict[str, Any]]]:
    """Other rules with their costs, and candidates that are drawn: rule, cost or None, choices."""
    from weft_tuning.ranking import Ranking
    from weft_tuning.search import Search

    found: list[tuple[str, float | None, dict[str, Any]]] = list(rules_of(work, key)[1:])
    search = Search(work.space(key), Ranking(seed), seed)
    while len(found) < count and (candidate := search.ask()) is not None:
        found.append((str(candidate.choices["rule"]), None, dict(candidate.choices)))
        search.told(candidate, 0.0)
    return found[:count]


# -- what it says ------------------------------------------------------------------------------------------------------


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's: the correlation of ranks; None of fewer than three values."""
    if len(a) < 3:
        return None
    one, other = (np.argsort(np.argsort(np.asarray(x))) for x in (a, b))
    return float(np.corrcoef(one, other)[0, 1])


def of_rules(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """Per rule: how many predictions, their rank correlation with what was measured, the geometric mean of measured
    over predicted, the least and the greatest."""
    by_rule: dict[str, list[tuple[float, float]]] = {}
    for kernel in kernels:
        for c in kernel.candidates:
            if c.predicted and c.seconds:
                by_rule.setdefault(c.rule, []).append((c.predicted, c.seconds))
    rows = []
    for rule, pairs in sorted(by_rule.items(), key=lambda r: -len(r[1])):
        ratios = [seconds / predicted for predicted, seconds in pairs]
        correlation = rank_correlation([p for p, _ in pairs], [s for _, s in pairs])
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        rows.append(
            {
                "rule": rule,
                "count": len(pairs),
                "rank_correlation": correlation,
                "mean": mean,
                "least": min(ratios),
                "greatest": max(ratios),
            }
        )
    return rows


def of_kinds(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """Per kind, and of all: percentiles of the loss."""
    rows = []
    for kind in [*dict.fromkeys(k.kind for k in kernels), "all"]:
        losses = [k.loss for k in kernels if k.loss is not None and kind in (k.kind, "all")]
        if losses:
            p50, p90 = (float(np.percentile(losses, q)) for q in (50, 90))
            rows.append({"kind": kind, "count": len(losses), "p50": p50, "p90": p90, "worst": max(losses)})
    return rows


def show(kernels: Sequence[Kernel], rules: Sequence[dict[str, Any]], kinds: Sequence[dict[str, Any]]) -> None:
    print(f"{machine()['cpu']}, {machine()['cpus']} CPUs\n")
    print(f"{'rule':14}{'kernels':>8}{'rank corr.':>12}{'measured/predicted':>20}{'least':>8}{'greatest':>10}")
    for r in rules:
        correlation = "" if r["rank_correlation"] is None else f"{r['rank_correlation']:.2f}"
        print(f"{r['rule']:14}{r['count']:8}{correlation:>12}{r['mean']:20.2f}{r['least']:8.2f}{r['greatest']:10.2f}")
    print(f"\n{'kind':14}{'kernels':>8}{'loss p50':>12}{'p90':>8}{'worst':>8}")
    for k in kinds:
        verdict = judge(k["p90"], LOSS) if k["kind"] == "all" else ""
        print(f"{k['kind']:14}{k['count']:8}{k['p50']:12.2f}{k['p90']:8.2f}{k['worst']:8.2f}  {verdict}")
    print("\nthe greatest losses:")
    for kernel in sorted((k for k in kernels if k.loss), key=lambda k: -(k.loss or 0.0))[:8]:
        best = min((c for c in kernel.candidates if c.seconds), key=lambda c: c.seconds or math.inf)
        default = kernel.candidates[0]
        changed = {n: v for n, v in best.choices.items() if default.choices.get(n) != v}
        print(f"{kernel.loss:6.2f}  {kernel.case}\n        {default.rule}, {changed}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=60, help="cases [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of cases [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--candidates", type=int, default=24, help="of each kernel, beside the default [%(default)s]")
    parser.add_argument("--json", type=Path, help="file for every number")
    options = parser.parse_args(arguments)
    from weft.errors import WeftError

    kernels: list[Kernel] = []
    failed = 0
    for number, case in enumerate(draw(options.count, options.seed, options.kinds.split(","))):
        print(f"{number + 1}/{options.count} {case.text}", file=sys.stderr, flush=True)
        try:
            kernels.append(measure(case, f"llvm -threads={options.threads}", options.candidates, options.seed + number))
        except WeftError as error:
            failed += 1
            print(f"failed: {error}", file=sys.stderr)
    rules, kinds = of_rules(kernels), of_kinds(kernels)
    show(kernels, rules, kinds)
    write_report(options, kernels=[asdict(k) for k in kernels], rules=rules, kinds=kinds, failed=failed)
    return 1 if failed or any(k["p90"] > LOSS for k in kinds if k["kind"] == "all") else 0


if __name__ == "__main__":
    sys.exit(main())
