"""Random equations: what an Einsum decomposes into means the same as numpy's, and is matrix products where something is
summed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.expr.nodes import Var
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, GraphBuilder, tensor_type
from weft.passes.decompose import decompose
from weft_ops import Einsum, MatMul

SIZES = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}


@st.composite
def equations(draw: Any) -> str:
    terms = [draw(st.permutations("abcde").map(lambda p: "".join(p)[:4])) for _ in range(draw(st.integers(1, 3)))]
    terms = [t[: draw(st.integers(0, 4))] for t in terms]
    letters = sorted(set("".join(terms)))
    kept = draw(st.permutations(letters)) if letters else []
    return f"{','.join(terms)}->{''.join(kept[: draw(st.integers(0, len(kept)))])}"


def decomposed(equation: str, *shapes: tuple[Any, ...]) -> Graph:
    b = GraphBuilder()
    b.output(b.add(Einsum(equation), *(b.input(f"x{k}", tensor_type("float32", s)) for k, s in enumerate(shapes))))
    return decompose(b.build())


@given(equations(), st.integers(0, 99))
def test_random_equations(equation: str, seed: int) -> None:
    terms = equation.split("->")[0].split(",")
    graph = decomposed(equation, *(tuple(SIZES[c] for c in t) for t in terms))
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(-1, 1, [SIZES[c] for c in t]).astype(np.float32) for t in terms]
    (result,) = evaluate(graph, arrays)
    np.testing.assert_allclose(result, np.einsum(equation, *arrays), rtol=1e-5, atol=1e-5)
    assert len(terms) > 1 or "Einsum" not in {type(n.op).__name__ for n in graph.nodes}


@pytest.mark.parametrize(
    ("equation", "x", "y", "batch"),
    [
        ("bnd,dhk->bnhk", ("b", 5, 16), (16, 4, 8), 0),
        ("bchw,cd->bdhw", ("b", 16, 5, 5), (16, 9), 1),
        ("bhwc,hkc->bhwk", (2, 5, 6, 16), (5, 7, 16), 2),
        ("bthd,bshd->bhts", (2, 6, 4, 8), (2, 7, 4, 8), 2),
    ],
)
def test_the_result_lies_as_it_is_wanted(equation: str, x: tuple[Any, ...], y: tuple[Any, ...], batch: int) -> None:
    """A product of matrices gives it; nothing moves it afterwards."""
    sized = [tuple(Var(d) if isinstance(d, str) else d for d in s) for s in (x, y)]
    nodes = decomposed(equation, *sized).nodes
    after = [type(n.op).__name__ for n in nodes[[type(n.op).__name__ for n in nodes].index("MatMul") :]]
    assert after[1:] in ([], ["Reshape"])
    (product,) = [n for n in nodes if isinstance(n.op, MatMul)]
    assert len(product.output.shape) == batch + 2
