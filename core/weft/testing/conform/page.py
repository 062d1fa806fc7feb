"""A report as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from weft.testing.conform.report import LEVELS, Report

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; color: #1f2328; background: #fff }
h1 { font-size: 1.35em; margin-bottom: .2em } h2 { font-size: 1.1em; margin: 1.6em 0 .3em } p { margin: .3em 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { text-align: left; border-bottom: 2px solid #8b949e; padding: 4px 14px 4px 0 }
td { border-bottom: 1px solid #d8dee4; padding: 3px 14px 3px 0; vertical-align: top }
pre { font: 12px ui-monospace, monospace; background: #f6f8fa; padding: .6em; white-space: pre-wrap; margin: .3em 0 }
.passed { color: #1a7f37 } .failed { color: #c0362c; font-weight: 600 } .declined, .skipped { color: #57606a } summary { cursor: pointer }
.bar { display: inline-block; width: 120px; height: .7em; background: #d8dee4 } .bar i { display: block; height: 100%; background: #1a7f37 }
"""


def page(report: Report) -> str:
    """Verdict, failures with their messages, levels, models, claims, and every check with its reason, folded."""
    title = f"Conformance of {report.target}"
    verdict = "passed" if report.passed else "failed"
    facts = [
        f'<span class="{verdict}">{"conforms" if report.passed else f"does not conform: {len(report.failed)} check(s) failed"}</span>',
        escape(f"{report.subject}; weft {report.weft}; {len(report.results)} checks in {report.seconds:.0f} s{', quick' if report.quick else ''}"),
    ]
    lines = ["<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">', f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", "</head>"]
    lines += ["<body>", f"<h1>{escape(title)}</h1>", *(f"<p>{fact}</p>" for fact in facts)]
    if report.failed:
        lines.append("<h2>What failed</h2>")
        for r in report.failed:
            lines.append(f'<p class="failed">level {r.level} ({LEVELS[r.level][0]}): {escape(r.name)}</p><pre>{escape(r.message)}</pre>')
    lines += ["<h2>Levels</h2>", *_table(["level", "", "what is looked at", "passed", "failed", "declined", "skipped"], _levels(report))]
    if report.shares:
        lines += ["<h2>Models</h2>", *_table(["model", "share of multiply-adds", "nodes", "elsewhere, because"], _models(report))]
    if report.claims:
        rows = [
            [escape(op), ", ".join(f"{escape(d)} ({done} of {done + left})" for d, (done, left) in by.items() if done)]
            for op, by in sorted(report.claims.items())
            if any(done for done, _ in by.values())
        ]
        lines += ["<h2>Claimed operators, with the samples that were computed</h2>", *_table(["operator", "dtypes"], rows)]
        if report.refused():
            lines.append(f"<p>Declined altogether: {escape(', '.join(report.refused()))}</p>")
    for level in report.levels:
        found = [r for r in report.results if r.level == level]
        lines.append(f"<details><summary>All {len(found)} checks of level {level}, {LEVELS[level][0]}</summary>")
        checks = [[escape(r.name), f'<span class="{r.outcome}">{r.outcome}</span>', escape(r.message), f"{r.seconds:.2f} s"] for r in found]
        lines += [*_table(["check", "outcome", "why", "time"], checks), "</details>"]
    return "\n".join([*lines, "</body>", "</html>"]) + "\n"


def _levels(report: Report) -> Iterable[Sequence[str]]:
    for level in report.levels:
        counts = report.counts(level)
        state = "failed" if counts["failed"] else "passed" if counts["passed"] else "skipped"
        numbers = [str(counts[o] or "") for o in ("passed", "failed", "declined", "skipped")]
        yield [str(level), f'<span class="{state}">{LEVELS[level][0]}</span>', escape(LEVELS[level][1]), *numbers]


def _models(report: Report) -> Iterable[Sequence[str]]:
    for s in report.shares:
        bar = f'<span class="bar"><i style="width:{100 * s.share:.1f}%"></i></span> {s.share:.1%}'
        why = "<br>".join(escape(f"{count} × {reason}") for reason, count in s.declined.items())
        yield [escape(s.model), bar, f"{s.taken} of {s.nodes}", why]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells are HTML."""
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    return ["<table>", f"<tr>{head}</tr>", *("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows), "</table>"]
