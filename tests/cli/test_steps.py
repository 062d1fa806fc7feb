"""The commands on models whose plans have steps of the host, branches and loops."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.needs import browser

import weft as package
from weft.hooks import EngineKind, hookimpl
from weft.loop.parser import parse_program
from weft.loop.pipeline import LoopPass
from weft.plugins import host

Weft = Callable[..., Any]
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
node, tensor = helper.make_node, helper.make_tensor_value_info


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    """A model by what it is about."""

    def save(name: str) -> Path:
        nodes, inputs, outputs, constants = globals()[f"{name}_model"]()
        graph = helper.make_graph(nodes, name, inputs, outputs, constants)
        domains = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
        onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), tmp_path / f"{name}.onnx")
        return tmp_path / f"{name}.onnx"

    return save


def branch_model() -> Any:
    """A branch; one of its graphs has results whose size is known only at run time."""
    then = helper.make_graph(
        [node("Relu", ["x"], ["t"], "positive"), node("MatMul", ["t", "w"], ["p"], "product")],
        "then",
        [],
        [tensor("p", FLOAT, None)],
    )
    other = helper.make_graph(
        [node("NonZero", ["x"], ["z"], "places"), node("Cast", ["z"], ["f"], "floats", to=FLOAT)],
        "else",
        [],
        [tensor("f", FLOAT, None)],
    )
    nodes = [
        node("ReduceSum", ["x"], ["s"], "sum", keepdims=0), node("Greater", ["s", "zero"], ["c"], "compare"),
        node("If", ["c"], ["y"], "branch", then_branch=then, else_branch=other),
    ]  # fmt: skip
    constants = [helper.make_tensor("w", FLOAT, [8, 4], [0.5] * 32), helper.make_tensor("zero", FLOAT, [], [0.0])]
    return nodes, [tensor("x", FLOAT, ["n", 8])], [tensor("y", FLOAT, None)], constants


def loop_model() -> Any:
    """A loop that a run ends, with a branch in it."""
    grow = [
        node("Mul", ["v", "two"], ["d"], "double"), node("NonZero", ["v"], ["z"], "places"), node("Cast", ["z"], ["f"],
            "floats", to=FLOAT),
        node("ReduceSum", ["f"], ["t"], "total", keepdims=0), node("Add", ["d", "t"], ["g"], "grow"),
    ]  # fmt: skip
    small = helper.make_graph(grow, "small", [], [tensor("g", FLOAT, [3])])
    large = helper.make_graph([node("Sqrt", ["v"], ["r"], "root")], "large", [], [tensor("r", FLOAT, [3])])
    inside = [
        node("ReduceMax", ["v"], ["m"], "most", keepdims=0), node("Less", ["m", "nine"], ["small"], "less"),
        node("If", ["small"], ["next"], "choose", then_branch=small, else_branch=large), node("Identity", ["on"],
            ["go"], "on"),
    ]  # fmt: skip
    constants = [helper.make_tensor("two", FLOAT, [], [2.0]), helper.make_tensor("nine", FLOAT, [], [9.0])]
    given = [tensor("i", INT64, []), tensor("on", TensorProto.BOOL, []), tensor("v", FLOAT, [3])]
    body = helper.make_graph(
        inside, "body", given, [tensor("go", TensorProto.BOOL, []), tensor("next", FLOAT, [3])], constants
    )
    nodes = [
        node("Exp", ["x"], ["e"], "before"),
        node("Loop", ["trips", "", "e"], ["l"], "loop", body=body),
        node("Relu", ["l"], ["y"], "after"),
    ]
    return nodes, [tensor("x", FLOAT, [3]), tensor("trips", INT64, [])], [tensor("y", FLOAT, [3])], []


def words_model() -> Any:
    """Strings alone."""
    nodes = [
        node("StringNormalizer", ["s"], ["u"], "upper", case_change_action="UPPER"),
        node("StringConcat", ["u", "u"], ["v"], "twice"),
    ]
    return nodes, [tensor("s", STRING, ["n"])], [tensor("v", STRING, None)], []


def labels_model() -> Any:
    """Numbers, then strings that are made of them."""
    nodes = [
        node("MatMul", ["x", "w"], ["l"], "product"), node("ArgMax", ["l"], ["k"], "best", axis=1, keepdims=0),
        node("LabelEncoder", ["k"], ["v"], "label", domain="ai.onnx.ml", keys_int64s=[0, 1], values_strings=["warp",
            "weft"]),
    ]  # fmt: skip
    return (
        nodes,
        [tensor("x", FLOAT, ["n", 8])],
        [tensor("v", STRING, None)],
        [helper.make_tensor("w", FLOAT, [8, 2], [0.5, 1.0] * 8)],
    )


def pieces_model() -> Any:
    """A sequence."""
    nodes = [node("Relu", ["x"], ["r"], "relu"), node("SequenceConstruct", ["r", "x"], ["s"], "both")]
    return nodes, [tensor("x", FLOAT, ["n", 2])], [helper.make_tensor_sequence_value_info("s", FLOAT, None)], []


def joined_model() -> Any:
    return (
        [node("ConcatFromSequence", ["s"], ["y"], "cat", axis=0)],
        [helper.make_tensor_sequence_value_info("s", FLOAT, ["n", 1])],
        [tensor("y", FLOAT, None)],
        [],
    )


def boxes_model() -> Any:
    """Suppression, and what is unique: sizes known only at run time, and yet one native step."""
    nodes = [
        node("NonMaxSuppression", ["boxes", "scores", "k"], ["chosen"], "suppress"),
        node("Unique", ["chosen"], ["u"], "unique"),
    ]
    return (
        nodes,
        [tensor("boxes", FLOAT, [1, "n", 4]), tensor("scores", FLOAT, [1, 1, "n"])],
        [tensor("u", INT64, None)],
        [helper.make_tensor("k", INT64, [1], [3])],
    )


# -- inspect ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["branch", "loop", "words", "labels"])
def test_regions_and_plans_are_those_that_are_compiled(weft: Weft, model: Callable[[str], Path], name: str) -> None:
    out = words(weft("inspect", model(name)).out)
    manifest = package.compile(str(model(name))).manifest
    shown = re.findall(r"region ((?:\d+\.)*llvm\d+)", out)
    assert sorted(shown) == sorted(
        {s.section for p in (manifest, *manifest.plans) for s in p.steps if s.kind == "native"}
    )
    steps = [s for p in (manifest, *manifest.plans) for s in p.steps]
    for kind, text in (("if", r"if plan \d+, else plan \d+"), ("loop", r"loop plan \d+"), ("host", r" host \w+\(")):
        assert len(re.findall(text, out)) == sum(s.kind == kind for s in steps), kind


def test_a_branch_shows_its_steps_in_order_and_where_every_node_went(weft: Weft, model: Callable[[str], Path]) -> None:
    result = weft("inspect", model("branch"))
    assert result.code == 0, result.err
    out = words(result.out)
    assert "%if If branch host llvm: control flow stays on the host [control]" in out
    assert "0 %branch/t Relu branch/positive llvm" in out and "1 %branch/nz" not in out
    assert (
        "0 region llvm0 %x %c: bool[] compare, sum 1 if plan 0, else plan 1 %c, %x %if: float32[rank 2] branch 2 host"
        " Sizes()" in out
    )
    assert "0 0 region 0.llvm0 %x_1" in out and "1 0 region 1.llvm0 %x_2" in out
    assert re.search(r"0\.llvm0 matmul_\w+ 1 contraction winograd: no_winograd", out) and re.search(
        r"1\.llvm0 countnonzero_\w+ 1 reduction", out
    )


def test_a_loops_body_is_looked_into_by_its_region(weft: Weft, model: Callable[[str], Path]) -> None:
    path = model("loop")
    scheduled = weft("inspect", path, "--stage", "schedule", "--kernel", "sqrt").out
    (name,) = re.findall(r"# region (\S+)", scheduled)
    assert scheduled.startswith(f"# region {name}\n# rule: elementwise") and name.count(".") == 2, (
        "of the branch in the loop"
    )
    only = weft("inspect", path, "--stage", "source", "--region", name).out
    assert only.startswith(f"# region {name}\n") and "define i32 @" in only and only.count("# region") == 1
    placed = weft("inspect", path, "--stage", "place").out
    assert placed.startswith("graph loop(") and re.findall("# plan (.)", placed) == ["0", "1", "2"]
    error = weft("inspect", path, "--region", "0.llvm9").err
    assert (
        error.startswith("InputError: there is no region '0.llvm9'\n  regions: llvm0, ")
        and "hint: did you mean" in error
    )


def test_strings_alone_have_a_plan_and_no_kernels(weft: Weft, model: Callable[[str], Path]) -> None:
    path = model("words")
    out = words(weft("inspect", path).out)
    assert "0 host StringNormalizer(case='UPPER'" in out and "string[" in out
    error = weft("inspect", path, "--stage", "schedule").err
    assert (
        error
        == "InputError: there is no stage 'schedule'\n  why: every node is a step that the host does itself\n  hint:"
        " print them with --stage place\n"
    )


def test_sizes_that_only_a_run_knows_are_one_native_step(weft: Weft, model: Callable[[str], Path]) -> None:
    result = weft("inspect", model("boxes"))
    assert result.code == 0 and "plan 0" not in result.out and re.search(r"unique\w*_\w+ +1 +", result.out)


def page(weft: Weft, path: Path, *options: object) -> tuple[Path, dict[str, Any]]:
    file = path.with_suffix(".html")
    result = weft("inspect", path, "--html", file, *options)
    assert result.code == 0, result.err
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', file.read_text(), re.S)
    return file, json.loads(found)


def test_the_page_has_the_plans_placement_and_kernels(weft: Weft, model: Callable[[str], Path]) -> None:
    _, data = page(weft, model("loop"))
    own, *inner = data["plans"]
    assert [s["does"] for s in own["steps"]] == ["region llvm0", "loop plan 2", "region llvm2"] and own["plan"] is None
    assert [p["plan"] for p in inner] == [0, 1, 2] and own["steps"][1]["runs"] == [2]
    choose = next(s for s in inner[2]["steps"] if s["runs"])
    assert choose["does"] == "if plan 0, else plan 1" and choose["names"] == ["loop/choose"]
    regions = {r["name"]: r for r in data["regions"]}
    for plan in data["plans"]:
        for step in plan["steps"]:
            if step["region"] is not None:
                kernels = {k["name"]: k for k in regions[step["region"]]["kernels"]}
                assert step["kernels"] == list(kernels)
                assert all(
                    parse_program(k["texts"]["schedule"]).name == name and k["rule"] for name, k in kernels.items()
                )
    where = {(p["operator"], p["plan"]): (p["target"], p["refused"]) for p in data["placement"]}
    assert where["Loop", None] == ("host", [["llvm", "control", "control flow stays on the host"]]) and where[
        "Sqrt", 1
    ] == ("llvm", [])
    assert data["measured"]["median"] > 0 and data["measured"]["unmeasured"].startswith("only whole runs are timed")


def test_a_page_without_kernels(weft: Weft, model: Callable[[str], Path]) -> None:
    _, data = page(weft, model("words"))
    assert data["regions"] == [] and all(s["does"].startswith("host ") for s in data["plans"][0]["steps"])


@pytest.mark.full
@pytest.mark.needs("browser")
@pytest.mark.parametrize("name", ["branch", "loop", "words", "labels"])
def test_a_browser_draws_it_without_a_complaint(weft: Weft, model: Callable[[str], Path], name: str) -> None:
    file, data = page(weft, model(name))
    last = data["regions"][-1] if data["regions"] else {"name": "", "kernels": []}
    views = [
        "overview",
        "plan",
        "plan=plan0",
        "placement",
        *(["memory", "passes", "kernels", f"region={last['name']}"] if data["regions"] else []),
    ]
    for view in [*views, *(f"kernel={k['name']}" for k in last["kernels"][:1])]:
        command = [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
            f"file://{file}#{view}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert "CONSOLE" not in done.stderr, view
        assert '<main id="main"></main>' not in done.stdout and f"{name}.onnx</h1>" in done.stdout
    assert ">Plan</button>" in done.stdout


# -- run and bench ----------------------------------------------------------------------------------------------------


def test_strings_and_sequences_are_made_up_shown_and_written(
    weft: Weft, model: Callable[[str], Path], tmp_path: Path
) -> None:
    result = weft("run", model("words"), "--input-shape", "s=5", "-d", tmp_path / "out")
    assert result.code == 0, result.err
    assert "s string[5] random, seed 0" in words(result.out) and "v string[5]" in words(result.out)
    assert np.load(tmp_path / "out" / "v.npy").dtype.kind == "U"
    again = weft("run", model("words"), "-i", f"s={tmp_path / 'out' / 'v.npy'}")
    assert again.code == 0, again.err
    result = weft("run", model("pieces"), "--input-shape", "x=3,2", "-d", tmp_path / "out")
    assert (
        "s sequence of 2: float32[3, 2]" in words(result.out)
        and "s.0 → " in result.out
        and (tmp_path / "out" / "s.1.npy").exists()
    )
    result = weft("run", model("joined"))
    assert "s sequence of 2: float32[1, 1] random, seed 0" in words(result.out) and "y float32[2, 1]" in words(
        result.out
    )


def test_kernels_between_steps_are_not_profiled(weft: Weft, model: Callable[[str], Path]) -> None:
    for option in ("--profile", "--roofline"):
        result = weft("bench", model("branch"), option)
        assert result.code == 1 and result.err.startswith(
            "InputError: the kernels of 'branch.onnx' are not timed\n  why: its plan has steps of the host"
        )


@pytest.fixture
def broken() -> Iterator[None]:
    """An engine that cannot load a model, and one that cannot run it."""

    def refuse(*_: object) -> Any:
        raise RuntimeError("no conversion rule\nfor If")

    kinds = [
        EngineKind("loads", lambda: "1.0", refuse),
        EngineKind("runs", lambda: "1.0", lambda path, threads: refuse),
    ]
    host().register(SimpleNamespace(engines=hookimpl(lambda: kinds)), "broken-engines")
    yield
    host().unregister("broken-engines")


@pytest.mark.parametrize("engine", ["loads", "runs"])
def test_an_engine_that_does_not_run_a_model(
    weft: Weft, recipe: Path, broken: None, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = (
        f"the engine '{engine}' 1.0 does not run {recipe}\n  why: no conversion rule for If\n  hint: leave it out with"
        " --against\n"
    )
    result = weft("bench", recipe, "--against", engine, "--rounds", 1)
    assert (result.code, result.err) == (1, f"InputError: {said}")
    monkeypatch.setattr(
        "weft_testing.cli.bench.choose_engines", lambda kinds, against, *model: [k for k in kinds if k.name == engine]
    )
    result = weft("bench", recipe, "--rounds", 1)
    assert (result.code, result.err) == (0, f"warning: {said}") and "weft llvm" in result.out


# -- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["branch", "loop", "words", "labels", "pieces", "joined", "boxes"])
def test_every_part_is_verified(weft: Weft, model: Callable[[str], Path], name: str) -> None:
    result = weft("verify", model(name), "--every-node")
    assert result.code == 0, result.out + result.err
    assert result.out.endswith("all outputs are within their tolerances, and so is every part by itself\n")


@pytest.mark.parametrize(
    ("name", "right", "wrong", "operator", "node"),
    [
        ("branch", "select(in0[", "0.5f32*select(in0[", "Relu", "branch/positive"),
        ("loop", "*2.0f32", "*2.1f32", "Multiply", "loop/choose/double"),
    ],
)
def test_a_kernel_of_a_body_is_named(
    weft: Weft,
    model: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    right: str,
    wrong: str,
    operator: str,
    node: str,
) -> None:
    bug = LoopPass(
        "planted",
        lambda p: parse_program(str(p).replace(right, wrong)) if operator.lower() in p.name else p,
        "start_empty_reductions",
    )
    host().register(SimpleNamespace(loop_passes=hookimpl(lambda target: [bug])), "planted-bug")
    try:
        np.save(tmp_path / "trips.npy", np.array(4))
        result = weft(
            "verify",
            model(name),
            "--json",
            tmp_path / "found.json",
            *(("-i", f"trips={tmp_path / 'trips.npy'}") if name == "loop" else ()),
        )
    finally:
        host().unregister("planted-bug")
    assert result.code == 1 and result.err == ""
    (blame,) = json.loads((tmp_path / "found.json").read_text())["blames"]
    assert (blame["kind"], blame["stage"], blame["operator"], blame["names"]) == ("kernel", "planted", operator, [node])
    assert blame["region"].startswith("0") and blame["region"].endswith(".llvm0")
