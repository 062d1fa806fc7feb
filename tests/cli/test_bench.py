from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import InputError
from weft.hooks import EngineKind
from weft_runtime.threads import available_threads
from weft_testing.bench.turns import Contestant, common_threads, largest_difference, take_turns, with_threads

Weft = Callable[..., Any]


def test_engines_compete_and_every_number_is_written(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    words = [
        "-t",
        "llvm",
        "-t",
        "llvm -opt=1",
        "--against",
        "numpy",
        "--rounds",
        2,
        "--threads",
        1,
        "--input-shape",
        "x=4,64",
        "--json",
        tmp_path / "b.json",
    ]
    result = weft("bench", recipe, *words)
    assert result.code == 0, result.err
    assert "model.recipe, 1 thread(s)" in result.out
    report = json.loads((tmp_path / "b.json").read_text())
    assert report["inputs"] == {"x": {"dtype": "float32", "shape": [4, 64]}}
    assert [e["name"] for e in report["engines"]] == ["weft llvm", "weft llvm -opt=1", "numpy"]
    for e in report["engines"]:
        assert min(e["times"]) == e["fastest"] <= e["median"] <= e["p90"] <= max(e["times"])
        assert e["ratio"] == pytest.approx(e["median"] / report["engines"][0]["median"])
    assert report["engines"][2]["difference"] < 1e-4


def test_all_installed_engines_by_default(weft: Weft, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "weft_testing.cli.bench.choose_engines", lambda known, against, *model: asked.append(against) or []
    )
    assert weft("bench", recipe, "--rounds", 1).code == 0
    assert asked == ["all"]


def test_an_archive_runs_alone(weft: Weft, archive: Path) -> None:
    result = weft("bench", archive, "--rounds", 1)
    assert result.code == 0, result.err
    assert (
        weft("bench", archive, "--against", "numpy").err
        == f"InputError: {archive} is compiled already, peers cannot read it\n  hint: give the model, or --against"
        " none\n"
    )


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("nunpy", "InputError: no engine 'nunpy'\n  hint: did you mean 'numpy'?\n"),
        ("numpy,absent", "InputError: the engine 'absent' is not installed\n  hint: pip install absent\n"),
    ],
)
def test_engines_that_are_not_there(weft: Weft, recipe: Path, against: str, message: str) -> None:
    result = weft("bench", recipe, "--against", against)
    assert (result.code, result.err) == (1, message)


def test_a_report_that_cannot_be_written(weft: Weft, archive: Path, tmp_path: Path) -> None:
    result = weft("bench", archive, "--rounds", 1, "--json", tmp_path / "no" / "b.json")
    wanted = (
        f"InputError: cannot write '{tmp_path / 'no' / 'b.json'}'\n  why: there is no folder '{tmp_path / 'no'}'\n "
        " hint: give another --json\n"
    )
    assert (result.code, result.out, result.err) == (1, "", wanted), "said before anything is measured"


def test_turns_go_round_and_every_round_starts_with_another() -> None:
    order: list[str] = []

    def engine(name: str) -> Contestant:
        return Contestant(name, "", lambda: order.append(name) or [], 0.0)  # type: ignore[func-returns-value]

    take_turns([engine("a"), engine("b"), engine("c")], 0.0, 3, lambda text: None)
    turns = [name for k, name in enumerate(order) if k == 0 or order[k - 1] != name]
    # c closes no round and opens the next, so two turns in a row never merge but where one engine ends a round and
    # starts the next.
    assert "".join(turns) == "abcbcacab"


def test_differences() -> None:
    a = np.array([1.0, -4.0])
    assert largest_difference([a], [a]) == 0
    assert largest_difference([a], [a + np.array([0, 1.0])]) == 0.25
    assert largest_difference([a], [a[None]]) == float("inf")
    assert largest_difference([np.zeros(0)], [np.zeros(0)]) == 0


def test_threads_are_added_where_the_target_has_them() -> None:
    assert with_threads("llvm -opt=1", 3) == "llvm -opt=1 -threads=3"
    assert with_threads("llvm -threads=2", 3) == "llvm -threads=2"
    assert with_threads("unknown", 3) == "unknown"


def test_a_targets_own_threads_are_everybodys() -> None:
    assert common_threads(None, ["llvm -threads=3", "llvm"]) == 3
    assert common_threads(3, ["llvm -threads=3"]) == 3
    assert common_threads(None, ["llvm"]) == available_threads() == common_threads(None, [])
    with pytest.raises(InputError, match="--threads 2 is for every engine, and the target 'llvm -threads=3' says 3"):
        common_threads(2, ["llvm -threads=3"])


def test_a_start_from_the_cache_is_told_from_a_cold_one(
    weft: Weft, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer opens the model anew each time: only a cold start compares with that."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    words = ("bench", recipe, "--rounds", 1, "--threads", 1, "--against", "numpy", "--json", tmp_path / "b.json")
    for prepared, line in (("compiled", False), ("from the cache", True)):
        result = weft(*words)
        assert result.code == 0, result.err
        engines = json.loads((tmp_path / "b.json").read_text())["engines"]
        assert [e["prepared"] for e in engines] == [prepared, "opened"]
        assert f", {prepared}" in result.out and ", opened" in result.out
        assert (
            "from the cache: a cold start, which compares with a peer's, takes longer; WEFT_CACHE_BYTES=0 shows it"
            in result.out
        ) == line


def test_without_peers_it_says_what_to_install(weft: Weft, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> list[EngineKind]:
        return [
            EngineKind(name, lambda: None, lambda path, threads: lambda inputs: [])
            for name in ("onnxruntime", "openvino")
        ]

    monkeypatch.setattr("weft.plugins.engine_kinds", absent)
    words = ("bench", recipe, "--rounds", 1, "--threads", 1)
    line = "no peer is installed to compare with: pip install onnxruntime or openvino\n"
    assert weft(*words).out.endswith(line)
    assert line not in weft(*words, "--against", "none").out


def test_what_is_written_is_said(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    result = weft("bench", recipe, "--trace", trace, "--rounds", 1, "--threads", 1)
    assert result.code == 0, result.err
    assert re.fullmatch(
        rf"{trace}: one run of \d+ kernel calls; open it at https://ui.perfetto.dev or chrome://tracing\n", result.out
    )
