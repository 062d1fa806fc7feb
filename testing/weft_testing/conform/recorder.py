"""A plugin of pytest that makes the cases of a target, listens to results, and prints nothing of pytest's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from weft.errors import PluginError, WeftError
from weft_testing.conform.kit import Disagreement, Kit
from weft_testing.conform.report import LEVELS, Outcome, Report, Result

_running: list[Kit] = []


@pytest.fixture(scope="session")
def kit() -> Kit:
    """The target under test."""
    return _running[-1]


class Recorder:
    """The plugin of pytest: one for each run."""

    def __init__(
        self, kit: Kit, report: Report, on_result: Callable[[Result, int, int], None] | None, traceback: bool = False
    ) -> None:
        self.kit, self.report, self.on_result, self.traceback = kit, report, on_result, traceback
        _running[:] = [kit]
        self.total = 0
        self.broken: WeftError | None = None
        self.messages: dict[str, str] = {}
        self.levels = {name: n for n, (name, _) in LEVELS.items()}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            config.pluginmanager.unregister(reporter)
        config.pluginmanager.register(sys.modules[__name__], "weft-conform-fixtures")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name in metafunc.fixturenames:
            if name != "kit" and name in self.kit.tables:
                cases = self.kit.tables[name](metafunc.module.__name__.rpartition(".")[2])
                metafunc.parametrize(name, list(cases.values()), ids=list(cases))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.kit.ledger.level = self.levels[item.path.stem]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.total = len(session.items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.broken is None:
            self.broken = PluginError(
                f"{self.report.subject}: the cases of a level cannot be made",
                where=str(report.nodeid),
                why=str(report.longrepr)[-2000:],
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        setup_trouble = report.when == "setup" and not report.passed
        if report.when != "call" and not setup_trouble:
            return
        path, _, name = report.nodeid.rpartition("::")
        check, _, subject = name.partition("[")
        level = self.levels[Path(path).stem]
        outcome, message = self._outcome(report)
        result = Result(
            level, check.removeprefix("test_"), subject.removesuffix("]"), outcome, message, report.duration
        )
        self.report.results.append(result)
        if self.on_result is not None:
            self.on_result(result, len(self.report.results), self.total)

    def _outcome(self, report: pytest.TestReport) -> tuple[Outcome, str]:
        if report.passed:
            return "passed", ""
        if report.skipped:
            reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = reason.removeprefix("Skipped: ")
            if reason.startswith("got empty parameter set"):
                reason = "the target has none"
            declined = reason.startswith("declined: ")
            return ("declined", reason.removeprefix("declined: ")) if declined else ("skipped", reason)
        return "failed", f"{self.report.subject}: {self.messages.pop(report.nodeid, str(report.longrepr))}"

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        """Keeps what an exception says; where one that nobody expected came from belongs to it."""
        if call.excinfo is None:
            return
        error, last = call.excinfo.value, call.excinfo.traceback[-1]
        text = f"{error}" if isinstance(error, Disagreement) else f"{type(error).__name__}: {error}"
        expected = isinstance(error, (Disagreement, WeftError))
        self.messages[item.nodeid] = text if expected else f"{text}\nraised at {last.path}:{last.lineno + 1}"
        if self.traceback and not isinstance(error, Disagreement):
            self.messages[item.nodeid] += "\n" + "".join(format_exception(error)).rstrip()
