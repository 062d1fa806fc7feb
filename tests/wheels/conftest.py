"""Wheels of every member and of what the guide's readers wrote; an environment of them and what they ask for, and
nothing else: no source tree, no network."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.alone.environment import Missing, link, run_pip
from tests.needs import lacks, require
from tests.wheels.distributions import OURS, ROOT, Wheel, build

FOLDERS = [*OURS, *sorted(p.parent for p in (ROOT / "tests" / "guide").glob("*/pyproject.toml"))]
"""Ours, which are published, and those of the guide's readers."""
EXTRAS = {"conform", "dtypes", "text"}
"""Of members, that the environment has."""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Wheel]:
    """A wheel of each by its distribution's name, built as a packager builds it."""
    require("hatchling")
    return build(FOLDERS, tmp_path_factory.mktemp("wheels"))


def link_here(asked: Iterable[Requirement], site: Path, own: set[str]) -> None:
    """As `link`; the test is skipped where this environment lacks one."""
    try:
        link(asked, site, own)
    except Missing as missing:
        lacks(str(missing), 'pip install ".[test]"')


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
    asked = [r for w in wheels.values() for r in w.required(EXTRAS)]
    link_here([*asked, Requirement("hatchling"), Requirement("pip")], site, own)
    run_pip(home, "--no-deps", "--no-index", *(str(w.file) for w in wheels.values()))
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
