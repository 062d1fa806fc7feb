"""The roofline as one page of HTML that needs nothing else: the plot as SVG, and every kernel in a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from weft.cli.terminal import seconds as shown
from weft.cli.terminal import size
from weft_testing.bench.roofline import colour

WIDTH, HEIGHT = 1180, 560
LEFT, RIGHT, TOP, BOTTOM = 90, 260, 24, 64
COLOURS = {"green": "#1a7f37", "yellow": "#b07d00", "red": "#c0362c"}
STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1240px; padding: 0 1em; color: #1f2328; background: #fff }
h1 { font-size: 1.35em; margin-bottom: .2em } p { margin: .3em 0 }
table { border-collapse: collapse; margin-top: 1.5em; font-variant-numeric: tabular-nums }
th { text-align: left; border-bottom: 2px solid #8b949e; padding: 4px 10px 4px 0; vertical-align: bottom }
td { border-bottom: 1px solid #d8dee4; padding: 3px 10px 3px 0; vertical-align: top }
td.n, th.n { text-align: right; white-space: nowrap } td.k { font-family: ui-monospace, monospace; font-size: 12px; max-width: 22em; overflow-wrap: anywhere }
td.names { font-size: 12px; color: #57606a; max-width: 34em; overflow-wrap: anywhere }
svg text { font: 12px system-ui, sans-serif; fill: #57606a } svg .label { fill: #1f2328 }
"""  # noqa: E501


def page(report: Mapping[str, Any]) -> str:
    """The page of a report of `roofline.as_data`."""
    limits = report["limits"]
    bandwidths = ", ".join(f"{rate / 1e9:.0f} GB/s within {size(held)}" for held, rate in limits["bandwidths"])
    facts = [
        f"{report['machine']['processor']}, {report['threads']} thread(s), {report['target']}",
        f"{report['runs']} runs, median {shown(report['median'])}, of it {shown(report['in_kernels'])} in kernels"
        + ("" if report["at_limit"] is None else f"; all kernels at their limits: {shown(report['at_limit'])}"),
        (
            f"Measured limits: {limits['flops'] / 1e9:.1f} GFLOP/s of float32; moving {bandwidths}. Constants count as"
            " moved from where all constants of a run lie together, other values from where a kernel's own fit, so a"
            " point may lie above the lowest line."
        ),
    ]
    title = f"Roofline of {report['model']}"
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        "</head>",
    ]
    lines += [
        "<body>",
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(fact)}</p>" for fact in facts),
        plot(report),
        *_table(report),
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def plot(report: Mapping[str, Any]) -> str:
    """SVG: operations a second over operations a byte, both logarithmic. A dot's area is the kernel's share of the
    model's time."""
    peak, bandwidths = report["limits"]["flops"], report["limits"]["bandwidths"]
    dots = [k for k in report["kernels"] if k["intensity"] and k["flops"]]
    low_x, high_x = _span([k["intensity"] for k in dots] + [peak / rate for _, rate in bandwidths])
    low_y, high_y = _span([k["flops"] for k in dots] + [peak, peak / 100])

    def x(intensity: float) -> float:
        return LEFT + (math.log10(intensity) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def y(flops: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(flops) - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' role="img">'
    ]
    out.append(f'<rect x="0" y="0" width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>')
    for decade in range(math.ceil(low_x), math.floor(high_x) + 1):
        at = x(10.0**decade)
        out.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e6e9ec"/>')
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 24}" text-anchor="middle">{_power(decade)}</text>')
    for decade in range(math.ceil(low_y), math.floor(high_y) + 1):
        at = y(10.0**decade)
        out.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#e6e9ec"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_power(decade - 9)}</text>')
    out.append(
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 14}" text-anchor="middle">FLOP per'
        " byte</text>"
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(
        f'<text class="label" x="18" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 18'
        f' {middle:.1f})">GFLOP/s</text>'
    )
    ridge = min(peak / rate for _, rate in bandwidths)
    out.append(
        f'<line x1="{x(ridge):.1f}" y1="{y(peak):.1f}" x2="{WIDTH - RIGHT}" y2="{y(peak):.1f}" stroke="#1f2328"'
        ' stroke-width="1.6"/>'
    )
    for number, (_, rate) in enumerate(bandwidths):
        start = max(10.0**low_x, 10.0**low_y / rate)
        out.append(
            f'<line x1="{x(start):.1f}" y1="{y(start * rate):.1f}" x2="{x(peak / rate):.1f}" y2="{y(peak):.1f}"'
            f" {_stroke(number, len(bandwidths))}/>"
        )
    for k in sorted(dots, key=lambda k: -k["share_of_model"]):
        fill = COLOURS[colour(k["share_of_limit"] or 0.0)]
        radius = 3 + 34 * math.sqrt(min(1.0, k["share_of_model"]) / math.pi)
        said = (
            f"{k['kernel']} ({k['rule']})\n{k['calls']} call(s), {shown(k['seconds'])}, {k['share_of_model']:.1%} of"
            " the model\n"
        )
        said += (
            f"{k['flops'] / 1e9:.1f} GFLOP/s, {k['share_of_limit'] or 0:.0%} of the limit, {shown(k['won'] or 0.0)} to"
            f" win\n{', '.join(k['nodes'])[:300]}"
        )
        out.append(
            f'<circle cx="{x(k["intensity"]):.1f}" cy="{y(k["flops"]):.1f}" r="{radius:.1f}" fill="{fill}"'
            f' fill-opacity="0.55" stroke="{fill}"><title>{escape(said)}</title></circle>'
        )
    # What the lines and colours mean stands beside the plot: inside it dots and lines, which may be anywhere, would
    # cover it.
    left, at = WIDTH - RIGHT + 36, TOP + 6
    limits = [(f"{peak / 1e9:.1f} GFLOP/s", 'stroke="#1f2328" stroke-width="1.6"')]
    limits += [
        (f"{rate / 1e9:.0f} GB/s, {size(held)}", _stroke(k, len(bandwidths)))
        for k, (held, rate) in enumerate(bandwidths)
    ]
    for text, stroke in limits:
        out.append(f'<line x1="{left}" y1="{at - 4}" x2="{left + 34}" y2="{at - 4}" {stroke}/>')
        out.append(f'<text x="{left + 42}" y="{at}">{escape(text)}</text>')
        at += 20
    at += 10
    for name, text in (("green", "80 % of the limit or more"), ("yellow", "50 % or more"), ("red", "less")):
        out.append(
            f'<circle cx="{left + 17}" cy="{at - 4}" r="5" fill="{COLOURS[name]}" fill-opacity="0.55"'
            f' stroke="{COLOURS[name]}"/>'
        )
        out.append(f'<text x="{left + 42}" y="{at}">{text}</text>')
        at += 20
    return "\n".join([*out, "</svg>"])


def _stroke(number: int, count: int) -> str:
    """How the line of a memory is drawn, the last one, the furthest, as the main limit."""
    dashes = ("2 3", "6 3", "10 3 2 3", "14 4", "10 3 2 3 2 3")
    last = number == count - 1
    return (
        f'stroke="#1f2328" stroke-width="{1.6 if last else 0.9}"'
        f' stroke-dasharray="{"none" if last else dashes[number % len(dashes)]}"'
    )


def _span(values: list[float]) -> tuple[float, float]:
    """The logarithms of the least and the largest value, with room around them."""
    return math.log10(min(values)) - 0.25, math.log10(max(values)) + 0.25


def _power(decade: int) -> str:
    return f"{10**decade}" if decade >= 0 else f"{10.0**decade:.{-decade}f}"


def _table(report: Mapping[str, Any]) -> Iterator[str]:
    columns = [
        "kernel",
        "rule",
        "calls",
        "time",
        "of model",
        "MFLOP",
        "moved",
        "FLOP/B",
        "GFLOP/s",
        "GB/s",
        "of limit",
        "to win",
        "nodes",
    ]
    numbers = range(2, 12)
    yield "<table>"
    yield (
        "<tr>"
        + "".join(f'<th class="n">{c}</th>' if n in numbers else f"<th>{c}</th>" for n, c in enumerate(columns))
        + "</tr>"
    )
    for k in report["kernels"]:
        unknown = k["flop"] is None or k["limit"] is None
        cells = [str(k["calls"]), shown(k["seconds"]), f"{k['share_of_model']:.1%}"]
        if unknown:
            cells += ["?"] * 7
        else:
            intensity = "" if k["intensity"] is None else f"{k['intensity']:.2f}"
            cells += [
                f"{k['flop'] / 1e6:.2f}",
                size(k["bytes"]),
                intensity,
                f"{(k['flops'] or 0) / 1e9:.1f}",
                f"{(k['bandwidth'] or 0) / 1e9:.1f}",
            ]
            share = k["share_of_limit"] or 0.0
            cells += [f'<b style="color: {COLOURS[colour(share)]}">{share:.0%}</b>', shown(k["won"])]
        head = f'<td class="k">{escape(k["kernel"])}</td><td>{escape(k["rule"])}</td>'
        measures = "".join(f'<td class="n">{c}</td>' for c in cells)
        yield f"<tr>{head}{measures}" + f'<td class="names">{escape(", ".join(k["nodes"]))}</td></tr>'
    yield "</table>"
