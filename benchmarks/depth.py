"""Memory and time of a training step by the depth of the network, beside PyTorch's.

    python -m benchmarks.depth [--depths 50,100,200,500,1000] [--batches 1,8] [--engines weft:sqrt,weft:min-time,…]
                               [--rounds N] [--threads N] [--seconds S] [--json FILE] [--plot FILE]

Bottleneck networks at 224 × 224, trained as in `benchmarks.training`. Engines run in turns as long as half of the
machine's memory is free with those that are there; else in turns of their own, and their times are marked with *. What
does not fit the memory that is free, or does no step within `--seconds`, says so. Memory of results is the peak of a
process less what it had before its first step, and less the states that the first step of PyTorch's optimiser
allocates; for torch.compile, which compiles in the first step, its own modules are in it.

Limit: "sqrt" takes at most 1.35 × the time of "min-time", and its results grow at most as the square root of the
depth, from the least depth to the greatest.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import judge, machine, write_report
from benchmarks.training import EndedError, Engine

ENGINES = "weft:sqrt,weft:min-time,eager,checkpoints,inductor"
SLOWER = 1.35
"""How much longer a step may take that computes the forward pass again."""
LABELS = {
    "weft:sqrt": "Weft, square root",
    "weft:cut": "Weft, cut",
    "weft:min-time": "Weft, everything kept",
    "eager": "PyTorch eager",
    "checkpoints": "PyTorch, checkpoints in blocks",
    "inductor": "torch.compile",
}


def available() -> tuple[int, int]:
    """Bytes of memory that are free, and all."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return tuple(int(fields[k].split()[0]) * 1024 for k in ("MemAvailable", "MemTotal"))  # type: ignore[return-value]


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """For each engine its figures, or under "not" why there are none."""
    row: dict[str, Any] = {}
    running: list[Engine] = []

    def finish() -> None:
        for number in range(1, 1 + options.rounds):
            for engine in list(running):
                try:
                    engine.step(number)
                except EndedError:
                    row[engine.engine] = {"not": "does not fit"}
                    running.remove(engine)
        for engine in running:
            engine.close()
            row[engine.engine] = {
                "seconds": statistics.median(engine.times),
                "peak": engine.peak,
                "results": engine.peak - engine.held,
                "first": engine.first,
                "beside": [e.engine for e in running],
            }
        running.clear()

    for engine in options.engines.split(","):
        if running and 2 * available()[0] < available()[1]:
            finish()
        free = available()[0]
        try:
            running.append(Engine(name, engine, options, free, options.seconds))
        except EndedError as error:
            late = str(error).endswith("-9")
            row[engine] = {
                "not": f"no step in {options.seconds:.0f} s" if late else f"does not fit {free / 1e9:.0f} GB"
            }
    finish()
    return row


def line(depth: int, count: int, engine: str, row: Mapping[str, Any]) -> str:
    found = row[engine]
    begun = f"| {depth:5} | {count:5} | {LABELS.get(engine, engine):30} |"
    if "not" in found:
        return f"{begun} {found['not']}"
    against = row.get("weft:min-time", {})
    ratio, apart = "", ""
    if "seconds" in against:
        ratio, apart = f"{found['seconds'] / against['seconds']:.2f}", "" if engine in against["beside"] else "*"
    return (
        f"{begun} {found['seconds']:7.2f} | {ratio + apart:>6} | {found['results'] / 1e6:8.0f} |"
        f" {found['peak'] / 1e6:8.0f} | {found['first']:7.0f} |"
    )


def over(report: Mapping[str, Any], depths: Sequence[int]) -> bool:
    """Whether a limit is exceeded; prints what is compared."""
    wrong = False
    for count, rows in report.items():
        results = {d: rows[str(d)]["weft:sqrt"].get("results") for d in depths if "weft:sqrt" in rows[str(d)]}
        least, most = min(depths), max(depths)
        if len(depths) > 1 and results.get(least) and results.get(most):
            growth, root = results[most] / results[least], math.sqrt(most / least)
            print(f"batch {count}: results grow {growth:.2f} ×, the root of depth {root:.2f}: {judge(growth, root)}")
            wrong |= growth > root
        for depth in depths:
            pair = [rows[str(depth)].get(f"weft:{m}", {}) for m in ("sqrt", "min-time")]
            if all("seconds" in p for p in pair):
                ratio = pair[0]["seconds"] / pair[1]["seconds"]
                print(f"batch {count}, {depth} layers: {ratio:.2f} × the time: {judge(ratio, SLOWER)} the limit")
                wrong |= ratio > SLOWER
    return wrong


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Memory of results and seconds of a step by depth, a column for each batch."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "weft"
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure, axes = plt.subplots(2, len(report), figsize=(5 * len(report), 7.5), squeeze=False, sharex=True)
    for column, (count, rows) in enumerate(report.items()):
        depths = sorted(map(int, rows))
        for engine in dict.fromkeys(e for d in depths for e in rows[str(d)]):
            points = [(d, rows[str(d)].get(engine, {})) for d in depths]
            points = [(d, r) for d, r in points if "seconds" in r]
            style = {"marker": "o", "linewidth": 2.2 if engine.startswith("weft") else 1.2}
            for row, (key, unit) in enumerate((("results", 1e9), ("seconds", 1))):
                axes[row][column].plot(
                    [d for d, _ in points],
                    [r[key] / unit for _, r in points],
                    label=LABELS.get(engine, engine),
                    **style,
                )
        first = rows[str(depths[0])].get("weft:sqrt", {}).get("results")
        if first:
            roots = [first / 1e9 * math.sqrt(d / depths[0]) for d in depths]
            axes[0][column].plot(depths, roots, "k:", label="square root of depth")
        for row in range(2):
            axes[row][column].set_xscale("log")
            axes[row][column].set_yscale("log")
            axes[row][column].set_xticks(depths, [str(d) for d in depths])
            axes[row][column].minorticks_off()
            axes[row][column].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes[row][column].yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            axes[row][column].grid(True, alpha=0.3)
        axes[0][column].set_title(f"batch {count}")
        axes[1][column].set_xlabel("layers")
    axes[0][0].set_ylabel("memory of results, GB")
    axes[1][0].set_ylabel("seconds of a step")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=2, fontsize=8)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(path, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.depth", description=__doc__.split("\n")[0])
    parser.add_argument("--depths", default="50,100,200,500,1000")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="until the first step is done [%(default)s]")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="an SVG file")
    parser.add_argument("--from", dest="source", type=Path, help="only draw a report that --json has written")
    options = parser.parse_args(arguments)
    depths = [int(d) for d in options.depths.split(",")]
    if options.source:
        report = json.loads(options.source.read_text())["rows"]
    else:
        print(machine())
        print(f"| layers | batch | {'engine':30} |  step s | × kept | results MB | peak MB | first s |")
        print("|---|---|---|---|---|---|---|---|")
        report = {}
        for count in options.batches.split(","):
            options.batch, options.memory = int(count), "cut"
            report[count] = rows = {}
            for depth in depths:
                rows[str(depth)] = row = measure(f"deep{depth}", options)
                for engine in row:
                    print(line(depth, int(count), engine, row), flush=True)
                write_report(options, rows=report)
    if options.plot:
        plot(report, options.plot)
    return int(over(report, depths))


if __name__ == "__main__":
    raise SystemExit(main())
