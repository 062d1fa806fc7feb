"""Records: choices given from outside are followed, are part of cache keys, and are refused with a reason where they
cannot be followed."""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.nests import matmul

import weft
from weft.choices import Choices
from weft.compilation import Compilation, Kernel
from weft.errors import ChoiceError, InputError, PluginError, ScheduleWarning
from weft.graph.evaluate import evaluate
from weft.graph.group import Group
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.hooks import hookimpl
from weft.kernel_cache import KernelCache
from weft.loading import load
from weft.machine import Machine
from weft.passes.choose_layouts import choose_layouts
from weft.passes.fold_constants import Budget
from weft.passes.pipeline import GraphPass
from weft.pipeline import model_key
from weft.plugins import host
from weft.records import MOST_CHOICES, Record, Records, graph_key, group_key, machine_key, program_key
from weft.resolve import resolve_targets
from weft.scheduling.rule import Decline, Rule
from weft.scheduling.schedule import Schedule
from weft_ops import Add, Conv, MatMul, Relu, Sqrt

TARGET = "llvm -mcpu=x86-64-v3 -threads=1"
KEY, MACHINE = "0" * 32, "llvm-" + "0" * 12


def product() -> Graph:
    b = GraphBuilder("product")
    x, w = b.input("x", tensor_type("float32", (24, 32))), b.input("w", tensor_type("float32", (32, 48)))
    b.output(b.add(MatMul(), x, w), "y")
    return b.build()


def kernel(records: Records | None = None, target: str = TARGET) -> tuple[Compilation, Kernel, str]:
    """The one kernel of `product`, scheduled, and its key in the cache."""
    (resolved,) = resolve_targets(target, records=records)
    compilation = Compilation(resolved, cache=False)
    (node,) = [n for n in compilation.optimize(product()).nodes if isinstance(n.op, Group) and not n.op.view]
    key, found = compilation._kernel(node, KernelCache(resolved.fingerprint, enabled=False))
    compilation.schedule(found)
    return compilation, found, key


def record(**choices: Any) -> Records:
    """Of the kernel of `product`."""
    compilation, found, _ = kernel()
    return Records((Record("program", program_key(found.naive), compilation.target.machine_key, choices),))


def test_a_record_changes_the_tile() -> None:
    """It is seen among the choices and in the program, the key is another one, and the numbers stay right."""
    _, before, key = kernel()
    default = {c.name: c.value for c in before.choices}["tile_rows"]
    records = record(tile_rows=default - 1)
    _, after, other = kernel(records)
    (choice,) = [c for c in after.choices if c.name == "tile_rows"]
    assert (choice.value, choice.default, choice.recorded) == (default - 1, default, True)
    assert str(choice) == f"tile_rows = {default - 1} (recorded; default {default})"
    assert not after.refused and key != other and before.name != after.name
    assert str(after.scheduled).replace(after.name, before.name) != str(before.scheduled)
    x, w = (np.random.default_rng(k).standard_normal(s, np.float32) for k, s in enumerate([(24, 32), (32, 48)]))
    got = weft.compile(product(), "llvm -threads=1", cache=False, records=records_here(tile_rows=2)).run(
        {"x": x, "w": w}
    )["y"]
    np.testing.assert_allclose(got, x @ w, rtol=1e-4, atol=1e-4)


def records_here(**choices: Any) -> Records:
    compilation, found, _ = kernel(target="llvm -threads=1")
    return Records((Record("program", program_key(found.naive), compilation.target.machine_key, choices),))


def test_the_rule_is_a_choice() -> None:
    assert kernel()[1].rule == "contraction"
    found = kernel(record(rule="fallback"))[1]
    assert found.rule == "fallback" and found.choices[0].recorded and found.choices[0].default == "contraction"


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"tile_rows": 1000}, r"choice 'tile_rows' cannot be 1000; the options are 1, 2, 3"),
        ({"tile_rows": True}, r"choice 'tile_rows' cannot be True"),
        ({"tile_row": 2}, r"rule 'contraction' has no choice 'tile_row' here; did you mean 'tile_rows'\?"),
        ({"rule": "lost"}, r"choice 'rule' cannot be 'lost'; the options are 'contraction', "),
        ({"rule": "winograd"}, r"choice 'rule' cannot be 'winograd'; it declines: .* \[\w+\]"),
        ({"rule": "fallback", "tile_rows": 2}, r"rule 'fallback' has no choice 'tile_rows' here"),
    ],
)  # fmt: skip
def test_a_stale_record(choices: dict[str, Any], reason: str) -> None:
    """The default stands, and a warning names kernel, record and reason."""
    _, before, _ = kernel()
    with pytest.warns(
        ScheduleWarning, match=rf"^kernel '\w+' does not follow the record of program [0-9a-f]+: {reason}"
    ):
        _, after, _ = kernel(record(**choices))
    assert str(after.scheduled).replace(after.name, before.name) == str(before.scheduled)
    assert after.refused and not any(c.recorded for c in after.choices)


def test_records_of_others_are_not_looked_at() -> None:
    _, before, key = kernel()
    (one,) = record(tile_rows=1000).records
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kernel(Records((replace(one, key=KEY), replace(one, machine=MACHINE))))
    assert found[1].record is None and found[2] == key and found[1].name == before.name


@pytest.mark.parametrize("other", ["machine", "program"])
def test_records_of_which_none_is_of_the_model(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every compilation warns of a file that is given for nothing, and of none that has another model's as well."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    (own,) = record(tile_rows=2).records
    stale = replace(own, machine="npu-" + 12 * "0") if other == "machine" else replace(own, key=32 * "0")
    why = (
        f"they are of '{stale.machine}', the target is '{own.machine}'" if other == "machine" else "has the key of one"
    )
    file = tmp_path / "records.json"
    file.write_text(Records((stale,)).to_json())
    for _ in range(2):  # what is in the cache would not warn
        with pytest.warns(ScheduleWarning, match=f"no record in {re.escape(str(file))} is followed: .*{why}"):
            weft.compile(product(), TARGET, records=file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weft.compile(product(), TARGET, records=Records((stale, own)))
        weft.compile(product(), TARGET, records=Records())


def test_keys_of_models() -> None:
    keys = {
        model_key(b"x", resolve_targets(TARGET, records=r), None, "onnx")
        for r in (None, Records(), record(tile_rows=2), record(tile_rows=3))
    }
    assert len(keys) == 3
    one, other = Record("program", KEY, MACHINE, {"a": 1}), Record("graph", KEY, MACHINE, {"a": True})
    assert (
        Records((one, other)).digest
        == Records((other, one)).digest
        != Records((one, replace(other, choices={"a": 1}))).digest
    )


def test_what_of_a_machine_matters() -> None:
    machine = Machine("m", 256, 16)
    assert machine_key("m", machine) == machine_key("m", replace(machine, rates=replace(machine.rates, clock_hz=1e9)))
    assert machine_key("m", machine) != machine_key("m", replace(machine, cores=2)) != machine_key("other", machine)


def test_all_choices_of_a_kernel_are_its_defaults() -> None:
    _, before, _ = kernel()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, after, _ = kernel(record(**{c.name: c.value for c in before.choices}))
    assert all(c.recorded for c in after.choices)
    assert str(after.scheduled).replace(after.name, before.name) == str(before.scheduled)


# -- names


def test_a_choice_made_twice() -> None:
    s = Schedule(matmul())
    s.choose("tile", [4, 8], 4)
    with pytest.raises(
        PluginError,
        match=r"the choice 'tile' is made twice\n  program .*\n  why: names of choices are unique within a kernel",
    ):
        s.choose("tile", [4, 8], 8)
    with s.choices_of("left"):
        s.choose("tile", [4, 8], 8)
        with s.choices_of("inner"):
            s.choose("tile", [4, 8], 8)
    s.choose("other", [1], 1)
    assert [c.name for c in s.choices] == ["tile", "left.tile", "left.inner.tile", "other"]


def test_a_choice_that_was_undone_may_be_made_again() -> None:
    s = Schedule(matmul())
    with s.attempt() as tried:
        s.choose("tile", [4, 8], 4)
        s.split("nowhere", [None, 4])
    assert not tried and not s.choices
    assert s.choose("tile", [4, 8], 8) == 8


def test_a_predicate() -> None:
    def refuse(tile: int) -> str | None:
        return "it does not divide 6" if 6 % tile else None

    assert Schedule(matmul(), overrides={"tile": 3}).choose("tile", [2, 3, 4], 2, refuse) == 3
    with pytest.raises(ChoiceError, match=r"choice 'tile' cannot be 4\n  program .*\n  why: it does not divide 6"):
        Schedule(matmul(), overrides={"tile": 4}).choose("tile", [2, 3, 4], 2, refuse)


def test_no_attempt_hides_a_record_that_cannot_be_followed() -> None:
    s = Schedule(matmul(), overrides={"tile": 5})
    before = str(s.program)
    with pytest.raises(ChoiceError, match="choice 'tile' cannot be 5"), s.attempt():
        s.split(s.loops(s.blocks()[0])[0], [None, 2])
        s.choose("tile", [4, 8], 4)
    assert str(s.program) == before and not s.trace.steps


# -- caches


def test_a_kernel_whose_record_is_refused_is_refused_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code is not stored under the key with the record; that of a record that is followed is."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    for choices, said in (({"tile_rows": 1000}, 1), ({"tile_rows": 2}, 0)):
        records = records_here(**choices)
        cached = []
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                (resolved,) = resolve_targets("llvm -threads=1", records=records)
                compilation = Compilation(resolved)
                compilation.run(product())
            assert [str(w.message).startswith("kernel '") and "cannot be 1000" in str(w.message) for w in caught] == [
                True
            ] * said
            (found,) = compilation.kernels.values()
            cached.append(found.cached)
        assert cached == [False, not said]


@pytest.mark.parametrize("of", ["kernel", "graph", "group"])
def test_a_model_whose_record_is_refused_is_refused_again(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not stored under the key with the record; without the refusal it is."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    model = convolution_model()
    (resolved,) = resolve_targets("llvm -threads=1")
    graph = load(model, frontend="onnx")
    key = graph_key(graph)
    compilation = Compilation(resolved, cache=False)
    bodies = [n.op.body for n in compilation.optimize(graph).nodes if isinstance(n.op, Group) and not n.op.view]
    (naive, algorithms), body = next((compilation.lower(b), b) for b in bodies if compilation.lower(b)[1])
    subject, known, choice = {
        "kernel": ("program", program_key(naive), "rule"),
        "graph": ("graph", key, "algorithm.%lost"),
        "group": ("graph", group_key(body), algorithms[0].name),
    }[of]
    records = Records((Record(subject, known, resolved.machine_key, {choice: "magic"}),))
    for _ in range(2):
        with pytest.warns(ScheduleWarning, match=f"^{of} '.*' does not follow the record"):
            weft.compile(model, "llvm -threads=1", records=records)
    stages: list[str] = []
    for _ in range(2):
        weft.compile(model, "llvm -threads=1", on_stage=lambda report: stages.append(report.stage))
    assert "save" in stages and stages[-1] == "cache"


def convolution_model() -> bytes:
    import onnx

    helper = onnx.helper
    x, w, y = (
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
        for n, s in (("x", (1, 3, 8, 8)), ("w", (4, 3, 3, 3)), ("y", (1, 4, 8, 8)))
    )
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], "g", [x, w], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(made.SerializeToString())


# -- graphs


def convolutions() -> tuple[Graph, dict[str, Any]]:
    b = GraphBuilder("convolutions")
    rng = np.random.default_rng(0)
    x = b.input("x", tensor_type("float32", (1, 16, 14, 14)))
    w, v = (b.constant((rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32)) for _ in range(2))
    y = b.add(Conv(pads=(1, 1, 1, 1)), x, w)
    b.output(b.add(Conv(pads=(1, 1, 1, 1)), y, v), "y")
    return b.build(), {"x": rng.standard_normal((1, 16, 14, 14), np.float32)}


def optimized(graph: Graph, records: Records | None = None, target: str = TARGET) -> tuple[Compilation, Graph, Record]:
    """The graph after its passes, and a record of the choices that they made."""
    (resolved,) = resolve_targets(target, records=records)
    compilation, key = Compilation(resolved, cache=False), graph_key(graph)
    grouped = compilation.optimize(graph)
    return (
        compilation,
        grouped,
        Record("graph", key, resolved.machine_key, {c.name: c.value for c in compilation.choices}),
    )


@pytest.mark.parametrize("prefix", ["algorithm.", "layout."])
def test_choices_of_a_graph(prefix: str) -> None:
    """Another option of each choice of a graph is followed, seen, and computes the same."""
    graph, inputs = convolutions()
    (want,) = evaluate(graph, list(inputs.values()))
    compilation, before, _ = optimized(convolutions()[0], target="llvm -threads=1")
    found = [c for c in compilation.choices if c.name.startswith(prefix)]
    assert len(found) >= 2 and not any(c.recorded for c in found)
    for option in found[0].options:
        made = Record("graph", graph_key(graph), compilation.target.machine_key, {found[0].name: option})
        if option.endswith("_skip") and option != "winograd_4_skip":
            continue  # 14 rows are whole tiles of two
        after, grouped, _ = optimized(convolutions()[0], Records((made,)), "llvm -threads=1")
        assert not after.refused
        (choice,) = [c for c in after.choices if c.recorded]
        assert (choice.name, choice.value, choice.default) == (found[0].name, option, found[0].default)
        assert (str(grouped) == str(before)) == (option == choice.default)
        got = weft.compile(graph, "llvm -threads=1", cache=False, records=Records((made,))).run(inputs)["y"]
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_a_pass_that_runs_again_makes_choices_of_its_own() -> None:
    """Under its own name; a record gives each its value. One pass that makes a choice twice is told so, in words of
    graphs."""

    def layouts(records: Records | None, *names: str) -> Compilation:
        (resolved,) = resolve_targets(TARGET, records=records)
        compilation = Compilation(
            resolved, [GraphPass(n, choose_layouts, after="choose_layouts") for n in names], cache=False
        )
        compilation.optimize(convolutions()[0])
        return compilation

    once = layouts(None)
    name = next(c.name for c in once.choices if c.name.startswith("layout."))
    found = {c.name: c for c in layouts(None, "again", "again").choices}
    assert set(found) - {c.name for c in once.choices} >= {f"again.{name}", f"again.again.{name}"}
    other = next(o for o in found[name].options if o != found[name].default)
    record = Record("graph", graph_key(convolutions()[0]), once.target.machine_key, {f"again.{name}": other})
    after = layouts(Records((record,)), "again")
    assert not after.refused and [(c.name, c.value) for c in after.choices if c.recorded] == [(f"again.{name}", other)]

    choices = Choices(where="graph 'g'")
    first = choices.of_pass("first")
    assert first.choose("a", [1, 2], 1) == 1
    with pytest.raises(
        PluginError, match=r"the choice 'a' is made twice\n  graph 'g'\n  why: .*\n  hint: name each by what it decides"
    ):
        first.choose("a", [1, 2], 2)
    assert choices.of_pass("second").choose("a", [1, 2], 2) == 2
    assert {n: c.value for n, c in choices.made.items()} == {"a": 1, "second.a": 2}


def test_a_node_that_is_not_to_be_fused() -> None:
    b = GraphBuilder("fused")
    x, w = b.input("x", tensor_type("float32", (8, 16))), b.input("w", tensor_type("float32", (16, 32)))
    y = b.add(Relu(), b.add(MatMul(), x, w))
    b.output(b.add(Sqrt(), y), "y")
    graph, data = (
        b.build(),
        {
            n: np.random.default_rng(k).random(s, np.float32)
            for k, (n, s) in enumerate({"x": (8, 16), "w": (16, 32)}.items())
        },
    )
    compilation, before, record = optimized(graph, target="llvm -threads=1")
    assert len(before.nodes) == 1
    names = [c.name for c in compilation.choices if c.name.startswith("fuse.")]
    assert len(names) == 3 and all(record.choices[name] is True for name in names)
    counts = []
    for name in names:
        records = Records((replace(record, choices={name: False}),))
        after, grouped, _ = optimized(graph, records, "llvm -threads=1")
        assert not after.refused and [c.name for c in after.choices if c.recorded] == [name]
        counts.append(len(grouped.nodes))
        got = weft.compile(graph, "llvm -threads=1", cache=False, records=records).run(data)["y"]
        np.testing.assert_allclose(got, np.sqrt(np.maximum(data["x"] @ data["w"], 0)), rtol=1e-4)
    assert counts == [2, 3, 2]  # the product alone, all three, the root alone


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"algorithm.%lost": "definition"}, "the graph has no choice 'algorithm.%lost' here"),
        ({"algorithm.%conv": "magic"}, "choice 'algorithm.%conv' cannot be 'magic'; the options are 'definition', "),
        ({"algorithm.%conv": "winograd_2_skip"},
            "choice 'algorithm.%conv' cannot be 'winograd_2_skip'; no row or column of tiles"),
        ({"layout.%conv": "upside down"}, "choice 'layout.%conv' cannot be 'upside down'"),
    ],
)  # fmt: skip
def test_a_stale_record_of_a_graph(choices: dict[str, Any], reason: str) -> None:
    compilation, before, record = optimized(convolutions()[0])
    with pytest.warns(
        ScheduleWarning, match=f"^graph 'convolutions' does not follow the record of graph [0-9a-f]+: {reason}"
    ):
        after, grouped, _ = optimized(convolutions()[0], Records((replace(record, choices=choices),)))
    assert str(grouped) == str(before) and after.choices == compilation.choices and after.refused.startswith(reason)


def test_all_choices_of_a_graph_are_its_defaults() -> None:
    """What `inspect` writes is followed, and changes nothing."""
    _, before, record = optimized(convolutions()[0])
    compilation, after, _ = optimized(convolutions()[0], Records((record,)))
    assert str(before) == str(after) and not compilation.refused and all(c.recorded for c in compilation.choices)


def test_what_is_folded_counts_with_a_record_too() -> None:
    """Regions of one compilation share what constant folding may make."""

    def graph() -> Graph:
        b = GraphBuilder("folded")
        halves = [b.constant(np.full((4, 4), k, np.float32), f"half{k}") for k in range(2)]
        x = b.input("x", tensor_type("float32", (4, 4)))
        b.output(b.add(MatMul(), x, b.add(Add(), *halves)), "y")
        return b.build()

    _, _, record = optimized(graph())
    left = []
    for records in (None, Records((record,))):
        (resolved,) = resolve_targets(TARGET, records=records)
        budget = Budget(1 << 30, 1 << 40)
        Compilation(resolved, cache=False, budget=budget).optimize(graph())
        left.append(budget)
    assert left[0] == left[1] and left[0].made < 1 << 30


def test_the_algorithm_of_an_operator() -> None:
    b = GraphBuilder("padded")
    x, w = b.input("x", tensor_type("float32", (1, 3, 8, 8))), b.input("w", tensor_type("float32", (4, 3, 3, 3)))
    b.output(b.add(Conv(pads=(1, 1, 1, 1)), x, w), "y")
    graph = b.build()
    compilation, grouped, _ = optimized(graph)
    bodies = [n.op.body for n in grouped.nodes if isinstance(n.op, Group) and not n.op.view]
    found = {id(body): compilation.lower(body) for body in bodies}
    (body,) = [body for body in bodies if found[id(body)][1]]
    naive, (choice,) = found[id(body)]
    assert choice.name == "algorithm.Conv" and not choice.recorded
    for option in choice.options:
        record = Record("graph", group_key(body), compilation.target.machine_key, {"algorithm.Conv": option})
        again, (followed,) = Compilation(*resolve_targets(TARGET, records=Records((record,)))).lower(body)
        assert followed.recorded and followed.value == option
        assert (str(again) == str(naive)) == (option == choice.default)
    stale = Records((Record("graph", group_key(body), compilation.target.machine_key, {"algorithm.Conv": "magic"}),))
    with pytest.warns(
        ScheduleWarning,
        match=(
            "^group '.*' does not follow the record of graph .*: choice 'algorithm.Conv' cannot be 'magic'; the options"
            " are "
        ),
    ):
        again, _ = Compilation(*resolve_targets(TARGET, records=stale)).lower(body)
    assert str(again) == str(naive)


# -- files

RECORD = {"program": KEY, "machine": MACHINE, "choices": {"tile": 4}}


def text(version: Any = 1, **changes: Any) -> str:
    return json.dumps({"version": version, "records": [{**RECORD, **changes}]})


@pytest.mark.parametrize(
    ("given", "what", "where"),
    [
        ("", "it is no JSON text", None),
        ("[" * 100_000, "it is no JSON text", None),
        ("[]", "the file is no object", "the file"),
        ('{"version": 1}', "the file lacks the field 'records'", "the file"),
        ('{"version": 1, "version": 1, "records": []}', "it is no JSON text", None),
        ('{"version": 1, "records": [], "record": 1}', "the file has the field 'record', which is unknown", "the file"),
        (text(2), "its version is 2", "version"),
        (text(True), "its version is True", "version"),
        ('{"version": 1, "records": {}}', "'records' is no list of up to 20,000 records", "records"),
        ('{"version": 1, "records": [1]}', r"records\[0\] is no object", "records[0]"),
        (text(graph=KEY), "a record is of either a program or a graph", "records[0]"),
        (text(seconds=1), r"records\[0\] has the field 'seconds', which is unknown", "records[0]"),
        (text(program="../" + KEY[3:]), r"'program' is '\.\./0", "records[0].program"),
        (text(program=KEY + "\n"), "'program' is '0", "records[0].program"),
        (text(machine=3), "'machine' is 3", "records[0].machine"),
        (text(choices=[]), "'choices' holds no 1 to 10,000 values by name", "records[0].choices"),
        (text(choices={}), "'choices' holds no 1 to 10,000 values by name", "records[0].choices"),
        (text(choices={str(k): 1 for k in range(MOST_CHOICES + 1)}), "'choices' holds no 1 to 10,000 values",
            "records[0].choices"),
        (text(choices={"": 1}), "the name '' is none of a choice", "records[0].choices"),
        (text(choices={"a\x1b": 1}), r"the name 'a\\x1b' is none of a choice", "records[0].choices"),
        (text(choices={"a": None}), "the choice 'a' is None", "records[0].choices"),
        (text(choices={"a": [1]}), r"the choice 'a' is \[1\]", "records[0].choices"),
        (text(choices={"a": "x" * 513}), "the choice 'a' is 'x", "records[0].choices"),
        (text(choices={"a": 2**63}), "the choice 'a' is 9223372036854775808", "records[0].choices"),
        (text(choices={"a": 1.0}), "it is no JSON text", None),
        (text(choices={"a": float("nan")}), "it is no JSON text", None),
    ],
)  # fmt: skip
def test_files_that_are_none(given: str, what: str, where: str | None) -> None:
    with pytest.raises(InputError, match=f"invalid file of records: {what}") as caught:
        Records.from_json(given, "a.json")
    assert caught.value.where == ("a.json" if where is None else f"a.json at {where}") and caught.value.hint


def test_a_name_that_stands_twice_in_a_large_object() -> None:
    """It is found without going through the object once per name."""
    names = [*map(str, range(2 * MOST_CHOICES)), "last", "last"]
    given = "{" + ",".join(f'"{name}":1' for name in names) + "}"
    started = time.process_time()
    with pytest.raises(InputError, match="the name 'last' stands twice in an object"):
        Records.from_json(given)
    assert time.process_time() - started < 2  # a few ms; quadratic: many seconds


def test_two_records_of_the_same() -> None:
    same = json.dumps({"version": 1, "records": [RECORD, {**RECORD, "choices": {"tile": 8}}]})
    with pytest.raises(
        InputError,
        match=f"there are two records of program {KEY} on {MACHINE}\n  a.json\n  why: .*\n  hint: delete one",
    ):
        Records.from_json(same, "a.json")


VALUES = st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.text("aé '\"\\", max_size=5)
CHOICES = st.dictionaries(st.text("aé.1", min_size=1, max_size=4), VALUES, min_size=1, max_size=3)
HEX = st.integers(0, 2**128 - 1).map("{:032x}".format)


@given(st.dictionaries(st.tuples(st.sampled_from(["program", "graph"]), HEX), CHOICES, max_size=4))
def test_what_is_written_is_read(found: dict[tuple[str, str], dict[str, Any]]) -> None:
    records = Records(tuple(Record(subject, key, MACHINE, choices) for (subject, key), choices in found.items()))
    again = Records.from_json(records.to_json())
    assert again == records and again.digest == records.digest


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([KEY, MACHINE]),
    lambda x: (
        st.lists(x, max_size=3)
        | st.dictionaries(
            st.sampled_from(["version", "records", "program", "graph", "machine", "choices"]), x, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=40) | ANY.map(lambda d: json.dumps({"version": 1, "records": [d]}).encode()))
def test_hostile_files_are_refused_or_read(data: bytes) -> None:
    try:
        read = Records.from_json(data)
    except InputError:
        return
    assert all(r.choices for r in read.records)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file of records '.*none.json'"):
        weft.compile(product(), TARGET, records=tmp_path / "none.json")
    with pytest.raises(InputError, match=r"no file of records '.*none.json'"):
        weft.compile_adaptive(product(), TARGET, records=tmp_path / "none.json")
    with pytest.raises(InputError, match=r"no file of records '.*'\n  why: it is a folder"):
        Records.load(tmp_path)
    with pytest.raises(InputError, match=r"records .*the path of a file.*int"):
        weft.compile(product(), TARGET, records=3)  # type: ignore[arg-type]


# -- installed packages


class Installed:
    def __init__(self, *given: Any) -> None:
        self.given = given

    @hookimpl
    def records(self, target: Any) -> Sequence[Any]:
        return list(self.given) if target.kind == "llvm" else []


@pytest.fixture
def installed() -> Iterator[Callable[..., None]]:
    names: list[str] = []

    def install(*given: Any, plugin: object = None) -> None:
        names.append(f"tuned-{len(names)}")
        host().register(plugin or Installed(*given), names[-1])

    yield install
    for name in names:
        host().unregister(name)


def test_records_of_an_installed_package(installed: Callable[..., None], tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_text(record(tile_rows=2).to_json())
    installed(file)
    values = [{c.name: c.value for c in kernel(r)[1].choices}["tile_rows"] for r in (None, record(tile_rows=3))]
    assert values == [2, 3]  # the caller's stand over a package's


def test_packages_that_disagree(installed: Callable[..., None]) -> None:
    installed(record(tile_rows=2))
    installed(record(tile_rows=2))
    assert any(c.recorded for c in kernel()[1].choices)
    installed(record(tile_rows=3))
    with pytest.warns(
        ScheduleWarning, match=r"is not followed: .*\(tuned-0\) and .*\(tuned-2\) record different choices"
    ):
        assert not any(c.recorded for c in kernel()[1].choices)


def test_a_bad_file_of_a_package_that_is_not_the_targets(installed: Callable[..., None], tmp_path: Path) -> None:
    """The package is named, what it gives otherwise is followed, and so is what others give; `weft plugins` has it
    too."""
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    installed(bad, record(tile_rows=2))
    with pytest.warns(ScheduleWarning) as caught:
        assert any(c.recorded for c in kernel()[1].choices)
    said = (
        r"^the records of plugin 'tuned-0' \(registered by hand\) cannot be read, and are not followed: invalid file of"
        r" records: it is no JSON text; .*bad.json; "
    )
    (warning,) = caught
    assert re.match(said, str(warning.message))
    assert [hook for plugin, hook, _ in host().failures if plugin.name == "tuned-0"] == ["records"]


@pytest.mark.parametrize("missing", [True, False])
def test_a_bad_file_of_the_targets_own_package(installed: Callable[..., None], tmp_path: Path, missing: bool) -> None:
    from tests.mixed import board

    class Board:
        @hookimpl
        def targets(self) -> Sequence[Any]:
            return board.targets()

        @hookimpl
        def records(self, target: Any) -> Sequence[Any]:
            return [file] if target.kind == "board" else []

    file = tmp_path / "bad.json"
    if not missing:
        file.write_text("{")
    installed(plugin=Board())
    (target,) = resolve_targets("board")
    why = "no file of records '.*bad.json'" if missing else "invalid file of records: it is no JSON text; .*bad.json; "
    with pytest.raises(
        PluginError,
        match=rf"the records of plugin 'tuned-0' \(registered by hand\) cannot be read\n  board\n  why: {why}",
    ):
        _ = target.records


def test_rules_of_one_name_of_two_plugins(installed: Callable[..., None]) -> None:
    """A record could not tell them apart, and neither is the one that is meant."""

    class Contraction(Rule):
        name = "contraction"

        def offer(self, program: Any, machine: Any) -> Decline:
            return Decline("never", "it takes nothing")

        def apply(self, schedule: Any) -> None: ...

    class Rules:
        @hookimpl
        def schedules(self, target: Any) -> Sequence[Rule]:
            return [Contraction()] if target.kind == "llvm" else []

    installed(plugin=Rules())
    (target,) = resolve_targets(TARGET)
    said = (
        r"the schedule rule 'contraction' of target 'llvm' is claimed by plugin 'llvm' \(.*\) and plugin 'tuned-0'"
        r" \(registered by hand\)"
    )
    with pytest.raises(PluginError, match=rf"{said}\n  why: .*\n  hint: .*unregister 'tuned-0'"):
        _ = target.rules
