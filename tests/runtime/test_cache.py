"""The disk cache: private, bounded, indifferent to damage and to company."""

from __future__ import annotations

import errno
import io
import os
import re
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest

from weft_runtime.cache import _TEMPORARY, FOLDER, MARKER, Cache
from weft_runtime.errors import CacheWarning, ExecutionError
from weft_runtime.files import replacing

pytestmark = pytest.mark.filterwarnings("ignore::weft_runtime.errors.CacheWarning")


def test_bytes_and_files(tmp_path: Path) -> None:
    cache = Cache("kernel", tmp_path / "c")
    assert cache.get("k") is None and cache.get_path("k") is None
    cache.put("k", b"code")
    cache.put("k", lambda path: path.write_text("file"))
    assert cache.get("k") == b"code"
    path = cache.get_path("k")
    assert path is not None and path.read_text() == "file"
    assert Cache("model", tmp_path / "c").get("k") is None
    cache.discard("k")
    assert cache.get("k") is None and cache.get_path("k") is None


def test_owner_only(tmp_path: Path) -> None:
    """What Weft makes is its user's alone; the folder that it is given keeps its mode."""
    root = tmp_path / "c"
    root.mkdir()
    os.chmod(root, 0o755)
    entry = Cache("kernel", root).put("k", b"code")
    assert entry is not None
    assert root.stat().st_mode & 0o777 == 0o755
    assert entry.stat().st_mode & 0o777 == 0o600
    for folder in (root / FOLDER, *(p for p in (root / FOLDER).rglob("*") if p.is_dir())):
        assert folder.stat().st_mode & 0o777 == 0o700
    tag = (root / FOLDER / MARKER).read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n") and b"Weft" in tag


def test_files_of_others_stay(tmp_path: Path) -> None:
    """Neither the bound nor the search for left-overs removes what the cache has not made, inside of its folder or
    beside it."""
    root = tmp_path / "c"
    first = Cache("kernels", root, limit=6000)
    entry = first.put("k", bytes(1000))
    assert entry is not None
    name = "0" * 64
    theirs = [root / f"thesis{i}.txt" for i in range(10)]
    theirs += [root / "draft.tmp", root / "kernels" / "aa" / "x.bin", root / "kernels" / name[:2] / f"{name}.bin"]
    theirs += [root / FOLDER / f"notes{i}" for i in range(4)]
    theirs += [
        root / FOLDER / "kernels" / "letter.tmp",
        root / FOLDER / "kernels" / "aa" / f"{name}.bin",
        entry.parent / "letter.tmp",
        entry.parent / "a.bin",
    ]
    assert len(theirs) == 21
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(3000))
        os.utime(path, (1000, 1000))
    folder = entry.parent / ("1" * 64 + ".bin")  # has the name of an entry and is none
    folder.mkdir()
    cache = Cache("kernels", root, limit=6000)
    for i in range(20):
        cache.put(f"other{i}", bytes(1000))
    assert cache.size() <= 6000 and cache.get("k") is None
    assert all(p.read_bytes() == bytes(3000) for p in theirs) and folder.is_dir()


def test_links_are_neither_read_nor_followed(tmp_path: Path) -> None:
    cache = Cache("kernels", tmp_path / "c", limit=5000)
    entry, model = cache.put("k", b"code"), cache.put("k", lambda path: path.write_bytes(b"file"))
    assert entry is not None and model is not None
    for place in (entry, model):
        place.rename(tmp_path / place.name)
        place.symlink_to(tmp_path / place.name)
    assert cache.get("k") is None and cache.get_path("k") is None
    outside = tmp_path / "outside" / ("2" * 64 + ".bin")
    outside.parent.mkdir()
    outside.write_bytes(bytes(9000))
    (tmp_path / "c" / FOLDER / "kernels" / "22").symlink_to(outside.parent)
    for i in range(8):
        cache.put(f"k{i}", bytes(1000))
    assert outside.exists() and (tmp_path / entry.name).exists()
    assert cache.put("k", b"code") is not None and cache.get("k") == b"code", "a new entry takes the link's place"


def test_a_folder_that_weft_did_not_make_is_not_used(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "letter").write_text("x")
    cache = Cache("kernels", tmp_path)
    assert cache.disabled == f"'{tmp_path / FOLDER}' was not made by Weft: it has no {MARKER} that says so"
    with pytest.warns(CacheWarning, match="was not made by Weft"):
        assert cache.put("k", b"code") is None
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["letter", FOLDER]


def test_a_link_in_place_of_the_folder_is_not_used(tmp_path: Path) -> None:
    Cache("kernels", tmp_path / "real")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / FOLDER).symlink_to(tmp_path / "real" / FOLDER)
    assert Cache("kernels", tmp_path / "c").disabled == f"'{tmp_path / 'c' / FOLDER}' is a link"


def test_a_link_in_place_of_a_folder_inside_is_not_used(tmp_path: Path) -> None:
    """Neither of a kind's folder nor of one of those that hold its entries: nothing is read, written or removed behind
    it."""
    real = Cache("kernels", tmp_path / "real")
    entry = real.put("k", b"code")
    assert entry is not None
    Cache("models", tmp_path / "c")
    folder = tmp_path / "c" / FOLDER / "kernels"
    folder.symlink_to(entry.parent.parent)
    cache = Cache("kernels", tmp_path / "c")
    assert cache.disabled == f"'{folder}' is a link"
    with pytest.warns(CacheWarning, match=re.escape(f"is not kept in the cache: '{folder}' is a link")):
        assert cache.get("k") is None and cache.get_path("k") is None and cache.put("k", b"other") is None
    folder.unlink()
    cache = Cache("kernels", tmp_path / "c")
    inside = folder / entry.parent.name
    inside.symlink_to(entry.parent)
    assert cache.get("k") is None
    with pytest.warns(CacheWarning, match=re.escape(f"'{inside}' is a link")):
        assert cache.put("k", b"other") is None
    cache.discard("k")
    assert real.get("k") == b"code" and list(entry.parent.iterdir()) == [entry]


@pytest.mark.parametrize("which", ["given", "own"])
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_folders_that_others_may_write_are_not_used(which: str, mode: int, tmp_path: Path) -> None:
    Cache("kernels", tmp_path).put("k", b"code")
    folder = tmp_path if which == "given" else tmp_path / FOLDER
    os.chmod(folder, mode)
    cache = Cache("kernels", tmp_path)
    assert cache.disabled == f"'{folder}' may be written by others: its mode is 0{mode:o}"
    assert cache.get("k") is None and folder.stat().st_mode & 0o777 == mode
    if which == "given":
        os.chmod(folder, 0o1777)  # as /tmp: nobody may take another's place
        assert Cache("kernels", tmp_path).get("k") == b"code"


def test_another_users_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cache("kernels", tmp_path).put("k", b"code")
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 12345)
    cache = Cache("kernels", tmp_path)
    assert cache.disabled is not None and cache.disabled.endswith("belongs to another user")
    with pytest.warns(
        CacheWarning,
        match="hint: name another folder with WEFT_CACHE_DIR, or turn the cache off with WEFT_CACHE_BYTES=0",
    ):
        assert cache.put("k", b"code") is None and cache.get("k") is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("which", ["given", "own", "marker", "entry"])
def test_what_another_user_owns_is_not_used(which: str, tmp_path: Path) -> None:
    """Machine code of another user never runs as this one."""
    cache = Cache("kernels", tmp_path)
    entry, model = cache.put("k", b"code"), cache.put("k", lambda path: path.write_bytes(b"file"))
    assert entry is not None and model is not None
    for path in {
        "given": [tmp_path],
        "own": [tmp_path / FOLDER],
        "marker": [tmp_path / FOLDER / MARKER],
        "entry": [entry, model],
    }[which]:
        os.chown(path, 12345, 12345)
    cache = Cache("kernels", tmp_path)
    assert cache.get("k") is None and cache.get_path("k") is None
    assert (cache.disabled is None) == (which == "entry")


def test_an_entry_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    cache = Cache("kernels", tmp_path)
    entry, model = cache.put("k", b"code"), cache.put("k", lambda path: path.write_bytes(b"file"))
    assert entry is not None and model is not None
    for path in (entry, model):
        os.chmod(path, 0o620)
    assert cache.get("k") is None and cache.get_path("k") is None


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["mkdir", "mkstemp", "write", "replace", "save"])
def test_a_full_disk_is_no_error(call: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache("kernels", tmp_path)

    def full(*args: object, **options: object) -> None:
        raise OSError(error, os.strerror(error), f"file-{time.perf_counter_ns()}")

    class Full(io.BytesIO):
        write = full  # type: ignore[assignment]

    def save(path: Path) -> None:  # as Executable.save
        try:
            full()
        except OSError as cause:
            raise ExecutionError(f"cannot write {path}") from cause

    with monkeypatch.context() as patch:
        if call == "mkdir":
            patch.setattr(Path, "mkdir", full)
        elif call == "mkstemp":
            patch.setattr(tempfile, "mkstemp", full)
        elif call == "write":
            patch.setattr(os, "fdopen", lambda handle, mode: (os.close(handle), Full())[1])
        elif call == "replace":
            patch.setattr(os, "replace", full)
        with pytest.warns(CacheWarning, match=f"what is compiled is not kept in the cache: .*{os.strerror(error)}"):
            assert cache.put("k", save if call == "save" else b"code") is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cache.put("again", save if call == "save" else b"code") is None, "it is said once"
    assert [p for p in (tmp_path / FOLDER / "kernels").rglob("*") if p.is_file()] == []
    assert cache.put("k", b"code") is not None


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_home_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chmod(tmp_path, 0o555)
    monkeypatch.delenv("WEFT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = Cache("kernels")
    assert cache.disabled is not None and "Permission denied" in cache.disabled
    with pytest.warns(CacheWarning, match="Permission denied"):
        assert cache.put("k", b"code") is None


def test_nobodys_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("WEFT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", none)
    assert Cache("kernels").disabled == "Could not determine home directory."


def test_damage_is_a_miss(tmp_path: Path) -> None:
    cache = Cache("kernel", tmp_path / "c")
    for spoil in (lambda d: d[:-1], lambda d: d[:-1] + b"x", lambda d: b"", lambda d: b"x" + d[1:]):
        entry = cache.put("k", b"some code")
        assert entry is not None
        entry.write_bytes(spoil(entry.read_bytes()))
        assert cache.get("k") is None
        assert not entry.exists()


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = Cache("kernel", tmp_path / "c", limit=10_000)
    for i in range(8):
        entry = cache.put(f"k{i}", bytes(1000))
        assert entry is not None
        os.utime(entry, (1000 + i, 1000 + i))
    assert cache.get("k0") is not None  # used: now the newest
    for i in range(8, 12):
        cache.put(f"k{i}", bytes(1000))
    assert cache.size() <= 10_000
    assert cache.get("k0") is not None and cache.get("k11") is not None and cache.get("k1") is None
    assert cache.put("large", bytes(20_000)) is None
    assert cache.size() <= 10_000


def test_off_and_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "c"))
    monkeypatch.setenv("WEFT_CACHE_BYTES", "0")
    off = Cache("kernel")
    assert off.disabled == "its size is set to 0" and off.put("k", b"") is None and off.get("k") is None
    off.discard("k")
    monkeypatch.setenv("WEFT_CACHE_BYTES", "1M")
    (tmp_path / "c").write_text("a file")
    assert Cache("kernel").disabled


def test_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache("model", tmp_path / "c")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        cache.put("k", fail)
    assert cache.get_path("k") is None
    assert cache.size() == 0
    held = cache.root / "model" / "00"
    held.mkdir()
    stale = [held / f".{'0' * 64}.abcd1234.tmp", held / f"..{'0' * 64}.abcd_234.tmp.{'0' * 16}.tmp"]
    for path in stale:
        path.write_text("left by a writer that died")
    cache.size()
    assert all(p.exists() for p in stale), "a writer may still be at work"
    for path in stale:
        os.utime(path, (time.time() - 7200,) * 2)
    cache.size()
    assert not any(p.exists() for p in stale)


def test_names_of_unfinished_files_are_known(tmp_path: Path) -> None:
    """A writer that dies leaves files that the next one recognises, also where it writes through `replacing`."""
    left: list[str] = []

    def write(path: Path) -> None:
        with replacing(path) as file:
            file.write(b"half")
            left.extend(p.name for p in path.parent.iterdir())

    Cache("model", tmp_path).put("k", write)
    assert len(left) == 2 and all(_TEMPORARY.fullmatch(name) for name in left)


def test_many_writers(tmp_path: Path) -> None:
    wrong = []

    def work(seed: int) -> None:
        cache = Cache("kernel", tmp_path / "c", limit=20_000)
        for i in range(60):
            key = f"k{(seed + i) % 10}"
            cache.put(key, key.encode() * 500)
            found = cache.get(key)
            if found is not None and found != key.encode() * 500:
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_what_a_measurement_took_is_not_removed_to_make_room(tmp_path: Path) -> None:
    measured, models = Cache("machines", tmp_path / "c", limit=20_000), Cache("models", tmp_path / "c", limit=20_000)
    measured.put("this one", b"rates")
    for k in range(5):
        models.put(str(k), bytes(19_000))
    assert measured.get("this one") == b"rates"
