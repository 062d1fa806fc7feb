"""`weft bench --roofline`: how far each kernel of a model is from what the processor can do (Williams, Waterman and
Patterson, 2009)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft_testing.bench.limits import Limits
    from weft_testing.bench.profile import Call, Profile

SHOWN = 25


@dataclass(frozen=True)
class Row:
    """One kernel of a run, all of its calls together. Seconds, operations and bytes are of one run; None where a size
    depends on data.

    Attributes:
        seconds: sum over its calls of the median time of each.
        bytes: inputs, outputs and constants, each element once.
        limit: the seconds that arithmetic or the reading of memory takes at least.
    """

    kernel: str
    rule: str
    calls: int
    seconds: float
    flop: float | None
    bytes: float | None
    limit: float | None
    share_of_model: float
    nodes: tuple[str, ...]

    @property
    def intensity(self) -> float | None:
        """Operations a byte."""
        return self.flop / self.bytes if self.flop is not None and self.bytes else None

    @property
    def flops(self) -> float | None:
        return None if self.flop is None or not self.seconds else self.flop / self.seconds

    @property
    def bandwidth(self) -> float | None:
        return None if self.bytes is None or not self.seconds else self.bytes / self.seconds

    @property
    def share(self) -> float | None:
        """Of the attainable limit: 1 is a kernel that cannot be faster."""
        return None if self.limit is None or not self.seconds else self.limit / self.seconds

    @property
    def won(self) -> float | None:
        """Seconds that a run would be shorter if the kernel ran at its limit."""
        return None if self.limit is None else max(0.0, self.seconds - self.limit)


def roofline(profile: Profile, limits: Limits) -> list[Row]:
    """The kernels of a profile, those first whose distance to the limit costs the most time."""
    by_kernel: dict[str, list[Call]] = {}
    for call in profile.calls:
        by_kernel.setdefault(call.kernel, []).append(call)
    total = profile.median or 1.0
    rows = []
    for kernel, calls in by_kernel.items():
        seconds = sum(c.median for c in calls)
        known = [c.flop for c in calls if c.flop is not None]
        flop = sum(known) if len(known) == len(calls) else None
        moved = None if flop is None else sum(c.constants + c.others for c in calls)
        limit = (
            None
            if flop is None
            else sum(limits.seconds(c.flop or 0.0, c.constants, c.others, profile.all_constants) for c in calls)
        )
        nodes = tuple(dict.fromkeys(name for c in calls for name in c.nodes))
        rows.append(Row(kernel, calls[0].rule, len(calls), seconds, flop, moved, limit, seconds / total, nodes))
    return sorted(rows, key=lambda r: (r.won is not None, r.won or 0.0), reverse=True)


def as_data(profile: Profile, limits: Limits, rows: Sequence[Row]) -> dict[str, Any]:
    """Everything measured, for JSON."""
    from weft_testing.bench.turns import machine

    return {
        "model": profile.model,
        "target": profile.target,
        "machine": machine(),
        "threads": profile.threads,
        "runs": profile.runs,
        "median": profile.median,
        "in_kernels": sum(r.seconds for r in rows),
        "at_limit": None if any(r.limit is None for r in rows) else sum(r.limit or 0.0 for r in rows),
        "constants": profile.all_constants,
        "limits": {"flops": limits.flops, "bandwidths": [list(b) for b in limits.bandwidths]},
        "kernels": [
            {
                "kernel": r.kernel,
                "rule": r.rule,
                "calls": r.calls,
                "seconds": r.seconds,
                "flop": r.flop,
                "bytes": r.bytes,
                "intensity": r.intensity,
                "flops": r.flops,
                "bandwidth": r.bandwidth,
                "limit": r.limit,
                "share_of_limit": r.share,
                "share_of_model": r.share_of_model,
                "won": r.won,
                "nodes": list(r.nodes),
            }
            for r in rows
        ],
    }


def _row(k: Mapping[str, Any]) -> list[object]:
    """A kernel of `as_data` as a row of the table."""
    from rich.text import Text

    from weft.cli.terminal import seconds as shown
    from weft.cli.terminal import size

    share = (
        "?" if k["share_of_limit"] is None else Text(f"{k['share_of_limit']:.0%}", style=colour(k["share_of_limit"]))
    )
    won = "?" if k["won"] is None else shown(k["won"])
    moved = "?" if k["bytes"] is None else size(k["bytes"])
    measures = [
        _number(k["flop"], 1e9),
        moved,
        _number(k["intensity"]),
        _number(k["flops"], 1e9),
        _number(k["bandwidth"], 1e9),
    ]
    head = [shorten(k["kernel"], 34), k["rule"], k["calls"], shown(k["seconds"]), f"{k['share_of_model']:.1%}"]
    return [*head, *measures, share, won, shorten(", ".join(k["nodes"]), 40)]


def print_roofline(report: Mapping[str, Any]) -> None:
    """The report of `as_data` as a table; kernels beyond the first are one line."""

    from weft.cli.terminal import print_table, say, size
    from weft.cli.terminal import seconds as shown

    kernels = report["kernels"]
    columns = [
        "kernel",
        "rule",
        "calls",
        "time",
        "of model",
        "GFLOP",
        "moved",
        "FLOP/B",
        "GFLOP/s",
        "GB/s",
        "of limit",
        "to win",
        "nodes",
    ]
    rows: list[list[object]] = []
    for k in kernels[:SHOWN]:
        rows.append(_row(k))
    if len(kernels) > SHOWN:
        rest = kernels[SHOWN:]
        left = sum(k["won"] or 0.0 for k in rest)
        calls, spent = sum(k["calls"] for k in rest), sum(k["seconds"] for k in rest)
        share_of_model = f"{sum(k['share_of_model'] for k in rest):.1%}"
        rows.append(
            [
                f"{len(rest)} more",
                "",
                calls,
                shown(spent),
                share_of_model,
                "",
                "",
                "",
                "",
                "",
                "",
                shown(left),
                "--json and --html have them",
            ]
        )
    title = f"{report['model']}, {report['threads']} thread(s), {report['machine']['processor']}"
    print_table(title, columns, rows, right=range(2, 12))
    bandwidths = ", ".join(f"{rate / 1e9:.0f} GB/s in {size(held)}" for held, rate in report["limits"]["bandwidths"])
    say(f"measured limits: {report['limits']['flops'] / 1e9:.1f} GFLOP/s; moving {bandwidths}")
    whole = f"{report['runs']} runs, median {shown(report['median'])}, of it {shown(report['in_kernels'])} in kernels"
    if report["at_limit"] is not None:
        whole += (
            f"; all at their limits: {shown(report['at_limit'])}"
            f" ({report['at_limit'] / (report['in_kernels'] or 1):.0%})"
        )
    say(whole)


def colour(share: float) -> str:
    """Of a share of the limit."""
    return "green" if share >= 0.8 else "yellow" if share >= 0.5 else "red"


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _number(value: float | None, unit: float = 1.0) -> str:
    if value is None:
        return "?"
    value /= unit
    return (
        f"{value:.0f}"
        if value >= 100
        else f"{value:.1f}"
        if value >= 10
        else f"{value:.2f}"
        if value >= 0.01 or not value
        else f"{value:.4f}"
    )
