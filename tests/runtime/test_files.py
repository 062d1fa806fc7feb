"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft_runtime.files import obstacle, obstacle_of_folder, replacing


def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old" and len(os.listdir(tmp_path)) == 2
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a"]


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"ne")
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a"]


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a").read_text() == "new"
    with replacing(Path("/dev/null")) as file:
        file.write(b"new")
    assert not Path("/dev/null").is_file()


def test_what_speaks_against_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("old")
    assert obstacle(file) is None and obstacle(tmp_path / "b") is None and obstacle(Path("b")) is None
    assert obstacle(tmp_path) == f"'{tmp_path}' is a folder"
    assert obstacle(tmp_path / "no" / "b") == f"there is no folder '{tmp_path / 'no'}'"
    assert obstacle(file / "b") == f"'{file}' is no folder"
    assert obstacle_of_folder(tmp_path / "no" / "further") is None
    assert obstacle_of_folder(file / "no") == f"'{file}' is no folder"


def test_what_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert obstacle(tmp_path / "a") == f"'{tmp_path / 'a'}' may not be written"
    assert obstacle(tmp_path / "b") == f"nothing may be written into '{tmp_path}'"
