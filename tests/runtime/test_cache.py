"""The disk cache: private, bounded, indifferent to damage and to company."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from weft.runtime.cache import Cache


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
    root = tmp_path / "c"
    root.mkdir(mode=0o755)
    os.chmod(root, 0o755)
    entry = Cache("kernel", root).put("k", b"code")
    assert entry is not None
    assert root.stat().st_mode & 0o777 == 0o700
    assert entry.stat().st_mode & 0o777 == 0o600


def test_another_users_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    cache = Cache("kernel", tmp_path)
    assert cache.disabled == f"{tmp_path} belongs to another user"
    assert cache.put("k", b"code") is None and cache.get("k") is None


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
    stale = tmp_path / "c" / "model" / ".old.tmp"
    stale.write_text("left by a writer that died")
    os.utime(stale, (time.time() - 7200,) * 2)
    cache.size()
    assert not stale.exists()


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
