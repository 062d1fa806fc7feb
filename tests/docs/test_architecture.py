"""architecture.md is true: it names every hook, stage, pass, primitive and module, and its walk is what the compiler
prints."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def page() -> str:
    return (DOCS / "architecture.md").read_text()


@cache
def walk() -> ModuleType:
    spec = importlib.util.spec_from_file_location("weft_docs_walk", DOCS / "walk.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lacking(names: list[str], text: str) -> list[str]:
    return [n for n in names if not re.search(rf"(?<![\w.]){re.escape(n)}(?!\w)", text)]


def test_every_hook_has_a_row_with_its_arguments() -> None:
    from weft.hooks import Specifications

    for name, function in vars(Specifications).items():
        if not name.startswith("_"):
            arguments = ", ".join(function.__code__.co_varnames[1 : function.__code__.co_argcount])
            assert f"| `{name}({arguments})` |" in page()


def test_every_pass_is_mentioned() -> None:
    from tests.passes.library import stage_names

    from weft.loop.pipeline import STAGES

    assert lacking([f"`{n}`" for n in stage_names()], page()) == []
    loop = [s.name for s in STAGES]
    rows = re.findall(r"^\| `(\w+)(?:\(\w+\))?` \|", page().split("Loop passes (")[1].split("## ")[0], re.M)
    assert rows == loop, "the table of loop passes has their order"


def test_every_primitive_is_mentioned() -> None:
    from weft.scheduling.primitives import PRIMITIVES

    assert lacking([f"s.{n}(" for n in PRIMITIVES], page()) == []


def test_every_rule_of_llvm_has_its_priority() -> None:
    from weft_llvm.schedules import rules

    for rule in rules():
        assert f"| `{rule.name}` | {rule.priority} |" in page()


def test_every_part_of_the_core_is_mentioned() -> None:
    import weft

    # Not yet in the text by name: what a user of the architecture does not meet.
    left_out = {"core_plugin"}
    names = [m.name for m in pkgutil.iter_modules(weft.__path__) if m.name not in left_out]
    assert lacking(names, page()) == []


def test_the_context_has_these_fields_in_this_order() -> None:
    from weft_runtime.abi import Context

    text = page().split("## Kernel ABI")[1].split("## ")[0]
    found: dict[str, int] = {}
    for number, name in re.findall(r"(\d+)(?: … \d+)? +([a-z_]+)\*{0,2}(?=\s)", text):
        found.setdefault(name, int(number))
    assert {n: found.get(n) for n, *_ in Context._fields_} == {
        n: getattr(Context, n).offset // 8 for n, *_ in Context._fields_
    }


def test_every_node_is_in_a_grammar() -> None:
    import weft.expr.nodes as expr
    import weft.loop.nodes as loop

    binary = [c.__name__ for c in expr.Binary.__subclasses__()]
    others = [
        c.__name__
        for c in expr.Expr.__subclasses__()
        if c.__module__ in (expr.__name__, loop.__name__) and c is not expr.Binary
    ]
    statements = [c.__name__ for c in loop.Stmt.__subclasses__()]
    assert lacking(binary + others + statements, page()) == []


@pytest.fixture(scope="module")
def pieces() -> dict[str, str]:
    found: dict[str, str] = walk().pieces()
    return found


def test_the_walk_shows_every_piece(pieces: dict[str, str]) -> None:
    assert list(walk().shown(page())) == list(pieces)


def test_the_walk_is_what_the_compiler_prints(pieces: dict[str, str], request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        walk().PAGE.write_text(walk().update(page(), pieces))
    shown = walk().shown(page())
    for name in pieces.keys() - {"assembly"}:  # LLVM's part depends on its version
        assert shown[name] == pieces[name], (
            f"the piece '{name}' has changed: python docs/walk.py --update, and read what the page says around it"
        )


def test_the_inner_loop_holds_the_tile_in_registers(pieces: dict[str, str]) -> None:
    for text in (walk().shown(page())["assembly"], pieces["assembly"]):
        assert text.count("vfmadd") == 10
        assert "%rsp" not in text, "a register was spilled"
