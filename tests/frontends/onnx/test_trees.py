"""Ensembles of trees: every comparison, missing values, both layouts, all scores, against a walk by definition; and
every error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tests.frontends.onnx.models import info, load, model, operators, run
from tests.needs import require

import weft
from weft.errors import FrontendError, UnsupportedError

F = np.float32
ML = helper.make_opsetid("ai.onnx.ml", 3)
ML5 = helper.make_opsetid("ai.onnx.ml", 5)
TESTS: dict[str, Any] = {
    "BRANCH_LEQ": lambda x, s: x <= s, "BRANCH_LT": lambda x, s: x < s, "BRANCH_GTE": lambda x, s: x >= s,
    "BRANCH_GT": lambda x, s: x > s,
}  # fmt: skip
Tree = Any
"""A leaf's weights, or (feature, mode, split, missing goes to true, true, false)."""


def grow(random: Any, depth: int, modes: list[str], targets: int, missing: str, early: float) -> Tree:
    if not depth or random.random() < early:
        return np.round(random.standard_normal(targets) * 8) / 8
    split = F(random.choice([-1, -0.5, 0, 0.5, 1]))
    to_true = {"none": 0, "all": 1, "some": int(random.integers(2))}[missing]
    below = [grow(random, depth - 1, modes, targets, missing, early) for _ in range(2)]
    return int(random.integers(3)), str(random.choice(modes)), split, to_true, *below


def walk(tree: Tree, row: Any) -> Any:
    while isinstance(tree, tuple):
        feature, mode, split, to_true, true, false = tree
        tree = true if TESTS[mode](row[feature], split) or (to_true and np.isnan(row[feature])) else false
    return tree


def attributes(trees: list[Tree], kind: str) -> dict[str, Any]:
    """Of the operators before ai.onnx.ml 5."""
    nodes: dict[str, list[Any]] = {
        f"nodes_{k}": []
        for k in (
            "treeids",
            "nodeids",
            "featureids",
            "values",
            "modes",
            "truenodeids",
            "falsenodeids",
            "missing_value_tracks_true",
        )
    }
    weights: dict[str, list[Any]] = {f"{kind}_{k}": [] for k in ("treeids", "nodeids", "ids", "weights")}

    def put(number: int, tree: Tree, free: list[int]) -> None:
        k = free[0]
        free[0] += 1
        at = len(nodes["nodes_nodeids"])
        leaf = not isinstance(tree, tuple)
        feature, mode, split, to_true = (0, "LEAF", 0.0, 0) if leaf else tree[:4]
        for name, value in zip(nodes, (number, k, feature, float(split), mode, 0, 0, to_true)):
            nodes[name].append(value)
        if leaf:
            for target, w in enumerate(tree):
                for name, value in zip(weights, (number, k, target, float(w))):
                    weights[name].append(value)
            return
        for name, below in (("nodes_truenodeids", tree[4]), ("nodes_falsenodeids", tree[5])):
            nodes[name][at] = free[0]
            put(number, below, free)

    for number, tree in enumerate(trees):
        put(number, tree, [0])
    return nodes | weights


def regressor(trees: list[Tree], targets: int, columns: int = 3, **more: Any) -> Any:
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=targets,
        **attributes(trees, "target") | more,
    )
    return load([node], [info("x", ["n", columns])], ["y"], domains=[ML])


def rows(random: Any, count: int = 9) -> Any:
    x = random.choice(np.array([-2, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 2, np.nan, np.inf, -np.inf], F), (count, 3))
    return x.astype(F)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 5), st.integers(1, 4), st.integers(1, 3), st.lists(st.sampled_from(sorted(TESTS)), min_size=1,
        max_size=4),
    st.sampled_from(["none", "all", "some"]), st.sampled_from([0.0, 0.5]), st.sampled_from(["SUM", "AVERAGE", "MIN",
        "MAX"]), st.integers(0, 1 << 20),
)  # fmt: skip
def test_regressors(
    depth: int, count: int, targets: int, modes: list[str], missing: str, early: float, how: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    trees = [grow(random, depth, modes, targets, missing, early) for _ in range(count)]
    x, base = rows(random), [0.5] * targets
    graph = regressor(trees, targets, aggregate_function=how, base_values=base)
    assert "TreeEnsemble" in operators(graph)
    combine: Any = {"SUM": np.sum, "AVERAGE": np.mean, "MIN": np.min, "MAX": np.max}[how]
    want = np.array([combine([walk(t, row) for t in trees], axis=0) for row in x], F) + F(0.5)
    np.testing.assert_allclose(run(graph, x), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("depth", [3, 14])
@pytest.mark.parametrize("missing", ["none", "all", "some"])
@pytest.mark.parametrize("count", [1, 7, 64, 130])
def test_native(depth: int, missing: str, count: int) -> None:
    """Complete trees, and deep ones whose nodes know their children; rows that are no whole block."""
    random = np.random.default_rng(depth)
    trees = [grow(random, depth, ["BRANCH_LEQ", "BRANCH_GT"], 2, missing, 0.35 if depth > 3 else 0.1) for _ in range(5)]
    trees.append(np.array([1.0, 2.0]))
    graph = regressor(trees, 2)
    (node,) = (n for n in graph.nodes if type(n.op).__name__ == "TreeEnsemble")
    assert (node.inputs[2] is None) == (depth > 3), "deep trees have packed nodes"
    x = rows(random, count)
    (got,) = weft.compile(graph, "llvm -threads=2", cache=False).run({"x": x}).values()
    np.testing.assert_allclose(got, np.array([sum(walk(t, row) for t in trees) for row in x], F), rtol=1e-5, atol=1e-5)


CLASSES: dict[str, Any] = {
    "three": (3, {}), "two": (2, {}), "based": (3, {"base_values": [0.1, 0.2, 0.3]}),
    "one_of_two": (2, {"class_ids": 0}), "one_of_two_second": (2, {"class_ids": 1}),
}  # fmt: skip


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("case", CLASSES)
def test_classifiers_as_onnxruntime(case: str, post: str, positive: bool) -> None:
    """Scores of two classes from weights of one are a matter of convention: theirs. Of two weighed classes it labels
    all by 1 and 0: there, ONNX's own."""
    require("onnxruntime")
    import onnxruntime as ort

    classes, more = CLASSES[case]
    random = np.random.default_rng(3)
    trees = [grow(random, 3, ["BRANCH_LEQ"], 1 if "class_ids" in more else classes, "none", 0.2) for _ in range(4)]
    values = attributes(trees, "class")
    if positive:
        values["class_weights"] = [abs(w) / 4 for w in values["class_weights"]]
    if "class_ids" in more:
        values["class_ids"] = [more["class_ids"]] * len(values["class_ids"])
    values |= {k: v for k, v in more.items() if k != "class_ids"} | {
        "classlabels_int64s": [7, 5, 9][:classes],
        "post_transform": post,
    }
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **values)
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("label", "scores")]
    made = model([node], [info("x", ["n", 3])], outputs, opset=17, domains=[ML])
    made.ir_version = 8
    x = np.random.default_rng(1).standard_normal((20, 3)).astype(F)
    if case == "two":
        from onnx.reference import ReferenceEvaluator

        labels, scores = ReferenceEvaluator(made).run(None, {"x": x})
    else:
        labels, scores = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )
    got = list(weft.compile(weft.load(made), "llvm -threads=1", cache=False).run({"x": x}).values())
    np.testing.assert_array_equal(got[0], labels)
    np.testing.assert_allclose(got[1], scores, rtol=1e-5, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([["BRANCH_LEQ"], ["BRANCH_GTE", "BRANCH_LT"]]),
    st.integers(0, 1 << 20),
)
def test_ensembles_of_version_5(depth: int, targets: int, aggregate: int, modes: list[str], seed: int) -> None:
    """A leaf weighs one target; what no leaf weighs is 0."""
    random = np.random.default_rng(seed)
    trees = [grow(random, depth, modes, 1, "some", 0.3) for _ in range(3)]
    trees = [t if isinstance(t, tuple) else (0, modes[0], F(0), 0, t, t) for t in trees]
    nodes: list[Any] = []
    leaves: list[Any] = []
    roots = []

    def put(tree: Tree) -> tuple[int, int]:
        if not isinstance(tree, tuple):
            leaves.append((len(leaves) % targets, float(tree[0])))
            return 1, len(leaves) - 1
        at = len(nodes)
        nodes.append(None)
        below = [put(t) for t in tree[4:]]
        nodes[at] = (
            tree[0],
            sorted(TESTS, key=["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"].index).index(tree[1]),
            tree[2],
            tree[3],
            *below,
        )
        return 0, at

    for t in trees:
        roots.append(put(t)[1])
    tensor: Any = lambda name, data, kind: helper.make_tensor(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [len(data)], data
    )
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=targets, aggregate_function=aggregate,
        tree_roots=roots,
        nodes_featureids=[n[0] for n in nodes], nodes_modes=tensor("m", [n[1] for n in nodes], np.uint8),
        nodes_splits=tensor("s", [float(n[2]) for n in nodes], F),
        nodes_missing_value_tracks_true=[n[3] for n in nodes],
        nodes_trueleafs=[n[4][0] for n in nodes], nodes_truenodeids=[n[4][1] for n in nodes],
        nodes_falseleafs=[n[5][0] for n in nodes], nodes_falsenodeids=[n[5][1] for n in nodes],
        leaf_targetids=[leaf[0] for leaf in leaves], leaf_weights=tensor("w", [leaf[1] for leaf in leaves], F),
    )  # fmt: skip
    x = rows(random)
    got = run(load([node], [info("x", ["n", 3])], ["y"], domains=[ML5]), x)

    def reached(n: int, row: Any) -> int:
        while True:
            feature, mode, split, to_true, true, false = nodes[n]
            test = TESTS[["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"][mode]]
            leaf, n = true if test(row[feature], split) or (to_true and np.isnan(row[feature])) else false
            if leaf:
                return n

    for row, y in zip(x, got):
        found = [leaves[reached(r, row)] for r in roots]
        for t in range(targets):
            own = [w for k, w in found if k == t]
            want = {0: sum(own) / len(roots), 1: sum(own), 2: min(own, default=0), 3: max(own, default=0)}[aggregate]
            assert abs(y[t] - want) < 1e-5


def test_double_precision_splits_are_compared_so() -> None:
    """A float64 just above a split that float32 cannot tell from it."""
    split = np.float64(0.1)
    values = attributes([(0, "BRANCH_LEQ", 0.1, 0, np.array([1.0]), np.array([2.0]))], "target")
    del values["nodes_values"], values["target_weights"]
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_values_as_tensor=helper.make_tensor("v", 11, [3], [split, 0, 0]),
        target_weights_as_tensor=helper.make_tensor("w", 11, [2], [1.0, 2.0]), **values,
    )  # fmt: skip
    graph = load([node], [info("x", ["n", 1], 11)], ["y"], domains=[ML])
    np.testing.assert_array_equal(run(graph, np.array([[split], [np.nextafter(split, 1)]])), np.array([[1], [2]], F))


ERRORS: dict[str, Any] = {
    "feature": ({"nodes_featureids": [9, 0, 0]}, "a node tests feature 9 of 3"),
    "child": ({"nodes_truenodeids": [8, 0, 0]}, "nodes_truenodeids: tree 0 has no node 8"),
    "cycle": ({"nodes_truenodeids": [0, 0, 0]}, "the nodes are no trees"),
    "twice": ({"nodes_truenodeids": [2, 0, 0]}, "the nodes are no trees"),
    "lengths": ({"nodes_values": [0.0]}, "the lists of nodes are not of one length, or empty"),
    "owner": ({"target_nodeids": [5, 2]}, "target_nodeids: tree 0 has no node 5"),
    "target": ({"target_ids": [0, 4]}, r"target_weights and what they belong to do not fit 1 target\(s\)"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_is_no_forest(case: str) -> None:
    more, message = ERRORS[case]
    tree = (0, "BRANCH_LEQ", F(0), 0, np.array([1.0]), np.array([2.0]))
    with pytest.raises(FrontendError, match=message):
        regressor([tree], 1, **more)


def test_what_is_not_supported() -> None:
    tree = (0, "BRANCH_LEQ", F(0), 0, np.array([1.0]), np.array([2.0]))
    for more, message in (
        ({"nodes_modes": ["BRANCH_EQ", "LEAF", "LEAF"]}, "nodes that test for equality"),
        ({"nodes_modes": ["BRANCH_ODD", "LEAF", "LEAF"]}, "nodes_modes BRANCH_ODD"),
        ({"post_transform": "PROBIT"}, "post_transform PROBIT"),
        ({"aggregate_function": "MEDIAN"}, "aggregate_function MEDIAN"),
        ({"columns": None}, "a number of features that is known only at run time"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            regressor([tree], 1, **more)
