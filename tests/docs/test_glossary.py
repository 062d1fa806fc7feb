"""The glossary: in order, a sentence and a link each, to a section that uses the term."""

from __future__ import annotations

import re

import pytest
from tests.docs.test_docs import DOCS, slug

GLOSSARY = DOCS / "glossary.md"
ENTRY = re.compile(
    r"^- \*\*(?P<term>.+?)\*\*(?: \([^)]+\))?: (?P<text>[^.]+(?:\.|…))"
    r" \[[^]]+\]\((?P<page>[\w-]+\.md)#(?P<heading>[\w-]+)\)$",
    re.M,
)
ENTRIES = list(ENTRY.finditer(GLOSSARY.read_text()))


def section(page: str, heading: str) -> str:
    """A section with those below it, without marks."""
    text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(), flags=re.M | re.S)
    parts = re.split(r"^(#+) (.*)$", text, flags=re.M)[1:]
    sections = list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))
    first = next(k for k, (_, title, _) in enumerate(sections) if slug(title) == heading)
    level = sections[first][0]
    found: list[str] = []
    for marks, title, body in sections[first:]:
        if found and len(marks) <= len(level):
            break
        found += [title, body]
    return re.sub(r"[`*]", "", " ".join(found)).replace("\n", " ")


def test_every_line_is_an_entry_and_in_order() -> None:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("-")]
    assert [line for line in lines if not ENTRY.fullmatch(line)] == [], (
        "- **term**: one sentence. [section](page.md#heading)"
    )
    terms = [entry["term"].lower() for entry in ENTRIES]
    assert len(terms) > 80
    assert terms == sorted(terms)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e["term"])
def test_a_term_is_used_where_its_entry_leads(entry: re.Match[str]) -> None:
    stem = re.sub(r"[ey]$", "", entry["term"])
    assert re.search(rf"\b{re.escape(stem)}", section(entry["page"], entry["heading"]), re.I), (
        f"that section does not use '{entry['term']}'"
    )


@pytest.mark.parametrize("page", ["README.md", "plugin-author-guide.md", "architecture.md"])
def test_pages_link_to_it(page: str) -> None:
    assert "](glossary.md)" in (DOCS / page).read_text()


def test_names_to_be_renamed_are_in_the_code() -> None:
    names = re.findall(r"^\| `(\w+)`", GLOSSARY.read_text().split("## Words that code still uses")[1], re.M)
    root = DOCS.parent
    code = "\n".join(
        p.read_text()
        for folder in ("core", "interpreter", "ops", "plugins", "runtime", "testing")
        for p in (root / folder).rglob("*.py")
    )
    assert names and [n for n in names if not re.search(rf"\b{n}\b", code)] == [], "renamed: take it off the list"
