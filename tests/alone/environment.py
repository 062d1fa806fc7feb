"""An environment of one package, installed with its declared dependencies and nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.wheels.distributions import Wheel


class Failed(Exception):
    """A command did not end with 0; the message is what it printed."""


class Missing(Exception):
    """A distribution that should be linked is not in this environment; the arguments are its requirement."""


Install = Callable[[Path, Sequence[Wheel], Sequence[Requirement]], None]
"""Installs wheels, and requirements that are no packages of Weft, into the environment in a folder."""


def closure(name: str, wheels: Mapping[str, Wheel]) -> list[Wheel]:
    """The wheel of a package and, transitively, those of Weft's packages that it declares."""
    found: dict[str, Wheel] = {}
    queue = [name]
    while queue:
        one = queue.pop()
        if one not in found:
            found[one] = wheels[one]
            queue += [r.name for r in wheels[one].required() if r.name in wheels]
    return list(found.values())


def from_index(home: Path, wheels: Sequence[Wheel], others: Sequence[Requirement]) -> None:
    """Installs with pip: the wheels from their files, the rest from the package index.

    The wheels are named one by one: a distribution of the same name on the index is never taken for one of them.
    """
    run_pip(home, *(str(w.file) for w in wheels), *map(str, others))


def linked(home: Path, wheels: Sequence[Wheel], others: Sequence[Requirement]) -> None:
    """Installs the wheels with pip, and links the rest from the environment of this process: needs no network.

    Raises:
        Missing: this environment does not have one.
    """
    (site,) = home.glob("lib/python*/site-packages")
    own = {canonicalize_name(w.project["name"]) for w in wheels}
    link([*others, *(r for w in wheels for r in w.required())], site, own)
    if wheels:
        run_pip(home, "--no-deps", "--no-index", *(str(w.file) for w in wheels))


def link(asked: Iterable[Requirement], site: Path, own: set[str]) -> None:
    """Links distributions of this environment, and what they ask for, into a folder of packages.

    Args:
        own: canonical names that are left out.

    Raises:
        Missing: this environment does not have one.
    """
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
            raise Missing(str(requirement)) from None
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


def run_pip(home: Path, *words: str) -> None:
    """`pip install` into the environment in a folder.

    Raises:
        Failed: pip did.
    """
    python = str(home / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise Failed(done.stdout + done.stderr)


@dataclass(frozen=True)
class Environment:
    """The environment in a folder. Commands run in `cwd`, without any variable that leads to another environment, or
    that makes a test fail for what is not here: one package lacks the others on purpose."""

    home: Path
    cwd: Path

    @classmethod
    def make(cls, home: Path, cwd: Path, name: str, wheels: Mapping[str, Wheel], install: Install) -> Environment:
        """With one package and what it declares."""
        venv.create(home, with_pip=False, symlinks=True)
        cwd.mkdir(parents=True, exist_ok=True)
        install(home, closure(name, wheels), [])
        return cls(home, cwd)

    def python(self, *words: str, timeout: float = 3600, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs Python with these words."""
        env = {
            k: v for k, v in os.environ.items() if k != "CI" and not k.startswith(("PYTHON", "VIRTUAL_ENV", "WEFT_"))
        }
        env.update(PATH=f"{self.home / 'bin'}{os.pathsep}{env['PATH']}", WEFT_CACHE_DIR=str(self.home / "cache"))
        env.update(variables)
        command = [str(self.home / "bin" / "python"), *words]
        return subprocess.run(command, cwd=self.cwd, env=env, capture_output=True, text=True, timeout=timeout)

    def printed(self, code: str, *words: str) -> str:
        """What a program prints.

        Raises:
            Failed: it does not end with 0.
        """
        done = self.python("-c", code, *words)
        if done.returncode:
            raise Failed(done.stdout + done.stderr)
        return done.stdout

    def import_seconds(self, module: str) -> float:
        """Processor time of the import, the least of five processes."""
        code = f"import time; s = time.process_time(); import {module}; print(time.process_time() - s)"
        return min(float(self.printed(code)) for _ in range(5))

    def import_every_module(self, package: str, without: Sequence[str] = ()) -> int:
        """Imports all modules of a package; the number of them.

        Args:
            without: names of modules that need what the package does not declare.

        Raises:
            Failed: one cannot be imported, or comes from elsewhere.
        """
        return int(self.printed(EVERY_MODULE, package, *without))


EVERY_MODULE = """
import importlib, pkgutil, sys
package, *without = sys.argv[1:]
top = importlib.import_module(package)
assert top.__file__.startswith(sys.prefix), top.__file__
names = [m.name for m in pkgutil.walk_packages(top.__path__, package + ".")]
names = [n for n in names if n not in without and not n.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(1 + len(names))
"""
