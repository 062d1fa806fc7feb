"""Wheels of every member and of what the guide's readers wrote; an environment of them and what they ask for, and
nothing else: no source tree, no network."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.needs import lacks, require

ROOT = Path(__file__).parents[2]
OURS = sorted(
    p.parent
    for part in ("runtime", "core", "ops", "testing", "meta", "plugins", "examples")
    for p in (ROOT / part).rglob("pyproject.toml")
)
FOLDERS = [*OURS, *sorted(p.parent for p in (ROOT / "tests" / "guide").glob("*/pyproject.toml"))]
"""Ours, which are published, and those of the guide's readers."""
EXTRAS = {"conform", "dtypes", "text"}
"""Of members, that the environment has."""


@dataclass(frozen=True)
class Wheel:
    """A distribution as it is published."""

    folder: Path
    file: Path

    @property
    def project(self) -> dict[str, Any]:
        project: dict[str, Any] = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]
        return project

    def names(self) -> list[str]:
        with zipfile.ZipFile(self.file) as archive:
            return archive.namelist()

    def text(self, ending: str) -> str:
        with zipfile.ZipFile(self.file) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(ending)]
            return archive.read(name).decode()

    @property
    def metadata(self) -> Message:
        return Parser().parsestr(self.text(".dist-info/METADATA"))

    @property
    def requirements(self) -> list[Requirement]:
        """Of this Python, on this machine, with the extras."""
        asked = [Requirement(r) for r in self.metadata.get_all("Requires-Dist") or ()]
        return [r for r in asked if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in ("", *EXTRAS))]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Wheel]:
    """A wheel of each by its distribution's name, built as a packager builds it."""
    require("hatchling")
    into = tmp_path_factory.mktemp("wheels")
    found = {}
    for folder in FOLDERS:
        code = f"from hatchling.build import build_wheel; print(build_wheel({str(into)!r}))"
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        wheel = Wheel(folder, into / done.stdout.split()[-1])
        found[wheel.project["name"]] = wheel
    return found


Run = Callable[..., str]


@pytest.fixture(scope="session")
def installed(wheels: dict[str, Wheel], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`installed("weft", "plugins")`: what a command prints in an environment of the wheels; it must end with `code`,
    by default 0.

    What the wheels ask for is linked from the environment of the tests, package by package: what a wheel imports and
    does not ask for is not there.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    own = {canonicalize_name(name) for name in wheels}
    link(
        [r for w in wheels.values() for r in w.requirements] + [Requirement("hatchling"), Requirement("pip")], site, own
    )
    pip("install", "--no-deps", *(str(w.file) for w in wheels.values()), python=home / "bin" / "python")
    nowhere = tmp_path_factory.mktemp("elsewhere")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env.update(PATH=f"{home / 'bin'}{os.pathsep}{env['PATH']}", WEFT_CACHE_DIR=str(home / "cache"), COLUMNS="160")

    def run(command: str, *words: str, cwd: Path = nowhere, code: int = 0) -> str:
        done = subprocess.run(
            [home / "bin" / command, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


def pip(*words: str, python: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        *words,
        "--quiet",
        "--no-index",
        "--disable-pip-version-check",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def link(asked: Iterable[Requirement], site: Path, own: set[str]) -> None:
    """Links distributions of this environment, and what they ask for, into a folder of packages."""
    seen: set[str] = set()
    queue = list(asked)
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in own | seen:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            lacks(str(requirement), 'pip install ".[test]"')
        assert requirement.specifier.contains(found.version, prereleases=True), (
            f"{name} {found.version} is here, {requirement} is asked for"
        )
        for top in {f.parts[0] for f in found.files or () if f.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
        needs = [Requirement(r) for r in found.requires or ()]
        queue += [
            r
            for r in needs
            if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in ("", *requirement.extras))
        ]
