"""What is published: each wheel holds its whole package and says what it is, what it needs, and for which Pythons."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from tests.needs import require
from tests.wheels.conftest import EXTRAS, FOLDERS
from tests.wheels.distributions import OURS, ROOT, Wheel

NAMES = [p.name for p in FOLDERS]
RUNTIME = ROOT / "bindings" / "javascript"
COPIED = {"weft-remote": {f"weft_remote/page/{n}": RUNTIME / n for n in ("weft.js", "worker.js", "webgpu.js")}}
"""Files by their places in wheels that lie elsewhere in the source tree."""
LIBRARIES = ("weft", "weft-c-family", "weft-frontend", "weft-gpu", "weft-interpreter", "weft-runtime", "weft-training")
"""Wheels that are no plugins; weft asks for others only."""
PEERS = {"onnxruntime", "openvino", "metal", "pillow"}
"""What a wheel imports if it is there; Metal is a module of pyobjc-framework-Metal, which is asked for on macOS, and
Pillow by an extra."""


@pytest.fixture(params=FOLDERS, ids=NAMES)
def wheel(request: pytest.FixtureRequest, wheels: dict[str, Wheel]) -> Wheel:
    (found,) = [w for w in wheels.values() if w.folder == request.param]
    return found


def packages(wheel: Wheel) -> list[Path]:
    """The folders of its packages in the source tree."""
    return [p.parent for p in wheel.folder.glob("*/__init__.py") if p.parent.name != "tests"]


def test_it_is_pure(wheel: Wheel) -> None:
    assert wheel.file.name.endswith("-py3-none-any.whl")


def test_it_holds_its_package_and_nothing_else(wheel: Wheel) -> None:
    sources = {
        str(f.relative_to(wheel.folder))
        for p in packages(wheel)
        for f in p.rglob("*")
        if f.is_file() and "__pycache__" not in f.parts
    }
    inside = {n for n in wheel.names() if ".dist-info/" not in n}
    copied = COPIED.get(wheel.project["name"], {})
    assert inside == sources | copied.keys()
    assert all(wheel.text(place) == file.read_text() for place, file in copied.items())
    assert {f"{p.name}/py.typed" for p in packages(wheel)} <= inside, "a typed package says so"


def test_it_says_what_it_is(wheel: Wheel) -> None:
    said = wheel.metadata
    assert said["Name"] == wheel.project["name"] and said["Version"] and said["Summary"]
    assert said["Requires-Python"] == ">=3.11"
    assert (
        said["Description-Content-Type"] == "text/markdown"
        and said.get_payload() == (wheel.folder / "README.md").read_text()
    )
    if wheel.folder not in OURS:
        return  # licence and classifiers are their authors' to choose
    assert (
        said["License-Expression"] == "Apache-2.0"
        and wheel.text(".dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_text()
    )
    told = set(said.get_all("Classifier") or ())
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} | {"Typing :: Typed"} <= told


def test_what_it_says_of_weft_fits(wheel: Wheel, wheels: dict[str, Wheel]) -> None:
    asked = [r for r in wheel.required(EXTRAS) if r.name == "weft-core"]
    version = wheels["weft-core"].metadata["Version"]
    if wheel.project["name"] in ("weft-core", "weft-runtime"):
        assert not asked
    else:
        assert [r.specifier.contains(version) for r in asked] == [True] and {
            s.operator for s in asked[0].specifier
        } == {">=", "<"}


def test_entry_points_lead_somewhere(wheel: Wheel) -> None:
    plugins = {
        **wheel.project.get("entry-points", {}).get("weft.plugins", {}),
        **{k: v.partition(":")[0] for k, v in wheel.project.get("scripts", {}).items()},
    }
    assert plugins or wheel.project["name"] in LIBRARIES
    for module in plugins.values():
        assert f"{module.replace('.', '/')}.py" in wheel.names()


def test_whatever_it_imports_it_asks_for(wheel: Wheel) -> None:
    extras = wheel.project.get("optional-dependencies", {})
    asked = {canonicalize_name(n) for n in (wheel.project["name"], *(r.name for r in wheel.required(extras)))} | PEERS
    known = {**importlib.metadata.packages_distributions(), "weft": ["weft-core"]}
    known.setdefault("paddle", ["paddlepaddle"])  # not installed beside the tests
    own = {p.name for p in packages(wheel)}
    for folder in packages(wheel):
        for file in folder.rglob("*.py"):
            for name, line in imports(ast.parse(file.read_text())):
                if name not in own and name not in sys.stdlib_module_names:
                    distributions = {canonicalize_name(d) for d in known.get(name, [name])}
                    assert distributions & asked, (
                        f"{file.relative_to(ROOT)}:{line} imports {name}, which its wheel does not ask for"
                    )


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every package that is imported, and in which line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((a.name.split(".")[0], node.lineno) for a in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0], node.lineno


def test_links_of_a_description_lead_out_of_the_source_tree(wheel: Wheel) -> None:
    if ROOT / "examples" in wheel.folder.parents:
        return  # read in the repository, beside its files
    assert [
        t
        for t in re.findall(r"\]\(([^)]+)\)", (wheel.folder / "README.md").read_text())
        if not t.startswith(("https://", "#"))
    ] == []


def test_a_source_distribution_gives_the_same_wheel(wheel: Wheel, tmp_path: Path) -> None:
    """As pip builds from one: whatever the wheel needs is in it."""
    require("hatchling")
    built = []
    for folder, call in ((wheel.folder, "build_sdist"), (None, "build_wheel")):
        if folder is None:
            import tarfile

            with tarfile.open(tmp_path / built[0]) as archive:
                archive.extractall(
                    tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
                )  # from Python 3.11.4 on
            folder = tmp_path / built[0].removesuffix(".tar.gz")
        code = f"from hatchling.build import {call}; print({call}({str(tmp_path)!r}))"
        built.append(
            subprocess.run(
                [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
            ).stdout.split()[-1]
        )
    with zipfile.ZipFile(tmp_path / built[1]) as archive:
        assert sorted(archive.namelist()) == sorted(wheel.names())
