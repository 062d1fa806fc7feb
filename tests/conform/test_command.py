"""`weft conform`: what it prints, writes and ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conform.broken import OPS

from weft.cli.main import main
from weft_testing.conform.report import LEVELS

TARGET = f"board -ops={OPS}"


def conform(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["conform", *words])
    return int(end.value.code or 0)


def test_a_good_target(install: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = install("good")
    files = tmp_path / "report.json", tmp_path / "report.html"
    assert (
        conform(
            "-t",
            TARGET,
            "--quick",
            "--level",
            "1,3",
            "-k",
            "Relu or machine",
            "--json",
            str(files[0]),
            "--html",
            str(files[1]),
        )
        == 0
    )
    captured = capsys.readouterr()
    assert "level 1 manifest     passed" in captured.out
    unasked = [f"levels {', '.join(str(n) for n in LEVELS if n not in (1, 3))}", "what -k 'Relu or machine' leaves out"]
    assert (
        f"{name} 1.2, target '{TARGET}' passes what was asked: {'; '.join(unasked)} not asked, so this does not say"
        " whether it conforms" in captured.out
    )
    assert "level 3 operators:" in captured.err
    data = json.loads(files[0].read_text())
    assert data["unasked"] == unasked
    assert data["passed"] and data["distribution"] == f"{name} 1.2"
    assert data["claims"]["Relu"]["float32"] == {"computed": 1, "declined": 0}
    assert [level["level"] for level in data["levels"]] == [1, 3]
    page = files[1].read_text()
    assert (
        page.startswith("<!doctype html>")
        and "passes what was asked" in page
        and "src=" not in page
        and "href=" not in page
    )


def test_a_broken_target(install: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = install("odd_machine")
    assert conform("-t", TARGET, "--level", "1", "-k", "machine", "--html", str(tmp_path / "page.html")) == 1
    captured = capsys.readouterr()
    assert f"{name} 1.2, target '{TARGET}': the description of the machine makes no sense" in captured.out
    assert f"{name} 1.2, target '{TARGET}' does not conform: 1 check(s) failed" in captured.out
    assert "vectors of 100 bits" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--level", "12"), "there is no level 12\n  hint: levels: 1 manifest, 2 device"),
        (("--level", "one"), "--level takes numbers, got 'one'"),
        (("-k", "and or"), "-k and or is no expression"),
    ],
)
def test_misuse(
    words: tuple[str, ...], message: str, install: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    install("good")
    assert conform("-t", TARGET, *words) == 1
    assert message in capsys.readouterr().err


def test_nothing_matches(install: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    install("good")
    assert conform("-t", TARGET, "--level", "1", "-k", "nosuchcheck") == 1
    assert "was not checked" in capsys.readouterr().out


def test_an_unknown_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("-t", "lvm", "--level", "3") == 1
    out = capsys.readouterr().out
    assert "unknown distribution, target 'lvm': TargetError: unknown target 'lvm'" in out
    assert "hint: did you mean 'llvm'?" in out
