"""`weft inspect --training`: live bytes over a training step, what is computed again, the peak; as text and as page."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.cli.test_inspect_report import report

Weft = Callable[..., Any]
LAYERS, ROWS, WIDTH = 10, 64, 16


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """Products and softmaxes in turn: all results are of one size."""
    nodes, weights, h = [], [], "x"
    for k in range(LAYERS):
        weights.append(numpy_helper.from_array(np.full((WIDTH, WIDTH), 0.1, np.float32), f"w{k}"))
        nodes.append(helper.make_node("MatMul", [h, f"w{k}"], [f"p{k}"], f"product{k}"))
        nodes.append(helper.make_node("Softmax", [f"p{k}"], [f"s{k}"], f"softmax{k}"))
        h = f"s{k}"
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [ROWS, WIDTH])] for n in ("x", h)]
    graph = helper.make_graph(nodes, "deep", *ends, weights)
    path = tmp_path / "deep.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@dataclass
class Line:
    number: int
    marks: str
    phases: list[str]
    live: int
    rest: str


def lines_of(text: str) -> list[Line]:
    found = [re.match(r" *(\d+) ([* ][< ]) (.*?)  +([\d,]+) ([# ]*)(.*)", line) for line in text.splitlines()]
    return [
        Line(int(m[1]), m[2], [p for p in m[3].strip().split(", ") if p], int(m[4].replace(",", "")), m[6])
        for m in found
        if m is not None
    ]


def memory_of(weft: Weft, *words: Any) -> tuple[str, list[Line]]:
    result = weft("inspect", *words, "--stage", "memory")
    assert result.code == 0, result.err
    return result.out, lines_of(result.out)


def head(text: str) -> tuple[int, int, int]:
    """The peak, its step, and the arena's bytes, of the first line."""
    found = re.match(r"at most ([\d,]+) bytes are live at once, at step (\d+); the arena has ([\d,]+)\n", text)
    assert found is not None, text
    return tuple(int(n.replace(",", "")) for n in found.groups())  # type: ignore[return-value]


def test_live_bytes_are_those_of_the_plan(weft: Weft, deep: Path) -> None:
    words = (deep, "--training", "squared_error", "--memory", "sqrt")
    text, lines = memory_of(weft, *words)
    plan = weft("inspect", *words, "--stage", "plan").out
    slots = [tuple(map(int, m)) for m in re.findall(r"%\S+: (\d+) bytes at \d+, nodes (\d+) to (\d+)", plan)]
    assert len(slots) > LAYERS
    for line in lines:
        assert line.live == sum(size for size, first, last in slots if first <= line.number <= last)
    peak, step, arena = head(text)
    assert peak == max(line.live for line in lines) <= arena
    assert [line.number for line in lines if "<" in line.marks] == [step]
    assert step == min(line.number for line in lines if line.live == peak)


def test_parts_and_what_is_computed_again(weft: Weft, deep: Path) -> None:
    peaks = {}
    for memory in ("min-time", "sqrt"):
        text, lines = memory_of(weft, deep, "--training", "squared_error", "--memory", memory)
        peaks[memory] = head(text)[0]
        again = [line for line in lines if "*" in line.marks]
        assert {p for line in lines for p in line.phases} == {
            "forward", "backward", "update", *(["computed again"] if again else [])
        }  # fmt: skip
        first = {p: min(line.number for line in lines if p in line.phases) for p in ("forward", "backward", "update")}
        assert first["forward"] == lines[0].number and first["update"] > first["forward"]
        assert all(("computed again" in line.phases) == ("*" in line.marks) for line in lines)
        if memory == "min-time":
            assert not again and "computed again" not in text
            continue
        made = sum(int(m.replace(",", "")) for line in again for m in re.findall(r"%\S+ ([\d,]+)", line.rest))
        # Results of one size, of the products and softmaxes whose values are not kept.
        assert LAYERS // 2 < len(again) < 2 * LAYERS and made == len(again) * ROWS * WIDTH * 4
        assert f"* computed again: {len(again)} steps, {made:,} bytes" in text
    assert peaks["sqrt"] < 0.8 * peaks["min-time"]


def test_the_summary_has_the_parts(weft: Weft, deep: Path) -> None:
    result = weft("inspect", deep, "--training", "squared_error", "--optimizer", "adamw", "--memory", "sqrt")
    assert result.code == 0, result.err
    assert "memory over the training step" in result.out
    assert re.search(r"computed again +\d+ +\d", result.out) and re.search(r"update +\d+ +\d", result.out)


def test_the_page_draws_it(weft: Weft, deep: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = weft("inspect", deep, "--training", "squared_error", "--memory", "sqrt", "--html", page)
    assert result.code == 0, result.err
    data = report(page.read_text())
    (region,) = data["regions"]
    _, lines = memory_of(weft, deep, "--training", "squared_error", "--memory", "sqrt")
    assert {line.number: line.live for line in lines} == {
        k: s["live"] for k, s in enumerate(region["steps"]) if not s["view"]
    }
    assert max(s["live"] for s in region["steps"]) == region["memory"]["lower"]
    assert {p for s in region["steps"] for p in s["phases"]} == {"forward", "again", "backward", "update"}
    assert data["measured"]["unmeasured"] == "a training step is not run here"


def test_precision_shrinks_what_is_kept(weft: Weft, deep: Path) -> None:
    """What a product reads is kept in 16 bits; the gradient of a softmax reads its result, in 32."""
    found = {}
    for precision in ("", "bfloat16"):
        words = ("--precision", precision) if precision else ()
        _, lines = memory_of(weft, deep, "--training", "squared_error", "--memory", "sqrt", *words)
        found[precision] = next(line.live for line in lines if line.phases == ["backward"])
    assert found["bfloat16"] < 0.8 * found[""]


def test_memory_of_a_model_that_is_not_trained(weft: Weft, deep: Path) -> None:
    text, lines = memory_of(weft, deep)
    # A softmax reads the product before it, and the last one writes the output.
    assert all(not line.phases and line.marks in ("  ", " <") for line in lines)
    assert head(text)[0] == max(line.live for line in lines) > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--memory", "sqrt"), "--memory is for training steps"),
        (("--precision", "float16"), "--precision is for training steps"),
        (("--training", "cross_entropie"), "there is no loss 'cross_entropie'"),
        (("--training", "squared_error", "--optimizer", "adam"), "there is no optimizer 'adam'"),
        (("--training", "squared_error", "--memory", "little"), "no amount of memory"),
        (("--training", "squared_error", "--precision", "int8"), "precision: expected 'bfloat16', 'float16'"),
    ],
)
def test_refusals(weft: Weft, deep: Path, words: tuple[str, ...], message: str) -> None:
    result = weft("inspect", deep, *words)
    assert result.code == 1 and message in result.err


def test_open_sizes_are_refused_with_a_hint(weft: Weft, recipe: Path) -> None:
    result = weft("inspect", recipe, "--training", "squared_error", "--stage", "memory")
    assert result.code == 1 and "bytes of values are known only at run time" in result.err
    assert "--input-shape gives the sizes of inputs" in result.err
    memory_of(weft, recipe, "--training", "squared_error", "--input-shape", "x=8,64")


def test_an_archive_is_no_model_to_train(weft: Weft, archive: Path) -> None:
    result = weft("inspect", archive, "--training", "squared_error")
    assert result.code == 1 and "is compiled already, --training does not apply" in result.err
