"""Sizes that a group knows as a whole only are symbols of its kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.compilation import Compilation
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Const, Expr, Var, free_vars, maximum
from weft.expr.parser import parse_expr
from weft.graph.evaluate import evaluate as interpret
from weft.graph.layout import blocked
from weft.graph.nodes import Graph, GraphBuilder, TensorType, tensor_type
from weft.graph.rewrite import mentioned_symbols
from weft.graph.whole_sizes import whole_sizes
from weft.resolve import resolve_target
from weft_ops import Conv, Relu, Reshape

SYMBOLS = {name: Var(name) for name in "abc"}


def body(*shapes: Sequence[str]) -> Graph:
    """A graph whose inputs have these sizes."""
    b = GraphBuilder("body")
    for k, shape in enumerate(shapes):
        x = b.input(f"x{k}", tensor_type("float32", [parse_expr(d, SYMBOLS) for d in shape]))
        b.output(b.add(Relu(), x))
    return b.build()


def shapes(graph: Graph) -> list[list[str]]:
    return [[str(d) for d in v.shape] for v in graph.inputs]


def test_a_size_known_as_a_whole_only_is_one_symbol() -> None:
    found, formulas = whole_sizes(body(["a", "(b + 7)//8"], ["(b + 7)//8", "(c + 7)//8*4"]))
    assert shapes(found) == [["a", "extent1"], ["extent1", "extent0*4"]]  # 4 stays: kernels make use of it
    assert {name: str(f) for name, f in formulas.items()} == {
        "a": "a",
        "extent1": "(b + 7)//8",
        "extent0": "(c + 7)//8",
    }


def in_blocks(*shapes: Sequence[str]) -> Graph:
    """The `body` with channels, the second axis, in blocks of eight."""
    graph = body(*shapes)
    for value in graph.values():
        value.type = value.tensor.with_layout(blocked(value.tensor.rank, 1, 8))
    return graph


def test_multiples_are_whole_sizes_where_lanes_lie_along_channels() -> None:
    size = ["a", "16", "(b + 7)//8*4", "(c + 7)//8"]
    found, formulas = whole_sizes(in_blocks(size, size))
    assert shapes(found) == [["a", "16", "extent0", "extent1"]] * 2
    assert [str(f) for f in formulas.values()] == ["a", "(b + 7)//8*4", "(c + 7)//8"]
    # Half of it is known as well, and as a part of it: it is no size as a whole.
    found, _ = whole_sizes(in_blocks(size, ["a", "16", "(b + 7)//8*2", "(c + 7)//8"]))
    assert [s[2] for s in shapes(found)] == ["extent1*4", "extent1*2"]
    # Lanes may lie along it, of rows and of blocks.
    assert shapes(whole_sizes(body(size))[0])[0][2].endswith("*4")
    rows = ["a", "(b + 7)//8*4", "16", "16"]
    assert shapes(whole_sizes(in_blocks(rows))[0])[0][1].endswith("*4")


def test_a_product_is_one_size_unless_its_factors_are_needed() -> None:
    found, formulas = whole_sizes(body(["a*((b + 7)//8)"], ["a*((b + 7)//8)*16"]))
    assert shapes(found) == [["extent0"], ["extent0*16"]] and [str(f) for f in formulas.values()] == ["(b + 7)//8*a"]
    found, formulas = whole_sizes(body(["a*((b + 7)//8)"], ["a"]))
    assert shapes(found) == [["a*extent0"], ["a"]] and [str(f) for f in formulas.values()] == ["a", "(b + 7)//8"]


def test_sizes_that_depend_on_each_other_stay() -> None:
    for dims in (["b", "(b + 7)//8"], ["(b + 1)//2", "(b + 3)//4"], ["a + 1", "b + c"]):
        graph = body(dims)
        found, formulas = whole_sizes(graph)
        assert found is graph and all(str(f) == name for name, f in formulas.items())


def test_a_size_with_another_bound_than_a_symbol_stays() -> None:
    graph = body(["max(b//2, 3)"], ["(b - 9)//8"])  # at least 3, and at least -2 as far as anybody can tell
    assert whole_sizes(graph)[0] is graph


def test_attributes_count() -> None:
    b = GraphBuilder("body")
    whole = parse_expr("(b + 7)//8", SYMBOLS)
    x = b.input("x", tensor_type("float32", (whole, 4)))
    b.output(b.add(Reshape((whole, 2, 2)), x))
    found, _ = whole_sizes(b.build())
    assert found.nodes[0].op == Reshape((Var("extent0"), 2, 2)) and list(mentioned_symbols(found)) == ["extent0"]
    b = GraphBuilder("body")
    x = b.input("x", tensor_type("float32", (whole, 4)))
    b.output(b.add(Reshape((parse_expr("(b + 7)//8*4//4", SYMBOLS), 2, 2)), x))
    found, _ = whole_sizes(b.build())
    assert shapes(found) == [["extent0", "4"]]


dims = st.recursive(
    st.sampled_from([*SYMBOLS.values()]),
    lambda inner: st.one_of(
        st.tuples(inner, st.integers(1, 9), st.integers(2, 4)).map(lambda t: (t[0] + t[1]) // t[2]),
        st.tuples(inner, inner).map(lambda t: t[0] * t[1]),
        st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
        st.tuples(inner, inner).map(lambda t: maximum(t[0], t[1])),
        st.tuples(inner, st.integers(2, 3)).map(lambda t: t[0] * t[1]),
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(dims, min_size=1, max_size=3), min_size=1, max_size=3), st.booleans(), st.data())
def test_sizes_are_what_they_were(shapes: list[list[Expr]], blocks: bool, data: st.DataObject) -> None:
    b = GraphBuilder("body")
    for shape in shapes:
        b.output(b.add(Relu(), b.input("x", tensor_type("float32", shape))))
    graph = b.build()
    for v in graph.values() if blocks else ():
        v.type = v.tensor.with_layout(blocked(v.tensor.rank, 0, 8))
    found, formulas = whole_sizes(graph)
    outside = {name: data.draw(st.integers(0, 50)) for name in mentioned_symbols(graph)}
    inside = {name: int(evaluate(f, outside)) for name, f in formulas.items()}
    assert list(formulas) == list(mentioned_symbols(found)) and all(n >= 0 for n in inside.values())
    for old, new in zip(graph.values(), found.values(), strict=True):
        assert [value(d, outside) for d in old.shape] == [value(d, inside) for d in new.shape]
    for f in formulas.values():  # no relation is lost: each of the old symbols is in one of them
        others = [g for g in formulas.values() if g is not f]
        assert not any(free_vars(f).keys() & free_vars(g).keys() for g in others)


def value(d: Expr | int, symbols: dict[str, int]) -> int:
    return d if isinstance(d, int) else int(evaluate(d, symbols))


def pyramid() -> Graph:
    """Convolutions of the same channels at three scales."""
    b = GraphBuilder("pyramid")
    rng = np.random.default_rng(0)
    x = b.input("x", tensor_type("float32", (1, 16, "h", "w")))
    for _ in range(3):
        down = b.constant(rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12)
        same = b.constant(rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12)
        x = b.add(Conv((2, 2), (1, 1, 1, 1)), x, down)
        x = b.add(Relu(), b.add(Conv((1, 1), (1, 1, 1, 1)), x, same))
    b.output(x)
    return b.build()


def test_equal_sizes_have_equal_formulas() -> None:
    x, y = (v.type for v in pyramid().nodes[0].outputs + pyramid().nodes[1].outputs)
    assert isinstance(x, TensorType) and x == y and [str(d) for d in x.shape[2:]] == ["(h + 1)//2", "(w + 1)//2"]
    assert not any(isinstance(d, Const) for d in x.shape)


def test_one_kernel_serves_all_scales() -> None:
    compilation = Compilation(resolve_target("llvm"), cache=False)
    executable = compilation.run(pyramid())
    rules = [k for k in compilation.kernels.values() if "conv" in k.name and len(k.naive.dims) == 2]
    assert len(rules) == 4  # one that keeps sizes, three that halve them, which know them in relation
    graph = pyramid()
    for h, w in ((8, 24), (17, 5)):
        data = np.random.default_rng(1).standard_normal((1, 16, h, w)).astype(np.float32)
        (got,), (want,) = executable.run({"x": data}).values(), interpret(graph, [data])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
