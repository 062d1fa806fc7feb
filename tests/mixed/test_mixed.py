"""Models on two targets: results, where nodes go, copies, and what is said when a target does not take a node."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.mixed import board as plugin

import weft
from weft.errors import CodegenError, GraphError, PluginError, ScheduleError, ScheduleWarning, UnsupportedError
from weft.expr.nodes import Expr, Var
from weft.graph.evaluate import evaluate
from weft.graph.layout import Layout, Permute, Split
from weft.graph.nodes import Graph, GraphBuilder, Node, Value, tensor_type
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.hooks import hookimpl
from weft.loop.nodes import Program, int_const
from weft.loop.parser import parse_program
from weft.loop.pipeline import LoopPass, lower_program
from weft.loop.queues import Queue
from weft.lower.offers import offer_by_rules
from weft.mixed import MixedCompilation
from weft.passes.capabilities import Capabilities, LayoutOffer
from weft.passes.pipeline import GraphPass
from weft.passes.place import Offers, Refuse, Take
from weft.plugins import host
from weft.resolve import resolve_target, resolve_targets
from weft.scheduling.intrinsic import Call, Intrinsic, Operand, meanings
from weft.scheduling.rule import Decline, Offer
from weft.scheduling.schedule import Schedule
from weft.scheduling.tree import blocks_in
from weft.target import Target
from weft.tensor import language as tl
from weft_interpreter.interpret import interpret
from weft_ops.activation import Relu
from weft_ops.arithmetic import Add, Multiply, Negative
from weft_ops.contraction import MatMul
from weft_ops.elementwise import FloatUnary
from weft_ops.normalization import Softmax
from weft_ops.precision import in_compute_dtype
from weft_runtime.plan import Copy, DeviceCall, Native
from weft_testing.cli.inspect import stages

pytestmark = pytest.mark.usefixtures("board")


def model(batch: object = 4) -> Graph:
    """relu(x·w) + b → softmax → ·v, with names."""
    rng = np.random.default_rng(0)
    g = GraphBuilder("net")
    x = g.input("x", tensor_type("float32", (batch, 8)))
    with g.named("dense"):
        y = g.add(MatMul(), x, g.constant(rng.random((8, 6), np.float32), "w"))
    with g.named("bias"):
        y = g.add(Add(), y, g.constant(rng.random(6, np.float32), "b"))
    with g.named("relu"):
        y = g.add(Relu(), y)
    with g.named("soft"):
        z = g.add(Softmax(), y)
    with g.named("last"):
        z = g.add(MatMul(), z, g.constant(rng.random((6, 3), np.float32), "v"))
    g.output(z, "z")
    g.output(y, "y")
    return g.build()


def kinds(exe: weft.Executable) -> list[str]:
    return [f"{s.value}>{s.target}" if isinstance(s, Copy) else s.kind for s in exe.manifest.steps]


def agrees(graph: Graph, exe: weft.Executable, rows: int = 4) -> None:
    x = np.random.default_rng(1).random((rows, 8), np.float32)
    for got, wanted in zip(exe.run({"x": x}).values(), evaluate(graph, [x])):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_nodes_go_where_they_are_taken() -> None:
    exe = weft.compile(model(), "board -ops=MatMul,Add,Relu, llvm", cache=False)
    assert kinds(exe) == ["x>board", "device", "y>host", "native", "softmax>board", "device", "z>host"]
    agrees(model(), exe)
    assert len(plugin.launched) == 2
    assert exe.manifest.devices == ("board",)


def test_everything_on_the_device() -> None:
    exe = weft.compile(model(), "board -ops=MatMul,Add,Relu,Softmax", cache=False)
    assert [k for k in kinds(exe) if ">" not in k] == ["device"]
    agrees(model(), exe)


def test_nothing_on_the_device() -> None:
    exe = weft.compile(model(), "board, llvm", cache=False)
    assert kinds(exe) == ["native"]
    agrees(model(), exe)
    assert not plugin.launched


def test_a_symbolic_batch() -> None:
    graph = model(Var("batch"))
    exe = weft.compile(graph, "board -ops=MatMul,Softmax, llvm", cache=False)
    assert {type(s) for s in exe.manifest.steps} == {Native, Copy, DeviceCall}
    for rows in (4, 1, 9):
        agrees(graph, exe, rows)


def test_an_input_that_only_tells_a_size_is_not_copied() -> None:
    from weft_ops.movement import BroadcastTo

    g = GraphBuilder("sized")
    x, picture = (
        g.input("x", tensor_type("float32", (1, 3))),
        g.input("picture", tensor_type("float32", (Var("n"), 1000))),
    )
    wide = g.add(BroadcastTo((Var("n"), 3)), x)
    g.output(g.add(Relu(), wide), "y")
    g.output(g.add(Relu(), picture), "z")
    exe = weft.compile(g.build(), "board -ops=BroadcastTo, llvm", cache=False)
    assert "picture>board" not in kinds(exe) and "x>board" in kinds(exe)
    a = np.array([[1, -2, 3]], np.float32)
    for n in (2, 0, 5):
        got = exe.run({"x": a, "picture": np.ones((n, 1000), np.float32)})["y"]
        np.testing.assert_array_equal(got, np.broadcast_to(np.maximum(a, 0), (n, 3)))


def test_a_constant_of_several_regions_is_held_once(tmp_path: Path) -> None:
    g = GraphBuilder("tied")
    x, w = (
        g.input("x", tensor_type("float32", (4, 64))),
        g.constant(np.random.default_rng(0).random((64, 64), np.float32), "w"),
    )
    y = g.add(Softmax(), g.add(MatMul(), x, w))
    g.output(g.add(Multiply(), g.add(Add(), y, g.constant(np.float32(2), "two")), g.add(MatMul(), y, w)), "z")
    graph = g.build()
    exe = weft.compile(graph, "board -ops=MatMul, llvm -threads=1", cache=False)
    assert [s.section for s in exe.manifest.steps if isinstance(s, DeviceCall)] == ["board0", "board2"]
    assert [c.shape for c in exe.manifest.constants].count((64, 64)) == 1
    exe.save(tmp_path / "m.weft")
    a = np.random.default_rng(1).random((4, 64), np.float32)
    for e in (exe, weft.Executable.load(tmp_path / "m.weft")):
        np.testing.assert_allclose(e(a), evaluate(graph, [a])[0], rtol=1e-4)


def test_stages_of_all_regions_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMP", "schedule,fuse")
    monkeypatch.setenv("WEFT_DUMP_DIR", str(tmp_path))
    weft.compile(model(), "board -ops=Softmax, llvm -threads=1")
    files = sorted(tmp_path.iterdir())
    assert [int(f.name[:4]) for f in files] == list(range(1, len(files) + 1))
    assert len([f for f in files if "-fuse-" in f.name]) == 3


def test_copies_that_cost_more_than_they_bring_are_not_made() -> None:
    # The rules of the board say no cost, so each of its nodes is free: only the copies count, against nothing.
    exe = weft.compile(model(), "board -ops=Relu -latency=100, llvm", cache=False)
    assert kinds(exe) == ["native"]


def test_strict_lists_every_node_with_its_reason() -> None:
    with pytest.raises(UnsupportedError) as caught:
        weft.compile(model(), "board -ops=MatMul,Add,Relu, llvm", cache=False, strict=True)
    text = str(caught.value)
    assert (
        text.startswith("1 of 5 nodes are not computed by 'board'\n  %softmax = Softmax(axis=-1)(%relu)  # soft\n")
        or "# soft" in text
    )
    assert "board: anything: the board has no Softmax [operator] [no_rule]" in text
    assert "hint: leave out strict" in text
    assert weft.compile(model(), "board -ops=MatMul,Add,Relu,Softmax, llvm", cache=False, strict=True)


def test_a_device_alone_that_does_not_take_all() -> None:
    with pytest.raises(
        UnsupportedError,
        match=(
            r'1 of 5 nodes are not computed by \'board\'(?s:.*)hint: name a target for the rest as well: "board, llvm"'
        ),
    ):
        weft.compile(model(), "board -ops=MatMul,Add,Relu", cache=False)


def test_a_host_before_a_device() -> None:
    with pytest.raises(
        UnsupportedError,
        match=(
            "target 'llvm' takes everything: what follows it has nothing to do\n  hint: name it last: \"board, llvm\""
        ),
    ):
        weft.compile(model(), "llvm, board", cache=False)


def test_outputs_that_are_inputs_constants_or_twice() -> None:
    g = GraphBuilder("odd")
    x = g.input("x", tensor_type("float32", (2, 2)))
    y = g.add(Relu(), x)
    for k, v in enumerate((x, y, y, g.constant(np.ones(3, np.float32), "c"))):
        g.output(v, f"o{k}")
    graph = g.build()
    exe = weft.compile(graph, "board -ops=Relu,Identity, llvm", cache=False)
    a = np.array([[1, -1], [2, -2]], np.float32)
    got = exe.run({"x": a})
    np.testing.assert_array_equal(got["o0"], a)
    np.testing.assert_array_equal(got["o1"], np.maximum(a, 0))
    np.testing.assert_array_equal(got["o2"], np.maximum(a, 0))
    np.testing.assert_array_equal(got["o3"], np.ones(3))


def test_an_input_called_like_an_output() -> None:
    g = GraphBuilder("same")
    x = g.input("x", tensor_type("float32", (2,)))
    g.output(g.add(Relu(), x), "x")
    with pytest.raises(GraphError, match="an input and an output are both called 'x'"):
        weft.compile(g.build(), "board -ops=Relu, llvm", cache=False)


def test_a_value_called_like_an_output() -> None:
    g = GraphBuilder("same")
    x = g.input("x", tensor_type("float32", (2,)))
    y = g.add(Relu(), x, name="z")
    g.output(g.add(Multiply(), y, y), "z")
    exe = weft.compile(g.build(), "board -ops=Relu, llvm", cache=False)
    np.testing.assert_array_equal(exe(np.array([2, -1], np.float32)), [4, 0])


def test_sizes_that_data_say_stay_with_the_host() -> None:
    from weft_ops.movement import Reshape

    g = GraphBuilder("sized")
    x = g.input("x", tensor_type("float32", (12,)))
    s = g.input("s", tensor_type("int64", (2,)))
    doubled = g.add(Add(), s, s)
    rows, columns = g.symbol(doubled, 0), g.symbol(doubled, 1)
    y = g.add(Reshape((rows, columns)), x)
    g.output(g.add(Relu(), y), "y")
    exe = weft.compile(g.build(), "board -ops=Add,Relu,Reshape, llvm", cache=False)
    a = np.arange(12, dtype=np.float32) - 6
    np.testing.assert_array_equal(exe.run({"x": a, "s": np.array([1, 3])})["y"], np.maximum(a, 0).reshape(2, 6))
    np.testing.assert_array_equal(exe.run({"x": a, "s": np.array([3, 1])})["y"], np.maximum(a, 0).reshape(6, 2))


def test_an_archive_runs_and_shows_its_plan(tmp_path: Path) -> None:
    exe = weft.compile(model(), "board -ops=MatMul,Add,Relu, llvm", cache=False)
    exe.save(tmp_path / "net.weft")
    again = weft.Executable.load(tmp_path / "net.weft")
    agrees(model(), again)
    assert "copy x from host to board" in again.plan


def test_without_costs_whatever_is_taken_is_there() -> None:
    compilation = MixedCompilation(
        resolve_targets("board -ops=Relu -latency=1000000, llvm"), cache=False, by_cost=False
    )
    agrees(model(), compilation.run(model()))
    assert compilation.placement is not None
    assert [p.target for p in compilation.placement.nodes if type(p.node.op).__name__ == "Relu"] == ["board"]


@pytest.mark.parametrize(
    ("target", "strict"),
    [("board -ops=Relu -latency=1000000", False), ("board -ops=Relu -latency=1000000, llvm", True)],
)
def test_costs_send_nothing_to_a_host_that_is_no_alternative(target: str, strict: bool) -> None:
    g = GraphBuilder("relu")
    g.output(g.add(Relu(), g.input("x", tensor_type("float32", (4, 8)))), "y")
    graph = g.build()
    exe = weft.compile(graph, target, strict=strict, cache=False)
    assert kinds(exe) == ["x>board", "device", "y>host"]
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    np.testing.assert_array_equal(exe.run({"x": x})["y"], np.maximum(x, 0))


@pytest.mark.parametrize(("size", "target"), [(16, "llvm"), (1024, "board")])
def test_a_way_that_takes_time_is_gone_for_what_takes_longer_on_the_host(size: int, target: str) -> None:
    g = GraphBuilder("product")
    a, b = (g.input(n, tensor_type("float32", (size, size))) for n in "ab")
    g.output(g.add(MatMul(), a, b), "c")
    compilation = MixedCompilation(resolve_targets("board -ops=MatMul -latency=20, llvm -threads=1"))
    compilation.place(g.build())
    assert compilation.placement is not None
    (placed,) = compilation.placement.nodes
    assert placed.target == target
    if target == "board":
        assert placed.refused == {}
    else:  # 2 of 1 KiB go there and 1 comes back; 2·16³ FLOP take microseconds here
        code, reason = placed.refused["board"]
        assert code == "cost"
        assert re.fullmatch(
            r"it would take 0 s there and 60 (ms|µs) more for copies, on 'llvm' it takes [\d.]+ [µn]s", reason
        )


def test_an_archive_without_native_code_is_for_any_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.errors import ArchiveError
    from weft_runtime import cpu_features

    g = GraphBuilder("relu")
    g.output(g.add(Relu(), g.input("x", tensor_type("float32", (2, 3)))), "y")
    for name, target in (("all", "board -ops=Relu"), ("part", "board, llvm")):
        weft.compile(g.build(), target, cache=False).save(tmp_path / name)
    monkeypatch.setattr(cpu_features, "machine", lambda: "riscv64")
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    np.testing.assert_array_equal(weft.Executable.load(tmp_path / "all")(x), np.maximum(x, 0))
    with pytest.raises(ArchiveError, match=r"holds code for \w+, this machine is riscv64"):
        weft.Executable.load(tmp_path / "part")


def test_what_rules_say_of_a_node() -> None:
    target = resolve_target("board -ops=MatMul,Softmax")
    product, add, softmax = (
        next(n for n in model().nodes if isinstance(n.op, kind)) for kind in (MatMul, Add, Softmax)
    )
    assert offer_by_rules(product, target.rules, target.machine, cost=2e-6) == Take((product,), 2e-6)
    refused = offer_by_rules(add, target.rules, target.machine)
    assert refused == Refuse(add, "no_rule", "anything: the board has no Add [operator]")
    assert offer_by_rules(softmax, target.rules, target.machine) == Refuse(
        softmax, "not_claimed", "the target does not claim this composite"
    )
    assert isinstance(offer_by_rules(softmax, target.rules, target.machine, claims={Softmax}), Take)


def test_what_a_code_generator_lacks_ends_a_compilation_for_it_alone_and_says_whose_work_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin.Text, "check", lambda self, program: ["more than 256 integer registers"])
    said = [
        "  more than 256 integer registers",
        (
            "  hint: the schedule of the rule that took it should leave none of these; a rule declines in `offer` what"
            " its schedules cannot make fit"
        ),
    ]
    for target, strict in (
        ("board -ops=MatMul,Add,Relu,Softmax", False),
        ("board -ops=MatMul,Add,Relu,Softmax, llvm", True),
    ):
        with pytest.raises(CodegenError) as caught:
            weft.compile(model(), target=target, strict=strict, cache=False)
        assert str(caught.value).splitlines()[1:] == said


def fails_on(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules of the board fail for products with a sum of so many terms, which its rule took."""

    def apply(self: object, schedule: Schedule) -> None:
        if any(
            int_const(i.extent) == size for b in blocks_in(schedule.program.body) for i in b.iters if i.kind == "reduce"
        ):
            raise ScheduleError("the tile does not fit", why=f"a sum of {size} terms")

    monkeypatch.setattr(plugin.Anything, "apply", apply)


def test_a_take_that_cannot_be_scheduled_goes_to_the_host_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other nodes of the region stay; the reason is in the placement, and a warning says it."""
    fails_on(6, monkeypatch)
    compilation = MixedCompilation(resolve_targets("board -ops=MatMul,Add, llvm -threads=1"), cache=False)
    with pytest.warns(
        ScheduleWarning,
        match=(
            r"1 nodes that 'board' took are left to other targets: no schedule rule takes program.*the tile does"
            r" not fit"
        ),
    ):
        exe = compilation.run(model())
    agrees(model(), exe)
    assert len(plugin.launched) == 1
    assert compilation.placement is not None
    went = [(type(p.node.op).__name__, p.target) for p in compilation.placement.nodes]
    assert went == [("MatMul", "board"), ("Add", "board"), ("Relu", "llvm"), ("Softmax", "llvm"), ("MatMul", "llvm")]
    code, reason = compilation.placement.nodes[-1].refused["board"]
    assert code == "unscheduled"
    assert reason.startswith("no schedule rule takes program") and reason.endswith(
        "anything: failed: the tile does not fit (a sum of 6 terms)"
    )
    assert "not board: no schedule rule takes program" in str(compilation.placement)


def test_what_is_taken_together_and_cannot_be_scheduled_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_on(8, monkeypatch)

    @hookimpl
    def offload(graph: Graph, target: Target) -> Offers | None:
        return (
            [Take(tuple(graph.nodes[:3])), Take((graph.nodes[4],)), Refuse(graph.nodes[3], "operator", "no")]
            if target.kind == "board"
            else None
        )

    monkeypatch.setattr(plugin, "offload", offload, raising=False)
    host().unregister("board")
    host().register(sys.modules[plugin.__name__], "board")
    compilation = MixedCompilation(resolve_targets("board -ops=MatMul,Add,Relu, llvm -threads=1"), cache=False)
    with pytest.warns(ScheduleWarning, match="are left to other targets"):
        agrees(model(), compilation.run(model()))
    assert compilation.placement is not None
    assert [p.target for p in compilation.placement.nodes] == ["llvm", "llvm", "llvm", "llvm", "board"]


def test_nothing_falls_back_under_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_on(6, monkeypatch)
    with pytest.raises(ScheduleError, match="the tile does not fit"):
        weft.compile(model(), "board -ops=MatMul,Add,Relu,Softmax, llvm", strict=True, cache=False)


@dataclass(frozen=True)
class Doubled(FloatUnary):
    """2·x, which no other target has a reason to know."""

    @in_compute_dtype
    def formula(self, *args: Expr) -> Expr:
        return args[0] + args[0]

    def value(self, *arrays: Any) -> Any:
        return arrays[0] + arrays[0]


def doubles(graph: Graph) -> Graph:
    """x + x of the board's own kind, and of relu(x) + relu(x) a Doubled and a Relu the other way round."""

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        if not isinstance(node.op, Add) or inputs[0] is not inputs[1] or inputs[0] is None:
            return None
        relu = r.producer(inputs[0], Relu)
        return r.add(Doubled(), inputs[0]) if relu is None else r.add(Relu(), r.add(Doubled(), relu.inputs[0]))

    return rewrite(graph, rule, rounds=1)


@pytest.mark.parametrize(
    ("ops", "placed"),
    [
        ("Doubled,Relu", {"Add": "board", "Relu": "board", "Negative": "llvm"}),
        ("Doubled,Negative", {"Add": "llvm", "Relu": "llvm", "Negative": "board"}),
        ("Add,Relu", {"Add": "llvm", "Relu": "llvm", "Negative": "llvm"}),
    ],
)
def test_offers_are_for_the_graph_after_the_targets_own_passes(
    ops: str, placed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pass of the target made one thing of is taken, or refused, as one thing; other targets get it as it
    was."""
    seen: list[list[str]] = []

    @hookimpl
    def graph_passes(target: Target) -> list[GraphPass]:
        return [GraphPass("doubles", doubles, after="eliminate_dead_code")] if target.kind == "board" else []

    @hookimpl
    def offload(graph: Graph, target: Target) -> Offers | None:
        if target.kind == "board":
            seen.append([type(n.op).__name__ for n in graph.nodes])
        return None

    monkeypatch.setattr(plugin, "graph_passes", graph_passes, raising=False)
    monkeypatch.setattr(plugin, "offload", offload, raising=False)
    host().unregister("board")
    host().register(sys.modules[plugin.__name__], "board")
    g = GraphBuilder("twice")
    x = g.add(Relu(), g.input("x", tensor_type("float32", (3, 4))))
    g.output(g.add(Negative(), g.add(Add(), x, x)), "y")
    graph = g.build()
    compilation = MixedCompilation(resolve_targets(f"board -ops={ops}, llvm -threads=1"), cache=False)
    exe = compilation.run(graph)
    assert seen == [["Doubled", "Relu", "Negative"]]
    assert compilation.placement is not None
    assert {type(p.node.op).__name__: p.target for p in compilation.placement.nodes} == placed
    whys = {type(p.node.op).__name__: p.refused["board"][1] for p in compilation.placement.nodes if p.refused}
    if ops == "Doubled,Negative":
        assert (
            whys["Add"]
            == whys["Relu"]
            == "after the target's passes, Relu %add: anything: the board has no Relu [operator]"
        )
    a = np.array([[-1, 2, -3, 4]] * 3, np.float32)
    np.testing.assert_array_equal(exe.run({"x": a})["y"], -2 * np.maximum(a, 0))


@pytest.mark.parametrize(("ops", "there"), [("MatMul,Relayout", True), ("MatMul", False)])
def test_an_operator_that_exists_in_blocks_only(ops: str, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is offered as it can be, laid out so in its region, and checked against the reference as any other; without a
    way to lay it out the host has it."""
    tiles = Layout((Split(0, 4), Split(2, 4), Permute((0, 2, 1, 3))))

    @hookimpl
    def capabilities(target: Target) -> Capabilities | None:
        layouts = {MatMul: lambda node: [LayoutOffer((tiles, tiles), (tiles,), only=True)]}
        return Capabilities(layouts=layouts) if target.kind == "board" else None

    def offer(self: plugin.Anything, program: Program, machine: object) -> Offer | Decline:
        names = [str(b.annotation("op")) for b in blocks_in(program.body)]
        if any(n not in self.ops for n in names):
            return Decline("operator", f"the board has no {names}")
        flat = "MatMul" in names and any(len(b.shape) != 4 for b in program.inputs)
        return Decline("rows", "the board knows blocks only") if flat else Offer(1.0)

    monkeypatch.setattr(plugin, "capabilities", capabilities, raising=False)
    monkeypatch.setattr(plugin.Anything, "offer", offer)
    host().unregister("board")
    host().register(sys.modules[plugin.__name__], "board")
    g = GraphBuilder("blocks")
    x, w = g.input("x", tensor_type("float32", (8, 12))), np.arange(96, dtype=np.float32).reshape(12, 8) % 7
    g.output(g.add(Negative(), g.add(MatMul(), x, g.constant(w, "w"))), "y")
    compilation = MixedCompilation(resolve_targets(f"board -ops={ops}, llvm -threads=1"), cache=False)
    with (
        nullcontext()
        if there
        else pytest.warns(ScheduleWarning, match="are left to other targets: no schedule rule takes program")
    ):
        exe = compilation.run(g.build())
    assert compilation.placement is not None
    product = compilation.placement.nodes[0]
    assert product.target == ("board" if there else "llvm")
    assert there or product.refused["board"][0] == "unscheduled"
    a = np.arange(96, dtype=np.float32).reshape(8, 12) % 11
    np.testing.assert_array_equal(exe.run({"x": a})["y"], -(a @ w))
    assert bool(plugin.launched) == there


def test_a_target_whose_instructions_have_queues_awaits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin adds nothing for it: the stage is there, behind partition_loops; without weft-queues it is missed."""
    a = tl.placeholder((4,), name="A")
    meaning = tl.compute((4,), lambda i: a[i], name="B")
    load = Intrinsic("load", meaning, (Operand("A"), Operand("B")), Call("load"), queue=Queue("dma"))

    @hookimpl
    def intrinsics(target: Target) -> list[Intrinsic]:
        return [load] if target.kind == "board" else []

    @hookimpl
    def loop_passes(target: Target) -> list[LoopPass]:
        return [LoopPass("own", lambda program: program, after="await_queues")] if target.kind == "board" else []

    assert "await_queues" not in stages(resolve_target("board"))
    monkeypatch.setattr(plugin, "intrinsics", intrinsics, raising=False)
    monkeypatch.setattr(plugin, "loop_passes", loop_passes, raising=False)
    host().unregister("board")
    host().register(sys.modules[plugin.__name__], "board")
    target = resolve_target("board")
    names = stages(target)
    at = names.index("partition_loops")
    assert names[at + 1 : at + 4] == ["await_queues", "own", "flatten_buffers"]
    program = parse_program("program p(x: float32[4]) -> (y: float32[4]) { @load(x[0], y[0]) }")
    lowered = lower_program(program, frozenset(), extra=target.loop_passes())
    assert "@begin_load(x[0], y[0])" in str(lowered) and "@await_dma(0)" in str(lowered)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(interpret(lowered, [x], intrinsics=meanings([load]))["y"], x)

    every = host().items
    monkeypatch.setattr(host(), "items", lambda hook, **a: [c for c in every(hook, **a) if c.plugin.name != "queues"])
    with pytest.raises(PluginError) as caught:
        target.loop_passes()
    assert str(caught.value) == (
        "the target 'board' has instructions of queues, and no loop pass awaits them\n  load\n"
        "  why: the pass 'await_queues' is of a package that is not in use\n  hint: pip install \"weft-queues\""
    )
