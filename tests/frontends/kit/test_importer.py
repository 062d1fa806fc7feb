"""The frontend kit, by a format of the test's own: nodes in JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from weft import dtypes as dt
from weft.errors import FrontendError, UnsupportedError
from weft.expr.nodes import Expr, Var
from weft.expr.simplify import simplify
from weft.graph.control import If
from weft.graph.evaluate import evaluate
from weft.graph.nodes import Graph, Value, tensor_type
from weft.hooks import Converter, hookimpl
from weft.plugins import host
from weft_frontend import contents as ct
from weft_frontend.bodies import Level, build_body
from weft_frontend.contents import Content
from weft_frontend.context import Context
from weft_frontend.importer import GraphImporter
from weft_frontend.operands import Absent, Elements, Poison
from weft_frontend.registry import Registry
from weft_ops import Add, Gather, Relu, Reshape, SequenceConstruct

Node = tuple[str, str, list[str], dict[str, Any]]
"""An output, an operator, operands, attributes."""

registry: Registry[Plain] = Registry("json")


class Plain(Context):
    """A node with its attributes."""

    def __init__(self, importer: PlainImporter, node: Node) -> None:
        output, operator, operands, self.attributes = node
        values = [importer.scope.get(o, Absent()) for o in operands]
        super().__init__(importer, operator, output, values, outputs=self.attributes.get("outputs", 1))


class PlainImporter(GraphImporter):
    title = "plain"

    def __init__(self, nodes: Sequence[Node], **inputs: Any) -> None:
        super().__init__("plain", "plain", registry, len(nodes))
        self.nodes = nodes
        self.scope: dict[str, Any] = {name: self.builder.input(name, type) for name, type in inputs.items()}

    def run(self) -> Graph:
        for node in self.nodes:
            self.scope[node[0]] = self.node(Plain(self, node))[0]
        if self.unsupported:
            raise self.everything_unsupported()
        self.builder.output(self.as_value(self.scope[self.nodes[-1][0]]), "result")
        return self.built()


@registry.op("add")
def add(c: Plain) -> Value:
    return c(Add(), c.value(0), c.value(1))


@registry.op("size")
def size(c: Plain) -> Content:
    return ct.content(dt.int64, [c.shape(0)[c.attributes["axis"]]])


@registry.op("double")
def double(c: Plain) -> Value:
    return c.add(c.value(0), c.value(0))


@registry.formula("double")
def double_content(c: Plain) -> Content:
    return ct.each(lambda x: x + x, c.content(0).dtype, c.content(0))


@registry.op("reshape")
def reshape(c: Plain) -> Value:
    shape = c.dims(1, "the shape")
    assert shape is not None
    return c(Reshape(shape), c.value(0))


@registry.op("take")
def take(c: Plain) -> Value:
    x = c.value(0)
    return c(Gather(0), x, c.indices(c.value(1), x.shape[0]))


@registry.op("spin", refuses=True)
def spin(c: Plain) -> Value:
    raise c.unsupported("spins are not read")


@registry.op("fails")
def fails(c: Plain) -> Value:
    raise KeyError("axis")


@registry.op("choose")
def choose(c: Plain) -> Any:
    """x + one where the condition holds, else x: two bodies that capture x."""

    def body(more: bool) -> Any:
        def make(level: Level, operands: list[Any]) -> list[tuple[str, Value]]:
            inner = level.capture(c.importer, c.value(1))
            if more:
                return [("y", level.builder.add(Add(), inner, level.builder.constant(np.ones(1, np.float32))))]
            return [("y", level.builder.add(Relu(), inner))]

        return build_body(c.importer, "branch", (), make)

    then, orelse = body(True), body(False)
    return c.all(If(then.graph, orelse.graph), c.value(0), *then.captured, *orelse.captured)


X = tensor_type("float32", (Var("n"), 4))


def test_sizes_that_are_computed_become_formulas_not_nodes() -> None:
    nodes: list[Node] = [
        ("s", "size", ["x"], {"axis": 0}),
        ("t", "double", ["s"], {}),
        ("u", "double", ["t"], {}),
        ("y", "double", ["x"], {}),
        ("z", "reshape", ["y", "u"], {}),
    ]
    graph = PlainImporter(nodes, x=X).run()
    assert [type(n.op).__name__ for n in graph.nodes] == ["Add", "Reshape"]
    (size,) = graph.outputs[0].shape
    assert isinstance(size, Expr) and simplify(size) == simplify(Var("n", dt.int64) * 4)


def test_everything_that_is_not_supported_is_one_error() -> None:
    nodes: list[Node] = [
        ("a", "twist", ["x"], {}),
        ("b", "twist", ["a"], {}),
        ("c", "spin", ["x"], {}),
        ("d", "add", ["a", "c"], {}),
    ]
    with pytest.raises(UnsupportedError) as caught:
        PlainImporter(nodes, x=X).run()
    assert str(caught.value) == (
        "the model uses 2 things that the plain frontend does not support\n  operator twist: 'a', 'b'\n"
        "  spin: spins are not read: 'c'\n  hint: export it without; a plugin can convert it (hook `converters`)"
    )


def test_a_converter_that_fails_is_named_with_its_node() -> None:
    with pytest.raises(FrontendError) as caught:
        PlainImporter([("y", "fails", ["x"], {})], x=X).run()
    assert str(caught.value) == (
        "fails cannot be applied\n  node 'y': fails\n  why: KeyError: 'axis'\n"
        "  hint: if the model is valid, this is a defect of the frontend"
    )


def test_an_operand_that_is_missing() -> None:
    with pytest.raises(FrontendError, match="add: input 1 is missing\n  node 'y': add"):
        PlainImporter([("y", "add", ["x", "nothing"], {})], x=X).run()


def test_indices_are_checked_where_the_data_is_used() -> None:
    graph = PlainImporter([("y", "take", ["x", "i"], {})], x=X, i=tensor_type("int64", (2,))).run()
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(evaluate(graph, {"x": x, "i": np.array([0, -1])})[0], x[[0, -1]])
    with pytest.raises(Exception, match="take: index 3 is out of range"):
        evaluate(graph, {"x": x, "i": np.array([0, 3])})


def test_bodies_capture_what_they_use_of_the_graph_around() -> None:
    graph = PlainImporter([("y", "choose", ["test", "x"], {})], test=tensor_type("bool", ()), x=X).run()
    x = np.array([[-1.0, 0.0, 1.0, 2.0]], np.float32)
    for test, wanted in ((True, x + 1), (False, np.maximum(x, 0))):
        np.testing.assert_array_equal(evaluate(graph, {"test": np.array(test), "x": x})[0], wanted)


def test_sizes_with_the_formulas_that_symbols_stand_for() -> None:
    importer = PlainImporter([], x=tensor_type("float32", ("n",)))
    n = Var("n", dt.int64)
    long = sum((n * k + k for k in range(2, 40)), start=n)
    inner = importer.enter("body")
    (short,) = importer.short_content(ct.content(dt.int64, [long])).dims()
    assert isinstance(short, Var) and short.name in inner.builder.graph.symbols
    assert importer.written_out((short, 3)) == (long, 3)
    importer.leave()
    assert importer.written_out((short,)) == (short,)


def test_small_results_of_constants_are_constants_and_elements_are_kept() -> None:
    importer = PlainImporter([], x=X)
    one = importer.builder.constant(np.ones(3, np.float32))
    c = Plain(importer, ("y", "add", [], {}))
    folded = c(Add(), one, one)
    np.testing.assert_array_equal(folded.constant, np.full(3, 2, np.float32))
    elements = Elements([one, one])
    made = importer.as_value(elements)
    assert made.producer is not None and isinstance(made.producer.op, SequenceConstruct)


def test_a_file_may_not_ask_for_any_number_of_numbers() -> None:
    c = Plain(PlainImporter([]), ("y", "range", [], {}))
    c.affordable(1 << 20, "the numbers")
    with pytest.raises(FrontendError, match="range: the numbers would be 16777216 numbers, at most 16777216 are made"):
        c.affordable(1 << 24, "the numbers")


def test_a_file_may_not_ask_for_any_number_of_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_frontend.importer.COMPOSED", 2000)
    importer = PlainImporter([], x=X)
    c, x = Plain(importer, ("y", "many", [], {})), importer.builder.input("x", X)
    for _ in range(2000):
        c(Add(), x, x)
    with pytest.raises(UnsupportedError, match=r"comes to more than 2,000 operators\n  node 'y': many\n  why: an attr"):
        c(Add(), x, x)


def test_an_output_that_nothing_makes_is_an_error() -> None:
    importer = PlainImporter([])
    for operand in (Absent(), Poison()):
        with pytest.raises(
            UnsupportedError, match=r"'mask' needs an output of a node that the .* does not compute\n  h"
        ):
            importer.as_value(operand, "mask")


@dataclass
class Vendor:
    given: Sequence[Converter]

    @hookimpl
    def converters(self, frontend: str) -> Sequence[Converter]:
        return self.given


@contextmanager
def vendor(*given: Converter) -> Iterator[None]:
    host().register(Vendor(given), "acme")
    try:
        yield
    finally:
        host().unregister("acme")


def test_other_packages_bring_converters() -> None:
    with vendor(Converter("plain", "", "twist", lambda c: c(Relu(), c.value(0)))):
        graph = PlainImporter([("y", "twist", ["x"], {})], x=X).run()
    assert [type(n.op).__name__ for n in graph.nodes] == ["Relu"]
    with vendor(Converter("plain", "", "twist", lambda c: 3)), pytest.raises(Exception, match="returned 3; expected a"):
        PlainImporter([("y", "twist", ["x"], {})], x=X).run()


def test_versions_of_an_operator() -> None:
    versions: Registry[Any] = Registry("json")
    new, old, refused = (lambda c: "new"), (lambda c: "old"), (lambda c: "refused")
    versions.op("f")(new)
    versions.op("f", versions=(1, 3))(old)
    versions.op("g", refuses=True)(refused)
    assert versions.find("", "f", 3) is old and versions.find("", "f", 4) is new and versions.find("", "h", 1) is None
    assert versions.reaches("", "f", 2) == 3 and versions.reaches("", "h", 2) == 0
    assert versions.supported() == [("", "f")]
