"""The file of a tuner's records: what is written comes back, bad files are refused, processes share it."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import record_store
from weft.errors import InputError, ScheduleWarning
from weft.record_store import APPLICATION, TABLES, VERSION, load_records, opened, read_store
from weft_testing.models import mlp
from weft_tuning.store import Store, Trial, drop, exported, kept, merge

KEY, OTHER = "0" * 32, "1" * 32
MACHINE = "llvm-0123456789ab"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "deep" / "records.sqlite", MACHINE, "0.1.0 weft-llvm 0.1.0")


def test_records_and_trials_come_back(store: Store) -> None:
    store.put("program", KEY, {"rule": "contraction", "tile_rows": 5, "parallel": True}, 1e-3, 2e-3, "matmul")
    store.add_trials([(KEY, Trial({"rule": "a"}, -0.5)), (KEY, Trial({"rule": "b"}, None, "it failed"))])
    (found,) = kept(store.path)
    assert (found.name, found.gain, found.versions) == ("matmul", 2.0, store.versions)
    (record,) = read_store(store.path, MACHINE, store.versions).records
    assert record.choices == {"rule": "contraction", "tile_rows": 5, "parallel": True}
    assert store.trials(KEY) == [Trial({"rule": "a"}, -0.5), Trial({"rule": "b"}, None, "it failed")]
    assert store.trials(OTHER) == []
    assert load_records(store.path) == read_store(store.path)


def test_only_those_of_the_machine_and_the_versions_are_read(store: Store) -> None:
    store.put("program", KEY, {"rule": "a"}, 1.0, 2.0, "x")
    assert not read_store(store.path, "llvm-ffffffffffff", store.versions)
    assert not read_store(store.path, MACHINE, "0.0.9")


def test_a_record_gives_way_to_one_that_gains_more(store: Store) -> None:
    store.put("program", KEY, {"rule": "a"}, 1.0, 2.0, "x")
    store.put("program", KEY, {"rule": "worse"}, 1.5, 2.0, "x")
    assert kept(store.path)[0].record.choices == {"rule": "a"}
    store.put("program", KEY, {"rule": "better"}, 0.5, 2.0, "x")
    assert kept(store.path)[0].record.choices == {"rule": "better"}
    store.drop("program", KEY, {"rule": "a"})  # which is not the one that is there
    assert len(kept(store.path)) == 1
    store.drop("program", KEY, {"rule": "better"})
    assert kept(store.path) == []


def test_what_was_measured_goes_with_its_record(store: Store) -> None:
    old = Store(store.path, MACHINE, "0.0.9 weft-llvm 0.0.9")
    for s in (store, old):
        s.put("program", KEY, {"rule": "a"}, 1.0, 2.0, "x")
        s.put("graph", OTHER, {"fuse.%y": False}, 1.0, 2.0, "y")
        s.add_trials([(KEY, Trial({"rule": "a"}, -0.5)), ("2" * 32, Trial({"rule": "slow"}, 0.5))])
    assert drop(store.path, lambda key, machine, versions: versions == old.versions) == (2, 2)
    assert [k.versions for k in kept(store.path)] == [store.versions] * 2
    assert old.trials(KEY) == old.trials("2" * 32) == []
    assert len(store.trials(KEY)) == len(store.trials("2" * 32)) == 1
    assert drop(store.path, lambda key, machine, versions: key == KEY) == (1, 1)
    assert [k.record.key for k in kept(store.path)] == [OTHER]
    assert drop(store.path, lambda key, machine, versions: True) == (1, 1)
    assert drop(store.path, lambda key, machine, versions: True) == (0, 0)


def test_a_record_that_cannot_be_read_can_be_taken_back(store: Store) -> None:
    store.put("program", OTHER, {"rule": "a"}, 1.0, 2.0, "x")
    _with(store.path, f"INSERT INTO records VALUES ('program', x'00', '{MACHINE}', 'v', '{{', 1, 2, 'x', 0)")
    with pytest.raises(InputError, match="invalid record"):
        kept(store.path)
    assert drop(store.path, lambda key, machine, versions: key != OTHER) == (1, 0)
    assert len(kept(store.path)) == 1


@pytest.mark.parametrize(
    "column", ["seconds = 0", "default_seconds = -1", f"time = {2**62}", "time = -1", "time = 'x'"]
)
def test_times_that_are_none_are_refused(store: Store, column: str) -> None:
    store.put("program", KEY, {"rule": "a"}, 1.0, 2.0, "x")
    _with(store.path, f"UPDATE records SET {column}")
    with pytest.raises(InputError, match="its times are"):
        kept(store.path)


def test_what_is_no_trial_is_left_out(store: Store) -> None:
    store.add_trials([(KEY, Trial({"rule": "a"}, -0.5))])
    for choices, value in (
        ("'{\"rule\": [1]}'", "0.5"),
        ("'{\"rule\": 1.5}'", "0.5"),
        ("'[]'", "0.5"),
        ("'{'", "0.5"),
        ("x'ff'", "0.5"),
        ('\'{"rule": "b"}\'', "9e999"),
        ('\'{"rule": "b"}\'', "'text'"),
    ):
        of = f"'program', '{KEY}', '{MACHINE}', '{store.versions}'"
        _with(store.path, f"INSERT INTO trials VALUES ({of}, {choices}, {value}, x'00', 0)")
    assert store.trials(KEY) == [Trial({"rule": "a"}, -0.5)]


def test_files_merge_all_or_none(store: Store, tmp_path: Path) -> None:
    other, bad = (Store(tmp_path / name, MACHINE, store.versions) for name in ("other.sqlite", "bad.sqlite"))
    for s in (other, bad):
        s.put("program", KEY, {"rule": "a"}, 1.0, 2.0, "x")
    _with(bad.path, "UPDATE records SET choices = '{'")
    with pytest.raises(InputError, match="invalid record"):
        merge(store.path, [other.path, bad.path])
    assert kept(store.path) == []


def test_a_record_that_is_merged_is_as_old_as_it_was(store: Store, tmp_path: Path) -> None:
    old = Store(tmp_path / "old.sqlite", MACHINE, "0.0.9")
    store.put("program", KEY, {"rule": "new"}, 1.0, 2.0, "x")
    old.put("program", KEY, {"rule": "old"}, 1.0, 2.0, "x")
    _with(old.path, "UPDATE records SET time = 1000")
    merge(store.path, [old.path])
    assert {k.versions: k.time for k in kept(store.path)}["0.0.9"] == 1000
    assert [r.choices["rule"] for r in exported(kept(store.path)).records] == ["new"]


def test_files_merge_by_what_gains_more(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other.sqlite", MACHINE, store.versions)
    store.put("program", KEY, {"rule": "a"}, 1.0, 2.0, "x")
    other.put("program", KEY, {"rule": "b"}, 0.5, 2.0, "x")
    other.put("graph", OTHER, {"fuse.%y": False}, 1.0, 3.0, "y")
    assert merge(store.path, [other.path]) == 2
    assert {k.record.choices.get("rule") for k in kept(store.path)} == {"b", None}
    assert len(exported(kept(store.path)).records) == 2


def _with(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_file_of_another_version_is_refused(store: Store) -> None:
    _with(store.path, "PRAGMA user_version = 9")
    with pytest.raises(InputError, match=r"has version 9.*\n?.*reads version 1"):
        read_store(store.path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE records ADD COLUMN more TEXT",
        "DROP TABLE trials",
        "PRAGMA application_id = 5",
    ],
)
def test_a_file_with_other_tables_is_refused(store: Store, statement: str) -> None:
    _with(store.path, statement)
    with pytest.raises(InputError, match="is no file of records"):
        read_store(store.path)
    with pytest.raises(InputError, match="is no file of records"):
        store.put("program", KEY, {"rule": "a"}, 1.0, 2.0, "x")


@pytest.mark.parametrize(
    ("key", "choices"),
    [
        ("short", '{"rule": "a"}'),
        (KEY, "{"),
        (KEY, "[1]"),
        (KEY, '{"rule": 1.5}'),
        (KEY, '{"rule": "' + "a" * 1000 + '"}'),
        (KEY, "[" * 100_000),
        (KEY, '{"rule": 99999999999999999999999}'),
    ],
)
def test_a_row_that_is_no_record_is_refused(store: Store, key: str, choices: str) -> None:
    connection = sqlite3.connect(store.path)
    row = ("program", key, MACHINE, store.versions, choices, 1.0, 2.0, "x", 0)
    connection.execute("INSERT INTO records VALUES (?,?,?,?,?,?,?,?,?)", row)
    connection.commit()
    connection.close()
    with pytest.raises(InputError):
        read_store(store.path)


@pytest.mark.parametrize(
    ("subject", "key", "choices"),
    [
        (b"program", KEY, '{"rule": "a"}'),
        ("program", b"0" * 32, '{"rule": "a"}'),
        ("program", KEY, b"\xff\xfe"),
        ("machine", KEY, '{"rule": "a"}'),
    ],
)
def test_a_row_of_other_types_is_refused(store: Store, subject: object, key: object, choices: object) -> None:
    row = (subject, key, MACHINE, store.versions, choices, 1.0, 2.0, "x", 0)
    with contextlib.closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("INSERT INTO records VALUES (?,?,?,?,?,?,?,?,?)", row)
    with pytest.raises(InputError, match="invalid"):
        read_store(store.path)
    with pytest.raises(InputError, match="invalid"):
        kept(store.path)


def test_a_trigger_that_has_the_name_of_an_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    _with(
        path,
        TABLES["records"],
        TABLES["trials"],
        "CREATE TRIGGER trials_of AFTER INSERT ON records BEGIN DELETE FROM records; END",
        TABLES["trials_of"],
        f"PRAGMA application_id = {APPLICATION}",
        f"PRAGMA user_version = {VERSION}",
    )
    with pytest.raises(InputError, match="is no file of records"):
        Store(path, MACHINE, "0.1.0")


def test_a_text_that_is_too_long_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        store.put("program", f"{n:032x}", {"rule": "a" * 400}, 1.0, 2.0, "x")
    monkeypatch.setattr(record_store, "MOST_TEXT", 900)
    assert len(read_store(store.path).records) == 2
    monkeypatch.setattr(record_store, "MOST_BYTES", 300)
    with pytest.raises(InputError, match="cannot be used"):
        read_store(store.path)


def test_the_latest_of_too_many_records_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        store.put("program", f"{n:032x}", {"rule": "a"}, 1.0, 2.0, "x")
    monkeypatch.setattr(record_store, "MOST_RECORDS", 3)
    assert len(read_store(store.path).records) == 3


def test_a_file_without_content_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.touch()
    assert not read_store(path) and not kept(path)
    assert path.stat().st_size == 0
    Store(path, MACHINE, "0.1.0").put("program", KEY, {"rule": "a"}, 1.0, 2.0, "x")
    assert len(kept(path)) == 1


def test_what_to_do_about_a_file_that_cannot_be_used(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_store, "BUSY_SECONDS", 0.01)
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match=r"is locked[\s\S]*another process writes"):
            read_store(store.path)
    bad = tmp_path / "bad.sqlite"
    bad.write_text("no database, but a text that is long enough to be taken for the head of one" * 20)
    with pytest.raises(InputError, match="move it away"):
        read_store(bad)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be used[\s\S]*may this user"):
        Store(tmp_path / "file" / "x.sqlite", MACHINE, "0.1.0")
    with (
        pytest.raises(InputError, match=r"is full[\s\S]*make room"),
        opened(store.path, write=True) as connection,
    ):
        connection.execute("PRAGMA max_page_count = 1")
        connection.execute("INSERT INTO trials VALUES ('program', 'k', 'm', 'v', ?, 0, NULL, 0)", ("x" * 100_000,))


def test_damaged_files_are_refused_or_read_and_never_more(store: Store) -> None:
    for n in range(200):
        store.put("program", f"{n:032x}", {"rule": "a", "tile_rows": n}, 1.0, 2.0, "x")
    whole = store.path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        if random.random() < 0.3:
            data = data[: int(random.integers(1, len(data)))]
        for _ in range(int(random.integers(1, 30))):
            data[int(random.integers(len(data)))] = int(random.integers(256))
        store.path.write_bytes(data)
        try:
            read_store(store.path)
            kept(store.path)
        except InputError as error:
            refused += 1
            assert error.what
    assert refused > 20


def test_no_store_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with pytest.raises(InputError, match="cannot be used"):
        read_store(path)
    path.write_bytes(b"SQLite format 3\0 and then nothing")
    with pytest.raises(InputError, match=r"cannot be used|is no file of records"):
        read_store(path)


def model_with_record(path: Path, tile: int = 2) -> tuple[object, str]:
    """A model and the key of one of its kernels, for which the file at `path` records a tile."""
    from weft.compilation import Compilation
    from weft.loading import load
    from weft.records import program_key
    from weft.resolve import resolve_target

    model = mlp()
    target = resolve_target("llvm -threads=1")
    compilation = Compilation(target, cache=False)
    compilation.run(load(model))
    kernel = next(k for k in compilation.kernels.values() if k.rule == "contraction" and k.choices)
    Store(path, target.machine_key, target.versions).put(
        "program", program_key(kernel.naive), {"rule": "contraction", "tile_rows": tile}, 1.0, 2.0, kernel.name
    )
    return model, kernel.name


def test_compilations_follow_the_records_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.compilation import Compilation
    from weft.loading import load
    from weft.resolve import resolve_targets

    file = tmp_path / "records.sqlite"
    model, _ = model_with_record(file)
    monkeypatch.setenv("WEFT_RECORDS", str(file))
    (target,) = resolve_targets("llvm -threads=1")
    compilation = Compilation(target, cache=False)
    compilation.run(load(model))
    followed = [k for k in compilation.kernels.values() if k.record is not None]
    assert followed and all(not k.refused for k in followed)
    assert {c.name: c.value for c in followed[0].choices}["tile_rows"] == 2
    weft.compile(model, "llvm -threads=1", tuned=True)


def test_a_model_without_records_is_refused_where_they_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing is recorded of this model on this machine[\s\S]*weft.tune"):
        weft.compile(mlp(), "llvm -threads=1", tuned=True)


def test_a_damaged_file_of_the_user_leaves_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "records.sqlite"
    file.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    monkeypatch.setenv("WEFT_RECORDS", str(file))
    with pytest.warns(ScheduleWarning, match="the records in WEFT_RECORDS are not followed"):
        executable = weft.compile(mlp(), "llvm -threads=1", cache=False)
    assert executable.outputs


def test_a_file_that_cannot_be_looked_for_leaves_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_RECORDS", str(tmp_path / ("x" * 300)))  # as one in a folder of somebody else
    assert weft.compile(mlp(), "llvm -threads=1", cache=False).outputs


def test_a_record_out_of_range_leaves_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "records.sqlite"
    model, _ = model_with_record(file, tile=123456)
    monkeypatch.setenv("WEFT_RECORDS", str(file))
    with pytest.warns(ScheduleWarning, match=r"does not follow.*tile_rows' cannot be 123456"):
        weft.compile(model, "llvm -threads=1", cache=False)


WRITER = """
import sys
from weft_tuning.store import Store, Trial
store = Store(sys.argv[1], "llvm-0123456789ab", "0.1.0")
for n in range(int(sys.argv[3])):
    key = f"{int(sys.argv[2]):016x}{n:016x}"
    store.add_trials([(key, Trial({"rule": "a", "n": n}, -0.5))])
    store.put("program", key, {"rule": "a", "n": n}, 1.0, 2.0, "x")
    print(n, flush=True)
"""


def test_two_processes_that_write_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    command = [sys.executable, "-c", WRITER, str(path)]
    processes = [subprocess.Popen([*command, str(k), "40"], stdout=subprocess.PIPE, text=True) for k in range(2)]
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and len(out.split()) == 40
    assert len(kept(path)) == 80
    with opened(path) as connection:
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (80,)


def test_a_process_that_is_killed_loses_nothing_that_it_has_written(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    random = np.random.default_rng(0)
    known = 0
    for number in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(number), "100000"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(float(random.uniform(0.0, 0.3)))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait()
        known += len((first + rest).split())
        found = len(kept(path))
        assert known <= found <= known + number + 1  # a last one may have been written and not said
