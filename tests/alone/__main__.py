"""`python -m tests.alone [package ...]`: builds the wheels of Weft's packages, installs each alone with its declared
dependencies, runs the tests that `tests/alone/suites.py` names, and prints a table.

Dependencies come from the package index, as pip is configured; with --linked, from the environment of this process.
Needs an environment in which all of Weft is installed: requirements-dev.txt.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.alone.check import HEAD, check, copy_tests
from tests.alone.environment import Failed, Missing, from_index, linked
from tests.alone.suites import SUITES
from tests.runtime.saved import save_models
from tests.wheels.distributions import PACKAGES, build


def main() -> int:
    """1 if something of a package failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.alone", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="package", choices=[[], *SUITES], help=", ".join(SUITES))
    parser.add_argument("--linked", action="store_true", help="link dependencies from this environment: no network")
    parser.add_argument("--quick", action="store_true", help="a few tests of each package")
    options = parser.parse_args()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="weft-alone-") as folder:
        work = Path(folder)
        for name in ("wheels", "saved"):
            (work / name).mkdir()
        wheels = build(PACKAGES, work / "wheels")
        copy = copy_tests(work / "copy")
        save_models(work / "saved")
        install = linked if options.linked else from_index
        print(HEAD, flush=True)
        for name in options.packages or SUITES:
            try:
                row = check(name, wheels, work, copy, install, quick=options.quick, saved=work / "saved")
                print(row, flush=True)
            except Missing as error:
                failures.append(name)
                print(f"FAILED: {name}\nthis environment lacks {error}", file=sys.stderr, flush=True)
            except Failed as error:
                failures.append(name)
                print(f"FAILED: {name}\n{error}", file=sys.stderr, flush=True)
    if failures:
        print(f"failed: {', '.join(failures)}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
