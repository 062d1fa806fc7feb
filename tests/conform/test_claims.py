"""What is not a failure by itself and must not go unseen: what is skipped, what is not claimed any more, a target that
takes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytest

from weft.cli.main import main
from weft_testing.conform import run
from weft_testing.conform.kit import Kit
from weft_testing.conform.page import page
from weft_testing.conform.report import Report, Result, Share


def conform(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["conform", *words])
    return int(ended.value.code or 0)


def test_why_something_was_skipped_is_said(
    install: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("good")
    monkeypatch.setattr(Kit, "first_taken", lambda kit: None)
    assert conform("-t", "board -ops=Nothing", "--level", "8", "--quick", "--html", str(tmp_path / "page.html")) == 0
    out = capsys.readouterr().out
    reason = "5 × the target takes none of the graphs that faults are tried on, and no sample with inputs"
    assert f"    skipped: {reason}" in out
    assert f"level 8, skipped: {reason}" in (tmp_path / "page.html").read_text()


def test_faults_are_tried_on_a_sample_where_no_graph_is_taken(install: Callable[..., str]) -> None:
    install("good")
    report = run("board -ops=Sqrt", levels=(8,), quick=True)
    assert report.passed and report.counts(8)["passed"] == 5, report.summary()


def test_what_was_claimed_and_is_not_any_more(
    install: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = install("good")
    file = tmp_path / "claims.json"
    words = ("--level", "3,9", "--quick", "-k", "Relu and float32 or Add and float32")
    assert conform("-t", "board -ops=Relu,Add", *words, "--json", str(file)) == 0
    data = json.loads(file.read_text())
    data["target"] = "board -ops=Add"  # the same target, after a change
    file.write_text(json.dumps(data))
    capsys.readouterr()
    assert conform("-t", "board  -ops=Add", *words, "--baseline", str(file)) == 1
    out = capsys.readouterr().out
    assert out.count("FAILED level 3 (operators): baseline[Relu float32") == 1
    assert (
        f"    {name} 1.2, target 'board  -ops=Add': sample passed before, and is declined now: Relu: anything: the"
        " board has no Relu" in out
    )
    assert "FAILED level 9" not in out  # once is enough
    assert conform("-t", "board  -ops=Add", *words) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the baseline '{file}' cannot be read\n  why: [Errno 2]"),
        ("{", "the baseline '{file}' cannot be read\n  why: Expecting"),
        ("[1]", "the baseline is no report of `weft conform`\n  hint: give a file that --json has written"),
        (
            json.dumps(Report("llvm").as_data()),
            "the baseline is of another target: 'llvm'\n  board -ops=Add\n  hint: write one of this target with --json",
        ),
    ],
)
def test_what_is_no_baseline(
    content: str | None, message: str, install: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install("good")
    file = tmp_path / "old.json"
    if content is not None:
        file.write_text(content)
    assert conform("-t", "board -ops=Add", "--level", "1", "--baseline", str(file)) == 1
    assert message.format(file=file) in capsys.readouterr().err


def _report(taken: int, *, nodes: int = 4, by_cost: float | None = None) -> Report:
    share = Share("mlp", nodes, taken, 2e6, taken / nodes, by_cost=by_cost)
    return Report("board", "weft-board 1.2", results=[Result(6, "model", "mlp", "passed")], shares=[share])


def test_fewer_nodes_of_a_model_are_a_loss() -> None:
    before: dict[str, Any] = json.loads(json.dumps(_report(3).as_data()))
    for now, lost in (
        (_report(2), True),
        (_report(3), False),
        (_report(4), False),
        (_report(2, nodes=5), False),
    ):  # of another model nothing is known
        now.compare(before)
        assert [r.message for r in now.failed] == [
            "weft-board 1.2, target 'board': 3 of 4 nodes were computed before, 2 are now"
        ] * lost


def test_a_target_that_takes_nothing_is_told_so_and_conforms(
    install: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    idle = "'board' computes no part of any model: it may conform, but models do not run on it"
    report = _report(0)
    assert report.idle == idle and report.passed and escape(idle) in page(report)
    assert _report(1).idle is None and Report("board").idle is None
    install("good")
    assert conform("-t", "board -ops=Nothing", "--level", "6", "-k", "mlp and any") == 0
    assert capsys.readouterr().out.splitlines()[-1] == idle.replace("'board'", "'board -ops=Nothing'")


def test_the_share_of_a_target_that_is_not_worth_its_copies(install: Callable[..., str]) -> None:
    install("good")
    report = run("board -ops=MatMul -latency=100000", levels=(6,), keyword="mlp and any")
    (share,) = report.shares
    assert (share.share, share.by_cost, share.text) == (1.0, 0.0, "100.0% (0.0% if time is weighed)")
    assert "mlp of any batch: 100.0% (0.0% if time is weighed) of " in report.summary()
    assert _report(2, by_cost=0.5).shares[0].text == "50.0%"


def test_where_a_plugin_raised(install: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    install("crashes")
    words = ("-t", "board -ops=Multiply", "--level", "3", "--quick", "-k", "Multiply and float32")
    assert conform(*words) == 1
    out = capsys.readouterr().out
    assert (
        "failed to say whether it takes Multiply" in out
        and "(in tests/conform/broken.py:" in out
        and "Traceback" not in out
    )
    assert conform("--traceback", *words) == 1
    out = capsys.readouterr().out
    assert "Traceback (most recent call last)" in out and "select_rule" in out


def test_a_device_that_is_played_may_take_longer(install: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    install("good")
    kit = Kit.open("board -ops=Relu", quick=True)
    assert kit.patience == 1.0
    monkeypatch.setattr(type(kit.device()), "simulated", True)
    assert kit.patience == 10.0
    assert Kit.open("llvm", quick=True).patience == 1.0
