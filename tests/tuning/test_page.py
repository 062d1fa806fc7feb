"""docs/tuning.md: its example runs, its commands have the options that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weft.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    exec(compile(block, str(PAGE), "exec"), {})
    assert re.search(r"^\d+ trials: ", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("command", ["tune", "records drop", "records merge", "records export"])
def test_commands_have_the_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("|")]
    if command == "tune":
        named = [o for row in rows if row.startswith("| `--") for o in re.findall(r"--[a-z-]+", row.split("|")[1])]
    else:
        lines = [row for row in rows if re.match(rf"\| `weft {command}[ `]", row)]
        named = [o for row in lines for o in re.findall(r"--[a-z-]+", row)]
    assert [o for o in named if o not in text] == []
