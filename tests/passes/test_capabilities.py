"""Claims and layouts are of classes of operators: another class of the same name has no part in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from weft.graph.layout import Layout, Permute
from weft.graph.nodes import Graph, GraphBuilder, Node, tensor_type
from weft.graph.operator import Operator
from weft.lower.offers import offer_by_rules
from weft.passes.capabilities import CLAIMED, Capabilities, LayoutOffer, is_claimed
from weft.passes.choose_layouts import choose_layouts
from weft.passes.decompose import decompose
from weft.passes.place import Refuse
from weft.resolve import resolve_target
from weft_ops import ALL_OPERATORS, LayerNorm, MatMul, Softmax


@dataclass(frozen=True)
class TheirSoftmax(Softmax):
    """A plugin's."""

    operator_name = "Softmax"
    stays_whole = False


@dataclass(frozen=True)
class TheirProduct(MatMul):
    """A plugin's."""

    operator_name = "MatMul"
    layout_role = ""


def rows(op: Operator) -> Graph:
    b = GraphBuilder("rows")
    b.output(b.add(op, b.input("x", tensor_type("float32", (4, 8)))), "y")
    return b.build()


def product(op: Operator) -> Graph:
    b = GraphBuilder("product")
    b.output(
        b.add(op, b.input("x", tensor_type("float32", (4, 16))), b.constant(np.ones((16, 16), np.float32), "w")), "y"
    )
    return b.build()


def in_columns(node: Node) -> list[LayoutOffer]:
    return [LayoutOffer((None, Layout((Permute((1, 0)),))), (None,), only=True)]


def is_packed(op: Operator, capabilities: Capabilities) -> bool:
    (weights,) = choose_layouts(product(op), capabilities).constants()
    return weights.tensor.layout is not None


def test_what_a_target_claims_is_a_class() -> None:
    assert [type(n.op) for n in decompose(rows(Softmax()), Capabilities(claims=frozenset({Softmax}))).nodes] == [
        Softmax
    ]
    assert len(decompose(rows(TheirSoftmax()), Capabilities(claims=frozenset({Softmax}))).nodes) > 1
    assert len(decompose(rows(Softmax()), Capabilities(claims=frozenset({LayerNorm}))).nodes) > 1


def test_composites_that_say_so_stay_whole() -> None:
    whole = {op.operator_name for op in ALL_OPERATORS if is_claimed(op, CLAIMED)}
    assert whole == {"Softmax", "LogSoftmax", "LayerNorm", "RMSNorm", "ScaledDotProductAttention"}
    assert len(decompose(rows(TheirSoftmax())).nodes) > 1
    (node,) = decompose(rows(TheirSoftmax()), Capabilities(claims=CLAIMED | {TheirSoftmax})).nodes
    assert type(node.op) is TheirSoftmax


def test_layouts_are_of_a_class() -> None:
    mine = Capabilities(layouts={MatMul: in_columns})
    assert is_packed(MatMul(), mine) and not is_packed(TheirProduct(), mine)
    assert is_packed(MatMul(), Capabilities(panel=8)) and not is_packed(TheirProduct(), Capabilities(panel=8))
    theirs = type("Twin", (TheirProduct,), {"layout_role": "product"})
    assert is_packed(theirs(), Capabilities(panel=8)), "an operator that says what it is has the layouts of its kind"


@pytest.mark.needs("weft_llvm")
def test_names_work_for_one_version_and_say_so() -> None:
    with pytest.warns(DeprecationWarning) as said:
        capabilities = Capabilities(claims=frozenset({"LayerNorm", "Softmax"}), layouts={"MatMul": in_columns})
    assert (
        str(said[0].message)
        == "operators are claimed, and have their layouts, by class: give the classes LayerNorm, MatMul, Softmax, not"
        " their names"
    )
    assert said[0].filename == __file__
    assert len(decompose(rows(Softmax()), capabilities).nodes) == 1 and is_packed(MatMul(), capabilities)
    (node,) = rows(Softmax()).nodes
    target = resolve_target("llvm")
    with pytest.warns(DeprecationWarning, match="give the classes Softmax, not"):
        assert not isinstance(offer_by_rules(node, target.rules, target.machine, claims={"Softmax"}), Refuse)
    assert isinstance(offer_by_rules(node, target.rules, target.machine, claims={LayerNorm}), Refuse)
