"""`weft tune` and `weft records`, as users call them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.models import twin

from weft.cli.main import main
from weft.record_store import load_records, opened, read_store
from weft.target import Target
from weft_tuning import tuner
from weft_tuning.store import Store, kept


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "mlp.onnx"
    onnx.save(twin("mlp", layers=1)[0], path)
    return path


@pytest.fixture
def any_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a busy machine count: tests look at what is recorded, not at how fast it is."""
    monkeypatch.setattr(tuner, "VARIES", 1e9)
    monkeypatch.setattr(tuner, "SLOWED", 1e9)
    monkeypatch.setattr(tuner, "RUN_SECONDS", 0.01)
    monkeypatch.setattr(tuner, "RUNS", 1)


def weft(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("any_load")
def test_a_model_is_tuned_and_its_records_are_listed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, report = tmp_path / "records.sqlite", tmp_path / "report.json"
    monkeypatch.setattr(tuner, "GAIN", -10.0)  # whatever was measured twice counts as a gain
    assert weft("tune", model, "--trials", 9, "--threads", 1, "--file", file, "--json", report) == 0
    text = capsys.readouterr().out
    assert "9 trials" in text and "all trials are made" in text
    data = json.loads(report.read_text())
    assert data["trials"] == 9 and len(data["kernels"]) >= 2
    assert weft("records", "--file", file) == 0
    listed = capsys.readouterr().out
    found = kept(file)
    assert f"{len(found)} records" in listed
    for k in found:
        assert k.record.key[:12] in listed
        assert weft("records", "show", "--file", file, k.record.key[:8]) == 0
        assert f"rule = {k.record.choices['rule']}" in capsys.readouterr().out
    assert weft("records", "drop", "--stale", "--file", file) == 0
    assert "0 records dropped, with 0 measurements" in capsys.readouterr().out and kept(file) == found
    assert weft("records", "drop", "--all", "--file", file) == 0
    assert f"{len(found)} records dropped" in capsys.readouterr().out and not kept(file)
    with opened(file) as connection:
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (0,)


KEY = "0123456789abcdef" * 2


def stored(path: Path, machine: str = "llvm-0123456789ab", versions: str = "0.0.1") -> Store:
    store = Store(path, machine, versions)
    store.put("program", KEY, {"rule": "a"}, 1.0, 2.0, "x")
    return store


def test_records_are_merged_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, more, folder = stored(tmp_path / "a.sqlite").path, tmp_path / "b.sqlite", tmp_path / "package"
    stored(file, "cuda-0123456789ab").put("graph", KEY, {"fuse.%y": False}, 1.0, 3.0, "y")
    assert weft("records", "merge", file, "--file", more) == 0
    assert "3 records in" in capsys.readouterr().out and kept(more) == kept(file)
    assert weft("records", "export", folder, "--name", "these-models", "--file", more) == 0
    assert "1 records in" in capsys.readouterr().out
    package = folder / "weft_records_these_models"
    (record,) = load_records(package / "records.json").records
    assert record == next(k.record for k in kept(file) if k.record.machine.startswith("llvm"))
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["weft.plugins"] == {"records_these_models": package.name}
    given: dict[str, Any] = {"__file__": str(package / "__init__.py")}
    exec((package / "__init__.py").read_text(), given)
    assert given["records"](Target("llvm", None)) == [package / "records.json"]
    assert given["records"](Target("cuda", None)) == []


def test_stale_records_are_those_of_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "records.sqlite"
    stored(file), stored(file, "cuda-0123456789ab", "0.1.0 weft-cuda 0.1.0")
    assert weft("records", "drop", "--stale", "--file", file) == 0
    assert "1 records dropped" in capsys.readouterr().out
    assert [k.record.machine for k in kept(file)] == ["cuda-0123456789ab"]


def test_the_file_may_stand_before_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = stored(tmp_path / "own.sqlite").path, stored(tmp_path / "other.sqlite").path
    monkeypatch.setenv("WEFT_RECORDS", str(own))
    assert weft("records", "--file", other, "drop", "--all") == 0
    assert len(kept(own)) == 1 and not kept(other)
    assert weft("records", "--file", other, "show", KEY) == 1
    assert f"no record of '{other}'" in capsys.readouterr().err
    assert weft("records", "--file", other, "show", "--file", own, KEY) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["records", "--file", "no.sqlite"], "there is no file of records 'no.sqlite'"),
        (["records", "drop", "--file", "no.sqlite"], "which records are dropped is not said"),
        (["tune", "MODEL", "--fixed"], "--fixed needs the sizes to compile for"),
        (["tune", "MODEL", "--seconds", "inf"], "'seconds' is inf"),
        (["tune", "MODEL", "--file", "x.sqlite", "--target", ""], "no target given"),
        (["tune", "MODEL", "--file", "x.sqlite", "--target", "c, llvm"], "one target is wanted"),
        (["tune", "MODEL", "--file", "x.sqlite", "--target", "webgpu"], "target 'webgpu' are not timed"),
        (["tune", "MODEL", "--file", "x.sqlite", "--target", "llvm -threads=2", "--threads", "1"], "says 2"),
        (["tune", "MODEL", "--file", "FOREIGN", "--target", "llvm -mtriple=aarch64-linux-gnu"], "measure elsewhere"),
        (["tune", "MODEL"], "WEFT_RECORDS is 'none'"),
        (["tune", "MODEL", "--file", "x.sqlite", "--cluster", "tcp://a:1", "--on", "b"], "exclude each other"),
        (["tune", "no.onnx", "--file", "FOLDER"], "cannot be used"),
        (["records", "export", "f", "--name", "No!", "--file", "STORE"], "there are no records of 'llvm' to export"),
        (["records", "export", "f", "--name", "x", "--target", "", "--file", "STORE"], "there are no records of ''"),
        (["records", "drop", "--key", "", "--file", "STORE"], "'' is no beginning of a key"),
        (["records", "drop", "--key", "%", "--file", "STORE"], "'%' is no beginning of a key"),
    ],
)
def test_what_is_refused(
    words: list[str],
    text: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store.sqlite", "llvm-0123456789ab", "0.1.0").path
    named = {"MODEL": model, "FOLDER": tmp_path, "STORE": store, "FOREIGN": tmp_path / "foreign.sqlite"}
    assert weft(*(named.get(w, w) for w in words)) != 0
    assert text in capsys.readouterr().err


def test_a_library_that_lacks_is_named_before_anything_is_done(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    file = tmp_path / "records.sqlite"
    assert weft("tune", model, "--file", file) == 1
    assert capsys.readouterr().err.startswith("PluginError: the tuner needs the package lightgbm\n  hint: pip install")
    assert not file.exists()


def test_a_library_that_cannot_be_loaded_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "lightgbm":
                raise OSError("libgomp.so.1: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "lightgbm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    assert weft("tune", model, "--file", tmp_path / "records.sqlite") == 1
    text = capsys.readouterr().err
    assert text.startswith("PluginError: the package lightgbm cannot be loaded") and "libgomp1" in text


def test_a_package_needs_a_name(tmp_path: Path) -> None:
    from weft.errors import InputError
    from weft.records import Records
    from weft_tuning.package import write_package

    with pytest.raises(InputError, match="is no name of a package"):
        write_package(tmp_path / "x", "../up", "llvm", Records())
    with pytest.raises(InputError, match="cannot be written"):
        write_package(tmp_path, "fine", "llvm", Records())


def test_a_tuner_that_is_told_to_end_leaves_no_archives(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "weft", "tune", str(model), "--threads", "1", "--file", str(tmp_path / "r.sqlite")]
    with subprocess.Popen([*command, "--seconds", "600"], env={**os.environ, "TMPDIR": str(folder)}) as process:
        while process.poll() is None and not list(folder.glob("weft-tune-*/inputs.npz")):
            time.sleep(0.05)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert list(folder.glob("weft-tune-*")) == []


@pytest.mark.full
def test_tuning_survives_being_killed_at_any_moment(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "records.sqlite"
    command = [sys.executable, "-m", "weft", "tune", str(model), "--seconds", "600", "--threads", "1"]
    random = np.random.default_rng(0)
    before: set[tuple[object, ...]] = set()
    for _ in range(20):
        process = subprocess.Popen(
            [*command, "--file", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(float(random.uniform(0.5, 12.0)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if not file.exists():
            continue
        read_store(file)
        with opened(file) as connection:
            rows = connection.execute("SELECT key, choices, value, error FROM trials").fetchall()
        now = {tuple(row) for row in rows}
        assert before <= now  # nothing that was written is lost
        before = now
    assert before
