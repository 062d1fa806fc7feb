"""One package after the other: its wheel in an empty environment, and the tests about it."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from tests.alone.environment import Environment, Failed, Install, closure
from tests.alone.suites import SUITES
from tests.wheels.distributions import ROOT, Wheel

TOOLS = ("pytest>=8.2", "hypothesis>=6.100")


@dataclass(frozen=True)
class Row:
    """What was found of one package."""

    package: str
    wheel_bytes: int
    modules: int
    import_seconds: float
    passed: int
    skipped: int
    seconds: float

    def __str__(self) -> str:
        cells = (
            f"`{self.package}`", f"{self.wheel_bytes / 1000:.0f}", str(self.modules),
            f"{self.import_seconds * 1000:.0f}", str(self.passed), str(self.skipped), f"{self.seconds:.0f}",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


HEAD = """| package | wheel (kB) | modules imported | import (ms) | tests passed | skipped | seconds |
|---|---|---|---|---|---|---|"""


def copy_tests(into: Path) -> Path:
    """The tests, the pages that they read and pytest's settings, without any package: what is imported was
    installed."""
    into.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", into)
    ignored = shutil.ignore_patterns("__pycache__", "guide")
    shutil.copytree(ROOT / "tests", into / "tests", ignore=ignored)
    (into / "docs").mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, into / "docs")
    return into


def check(
    package: str, wheels: Mapping[str, Wheel], work: Path, copy: Path, install: Install, *, quick: bool, saved: Path
) -> Row:
    """Installs a package alone, imports all of it, and runs its tests.

    Args:
        work: where the environment is made.
        copy: what `copy_tests` made.
        quick: only the suite's quick tests.
        saved: a folder that `tests.runtime.saved` has filled.

    Raises:
        Failed: something could not be installed or imported, or a test failed.
        Missing: `install` links, and something to link is not in this environment.
    """
    suite, started = SUITES[package], time.perf_counter()
    environment = Environment.make(work / package, copy, package, wheels, install)
    modules = environment.import_every_module(suite.module, suite.without)
    seconds = environment.import_seconds(suite.module)
    ours = {w.project["name"]: w for t in suite.tools if t in wheels for w in closure(t, wheels)}
    others = [Requirement(t) for t in (*TOOLS, *(t for t in suite.tools if t not in wheels))]
    install(environment.home, list(ours.values()), others)
    words = ("-m", "pytest", "-p", "no:cacheprovider", *(suite.quick if quick else suite.tests))
    done = environment.python(*words, SAVED_MODELS=str(saved))
    said = f"the tests of {package}:\n{done.stdout[-8000:]}{done.stderr[-2000:]}"
    if done.returncode:  # pytest may have printed nothing to the standard output
        raise Failed(said)
    counts = {name: int(n) for n, name in re.findall(r"(\d+) (passed|skipped)", done.stdout.splitlines()[-1])}
    if not counts.get("passed"):
        raise Failed(said)
    return Row(
        package,
        wheels[package].file.stat().st_size,
        modules,
        seconds,
        counts["passed"],
        counts.get("skipped", 0),
        time.perf_counter() - started,
    )
