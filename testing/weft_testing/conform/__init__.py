"""The conformance kit: `weft conform --target T` proves a target, from levels of tests that come with this package.

Every level is a module of tests that pytest runs; they ask everything of the fixture `kit`, which knows the target.
`run` is the whole of it:

    report = run("npu", levels=(2, 3), quick=True)
    assert report.passed, report.summary()
"""

from weft_testing.conform.report import LEVELS, Report
from weft_testing.conform.session import run

__all__ = ["LEVELS", "Report", "run"]
