"""Texts of graphs name operators: those of plugins are found, and no name means the first of two."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from weft.errors import GraphError, ParseError
from weft.graph.parser import parse_graph
from weft.hooks import hookimpl
from weft.plugins import host
from weft_ops import Relu

TEXT = """graph g(%x: float32[4]) symbols() {{
  %y: float32[4] = {name}()(%x)
  return %y
}}
"""


@dataclass(frozen=True)
class Rectified(Relu):
    """ReLU, of a plugin."""


@dataclass(frozen=True)
class Another(Relu):
    """Somebody else's."""

    operator_name = "Rectified"


class Plugin:
    def __init__(self, *given: type[Relu]) -> None:
        self.given = given

    @hookimpl
    def operators(self) -> list[type[Relu]]:
        return list(self.given)


def test_operators_of_plugins_are_found() -> None:
    host().register(Plugin(Rectified), "rectifier")
    try:
        (node,) = parse_graph(TEXT.format(name="Rectified")).nodes
    finally:
        host().unregister("rectifier")
    assert type(node.op) is Rectified
    with pytest.raises(ParseError, match="there is no operator 'Rectified'"):
        parse_graph(TEXT.format(name="Rectified"))


def test_a_name_that_two_plugins_claim_is_an_error_where_a_text_says_it() -> None:
    host().register(Plugin(Rectified), "one")
    host().register(Plugin(Another), "two")
    try:
        with pytest.raises(ParseError) as caught:
            parse_graph(TEXT.format(name="Rectified"))
        (node,) = parse_graph(TEXT.format(name="Relu")).nodes
    finally:
        host().unregister("one")
        host().unregister("two")
    assert (
        str(caught.value)
        == "graph text, line 2, column 20: the operator 'Rectified' is claimed by plugin 'one' (registered by hand) and"
        " plugin 'two' (registered by hand)\n    %y: float32[4] = Rectified()(%x)\n                     ^\n  why:"
        " nothing says which of them is meant, and the order of plugins decides nothing\n  hint: unregister 'one' or"
        " unregister 'two' or give one another `operator_name`"
    )
    assert type(node.op) is Relu, "texts that do not name it are read"


def test_nobody_is_told_to_uninstall_the_library() -> None:
    host().register(Plugin(type("Relu", (Relu,), {})), "rude")
    try:
        with pytest.raises(
            ParseError, match=r"'Relu' is claimed by plugin 'ops' \(weft-ops .*\) and plugin 'rude'"
        ) as caught:
            parse_graph(TEXT.format(name="Relu"))
    finally:
        host().unregister("rude")
    assert caught.value.hint == "unregister 'rude' or give one another `operator_name`"


def test_two_given_operators_of_one_name_are_an_error() -> None:
    with pytest.raises(
        GraphError,
        match=(
            r"two operators are called 'Rectified': .*\.Rectified and .*\.Another\n  hint: give one another"
            r" `operator_name`"
        ),
    ):
        parse_graph(TEXT.format(name="Rectified"), {}, [Rectified, Another])
