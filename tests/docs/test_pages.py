"""Pages that list what the code has: every error and environment variable, and places that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.test_docs import DOCS

from weft import errors, settings
from weft.adaptive import AdaptiveWarning
from weft_runtime import settings as runtime_settings

ROOT = DOCS.parent
TROUBLE = (DOCS / "troubleshooting.md").read_text()


def test_every_error_has_its_row() -> None:
    classes = [c for c in map(errors.__dict__.get, errors.__all__) if isinstance(c, type) and c is not errors.WeftError]
    first = {name for row in re.findall(r"^\| (`.*?) \|", TROUBLE, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert {c.__name__ for c in [*classes, AdaptiveWarning]} == {n for n in first if n.endswith(("Error", "Warning"))}


def test_every_environment_variable_has_its_row() -> None:
    variables = {
        s.name
        for module in (settings, runtime_settings)
        for s in vars(module).values()
        if isinstance(s, runtime_settings.Setting)
    }
    rows = set(re.findall(r"^\| `(WEFT_\w+)` \|", TROUBLE, re.M))
    assert rows == variables


@pytest.mark.parametrize("page", ["contributing.md", "deploy.md", "versions.md"])
def test_places_exist(page: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(), flags=re.M | re.S)
    for place in re.findall(r"`((?:core|docs|plugins|runtime|testing|tests|ops)/[\w/.]+)`", text):
        assert (ROOT / place).exists(), place


def test_targets_of_the_page_on_deployment_resolve() -> None:
    from weft.resolve import resolve_target

    table = (DOCS / "deploy.md").read_text().split("| machine | target |")[1].split("\n\n")[0]
    targets = [t for row in re.findall(r"`([^`]+)` \|$", table, re.M) for t in row.split(", ")]
    assert len(targets) > 5
    for target in targets:
        resolve_target(target)


def test_every_page_is_listed() -> None:
    listed = (DOCS / "README.md").read_text()
    assert [p.name for p in sorted(DOCS.glob("*.md")) if f"]({p.name})" not in listed and p.name != "README.md"] == []


def test_guides_use_public_names(tmp_path: Path) -> None:
    from weft_testing.imports import imports_beyond

    for page in ("quickstart.md", "deploy.md", "dynamic-shapes.md", "quantised-models.md", "change-a-tile.md"):
        blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
        (tmp_path / f"{page.split('.')[0].replace('-', '_')}.py").write_text("\n".join(blocks))
    assert imports_beyond(tmp_path) == []
