"""Names of a model, whatever characters they hold, do nothing to a terminal, to a template, to a page or to the form of
errors."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import weft
from weft.cli.terminal import print_table, say
from weft.errors import ExecutionError, WeftError, fill, literal, shown, shown_lines
from weft.graph.nodes import Graph

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
HOSTILE = (
    "\x1b[2J\x1b]0;title\x07", "a\nhint: run this", "a\r\x08", "\u202egnp.exe", "\u2066\u2069", "{0}", "{1}{{",
        "{0.__class__}",
    "%s%n", "</script><b>", "`", '"',
    "x" * 5000, "\x9b31m", "\x00", "[red]b[/red]",
)  # fmt: skip


def hostile(test: Callable[..., None]) -> Callable[..., None]:
    for name in HOSTILE:
        test = example(name)(test)
    return test


def harmless(text: str) -> bool:
    """Whether nothing in it acts on a terminal or on the direction of writing; lines aside."""
    return all(line.isprintable() for line in text.split("\n"))


@hostile
@given(NAMES)
def test_a_shown_name_is_one_harmless_line(name: str) -> None:
    assert shown(name).isprintable() and len(shown(name, 100)) <= 12 * 101
    assert harmless(shown_lines(name)) and shown_lines(name).count("\n") == name.count("\n")
    if name.isprintable():
        assert shown(name, len(name)) == name
    else:
        plain = re.sub(r'[\\"]', "", name)
        assert json.loads('"' + shown(plain) + '"') == plain  # so a name in JSON that is printed stays the same name


@hostile
@given(NAMES)
def test_a_name_in_a_template_stands_for_itself(name: str) -> None:
    assert fill(f"{literal(name)}: {{0}} of {{1}}{literal(name)}", (3, 4)) == f"{name}: 3 of 4{name}"


@hostile
@given(NAMES)
def test_an_error_keeps_its_form(name: str) -> None:
    text = str(WeftError(f"'{name}' failed", where=f"node '{name}'", why=f"'{name}' is wrong", hint=f"rename '{name}'"))
    assert harmless(text)
    lines = text.split("\n")
    assert lines[0].startswith("'")
    assert [line for line in lines if re.match(r" {0,2}\S", line)][-2:] == [
        line for line in lines if line.startswith(("  why: ", "  hint: rename "))
    ]


@hostile
@given(NAMES)
def test_tables_and_lines_are_harmless(name: str) -> None:
    for print_it in (lambda: say(f"{name}: done"), lambda: print_table(name, ["name"], [[name]])):
        with redirect_stdout(io.StringIO()) as out:
            print_it()
        assert harmless(out.getvalue())


def model(name: str, operator: str = "Reshape") -> bytes:
    """y = x in the shape that is given, every name in it `name` with a letter behind it."""
    tensor = helper.make_tensor_value_info
    x, s, y, n = (name + c for c in "xsyn")
    inputs = [tensor(x, TensorProto.FLOAT, [n]), tensor(s, TensorProto.INT64, [2])]
    graph = helper.make_graph(
        [helper.make_node(operator, [x, s], [y], name + "o")],
        name + "g",
        inputs,
        [helper.make_empty_tensor_value_info(y)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()  # type: ignore[no-any-return]


def what_is_said(graph: Graph, name: str) -> list[str]:
    """The errors of runs with a wrong number of elements, a wrong dtype and a wrong name; and the graph's text."""
    executable = weft.compile(graph, "llvm -threads=1", cache=False)
    x, s, y = (name + c for c in "xsy")
    good, texts = np.ones(6, np.float32), [str(graph), str(executable.manifest.plan())]
    np.testing.assert_array_equal(executable.run({x: good, s: np.array([2, 3])})[y], good.reshape(2, 3))
    for inputs in (
        {x: good, s: np.array([2, 4])},
        {x: good.astype(int), s: np.array([2, 3])},
        {x: good},
        {x: good, s: np.ones(3, np.int64)},
    ):
        with pytest.raises(WeftError) as caught:
            executable.run(inputs)
        texts.append(str(caught.value))
    return texts


@pytest.mark.parametrize("name", [n for n in HOSTILE if "\x00" not in n], ids=repr)
def test_a_model_of_such_names_runs_and_its_errors_are_harmless(name: str) -> None:
    texts = what_is_said(weft.load(model(name)), name)
    for text in texts[2:]:
        assert harmless(text) and len(text) < 20000
    with pytest.raises(WeftError) as caught:
        weft.load(model(name, "Frobnicate"))
    assert harmless(str(caught.value))


@pytest.mark.full
@settings(max_examples=50, deadline=None)
@given(NAMES)
def test_a_model_of_any_names_runs_and_its_errors_are_harmless(name: str) -> None:
    for text in what_is_said(weft.load(model(name)), name)[2:]:
        assert harmless(text)


def test_braces_in_a_name_are_no_places_of_a_check() -> None:
    """The number of the check is where its text has it, not where a name has braces."""
    executable = weft.compile(weft.load(model("{0}{1}")), "llvm -threads=1", cache=False)
    with pytest.raises(ExecutionError) as caught:
        executable.run({"{0}{1}x": np.ones(6, np.float32), "{0}{1}s": np.array([2, 4])})
    assert "'{0}{1}o'" in caught.value.what and caught.value.what.endswith("expected 6, got 8"), caught.value.what
