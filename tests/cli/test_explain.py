"""`weft plugins --explain`: who contributes what to a target, who won, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.mixed import board
from tests.scheduling.test_tensorize import gemm

from weft.hooks import hookimpl
from weft.loop.pipeline import LoopPass
from weft.passes.capabilities import Capabilities
from weft.passes.pipeline import GraphPass
from weft.plugins import host
from weft.resolve import resolve_target
from weft.scheduling.rule import Decline, Rule
from weft_ops import Softmax
from weft_runtime.device import DeviceKind
from weft_testing.cli.explain import Choice, _together, explain

GEMM = gemm()


class Extra:
    """A plugin that adds to the board, which is another's."""

    class First(Rule):
        """Takes nothing."""

        name = "first"
        priority = 3

        def offer(self, program: Any, machine: Any) -> Decline:
            return Decline("never", "it takes nothing")

        def apply(self, schedule: Any) -> None: ...

    @hookimpl
    def schedules(self, target: Any) -> Sequence[Rule]:
        return [self.First()] if target.kind == "board" else []

    @hookimpl
    def graph_passes(self, target: Any) -> Sequence[GraphPass]:
        return (
            [GraphPass("drop", lambda g: g, after="decompose"), GraphPass("start", lambda g: g)]
            if target.kind == "board"
            else []
        )

    @hookimpl
    def loop_passes(self, target: Any) -> Sequence[LoopPass]:
        return [LoopPass("end", lambda p: p, after="expand_math")] if target.kind == "board" else []

    @hookimpl
    def capabilities(self, target: Any) -> Capabilities | None:
        return Capabilities(claims=frozenset(), channel_block=4) if target.kind == "board" else None

    @hookimpl
    def intrinsics(self, target: Any) -> Sequence[Any]:
        return [GEMM, replace(GEMM, name="wide", requires=("matrix unit",))] if target.kind == "board" else []


@pytest.fixture(autouse=True)
def plugins() -> Iterator[None]:
    host().register(board, "board")
    host().register(Extra(), "extra")
    yield
    host().unregister("extra")
    host().unregister("board")


def rows(target: str) -> dict[str, list[Choice]]:
    found: dict[str, list[Choice]] = {}
    for choice in explain(resolve_target(target)):
        found.setdefault(choice.what, []).append(choice)
    return found


def test_every_choice_is_shown() -> None:
    found = rows("board")
    assert list(found) == [
        "target", "machine", "capabilities", "graph passes", "offers of nodes", "schedule rules", "intrinsics",
        "loop passes", "code generator", "device",
    ]  # fmt: skip
    assert {c.by for choices in found.values() for c in choices} == {
        "weft-core",
        "weft-ops 0.1.0",
        "weft-tuning 0.1.0",
        "registered by hand",
    }


def test_passes_stand_where_they_run() -> None:
    found = rows("board")
    said = [(c.chosen, c.why) for c in found["graph passes"]]
    assert said[:8] == [
        ("start", "first"),
        ("fold_constants", "1 in the core's order"),
        ("fuse_quantization", "before decompose"),
        ("fold_batch_norm", "before decompose"),
        ("decompose", "1 in the core's order"),
        ("drop", "after decompose"),
        ("fold_decomposed", "before fold_constants_2"),
        ("simplify_algebra", "before fold_constants_2"),
    ]
    assert ("eliminate_common_subexpressions … eliminate_dead_code", "2 in the core's order") in said
    assert said[-1] == ("fuse", "1 in the core's order")
    assert [c.chosen for c in found["loop passes"]] == ["start_empty_reductions … expand_math", "end"]


def test_rules_stand_by_priority() -> None:
    assert [(c.chosen, c.why.split(":")[0]) for c in rows("board")["schedule rules"]] == [
        ("first", "the cheapest offer wins, then priority 3"), ("anything", "the cheapest offer wins, then priority 0"),
        ("searched", "only a record chooses it"),
    ]  # fmt: skip
    contraction = next(c for c in rows("llvm")["schedule rules"] if c.chosen == "contraction")
    assert contraction.why.startswith("the cheapest offer wins, then priority 10: ")


def test_intrinsics_that_the_machine_lacks_are_left_out() -> None:
    assert [(c.chosen, c.why) for c in rows("board")["intrinsics"]] == [
        (GEMM.name, "the machine has all that it requires"),
        ("(wide)", "left out: the machine has no matrix unit"),
    ]


def test_the_targets_own_plugin_says_what_passes_may_assume(monkeypatch: pytest.MonkeyPatch) -> None:
    (choice,) = rows("board")["capabilities"]
    assert (choice.chosen, choice.why) == ("0 composites whole, channels in blocks of 4", "the only answer")

    class Own:
        @hookimpl
        def capabilities(self, target: Any) -> Capabilities | None:
            return Capabilities(claims=frozenset({Softmax})) if target.kind == "board" else None

    host().unregister("board")
    owner = type(
        "Owner", (Own,), {"targets": staticmethod(board.targets), "schedules": staticmethod(board.schedules)}
    )()
    host().register(owner, "z-board")
    try:
        (choice,) = rows("board")["capabilities"]
        assert (choice.chosen, choice.why) == ("1 composites whole", "the target is its own; not registered by hand")
        assert resolve_target("board").capabilities.claims == {Softmax}
    finally:
        host().unregister("z-board")
        host().register(board, "board")


def test_a_device_that_is_not_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(c.chosen, c.why) for c in rows("board")["device"]] == [("board", "it is here")]

    class Twin:
        @hookimpl
        def devices(self) -> Sequence[DeviceKind]:
            return [DeviceKind("board", lambda: None, board.Interpreter)]

    host().register(Twin(), "twin")
    try:
        (choice,) = rows("board")["device"]
    finally:
        host().unregister("twin")
    assert (
        choice.chosen == "(board)"
        and choice.why
        == "the device 'board' is claimed by plugin 'board' (registered by hand) and plugin 'twin' (registered by"
        " hand): nothing says which of them is meant, and the order of plugins decides nothing; unregister 'board'"
        " or unregister 'twin'"
    )


def test_a_part_that_fails_is_a_row_and_the_rest_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board.Board, "machine", lambda self, target: 1 // 0)
    found = rows("board")
    assert [c.chosen for c in found["machine"]] == ["failed"] and "ZeroDivisionError" in found["machine"][0].why
    assert found["device"][0].chosen == "board"


def test_the_command(weft: Callable[..., Any]) -> None:
    result = weft("plugins", "--explain", "board -ops=Relu, llvm")
    assert result == weft("explain", "board -ops=Relu, llvm")
    assert result.code == 0, result.err
    for text in (
        "board -ops=Relu, preferred 1 of 2",
        "preferred 2 of 2",
        "winograd",
        "start_empty_reductions … expand_math",
        "plugins are in use",
    ):
        assert text in result.out
    assert (
        weft("plugins", "--explain", "bord").err
        == weft("explain", "bord").err
        == "TargetError: unknown target 'bord'\n  bord\n  hint: did you mean 'board'?\n"
    )


def test_health_stands_below(weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = host().plugins[0].__class__("bad", "weft-bad", "2.0", ">=9", "weft_bad", failure="needs weft>=9")
    noted = host().plugins[0].__class__("odd", "weft-odd", "1.0", "", "weft_odd", notes=["it implements no hook"])
    monkeypatch.setattr(host(), "plugins", [*host().plugins, broken, noted])
    out = weft("plugins", "--explain", "board").out
    assert "weft-bad 2.0 (weft_bad) is out of use: needs weft>=9" in out
    assert "weft-odd: it implements no hook" in out


def test_many_intrinsics_of_one_kind_are_one_row() -> None:
    many = [Choice("intrinsics", f"axpy{k}", "weft-wave", "all that it requires") for k in range(60)]
    few = [Choice("intrinsics", f"(gemm{k})", "weft-wave", "left out") for k in range(2)]
    assert _together([*many, *few]) == [
        Choice(
            "intrinsics", "axpy0, axpy1, axpy2, axpy3, axpy4, … axpy59: 60 in all", "weft-wave", "all that it requires"
        ),
        *few,
    ]
