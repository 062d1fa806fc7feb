"""`weft plugin new`: what it makes installs, is clean, passes its own tests and works; what it refuses, and how that
reads."""

from __future__ import annotations

import ast
import importlib.metadata as metadata
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.contributions import HOOKS
from weft.errors import PluginError
from weft.plugins import host
from weft_testing.cli.plugin_new import KINDS, TEMPLATES, Names, rendered, version_range
from weft_testing.imports import imports_beyond

Weft = Callable[..., Any]


def run(*words: str, cwd: Path, path: Path | None = None) -> str:
    """A command's output; it must succeed."""
    env = {**os.environ, "PYTHONPATH": str(path)} if path is not None else None
    done = subprocess.run([sys.executable, "-m", *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=KINDS)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Kind and folder of a new plugin, made as a user makes it; its wheel is in `dist`, unpacked in `site`."""
    folder = tmp_path_factory.mktemp("new")
    name = f"weft-try-{request.param}"
    run("weft.cli.main", "plugin", "new", name, "--kind", request.param, "--into", ".", cwd=folder)
    run("hatchling", "build", "-t", "wheel", cwd=folder / name)
    (wheel,) = (folder / name / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / name / "site")
    return request.param, folder / name


def test_its_wheel_holds_the_package_and_its_types(package: tuple[str, Path]) -> None:
    kind, folder = package
    (dist,) = metadata.distributions(path=[str(folder / "site")])
    assert (dist.metadata["Name"], [e.group for e in dist.entry_points]) == (f"weft-try-{kind}", ["weft.plugins"])
    assert f"weft-core{version_range(host().api_version)}" in [
        r.replace("<0.2,>=0.1", ">=0.1,<0.2") for r in dist.requires or ()
    ]
    assert (folder / "site" / f"weft_try_{kind}" / "py.typed").exists()
    assert not (folder / "site" / "tests").exists()


def test_installed_it_passes_its_own_tests(package: tuple[str, Path]) -> None:
    _, folder = package
    assert " passed" in run("pytest", "-q", "-p", "no:cacheprovider", cwd=folder, path=folder / "site")


def test_installed_it_is_in_use(package: tuple[str, Path]) -> None:
    kind, folder = package
    out = run("weft.cli.main", "plugins", cwd=folder, path=folder / "site")
    (line,) = (x for x in out.splitlines() if f"weft-try-{kind} 0.1.0" in x)
    assert "in use" in line and "out of use" not in out


def test_it_is_clean(package: tuple[str, Path]) -> None:
    _, folder = package
    run("ruff", "check", ".", "--no-cache", cwd=folder)
    run("ruff", "format", "--check", ".", "--no-cache", cwd=folder)
    run("mypy", "--cache-dir", os.devnull, cwd=folder)
    assert imports_beyond(folder / "tests") == []


def test_a_target_passes_the_first_level_of_conformance(package: tuple[str, Path]) -> None:
    kind, folder = package
    if kind == "target":
        run("weft.cli.main", "conform", "--target", "try-target", "--level", "1", cwd=folder, path=folder / "site")


def test_a_module_imports_nothing_but_hooks(package: tuple[str, Path]) -> None:
    kind, folder = package
    code = (
        f"import sys; from weft.hooks import hookimpl; before = {{*sys.modules}}; import weft_try_{kind}.plugin;"
        " print(*sorted({*sys.modules} - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(folder / "site")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [f"weft_try_{kind}", f"weft_try_{kind}.plugin"], done.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["x", "a-name-of-thirty-letters-in-all"[:30], "import", "device", "n2"])
def test_any_name_gives_files_that_parse(kind: str, name: str) -> None:
    files = rendered(kind, Names.of(name))
    for path, text in files.items():
        assert "acme" not in (path + text).lower() or "acme" in name
        if path.endswith(".py"):
            assert max(map(len, text.splitlines()), default=0) <= 140
            ast.parse(text)
    assert {"README.md", "pyproject.toml"} <= files.keys()
    hooks = [
        n.name
        for n in ast.walk(ast.parse(next(t for p, t in files.items() if p.endswith("plugin.py"))))
        if isinstance(n, ast.FunctionDef)
    ]
    assert set(hooks) & set(HOOKS)


def test_every_kind_has_templates() -> None:
    assert sorted(p.name for p in TEMPLATES.iterdir()) == sorted(KINDS)


@pytest.mark.parametrize(
    ("given", "key", "distribution", "module", "prefix"),
    [
        ("npu", "npu", "weft-npu", "weft_npu", "Npu"),
        ("weft-npu", "npu", "weft-npu", "weft_npu", "Npu"),
        ("my-npu2", "my-npu2", "weft-my-npu2", "weft_my_npu2", "MyNpu2"),
    ],
)
def test_names(given: str, key: str, distribution: str, module: str, prefix: str) -> None:
    assert Names.of(given) == Names(key, distribution, module, prefix)


@pytest.mark.parametrize(
    ("given", "usable"),
    [
        ("MyNpu", "my-npu"),
        ("my npu", "my-npu"),
        ("2d", "d"),
        ("../x", "x"),
        ("a--b", "a-b"),
        ("weft", "npu"),
        ("", "npu"),
        ("é", "npu"),
        ("x" * 31, "x" * 31),
    ],
)
def test_bad_names_are_refused_with_a_usable_one(given: str, usable: str) -> None:
    with pytest.raises(PluginError) as caught:
        Names.of(given)
    assert str(caught.value).splitlines()[0] == f"'{given}' is no name for a plugin"
    assert len(usable) > 30 or str(caught.value).endswith(f"hint: for example '{usable}'")


def test_nothing_is_overwritten(weft: Weft, tmp_path: Path) -> None:
    assert weft("plugin", "new", "npu9", "--into", tmp_path).code == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    result = weft("plugin", "new", "npu9", "--into", tmp_path, "--kind", "frontend")
    assert result.code == 1
    path = tmp_path / "weft-npu9"
    hint = "nothing is overwritten: take another name, another folder (--into), or remove it"
    assert result.err == f"PluginError: '{path}' is there already\n  hint: {hint}\n"
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_folder_that_cannot_be_written(weft: Weft, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = weft("plugin", "new", "npu9", "--into", tmp_path / "file")
    assert f"PluginError: '{tmp_path}/file/weft-npu9' cannot be written\n  why: " in result.err


@pytest.mark.parametrize(
    ("name", "owner"), [("onnx", "weft-onnx"), ("cuda", "weft-cuda"), ("core", "weft-core"), ("llvm", "weft-llvm")]
)
def test_names_that_are_taken(weft: Weft, tmp_path: Path, name: str, owner: str) -> None:
    result = weft("plugin", "new", name, "--into", tmp_path)
    hint = "take another: two plugins of one name are both out of use"
    assert result.err == f"PluginError: the name '{name}' is taken\n  why: {owner} has it\n  hint: {hint}\n"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_names_the_nearest(weft: Weft, tmp_path: Path) -> None:
    result = weft("plugin", "new", "npu9", "--kind", "taget", "--into", tmp_path)
    assert result.err == "PluginError: there is no kind 'taget' of plugin\n  hint: did you mean 'target'?\n"


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.1.0", ">=0.1,<0.2"), ("0.12.3rc1", ">=0.12,<0.13"), ("1.4.0", ">=1.4,<2"), ("2.0", ">=2.0,<3")],
)
def test_the_range_that_it_asks_for(version: str, expected: str) -> None:
    assert version_range(version) == expected
