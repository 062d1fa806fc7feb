"""A small part of the fuzz runs and of the random models, always the same; the runs themselves are commands:
docs/reliability.md."""

from __future__ import annotations

import os
import random
import signal
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.fuzz import fuzz_archive_loads, fuzz_archive_runs, fuzz_archives, fuzz_integers, fuzz_models, isolated
from tests.fuzz.harness import Target
from tests.fuzz.random_graphs import makers, random_model
from tests.fuzz.random_models import check, differs

MODELS, MODELS_FULL = 20, 300
CHANGED, CHANGED_FULL = 60, 2000
ISOLATED, ISOLATED_FULL = 60, 2000
OPERATORS, RUNS = 8, 10


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(MODELS_FULL if metafunc.config.getoption("--full") else MODELS))


def test_a_random_model_agrees_with_the_reference(seed: int) -> None:
    outcome, what = check(random_model(seed), "llvm -threads=1")
    assert outcome in ("agrees", "reference"), what


def test_random_models_are_what_they_are_said_to_be() -> None:
    models = [random_model(seed) for seed in range(12)]
    assert [random_model(3).proto == models[3].proto, models[3].proto == models[4].proto] == [True, False]
    assert len(makers()) >= 80
    arrays = [a for m in models for run in m.inputs for a in run.values()]
    assert (
        {a.ndim for a in arrays} >= {0, 1, 2, 3, 4, 5}
        and len({a.dtype for a in arrays}) >= 5
        and any(not a.size for a in arrays)
    )
    assert any(len(m.inputs) == 2 for m in models), "sizes left open"


def test_a_wrong_result_is_seen() -> None:
    right = np.array([1, 2, 300], np.float32)
    none = np.zeros(3)
    assert differs(right, right, none) is None
    assert "expected float32[3]" in (differs(right.astype(np.float64), right, none) or "")
    assert "1 of 3 elements differ, 301.0 for 300.0" in (
        differs(right + np.array([0, 0, 1], np.float32), right, none) or ""
    )
    assert "1 of 3 elements differ, nan" in (differs(np.array([1, np.nan, 300], np.float32), right, none) or "")
    assert differs(right + np.array([0, 0, 1], np.float32), right, none + 0.1) is None, "what noise does is allowed"


@pytest.mark.parametrize("target", [fuzz_models.target, fuzz_archives.target], ids=["models", "archives"])
def test_what_is_changed_is_read_or_refused_with_a_text(
    target: Callable[[], Target], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made = target()
    made.seeds(tmp_path)
    seeds = sorted(tmp_path.iterdir())
    chance = random.Random(0)
    for _ in range(CHANGED_FULL if request.config.getoption("--full") else CHANGED):
        data = chance.choice(seeds).read_bytes()
        changed = made.change(data, chance)
        made.one(data if changed is None else changed)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's account of memory")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [fuzz_archive_runs.target, fuzz_archive_loads.target], ids=["runs", "loads"])
def test_changed_archives_do_no_harm(make: Callable[[], isolated.Target], request: pytest.FixtureRequest) -> None:
    count = ISOLATED_FULL if request.config.getoption("--full") else ISOLATED
    findings: list[str] = []
    words = isolated.fuzz(
        make(),
        0,
        lambda number: number == count,
        lambda data, outcome: findings.append(f"{outcome.finding}\n{outcome.text}"),
    )
    assert not findings, findings[0]
    assert words["refused"] and (words["ran"] or words["loaded"]), "some are refused, some are not"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's account of memory")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_ends_a_process_is_seen() -> None:
    def raises() -> str:
        raise ValueError("no WeftError")

    def large() -> str:
        return "x" * int(np.ones(300 << 20, np.uint8)[0])

    def slow() -> str:
        while True:
            pass

    found = [
        isolated.attempt(one, seconds=1 if one is slow else 60, memory=200 << 20)
        for one in (
            lambda: "well",
            lambda: os.kill(os.getpid(), signal.SIGSEGV) or "",
            lambda: os._exit(3),
            raises,
            large,
            slow,
        )
    ]
    assert [f.word for f in found] == ["well", *["finding"] * 5]
    assert [f.finding for f in found[1:3]] == ["SIGSEGV", "exit"] and found[3].finding.startswith(
        "ValueError-test_fuzz-"
    )
    assert [f.finding for f in found[4:]] == ["memory", "hang"] and "no WeftError" in found[3].text


def test_an_archive_of_traps_is_one(tmp_path: Path) -> None:
    """What must not run ends the process if it does."""
    data = fuzz_archive_loads.target().seeds["one"]
    (tmp_path / "trap.weft").write_bytes(data)

    def run() -> str:
        from weft_runtime import Executable

        return str(Executable.load(tmp_path / "trap.weft").run({"x": np.zeros((2, 4), np.float32)}))

    assert isolated.attempt(run).finding == "SIGILL"


def test_code_whose_bytes_are_others_is_not_taken(tmp_path: Path) -> None:
    made = fuzz_archives.target()
    made.seeds(tmp_path)
    data = (tmp_path / "one.weft").read_bytes()
    made.one(data)
    from weft_runtime import Executable, archive

    path = tmp_path / "other.weft"
    content = archive.load(tmp_path / "one.weft")
    code = content.code["main"]
    path.write_bytes(data.replace(code, code[:-1] + bytes([code[-1] ^ 1])))
    with pytest.raises(archive.ArchiveError, match="the hash of 'code/main' is not the one in its manifest"):
        Executable.load(path)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's account of memory")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_integers_of_a_run_are_computed_with_or_refused(request: pytest.FixtureRequest) -> None:
    found = fuzz_integers.subjects()
    assert {
        "Tile",
        "Expand",
        "ConstantOfShape",
        "Range",
        "Resize",
        "Pad",
        "OneHot",
        "AffineGrid",
        "HannWindow",
        "STFT",
        "Slice",
        "CumSum",
    } <= set(found)
    names = sorted(set(found) - {"Loop"})  # which takes as long as it is told
    names = (
        names
        if request.config.getoption("--full")
        else sorted(names, key=lambda name: zlib.crc32(name.encode()))[:OPERATORS]
    )
    findings: list[str] = []
    words = fuzz_integers.explore(
        [(found[name][0], range(RUNS)) for name in names], "llvm -threads=1", lambda what, text: findings.append(text)
    )
    assert not findings, findings[0]
    assert words.total() == len(names) * RUNS and words["refused"] and words["answered as the reference"]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's account of memory")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_wrong_answer_to_integers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    (subject,) = fuzz_integers.subjects("^test_tile$")["Tile"]
    findings: list[str] = []
    monkeypatch.setattr(fuzz_integers, "reference", lambda subject, arrays: [np.zeros(3, np.float32)])
    fuzz_integers.explore([(subject, range(20))], "llvm -threads=1", lambda what, text: findings.append(what))
    assert findings[0] == "Tile: wrong z: got floatN[N, N, N, N], expected floatN[N]"
