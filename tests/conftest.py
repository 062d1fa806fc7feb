"""Options of the whole suite, and what every test shares: golden files and a cache of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.needs import require, summary

from weft_runtime.threads import available_threads

# No test asserts a time: on a busy machine any example may take long to make, or to run.
settings.register_profile("weft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weft")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="everything: tests marked 'full' and every case of the big suites"
    )
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


def pytest_configure(config: pytest.Config) -> None:
    # Tests neither trust nor fill the user's cache. Workers of xdist inherit the controller's.
    if not hasattr(config, "workerinput"):
        config.stash[_CACHE] = os.environ["WEFT_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-tests-")
        os.environ["WEFT_RECORDS"] = "none"
        os.environ["POCL_CACHE_DIR"] = os.path.join(
            config.stash[_CACHE], "pocl"
        )  # PoCL keeps what it has compiled, too
        os.environ.update(_zig_environment())  # one for all processes, where it cannot have its own


def _zig_environment() -> dict[str, str]:
    if importlib.util.find_spec("weft_c") is None:  # the tests of one package, installed alone: tests/alone
        return {}
    from weft_c.toolchain import zig_environment

    return zig_environment()


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_CACHE, None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


_CACHE = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    # The whole suite takes every processor; a part of it, named on the command line, starts at once in one process. -n
    # decides where it is given.
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if (
        whole
        and config.pluginmanager.hasplugin("xdist")
        and config.option.numprocesses is None
        and not hasattr(config, "workerinput")
    ):
        config.option.numprocesses = max(2, min(8, available_threads()))


FIRST = ("tests/alone/", "tests/wheels/", "tests/cli/test_plugin_new.py")
"""What installs packages takes a minute at a time: at the end one process would wait for it alone."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda i: not i.nodeid.startswith(FIRST))
    if config.getoption("--full"):
        return
    left_out = [i for i in items if i.get_closest_marker("full")] + not_chosen(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [i for i in items if id(i) not in gone]


def not_chosen(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of the cases of each test with a mark `one_in(n)`, those that are left to `--full`: one in n stays, by a hash of
    its name, and one of each test."""
    tests: dict[str, list[tuple[int, int, pytest.Item]]] = {}
    for i in items:
        mark = i.get_closest_marker("one_in")
        if mark is not None:
            test, _, case = i.nodeid.partition("[")
            tests.setdefault(test, []).append((zlib.crc32(case.encode()), mark.args[0], i))
    return [
        i
        for cases in tests.values()
        for hashed, n, i in cases
        if hashed % n and hashed != min(cases, key=lambda c: c[0])[0]
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before its fixtures, which may want what is not here."""
    for mark in item.iter_markers("needs"):
        require(*mark.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("skipped")
    line = summary(str(r.longrepr[2]) for r in reports if isinstance(r.longrepr, tuple))
    if line is not None:
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: text must be that of the file golden/<name>.txt beside the test; --update-golden writes
    it."""
    folder = Path(request.path).parent / "golden"

    def compare(name: str, text: str) -> None:
        file = folder / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            file.write_text(text)
            return
        assert file.is_file(), f"no {file.name}: write it with --update-golden and review it as code"
        assert text == file.read_text()

    return compare
