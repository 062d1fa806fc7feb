"""docs/operators.md is what Weft answers: `python docs/site/operators.py --update` writes it."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from types import ModuleType
from typing import Any

import pytest
from tests.docs.test_docs import DOCS

PAGE = (DOCS / "operators.md").read_text()
ROWS = {row.split(" ")[1]: row for row in re.findall(r"^\| [A-Z]\w+ \| .*\|$", PAGE, re.M)}


@cache
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("weft_docs_operators", DOCS / "site" / "operators.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def asked() -> tuple[dict[str, Any], dict[str, list[Any]]]:
    kits = script().kits()
    return kits, script().cases(next(iter(kits.values())))


@pytest.mark.needs("jaxlib", "torch")  # their frontends register converters only where they are installed
def test_everything_but_what_targets_take() -> None:
    """The rows' operators, the text around them and the frontends' tables."""
    assert script().page(ROWS.values()) == PAGE
    assert list(ROWS) == list(asked()[1])


@pytest.mark.needs("c")
@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", list(ROWS))
def test_what_targets_take(name: str) -> None:
    kits, samples = asked()
    assert script().row(name, samples[name], kits) == ROWS[name]
