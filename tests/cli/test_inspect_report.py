"""`weft inspect --html`: one file that needs nothing else, with what each part of it is read from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from tests.mixed import board
from tests.needs import browser

from weft.loop.parser import parse_program
from weft_testing.plugin import registered

Weft = Callable[..., Any]


def report(text: str) -> dict[str, Any]:
    """The data of a page."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    data: dict[str, Any] = json.loads(found)
    return data


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A model whose nodes are called what a page must not be taken in by."""
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], "</script><b>first"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "second & last"),
    ]
    weights = helper.make_tensor("w", TensorProto.FLOAT, [8, 4], [0.5] * 32)
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [tensor("x", 1, ["n", 8])], [tensor("y", 1, ["n", 4])], [weights])
    path = tmp_path / "named.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_one_file_holds_everything_from_the_frameworks_nodes_to_the_code(
    weft: Weft, named: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    result = weft("inspect", named, "--html", page, "--input-shape", "x=6,8")
    assert result.code == 0, result.err
    text = page.read_text()
    assert (
        "src=" not in text
        and "@import" not in text
        and re.findall(r"https?://[^\"']*", text) == ["http://www.w3.org/2000/svg"]
    )
    assert text.count("</script>") == 2
    data = report(text)
    assert data["model"] == "named.onnx" and data["nodes"] == 2
    (region,) = data["regions"]
    assert region["passes"][0]["name"] == "load" and "Relu()(%x)" in region["passes"][0]["text"]
    assert region["passes"][-1]["nodes"] == len(region["steps"])
    names = {n for s in region["steps"] for n in s["names"]}
    assert names == {"</script><b>first", "second & last"}
    kernels = {k["name"]: k for k in region["kernels"]}
    assert {s["kernel"] for s in region["steps"] if not s["view"]} == set(kernels)
    for k in kernels.values():
        assert k["rule"] and parse_program(k["texts"]["lower_group"]).name == k["name"]
        assert "define i32 @" in k["texts"]["source"]
    measured = data["measured"]
    assert {k["kernel"] for k in measured["kernels"]} == set(kernels) and measured["limits"]["flops"] > 0
    assert all(s["seconds"] > 0 for s in region["steps"] if s["kernel"])


def test_sizes_that_a_run_decides_are_drawn_for_those_of_the_run(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert weft("inspect", recipe, "--html", page, "--input-shape", "x=5,64").code == 0
    (region,) = report(page.read_text())["regions"]
    assert (
        region["memory"]["arena"] == sum({v["offset"]: v["bytes"] for v in region["memory"]["values"]}.values())
        or region["memory"]["unknown"] == 0
    )


def test_where_nodes_went_and_why_not_elsewhere(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    with registered(sys.modules[board.__name__], "board"):
        page = tmp_path / "page.html"
        result = weft("inspect", recipe, "-t", "board -ops=MatMul, llvm", "--html", page)
        assert result.code == 0, result.err
        data = report(page.read_text())
    assert {r["name"][:5] for r in data["regions"]} >= {"board"}
    adds = [p for p in data["placement"] if p["operator"] == "Add"]
    assert adds and all(
        p["target"] == "llvm" and p["refused"] == [["board", "no_rule", "anything: the board has no Add [operator]"]]
        for p in adds
    )


def test_what_cannot_run_here_has_a_page_without_times_that_says_why(weft: Weft, recipe: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = weft("inspect", recipe, "-t", "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", "--html", page)
    assert result.code == 0, result.err
    data = report(page.read_text())
    assert "no times: " in result.out and data["measured"]["unmeasured"] and data["regions"][0]["kernels"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--stage", "fuse"), "--html shows every stage, kernel and region"),
        (("--html", "/nowhere/page.html"), "cannot write '/nowhere/page.html'"),
    ],
)
def test_refusals(weft: Weft, recipe: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    result = weft("inspect", recipe, "--html", tmp_path / "page.html", *words)
    assert result.code == 1 and message in result.err


def test_an_archive_has_no_page(weft: Weft, archive: Path, tmp_path: Path) -> None:
    result = weft("inspect", archive, "--html", tmp_path / "page.html")
    assert result.code == 1 and "is compiled already, without what led there" in result.err


@pytest.mark.full
@pytest.mark.needs("browser")
@pytest.mark.parametrize("view", ["overview", "steps=0", "passes", "memory", "kernels"])
def test_a_browser_draws_it_without_a_complaint(weft: Weft, named: Path, tmp_path: Path, view: str) -> None:
    page = tmp_path / "page.html"
    assert weft("inspect", named, "--html", page, "--input-shape", "x=6,8").code == 0
    words = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--dump-dom",
        f"file://{page}#{view}",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    assert '<main id="main"></main>' not in done.stdout and "named.onnx</h1>" in done.stdout
