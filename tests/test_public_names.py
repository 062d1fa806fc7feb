"""The list of what plugins may import: it is true, docs/api.txt has all of it, changes since the last version are
noted, our own plugins keep to it."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import weft
from weft.aliases import ELSEWHERE, RENAMED
from weft.errors import PluginError
from weft_testing import public
from weft_testing.imports import imports_beyond

ROOT = Path(__file__).parents[1]
API = ROOT / "docs" / "api.txt"
NOTES = ROOT / "docs" / "api-changes.md"


def folders() -> list[Path]:
    """Plugins' sources: ours, the example's, those of the guide's readers."""
    found = [
        p.parent for p in sorted(ROOT.glob("plugins/**/__init__.py")) if not (p.parent.parent / "__init__.py").exists()
    ]
    found += sorted(p for p in ROOT.glob("examples/*/*") if (p / "__init__.py").exists())
    return [
        *found,
        *sorted(p.parent for p in ROOT.glob("tests/guide/*/pyproject.toml")),
        ROOT / "tests" / "mixed" / "board.py",
    ]


@pytest.mark.parametrize("module", public.PUBLIC)
def test_every_public_name_is_there(module: str) -> None:
    found = importlib.import_module(module)
    assert [n for n in public.public_names(module) if not hasattr(found, n)] == []


def test_the_face_of_weft_is_public() -> None:
    assert sorted(weft.__all__) == list(public.public_names("weft"))


def documented(tree: ast.Module) -> frozenset[str]:
    """Names that a module defines with a docstring: classes and functions with one of their own, other names with one
    in the next statement."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            found.add(node.name)
    for node, after in pairwise(tree.body):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
            found |= {e.id for t in targets for e in ast.walk(t) if isinstance(e, ast.Name)}
    return frozenset(found)


@cache
def documented_in(module: str) -> frozenset[str]:
    return documented(ast.parse(Path(importlib.import_module(module).__file__ or "").read_text(encoding="utf-8")))


@pytest.mark.parametrize("module", public.PUBLIC)
def test_every_public_name_has_a_docstring(module: str) -> None:
    names = [n for n in public.public_names(module) if n not in documented_in(public.home(module, n))]
    elsewhere = ["load"] if module == "weft_runtime" else []  # Executable.load, which has one
    assert names == elsewhere


def test_names_without_a_docstring_are_found() -> None:
    source = "A, B = 1, 2\n'Both.'\nC = 3\nD: int = 4\n'One.'\ndef f():\n    pass\nclass G:\n    'A class.'\n"
    assert documented(ast.parse(source)) == {"A", "B", "D", "G"}


def test_api_txt_is_what_weft_public_prints(request: pytest.FixtureRequest) -> None:
    text = "\n".join(public.api_lines()) + "\n"
    if request.config.getoption("--update-golden"):
        API.write_text(text)
    lines = difflib.unified_diff(
        API.read_text().splitlines(), text.splitlines(), "docs/api.txt", "weft_testing.public", lineterm="", n=0
    )
    told = "\n".join(lines)
    assert not told, f"docs/api.txt is stale: python -m weft_testing.public > docs/api.txt\n{told}"


def released() -> tuple[str, str]:
    """The last version and the digest of its list, as docs/api-changes.md has them."""
    found: list[tuple[str, str]] = re.findall(r"^## ([\d.]+) \(list (\w+)\)$", NOTES.read_text(), re.M)
    return found[0]


def list_of(version: str) -> Path:
    return ROOT / "docs" / f"api-{version}.txt"


def _today(text: str) -> str:
    """A text with the names that packages have now."""
    for old, new in (*ELSEWHERE.items(), *RENAMED.items()):
        text = text.replace(old, new)
    return text


def _declared(entries: dict[str, str], name: str) -> str | None:
    """The entry of the name in another module that a name stands for."""
    return entries.get(entries.get(name, "").partition(" = ")[2])


def test_nothing_changes_without_a_note() -> None:
    then, now = public.parse_api(list_of(released()[0]).read_text()), public.api_entries()
    to_come = NOTES.read_text().split("## To come")[1].split("\n## ")[0]
    then = {_today(name): _today(entry) for name, entry in then.items()}
    silent = [n for n in then if then[n] not in (now.get(n), _declared(now, n)) and f"`{n}`" not in to_come]
    told = [f"{name}\n  was: {then[name]}\n  is:  {now.get(name, 'gone')}" for name in silent]
    assert not told, (
        "public names have changed: note each in docs/api-changes.md, under 'To come', or leave it as it was\n"
        + "\n".join(told)
    )


def test_notes_are_about_names_that_are_public_or_were() -> None:
    then = public.parse_api(list_of(released()[0]).read_text())
    known = {*then, *map(_today, then), *public.api_entries(), *public.PUBLIC, *RENAMED}
    to_come = NOTES.read_text().split("## To come")[1].split("\n## ")[0]
    unknown = [name for name in re.findall(r"`(weft\w*(?:\.\w+)+)`", to_come) if name not in known]
    assert unknown == []


def test_the_list_of_a_version_stays_as_it_was() -> None:
    version, digest = released()
    assert hashlib.sha256(list_of(version).read_bytes()).hexdigest()[:12] == digest, (
        f"docs/api-{version}.txt is what version {version} had: restore it"
    )
    others = sorted(p.name for p in (ROOT / "docs").glob("api-*.txt"))
    assert others == [f"api-{version}.txt"], "docs has the list of the last version, and no other's"


def test_the_text_holds_every_entry() -> None:
    assert public.parse_api("\n".join(public.api_lines())) == public.api_entries()


def test_signatures_are_those_of_the_sources() -> None:
    assert public.signature("weft.scheduling.rule", "Offer") == [
        "class Offer",
        "  cost: float",
        "  note: str = ''",
        "  candidate: Schedule | None = field(default=None, compare=False)",
    ]
    assert public.signature("weft.scheduling", "Offer") == ["Offer = weft.scheduling.rule.Offer"]
    assert public.signature("weft", "load") == [
        "def load(model: Any, *, frontend: str | None=None, **options: Any) -> Graph"
    ]
    assert "  def schedules(self, target: Target) -> Sequence[Rule]" in public.signature("weft.hooks", "Specifications")
    assert public.signature("weft_ops", "Relu") == ["Relu = weft_ops.activation.Relu"]
    with pytest.raises(LookupError, match=r"'weft\.machine' does not define 'Nothing'"):
        public.signature("weft.machine", "Nothing")


@pytest.mark.parametrize("folder", folders(), ids=lambda p: str(p.relative_to(ROOT)))
def test_plugins_import_public_names_only(folder: Path) -> None:
    assert imports_beyond(folder) == []


def test_there_are_plugins_to_look_at() -> None:
    assert {"weft_llvm", "weft_onnx", "weft_darknet", "weft_npu", "weft-wave", "weft-tide"} <= {
        p.name for p in folders()
    }


def test_what_is_not_public_is_listed_with_what_is(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.py").write_text(
        "import weft, numpy\nimport weft.plugins\nimport weft_ops as o\nfrom weft import dtypes as dt\nfrom weft.expr"
        " import nodes as ex\nfrom weft.hooks import hookimpl, hookimp\nfrom weft.pipeline import compile\n\n\ndef f()"
        " -> None:\n    from weft.mixed import alone\n    from . import pipeline\n    print(weft.compile, weft.comple,"
        " weft.dtypes.float32, ex.Add, ex.Addd)\n    print(o.Relu, o.Rulu, dt.float32.bytes, pipeline.anything)\n"
    )
    assert imports_beyond(tmp_path) == [
        "inner/a.py:2: weft.plugins is not public",
        "inner/a.py:6: weft.hooks.hookimp is not public: did you mean weft.hooks.hookimpl?",
        "inner/a.py:7: weft.pipeline.compile is not public: use weft.compile",
        "inner/a.py:11: weft.mixed.alone is not public",
        "inner/a.py:13: weft.comple is not public: did you mean weft.compile?",
        "inner/a.py:13: weft.expr.nodes.Addd is not public: did you mean weft.expr.nodes.Add?",
        "inner/a.py:14: weft_ops.Rulu is not public: did you mean weft_ops.Relu?",
    ]
    assert imports_beyond(tmp_path / "inner" / "a.py")[0] == "a.py:2: weft.plugins is not public"


def test_packages_are_found_by_name() -> None:
    assert imports_beyond("weft_onnx") == []
    with pytest.raises(
        PluginError, match="no package 'weft_nothing'\n  hint: give the name that is imported, or a Path of sources"
    ):
        imports_beyond("weft_nothing")
    with pytest.raises(PluginError, match="no file or folder"):
        imports_beyond(ROOT / "nothing")
