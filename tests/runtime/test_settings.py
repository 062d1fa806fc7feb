"""Environment variables are typed, and a bad one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import settings
from weft.errors import SettingError


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in settings.SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert settings.CACHE_DIR.get() == Path("/x/weft")
    assert settings.THREADS.get() is None and settings.DUMP.get() == () and settings.VERIFY_WEIGHTS.get()
    monkeypatch.setenv("WEFT_THREADS", "3")
    monkeypatch.setenv("WEFT_CACHE_BYTES", "512MiB")
    monkeypatch.setenv("WEFT_DUMP", "lower, fuse")
    monkeypatch.setenv("WEFT_VERIFY_WEIGHTS", "off")
    assert settings.THREADS.get() == 3
    assert settings.CACHE_BYTES.get() == 512 << 20
    assert settings.DUMP.get() == ("lower", "fuse")
    assert not settings.VERIFY_WEIGHTS.get()
    monkeypatch.setenv("WEFT_THREADS", " ")
    assert settings.THREADS.get() is None


@pytest.mark.parametrize(
    ("name", "value", "why", "hint"),
    [
        ("WEFT_THREADS", "0", "0 is not between 1 and 4096", "give a number of threads, or unset it"),
        (
            "WEFT_CACHE_BYTES",
            "many",
            "not a size",
            "give a size such as 512M or 4G; 0 turns the cache off, or unset it",
        ),
        ("WEFT_VERIFY_WEIGHTS", "maybe", "neither on nor off", "give 0 or 1, or unset it"),
    ],
)
def test_messages(name: str, value: str, why: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    setting = next(s for s in settings.SETTINGS if s.name == name)
    with pytest.raises(SettingError) as error:
        setting.get()
    assert str(error.value) == f"{name} is set to '{value}', which cannot be used\n  why: {why}\n  hint: {hint}"


def test_table() -> None:
    assert len({s.name for s in settings.SETTINGS}) == len(settings.SETTINGS)
    assert "WEFT_CACHE_DIR" in settings.describe()
