"""Old names of packages: the same modules, with a warning that names the new one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from weft.aliases import RENAMED
from weft_testing.public import public_names


@pytest.mark.parametrize("old", RENAMED)
def test_modules_of_an_old_name_are_those_of_the_new_one(old: str) -> None:
    new = RENAMED[old]
    package = importlib.import_module(new)
    if not hasattr(package, "__path__"):
        stub = importlib.import_module(old)
        for name in (n for n in public_names(new) if n in vars(package)):
            with pytest.warns(DeprecationWarning, match=rf"'{old}.{name}' has another name now: '{new}.{name}'"):
                assert getattr(stub, name) is getattr(package, name)
        return
    for file in sorted(Path(str(package.__file__)).parent.glob("*.py")):
        if not file.stem.startswith("_"):
            sys.modules.pop(f"{old}.{file.stem}", None)
            with pytest.warns(
                DeprecationWarning, match=rf"'{old}.{file.stem}' has another name now: '{new}.{file.stem}'"
            ):
                found = importlib.import_module(f"{old}.{file.stem}")
            assert found is importlib.import_module(f"{new}.{file.stem}")
            assert found.__name__ == found.__spec__.name == f"{new}.{file.stem}"  # type: ignore[union-attr]


def test_the_warning_is_about_the_line_that_has_the_old_name() -> None:
    sys.modules.pop("weft.runtime.device", None)
    with pytest.warns(DeprecationWarning) as caught:
        from weft.runtime.device import Device
    assert [Path(w.filename).name for w in caught] == [Path(__file__).name]
    from weft_runtime.device import Device as Now

    assert Device is Now


def test_names_of_the_package_itself() -> None:
    import weft.runtime
    from weft_runtime import Executable

    with pytest.warns(DeprecationWarning, match="'weft.runtime.Executable' has another name now"):
        assert weft.runtime.Executable is Executable
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = weft.runtime.Nothing
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'weft\.runtime\.nothing'"):
        importlib.import_module("weft.runtime.nothing")


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == "weft_testing" or m.startswith("weft.testing.")]:
        monkeypatch.delitem(sys.modules, module)

    class Missing:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "weft_testing":
                raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(
        ModuleNotFoundError, match=r"'weft\.testing\.plugin' is 'weft_testing\.plugin' of the distribution weft-testing"
    ):
        importlib.import_module("weft.testing.plugin")


def test_a_name_that_has_changed_with_its_module() -> None:
    import weft.loop.boxes
    from weft_gpu.bulk_copies import BulkCopy

    with pytest.warns(
        DeprecationWarning, match=r"'weft\.loop\.boxes\.Box' has another name now: 'weft_gpu\.bulk_copies\.BulkCopy'"
    ):
        assert weft.loop.boxes.Box is BulkCopy
