"""WEFT_DUMP writes stages as text; loop passes of plugins run where they say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import weft
from weft.errors import LoopError
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.hooks import hookimpl
from weft.loop.nodes import Program
from weft.loop.parser import parse_program
from weft.loop.pipeline import LoopPass, lower_program, ordered
from weft.plugins import host
from weft_ops import Add, Relu


def small() -> Graph:
    b = GraphBuilder("small")
    x = b.input("x", tensor_type("float32", (4, 8)))
    b.output(b.add(Relu(), b.add(Add(), x, x)), "y")
    return b.build()


def test_dump_writes_the_stages_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP", "fuse,schedule,vectorize_loops")
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path / "dump"))
    weft.compile(small(), "llvm", cache=False)
    names = sorted(p.name for p in (tmp_path / "dump").iterdir())
    assert [n.split("-")[1] for n in names] == ["fuse", "schedule", "vectorize_loops"]
    assert "program add_relu_" in (tmp_path / "dump" / names[1]).read_text()
    assert "ramp(" in (tmp_path / "dump" / names[2]).read_text()


def test_loop_pass_of_a_plugin_runs_after_its_stage() -> None:
    seen: list[str] = []

    def spy(program: Program) -> Program:
        seen.append(program.name)
        return program

    plugin = SimpleNamespace(loop_passes=hookimpl(lambda target: [LoopPass("spy", spy, after="flatten_buffers")]))
    host().register(plugin, "spy")
    try:
        weft.compile(small(), "llvm", cache=False)
    finally:
        host().unregister("spy")
    assert len(seen) == 1 and seen[0].startswith("add_relu_")


def test_loop_passes_keep_their_order() -> None:
    extra = [LoopPass("first", lambda p: p, "simplify"), LoopPass("second", lambda p: p, "simplify")]
    names = [s.name for s in ordered(extra)]
    assert names[names.index("simplify") : names.index("simplify") + 3] == ["simplify", "first", "second"]


def test_passes_that_follow_others_stay_together() -> None:
    """What follows the same stage comes behind all that the one before it brings along, which others of other plugins
    may follow."""
    rows = [("a", "simplify"), ("b", "a"), ("c", "b"), ("d", "simplify"), ("e", "d"), ("f", "a")]
    stages = ordered([LoopPass(name, lambda p: p, after, f"{name} holds") for name, after in rows])
    names = [s.name for s in stages]
    at = names.index("simplify") + 1
    assert names[at : at + 6] == ["a", "b", "c", "f", "d", "e"]
    assert [s.after for s in stages[at : at + 2]] == ["a holds", "b holds"]


def test_loop_passes_that_follow_nothing_come_first() -> None:
    extra = [LoopPass("first", lambda p: p, ""), LoopPass("second", lambda p: p, "")]
    assert [s.name for s in ordered(extra)][:3] == ["first", "second", ordered([])[0].name]


TWICE = "program twice(x: float32[4]) -> (y: float32[4]) { for i in 4 { y[i] = x[i]*2.0f32 } }"


def test_a_loop_pass_that_returns_none() -> None:
    def forgetful(program: Program) -> Any:
        return None

    with pytest.raises(LoopError) as caught:
        lower_program(parse_program(TWICE), frozenset(), extra=[LoopPass("forgetful", forgetful)])
    assert str(caught.value) == (
        "the loop pass 'forgetful' returned None, not a Program\n"
        "  hint: a pass returns the Program that it was given, or another"
    )


def test_loop_pass_with_an_unknown_place() -> None:
    with pytest.raises(LoopError) as caught:
        lower_program(None, frozenset(), extra=[LoopPass("mine", lambda p: p, after="flaten_buffers")])  # type: ignore[arg-type]
    assert (
        str(caught.value)
        == "the loop pass 'mine' runs after 'flaten_buffers', which does not exist\n  hint: did you mean"
        " 'flatten_buffers'?"
    )
