"""Rules on graphs: what they are asked about, and what comes back where none applies."""

from __future__ import annotations

from tests.passes.library import run_passes

from weft.graph.nodes import Graph, GraphBuilder, Node, Value, tensor_type
from weft.graph.rewrite import Replacement, Rewriter, rewrite
from weft.passes.eliminate_dead_code import eliminate_dead_code
from weft_ops.activation import Relu, Tanh
from weft_ops.arithmetic import Negative


def chain() -> Graph:
    b = GraphBuilder()
    x = b.input("x", tensor_type("float32", ("n",)))
    b.output(b.add(Tanh(), b.add(Relu(), b.add(Tanh(), x))))
    return b.build()


def test_rules_on_some_operators_are_asked_about_these_only() -> None:
    asked: list[str] = []

    def rule(r: Rewriter, node: Node, inputs: tuple[Value | None, ...]) -> Replacement:
        asked.append(type(node.op).__name__)
        return r.add(Negative(), inputs[0])  # type: ignore[no-any-return]

    new = rewrite(chain(), rule, on=(Relu,))
    assert asked == ["Relu"] and [type(n.op) for n in new.nodes] == [Tanh, Negative, Tanh]


def test_a_graph_without_the_operators_of_the_rules_comes_back_as_it_is() -> None:
    graph = chain()
    assert rewrite(graph, lambda r, node, inputs: inputs[0], on=(Negative,)) is graph
    assert rewrite(graph, lambda r, node, inputs: None, on=(Relu,)) is not graph


def test_names_of_the_given_graph_are_not_given_again() -> None:
    graph = chain()
    new = rewrite(
        graph, lambda r, node, inputs: r.add(Negative(), r.add(Negative(), inputs[0], name="x"), name="x"), on=(Relu,)
    )
    names = [v.name for v in new.values()]
    assert len(set(names)) == len(names)


def test_dead_code_is_dropped_and_without_any_the_graph_stays() -> None:
    graph = chain()
    assert eliminate_dead_code(graph) is graph
    dead = Node(Relu(), [graph.inputs[0]], [Value("dead", graph.inputs[0].type)])
    graph.nodes.insert(1, dead)
    new = eliminate_dead_code(graph)
    assert len(new.nodes) == 3 and len(graph.nodes) == 4


def test_passes_that_do_not_apply_copy_nothing() -> None:
    seen: dict[str, Graph] = {}
    run_passes(chain(), on_stage=lambda name, graph, seconds: seen.update({name: graph}))
    for name in ("fuse_attention", "fold_scale", "merge_groups", "narrow_products"):
        assert seen[name] is seen["fold_constants_2"], name
    assert seen["choose_layouts"] is seen["eliminate_common_subexpressions"]
