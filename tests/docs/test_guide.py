"""The plugin author's guide is true: every hook with its signature, public names only, what `weft plugin new` makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.test_docs import DOCS, FENCE

from weft.contributions import HOOKS
from weft_testing import public
from weft_testing.imports import imports_beyond

GUIDE = DOCS / "plugin-author-guide.md"
FENCED = re.compile(r"(?<=^```text hooks\n)(.*?)(?=^```$)", re.M | re.S)


def signatures() -> str:
    members = public.signature("weft.hooks", "Specifications")
    return "".join(
        f"{m.strip().replace('self, ', '').replace('self', '')}\n" for m in members if m.startswith("  def ")
    )


def test_every_hook_has_its_signature(request: pytest.FixtureRequest) -> None:
    text = GUIDE.read_text()
    if request.config.getoption("--update-golden"):
        GUIDE.write_text(FENCED.sub(lambda m: signatures(), text))
    shown = FENCED.search(GUIDE.read_text())
    assert shown is not None and shown[0] == signatures(), (
        "the guide's list of hooks is not that of weft/hooks.py: --update-golden, and read around it"
    )
    assert re.findall(r"^def (\w+)", shown[0], re.M) == list(HOOKS)


def test_every_hook_has_a_row() -> None:
    section = GUIDE.read_text().split("## Every hook")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(HOOKS)


def test_every_hook_has_an_example() -> None:
    code = "".join(m[3] for m in FENCE.finditer(GUIDE.read_text()) if m[1] == "python")
    assert set(re.findall(r"^@hookimpl\ndef (\w+)", code, re.M)) == {*HOOKS}


def test_it_sends_nobody_into_the_sources_of_the_core() -> None:
    text = re.sub(r"^```.*?^```$", "", GUIDE.read_text(), flags=re.M | re.S)
    places = re.findall(r"\bweft/[\w/]+\.py|\bcore/weft\b|[^`\n]*\bsources? of `?weft[^`\n]*", text)
    assert places == [], "what a reader needs of the core stands in the guide, or in what api.txt and help() say"


def test_names_in_its_text_are_public() -> None:
    text = re.sub(r"^```.*?^```$", "", GUIDE.read_text(), flags=re.M | re.S)
    known = {*public.api_entries(), *public.PUBLIC, "weft_testing.public"}
    assert [name for name in re.findall(r"\bweft(?:\.\w+)+", text) if name not in known] == []


def test_its_blocks_import_public_names_only(tmp_path: Path) -> None:
    blocks = [m for m in FENCE.finditer(GUIDE.read_text()) if m[1] == "python" and not m[2].startswith("in ")]
    assert len(blocks) > 20
    for number, m in enumerate(blocks):
        (tmp_path / f"block{number}.py").write_text(m[3])
    assert imports_beyond(tmp_path) == []


def test_every_fact_of_an_operator_has_a_row() -> None:
    from weft.graph.operator import Operator

    others = {
        "kind",
        "infer",
        "reference",
        "samples",
        "tolerance",
        "infer_checked",
        "inferred",
        "algorithms",
        "applies",
        "attributes",
    }
    facts = {n for n in {**vars(Operator), **Operator.__annotations__} if not n.startswith("_")} - others
    section = GUIDE.read_text().split("### Facts\n")[1].split("\n### ")[0]
    assert set(re.findall(r"^\| `(\w+)[^`]*` \|", section, re.M)) == facts
