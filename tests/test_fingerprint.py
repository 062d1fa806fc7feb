"""What tells a plugin's sources from what they were: caches must not give code of yesterday's plugin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from weft.fingerprint import libraries, source_fingerprint
from weft.plugins import BY_HAND, Plugin, PluginHost


def by_hand(plugin: object) -> str:
    host = PluginHost([])
    host.register(plugin, "mine")
    return source_fingerprint(host.plugins[0])


@pytest.mark.parametrize("package", [True, False])
def test_sources_that_change_without_a_version(package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "acme_plugin" / "__init__.py" if package else tmp_path / "acme_plugin.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    script = "from weft.fingerprint import source_fingerprint as f; from weft.plugins import Plugin as P; "
    script += "print(f(P('a', 'acme', '1.0', '', 'acme_plugin.sub')))"

    def now() -> str:
        run = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {script}"]
        return subprocess.run(run, check=True, capture_output=True, text=True, timeout=60).stdout

    before = now()
    assert before.startswith("acme==1.0+") and now() == before
    file.write_text("x = 2\n")
    assert now() != before


def test_what_is_installed_is_known_by_its_version() -> None:
    assert source_fingerprint(Plugin("n", "numpy", "2.0", "", "numpy")) == "numpy==2.0+-"


@pytest.mark.needs("weft_gpu")
def test_libraries_that_plugins_share_count() -> None:
    """weft-cuda's code is made with weft-gpu and weft-c-family, which are no plugins."""
    found = dict(libraries("weft-cuda"))
    assert found.keys() == {"weft-c-family", "weft-core", "weft-gpu", "weft-ops", "weft-runtime"}
    known = source_fingerprint(Plugin("cuda", "weft-cuda", "7.0", "", "weft_cuda.plugin"))
    assert known.startswith("weft-cuda==7.0+")
    for name, version in found.items():
        assert f" {name}=={version}+" in known
    assert libraries("no-such-distribution") == ()


def test_what_was_registered_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        pass

    assert by_hand(Mine()) == by_hand(Mine()), "known by the sources of its module"
    notebook = ModuleType("a_notebook")
    assert by_hand(notebook) != by_hand(notebook), "without a file, never what it was before"
    assert BY_HAND not in by_hand(notebook)
    file = tmp_path / "reloaded_plugin.py"
    file.write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    reloaded = ModuleType("reloaded_plugin")
    before = by_hand(reloaded)
    file.write_text("x = 2\n")
    assert by_hand(reloaded) != before


def test_a_script_is_known_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    text = "import sys\nfrom tests.test_fingerprint import by_hand\nprint(by_hand(sys.modules[__name__]))\n"

    def now() -> str:
        run = [sys.executable, str(script)]
        return subprocess.run(
            run, check=True, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[1], env=ENVIRONMENT
        ).stdout

    script.write_text(text)
    before = now()
    assert before == now()
    script.write_text(text + "# edited\n")
    assert now() != before


ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": ""}
