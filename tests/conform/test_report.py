"""The console, the JSON file and the page say the same of one run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from weft.cli.main import main
from weft_testing.conform.page import page
from weft_testing.conform.report import LEVELS, OUTCOMES, Report, Result, Share

TARGET = "board -ops=Relu,MatMul,Add"


class Page(HTMLParser):
    """Tables by their id, as rows of texts; the verdict; the texts of failures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: dict[str, list[str]] = {"b": [], "pre": []}
        self.open: list[str] = []
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("meta", "br"):
            return
        self.open.append(tag)
        if tag == "table":
            self.rows = self.tables.setdefault(str(dict(attrs)["id"]), [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in self.texts:
            self.texts[tag].append("")
        elif tag == "h2":
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        for tag in self.texts:
            if tag in self.open:
                self.texts[tag][-1] += data
        if "h2" in self.open:
            self.headings[-1] += data


def test_console_json_and_page_agree(
    install: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install("wrong_result")
    files = tmp_path / "report.json", tmp_path / "report.html"
    words = [
        "-t",
        TARGET,
        "--quick",
        "--level",
        "1,3,6",
        "-k",
        "machine or Relu or MatMul or (mlp and any)",
        "--json",
        str(files[0]),
        "--html",
        str(files[1]),
    ]
    with pytest.raises(SystemExit, match="1"):
        main(["conform", *words])
    console, data, shown = capsys.readouterr().out, json.loads(files[0].read_text()), Page(files[1].read_text())
    assert not shown.open

    failed = [r for r in data["results"] if r["outcome"] == "failed"]
    assert failed and not data["passed"]
    verdict = f"does not conform: {len(failed)} check(s) failed"
    assert verdict in console and shown.texts["b"] == [verdict]
    said = " ".join(console.split())
    for r in failed:
        assert f"FAILED level {r['level']} ({LEVELS[r['level']][0]}): {r['name']}" in console
        assert " ".join(r["message"].split()) in said
    # Failures stand together where their messages are the same but for the subject.
    assert {r["message"] for r in failed} >= set(shown.texts["pre"])
    assert shown.headings[0] == "What failed"

    for level, row in zip(data["levels"], shown.tables["levels"][1:], strict=True):
        counts = [level["counts"].get(o, 0) for o in OUTCOMES]
        assert row[:2] == [str(level["level"]), level["name"]] and row[3] == level["state"]
        assert [int(c or 0) for c in row[4:8]] == counts
        line = next(x for x in console.splitlines() if x.startswith(f"level {level['level']} {level['name']} "))
        assert level["state"] in line and all(f"{n} {o}" in line for n, o in zip(counts, OUTCOMES) if n)
        assert sum(counts) == len(shown.tables[f"level{level['level']}"]) - 1
    for number in (level["level"] for level in data["levels"]):
        listed = [[row[0], row[1], row[2]] for row in shown.tables[f"level{number}"][1:]]
        assert listed == [[r["name"], r["outcome"], r["message"]] for r in data["results"] if r["level"] == number]

    ((head, *dtypes, _), *rows) = shown.tables["claims"]
    assert head == "operator"
    found = {row[0]: {d: _numbers(cell) for d, cell in zip(dtypes, row[1:]) if cell} for row in rows}
    want: dict[str, Any] = {
        op: {d: (n["computed"], n["declined"]) for d, n in by.items()} for op, by in data["claims"].items()
    }
    assert {op: {d: c for d, c in by.items() if c[0]} for op, by in found.items()} == {
        op: {d: c for d, c in by.items() if c[0]} for op, by in want.items()
    }
    assert {op: set(by) for op, by in found.items()} == {op: set(by) for op, by in want.items()}
    computed = re.findall(r"^ (\w+) {2,}(\w+(?:, \w+)*) *$", console, re.MULTILINE)
    assert {op: set(names.split(", ")) for op, names in computed if op != "operator"} == {
        op: {d for d, (n, _) in by.items() if n} for op, by in want.items() if any(n for n, _ in by.values())
    }

    (share,), (row,) = data["models"], shown.tables["models"][1:]
    assert (
        row[0] == share["model"] == "mlp of any batch"
        and row[1].strip() == f"{share['share']:.1%}"
        and row[3] == f"{share['taken']} of {share['nodes']}"
    )
    assert f"mlp of any batch: {share['share']:.1%} of {row[2]} multiply-adds, {row[3]} nodes" in console


def _numbers(cell: str) -> tuple[int, int]:
    """Computed and declined, the latter not known where nothing is computed."""
    done, _, all = cell.partition(" of ")
    return (0, -1) if cell == "–" else (int(done), int(all or done) - int(done))


def test_what_targets_say_is_text() -> None:
    report = Report(
        "t",
        "weft-t 1",
        results=[Result(3, "sample", "Relu <i>", "failed", "a < b & <script>")],
        claims={"Relu": {"float32": [0, 1]}},
    )
    report.shares.append(Share("<model>", 2, 1, 1e6, 0.5, {"<why>": 1}))
    text = page(report)
    assert "<script>" not in text and "<i>" not in text and "<model>" not in text and "<why>" not in text
    shown = Page(text)
    assert shown.texts["pre"] == ["a < b & <script>"]
    assert shown.tables["models"][1] == ["<model>", " 50.0%", "1.00 M", "1 of 2", "1 × <why>"]


def test_one_defect_of_many_samples_is_told_once() -> None:
    results = [Result(3, "sample", f"{op} float32", "failed", f"weft-t 1: {op} float32: no") for op in ("Relu", "Tanh")]
    shown = page(Report("t", results=[*results, Result(3, "sample", "Exp float32", "failed", "weft-t 1: another")]))
    assert shown.count('<div class="failure">') == 2
    assert "sample</span> of Relu float32, Tanh float32" in shown


def test_nothing_was_checked() -> None:
    shown = Page(page(Report("t")))
    assert shown.texts["b"] == ["was not checked"]
    assert [row[3] for row in shown.tables["levels"][1:]] == ["nothing to check"] * len(LEVELS)


@pytest.mark.parametrize(
    ("levels", "keyword", "verdict"),
    [
        (tuple(LEVELS), "", "conforms"),
        (
            tuple(LEVELS),
            "Relu",
            "passes what was asked: what -k 'Relu' leaves out not asked, so this does not say whether it conforms",
        ),
        (
            tuple(LEVELS)[:-1],
            "",
            f"passes what was asked: level {max(LEVELS)} not asked, so this does not say whether it conforms",
        ),
    ],
)
def test_only_who_was_asked_everything_conforms(levels: tuple[int, ...], keyword: str, verdict: str) -> None:
    report = Report("board", levels=levels, keyword=keyword, results=[Result(1, "check", "", "passed", "")])
    assert report.verdict == verdict and f" {verdict} (" in report.summary()
