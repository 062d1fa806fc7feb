"""The distributions of this repository, and wheels of them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    p.parent
    for part in ("runtime", "core", "interpreter", "ops", "testing", "remote", "tuning", "training", "meta", "plugins")
    for p in (ROOT / part).rglob("pyproject.toml")
)
"""The folders of the packages of Weft."""
OURS = [*PACKAGES, *sorted(p.parent for p in (ROOT / "examples").rglob("pyproject.toml"))]
"""With the examples: what is published."""


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

    def required(self, extras: Iterable[str] = ()) -> list[Requirement]:
        """What it asks for on this machine, with these extras."""
        asked = [Requirement(r) for r in self.metadata.get_all("Requires-Dist") or ()]
        return [r for r in asked if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in ("", *extras))]


def build(folders: Iterable[Path], into: Path) -> dict[str, Wheel]:
    """A wheel of each by its distribution's name, built as a packager builds it."""
    found = {}
    for folder in folders:
        code = f"from hatchling.build import build_wheel; print(build_wheel({str(into)!r}))"
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        wheel = Wheel(folder, into / done.stdout.split()[-1])
        found[wheel.project["name"]] = wheel
    return found
