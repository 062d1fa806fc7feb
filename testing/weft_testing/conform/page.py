"""A report as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from weft_testing.conform.report import (
    INTRINSICS,
    LEVELS,
    OUTCOMES,
    RULES,
    Report,
    Result,
    intrinsic_row,
    percent,
    rule_row,
)

STYLE = """
:root { color-scheme: light; --line: #d8dee4; --faint: #57606a; --good: #1a7f37; --bad: #b42318 }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1280px; padding: 0 1em; color: #1f2328; background: #fff }
h1 { font-size: 1.35em; margin: 0 0 .2em } h2 { font-size: 1.1em; margin: 1.8em 0 .4em } p { margin: .3em 0 }
.box { border-left: 6px solid #8b949e; background: #f6f8fa; padding: .7em 1em } .box b { font-size: 1.15em }
.box.is-passed { border-color: var(--good); background: #eefbf1 } .box.is-failed { border-color: var(--bad); background: #fdf0ee }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { text-align: left; border-bottom: 2px solid #8b949e; padding: 4px 14px 4px 0; vertical-align: bottom; font-weight: 600 }
td { border-bottom: 1px solid var(--line); padding: 3px 14px 3px 0; vertical-align: top }
.number { text-align: right } .faint { color: var(--faint) }
.claims td.all { background: #dafbe1; color: var(--good) } .claims td.part { background: #fff8c5; color: #6b4f00 } .claims td.no { color: var(--faint) }
.claims { width: 100%; font-size: 12px } .claims th, .claims td { padding: 2px 7px; overflow-wrap: normal }
.claims td + td, .claims th + th { text-align: center; border-left: 1px solid var(--line) }
.claims tr > :last-child { text-align: left }
pre { font: 12px/1.4 ui-monospace, monospace; background: #f6f8fa; padding: .6em; white-space: pre-wrap; margin: .3em 0 1em; overflow-wrap: anywhere }
.passed { color: var(--good) } .failed { color: var(--bad); font-weight: 600 } .declined, .skipped, .none { color: var(--faint) }
details { margin: .4em 0 } summary { cursor: pointer } details td { overflow-wrap: anywhere }
.bar { display: inline-block; width: 120px; height: .7em; background: var(--line) } .bar i { display: block; height: 100%; background: var(--good) }
"""  # noqa: E501


NUMBERS = frozenset(
    {
        "kernels",
        "launches",
        "multiply-adds",
        "share",
        "by intrinsics",
        "whole",
        "ragged",
        "several",
        "seconds",
        *OUTCOMES,
    }
)
"""Columns of numbers."""


def page(report: Report) -> str:
    """Verdict, failures with their messages, levels, models, operators by dtype, and every check with its reason,
    folded."""
    title = f"Conformance of {report.target}"
    facts = [report.subject, f"weft {report.weft}", f"{len(report.results)} checks in {report.seconds:.0f} s"]
    if report.quick:
        facts.append("quick: one sample of every operator and dtype")
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
    ]
    lines += [
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
    ]
    state = "passed" if report.passed else "failed" if report.failed else "none"
    lines.append(
        f'<div class="box is-{state}"><b class="{state}"'
        f' id="verdict">{escape(report.verdict)}</b><p>{escape("; ".join(facts))}</p></div>'
    )
    if report.idle:
        lines.append(f'<p class="failed" id="idle">{escape(report.idle)}</p>')
    lines += [*_failures(report), "<h2>Levels</h2>"]
    lines += _table("levels", ["level", "name", "what is looked at", "state", *OUTCOMES, "seconds"], _levels(report))
    for level in report.levels:
        lines += [
            f'<p class="faint">level {level}, skipped: {count} × {escape(reason)}</p>'
            for reason, count in report.skipped(level).items()
        ]
    if report.shares:
        lines += [
            "<h2>Models</h2>",
            *_table(
                "models", ["model", "share of multiply-adds", "of", "nodes", "elsewhere, because"], _models(report)
            ),
        ]
    if report.claims:
        lines += [
            "<h2>Operators</h2>",
            (
                f"<p>{len(report.claimed())} of {len(report.claims)} are computed. A number is that of the samples that"
                " the target computes, of those that there are; – says that all were declined, an empty cell that the"
                " operator has no such sample.</p>"
            ),
            *_table("claims", ["operator", *report.dtypes(), "declined, because"], _claims(report)),
        ]
    if report.usage:
        lines += _usage(report)
    lines.append("<h2>Every check</h2>")
    for level in report.levels:
        found = [r for r in report.results if r.level == level]
        lines.append(f"<details><summary>level {level}, {LEVELS[level][0]}: {len(found)} checks</summary>")
        checks = [
            [_cell(r.name), f'<td class="{r.outcome}">{r.outcome}</td>', _cell(r.message), _number(f"{r.seconds:.2f}")]
            for r in found
        ]
        lines += [*_table(f"level{level}", ["check", "outcome", "why", "seconds"], checks), "</details>"]
    return "\n".join([*lines, "</body>", "</html>"]) + "\n"


def _failures(report: Report) -> Iterable[str]:
    """Those with one message stand together: a defect of a target often shows in many samples."""
    if not report.failed:
        return
    yield "<h2>What failed</h2>"
    same: dict[tuple[int, str, str], list[Result]] = {}
    for r in report.failed:
        same.setdefault((r.level, r.check, r.message.replace(r.subject, "…") if r.subject else r.message), []).append(r)
    for (level, check, _), results in same.items():
        subjects = ", ".join(r.subject for r in results if r.subject)
        head = f'level {level} ({LEVELS[level][0]}): <span class="failed">{escape(check)}</span>'
        yield (
            "<div"
            f' class="failure"><p>{head}{" of " + escape(subjects) if subjects else ""}</p>'
            f"<pre>{escape(results[0].message)}</pre></div>"
        )


def _levels(report: Report) -> Iterable[Sequence[str]]:
    for level in report.levels:
        counts, state = report.counts(level), report.state(level)
        words = [
            _cell(str(level)),
            *map(_cell, LEVELS[level]),
            f'<td class="{state if state in OUTCOMES else "none"}">{state}</td>',
        ]
        yield [*words, *(_number(str(counts[o] or "")) for o in OUTCOMES), _number(f"{report.seconds_of(level):.1f}")]


def _models(report: Report) -> Iterable[Sequence[str]]:
    for s in report.shares:
        bar = f'<td><span class="bar"><i style="width:{100 * s.share:.1f}%"></i></span> {escape(s.text)}</td>'
        why = "<br>".join(escape(f"{count} × {reason}") for reason, count in s.declined.items())
        yield [
            _cell(s.model),
            bar,
            _number(f"{s.multiply_adds / 1e6:,.2f} M"),
            _cell(f"{s.taken} of {s.nodes}"),
            f'<td class="faint">{why}</td>',
        ]


def _usage(report: Report) -> Iterable[str]:
    """Rules, intrinsics, and launches with products by level."""
    usage = report.usage
    unknown = f"; {usage.unknown} launches whose multiply-adds depend on data are not counted" if usage.unknown else ""
    yield "<h2>Schedule rules and intrinsics</h2>"
    yield (
        f"<p>{usage.multiply_adds:,.0f} multiply-adds were executed, {percent(usage.share)} of them in intrinsics, the"
        f" others in plain loops{unknown}. A rule or an intrinsic that is declared and never ran is a failure of level"
        " 10.</p>"
    )
    rows = [_cells(rule_row(name, r, usage), 1, not r.launches) for name, r in usage.rules.items()]
    yield from _table("rules", RULES, rows)
    if usage.intrinsics:
        yield (
            "<p>Of the cases that were made for an intrinsic, those in which it stood: one whole tile, ragged ones,"
            " several.</p>"
        )
        yield from _table(
            "intrinsics",
            INTRINSICS,
            [_cells(intrinsic_row(name, i, usage), 2, not i.launches) for name, i in usage.intrinsics.items()],
        )
    if usage.products:
        yield "<p>Launches of kernels that multiply and add:</p>"
        levels = sorted(usage.products.items())
        rows = [
            _cells((str(n), LEVELS[n][0], str(p.launches), str(p.by_intrinsics), percent(p.share)), 2)
            for n, p in levels
        ]
        yield from _table("products", ["level", "name", "launches", "by intrinsics", "share"], rows)
        without = [
            _cells((str(n), what, str(times)), 2)
            for n, p in levels
            for what, times in sorted(p.without.items(), key=lambda item: -item[1])
        ]
        if without:
            yield "<p>Those in which no intrinsic multiplies:</p>"
            yield from _table("without", ["level", "kernel", "launches"], without)


def _cells(row: Sequence[str], texts: int, idle: bool = False) -> Sequence[str]:
    """The first columns are texts, the others numbers; `idle`: never ran."""
    first = f'<td class="failed">{escape(row[0])}</td>' if idle else _cell(row[0])
    return [first, *map(_cell, row[1:texts]), *map(_number, row[texts:])]


def _claims(report: Report) -> Iterable[Sequence[str]]:
    """Those that are computed first."""
    claimed = report.claimed()
    for op in sorted(report.claims, key=lambda op: (op not in claimed, op)):
        cells = []
        for d in report.dtypes():
            done, left = report.claims[op].get(d, (0, 0))
            style = "" if not done + left else "no" if not done else "part" if left else "all"
            text = "" if not done + left else "–" if not done else f"{done} of {done + left}" if left else str(done)
            cells.append(f'<td class="{style}">{text}</td>')
        yield [_cell(op), *cells, f'<td class="faint">{_reasons(op, report.reasons(op))}</td>']


def _reasons(op: str, found: Counter[str], most: int = 2) -> str:
    shown = [escape(f"{count} × {text.removeprefix(f'{op}: ')}") for text, count in found.most_common(most)]
    return "<br>".join([*shown, *([f"{len(found) - most} other reasons"] if len(found) > most else [])])


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _number(text: str) -> str:
    return f'<td class="number">{escape(text)}</td>'


def _table(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells are HTML with their `td`."""
    head = "".join(('<th class="number">' if c in NUMBERS else "<th>") + f"{escape(c)}</th>" for c in columns)
    style = ' class="claims"' if name == "claims" else ""
    return [
        f'<table id="{name}"{style}>',
        f"<thead><tr>{head}</tr></thead>",
        "<tbody>",
        *("<tr>" + "".join(row) + "</tr>" for row in rows),
        "</tbody></table>",
    ]
