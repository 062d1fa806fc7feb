"""The table of packages in docs/architecture.md: what each asks for, and how many lines of code it has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from tests.counting import code_lines

ROOT = Path(__file__).parents[1]
FILES = sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/**/pyproject.toml")])
MOST_OF_THE_CORE = 26_500
"""Lines of code that the core may have, so that it does not grow unnoticed; 25,000 is the goal. A commit that makes the
core shorter may lower it. One that needs more raises it, and its body says for what."""


def project(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(file.read_text())
    return found


def sources(file: Path) -> list[Path]:
    packages = project(file)["tool"]["hatch"]["build"]["targets"]["wheel"].get(
        "packages", ()
    )  # the meta package has none
    return sorted(f for package in packages for f in (file.parent / package).rglob("*.py"))


def lines(file: Path) -> int:
    return sum(code_lines(f.read_text()) for f in sources(file))


def asked(file: Path) -> list[str]:
    return [Requirement(r).name for r in project(file)["project"]["dependencies"]]


NAMES = {project(f)["project"]["name"]: f for f in FILES}


def row(file: Path) -> str:
    ours, others = [n for n in asked(file) if n in NAMES], [n for n in asked(file) if n not in NAMES]
    name, folder = project(file)["project"]["name"], file.parent.relative_to(ROOT)
    return f"| `{name}` | `{folder}` | {', '.join(ours)} | {', '.join(others)} | {round(lines(file), -2):,} |"


HOW = "pytest tests/test_packages.py --update-golden"


def test_the_table_of_packages(request: pytest.FixtureRequest) -> None:
    path = ROOT / "docs" / "architecture.md"
    head, rest = path.read_text().split("\n## Packages\n")
    section, tail = rest.split("\n## ", 1)
    rows = "\n".join(row(f) for f in FILES)
    table = re.search(r"(?<=\|---\|\n)(\|.*\|\n)+", section)
    assert table is not None
    if request.config.getoption("--update-golden"):
        section = section.replace(table[0], rows + "\n")
        path.write_text(f"{head}\n## Packages\n{section}\n## {tail}")
        return
    written = [line.rsplit("|", 2) for line in table[0].splitlines()]
    assert [w[0] for w in written] == [line.rsplit("|", 2)[0] for line in rows.splitlines()], HOW
    for (_, said, _), file in zip(written, FILES, strict=True):
        assert int(said.replace(",", "")) == pytest.approx(lines(file), rel=0.1, abs=200), f"{file}: {HOW}"


TEXT = '''"""A docstring
of two lines."""

import os  # a comment beside code

# a comment


class A:
    """One line."""

    x = """a string that is
    a value"""
    """What x is."""

    def f(
        self,

        y,  # between brackets
    ):
        return y; "a string behind code"
'''


def test_what_counts_as_code() -> None:
    assert code_lines(TEXT) == 9
    assert code_lines("") == code_lines("# nothing\n\n") == 0
    assert code_lines('"""Nothing."""\n') == 0 and code_lines("x = 1\n") == 1


@given(st.lists(st.sampled_from(["", "# a comment", '"""A docstring."""', '"""Of\n\ntwo."""', "    ", "    # in"])))
def test_words_about_code_do_not_count(between: list[str]) -> None:
    lines = ["x = (", "    1,", ")", "y = 2"]
    assert code_lines("\n".join([*lines[:3], *between, *lines[3:]])) == len(lines)


def test_the_core_is_no_longer_than_its_limit() -> None:
    assert lines(NAMES["weft-core"]) <= MOST_OF_THE_CORE


MAKERS = re.compile(
    r"\b(nvidia|cuda|ptx|wgmma|mbarrier|tma|cp\.async|tensor"
    r" maps?|amd|rocm|apple|metal|simdgroup|opencl|intel|gpus?)\b",
    re.I,
)
"""Makers of chips, their languages and instructions."""
MAY_NAME = {"aliases.py": "old names", "plugins.py": "which package to install for a target that is not there"}
"""Files of the core that may name them, and for what."""


def test_the_core_names_no_maker_of_chips() -> None:
    files = [f for f in sources(NAMES["weft-core"]) if f.name not in MAY_NAME]
    found = [
        f"{f}: {m[0]}"
        for f in files
        for m in MAKERS.finditer(f.read_text().replace("weft-gpu", "").replace("weft_gpu", ""))
    ]
    assert found == []
    assert MAKERS.search("as cp.async of sm_80") and not MAKERS.search("metallic, intelligence")
