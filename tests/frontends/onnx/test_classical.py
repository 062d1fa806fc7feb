"""Operators of classical pipelines beside ONNX Runtime's, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx.models import info, load, model
from tests.needs import require

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.graph.evaluate import evaluate

F = np.float32
ML = helper.make_opsetid("ai.onnx.ml", 3)
X = np.random.default_rng(0).standard_normal((6, 3)).astype(F)
VECTORS = np.random.default_rng(1).standard_normal((4, 3)).astype(F)


def alike(kind: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> None:
    require("onnxruntime")
    import onnxruntime as ort

    names, results = [f"x{k}" for k in range(len(inputs))], [f"y{k}" for k in range(outputs)]
    node = helper.make_node(kind, names, results, domain="ai.onnx.ml", **attributes)
    infos = [info(n, ["n", *a.shape[1:]], helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in zip(names, inputs)]
    made = model([node], infos, [helper.make_empty_tensor_value_info(r) for r in results], opset=17, domains=[ML])
    made.ir_version = 8
    wanted = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, dict(zip(names, inputs))
    )
    for got, want in zip(evaluate(weft.load(made), inputs), wanted):
        assert got.dtype == want.dtype
        if want.dtype == object:
            np.testing.assert_array_equal(got, want.reshape(got.shape))
            continue
        np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_classifier(post: str) -> None:
    coefficients = VECTORS[:3].reshape(-1).tolist()
    alike(
        "LinearClassifier",
        [X],
        2,
        coefficients=coefficients,
        intercepts=[0.1, 0.2, 0.3],
        classlabels_ints=[4, 2, 9],
        post_transform=post,
    )


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
def test_linear_classifier_of_two(post: str) -> None:
    alike(
        "LinearClassifier",
        [X],
        2,
        coefficients=VECTORS[0].tolist(),
        intercepts=[0.1],
        classlabels_ints=[4, 2],
        post_transform=post,
    )


KERNELS = {"LINEAR": [0.0, 0.0, 0.0], "RBF": [0.3, 0.0, 0.0], "POLY": [0.3, 0.5, 3.0], "SIGMOID": [0.3, 0.1, 0.0]}


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_svm_regressor(kernel: str, one_class: int) -> None:
    alike(
        "SVMRegressor", [X], kernel_type=kernel, kernel_params=KERNELS[kernel], n_supports=4,
        support_vectors=VECTORS.reshape(-1).tolist(),
        coefficients=[0.5, -1.0, 0.25, 1.5], rho=[0.3], one_class=one_class,
    )  # fmt: skip


def vectors_of(classes: int, each: int = 3, seed: int = 2) -> dict[str, Any]:
    r = np.random.default_rng(seed)
    pairs = classes * (classes - 1) // 2
    return {
        "vectors_per_class": [each + k % 2 for k in range(classes)],
        "support_vectors": (
            r.standard_normal((sum(each + k % 2 for k in range(classes)), 3)).astype(F).reshape(-1).tolist()
        ),
        "coefficients": r.standard_normal((classes - 1) * sum(each + k % 2 for k in range(classes))).astype(F).tolist(),
        "rho": r.standard_normal(pairs).astype(F).tolist(),
    }


@pytest.mark.parametrize(
    "labels",
    [{"classlabels_ints": [7, 3, 5, 9]}, {"classlabels_strings": ["a", "c", "b", "d"]}, {"classlabels_ints": [4, 1]}],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_svm_classifier(kernel: str, labels: dict[str, Any]) -> None:
    classes = len(next(iter(labels.values())))
    alike("SVMClassifier", [X], 2, kernel_type=kernel, kernel_params=KERNELS[kernel], **vectors_of(classes), **labels)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("post", ["NONE", "SOFTMAX"])
def test_svm_classifier_with_coupled_probabilities(classes: int, post: str) -> None:
    r, pairs = np.random.default_rng(3), classes * (classes - 1) // 2
    probabilities = {
        "prob_a": (-1 - r.random(pairs)).astype(F).tolist(),
        "prob_b": (r.standard_normal(pairs) / 4).astype(F).tolist(),
    }
    x = np.random.default_rng(4).standard_normal((50, 3)).astype(F)
    alike(
        "SVMClassifier", [x], 2, kernel_type="RBF", kernel_params=KERNELS["RBF"], classlabels_ints=list(range(classes)),
        post_transform=post,
        **vectors_of(classes), **probabilities,
    )  # fmt: skip


def test_votes_and_coupled_probabilities_are_those_of_their_definition() -> None:
    """The search ends within 0.005 / classes of the solution, which numpy finds from the conditions for it (Wu, Lin and
    Weng 2004)."""
    classes, r = 5, np.random.default_rng(5)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    given, x = vectors_of(classes), r.standard_normal((40, 3)).astype(F)
    a, b = (-1 - r.random(len(pairs))).astype(F), (r.standard_normal(len(pairs)) / 4).astype(F)
    node = helper.make_node(
        "SVMClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", kernel_type="RBF", kernel_params=KERNELS["RBF"],
        classlabels_ints=list(range(classes)), prob_a=a.tolist(), prob_b=b.tolist(), **given,
    )  # fmt: skip
    label, p = evaluate(load([node], [info("x", ["n", 3])], ["label", "p"], domains=[ML]), [x])
    begin = np.cumsum([0, *given["vectors_per_class"]])
    vectors, weights = (
        np.array(given["support_vectors"]).reshape(-1, 3),
        np.array(given["coefficients"]).reshape(classes - 1, -1),
    )
    for row, (got, found) in enumerate(zip(label, p)):
        kernel = np.exp(-0.3 * ((vectors - x[row]) ** 2).sum(1))
        votes, way = np.zeros(classes), np.zeros((classes, classes))
        for k, (i, j) in enumerate(pairs):
            first, second = slice(begin[i], begin[i + 1]), slice(begin[j], begin[j + 1])
            score = given["rho"][k] + weights[j - 1, first] @ kernel[first] + weights[i, second] @ kernel[second]
            votes[i if score > 0 else j] += 1
            way[i, j] = 1 / (1 + np.exp(score * a[k] + b[k]))
            way[j, i] = 1 - way[i, j]
        q = -way * way.T + np.diag((way**2).sum(0))
        system = np.block([[q, np.ones((classes, 1))], [np.ones((1, classes)), np.zeros((1, 1))]])
        np.testing.assert_allclose(found, np.linalg.solve(system, np.eye(classes + 1)[-1])[:-1], atol=5e-3)
        assert got == votes.argmax() and abs(found.sum() - 1) < 1e-5


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("labels", [3, 1])
def test_svm_classifier_without_vectors(labels: int, post: str) -> None:
    weights, given = VECTORS[:labels].reshape(-1).tolist(), {"classlabels_ints": list(range(5, 5 + labels))}
    alike(
        "SVMClassifier",
        [X],
        2,
        kernel_type="LINEAR",
        kernel_params=[0.0, 0.0, 0.0],
        coefficients=weights,
        rho=[0.2],
        post_transform=post,
        **given,
    )


def test_svm_classifier_of_two_without_vectors() -> None:
    """ONNX Runtime takes the second of two wherever a score is positive; here it is the one of the greater score, as in
    ONNX's own reference."""
    node = helper.make_node(
        "SVMClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=VECTORS[:2].reshape(-1).tolist(),
        rho=[0.2],
        classlabels_ints=[5, 6],
    )
    label, scores = evaluate(load([node], [info("x", ["n", 3])], ["label", "scores"], domains=[ML]), [X])
    np.testing.assert_allclose(scores, X @ VECTORS[:2].T + F(0.2), rtol=1e-5)
    np.testing.assert_array_equal(label, 5 + scores.argmax(1))


def test_svm_classifier_of_two_by_weights_that_are_not_negative() -> None:
    weights = np.abs(VECTORS[:2]).reshape(-1).tolist()
    alike(
        "SVMClassifier",
        [X],
        2,
        kernel_type="LINEAR",
        kernel_params=[0.0, 0.0, 0.0],
        coefficients=weights,
        rho=[0.2],
        classlabels_ints=[5, 6],
    )


def test_imputer() -> None:
    x = X.copy()
    x[1, 2] = x[3, 0] = np.nan
    alike("Imputer", [x], imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    alike("Imputer", [np.array([[1, -1], [-1, 2]])], imputed_value_int64s=[7], replaced_value_int64=-1)


def test_feature_vectorizer() -> None:
    alike("FeatureVectorizer", [X, X[:, :2]], inputdimensions=[3, 2])


def test_one_hot_encoder() -> None:
    alike("OneHotEncoder", [np.array([[1, 5], [3, 4]])], cats_int64s=[5, 1, 3], zeros=1)


def test_category_mapper() -> None:
    cats = {"cats_strings": ["a", "b", "c"], "cats_int64s": [7, 5, 9]}
    alike("CategoryMapper", [np.array([["b", "x"], ["c", "a"]], object)], default_int64=-4, **cats)
    alike("CategoryMapper", [np.array([[5, 6], [9, 7]])], default_string="none", **cats)


def test_what_is_refused() -> None:
    def refused(kind: str, error: Any, message: str, **attributes: Any) -> None:
        with pytest.raises(error, match=message):
            load(
                [helper.make_node(kind, ["x"], ["y"], domain="ai.onnx.ml", **attributes)],
                [info("x", ["n", 3])],
                ["y"],
                domains=[ML],
            )

    refused("CastMap", UnsupportedError, "maps are no tensors; skl2onnx exports without them")
    refused("ZipMap", FrontendError, "3 numbers for 2 keys", classlabels_int64s=[0, 1])
    refused("SVMClassifier", FrontendError, "expected coefficients and rho, got 1 and 0", coefficients=[1.0])
    of_two = {
        "coefficients": [1.0, -1.0],
        "rho": [0.0],
        "classlabels_ints": [0, 1],
        "support_vectors": [1.0, 2, 3, 4, 5, 6],
    }
    refused(
        "SVMClassifier",
        FrontendError,
        r"not negative, for each of 2 class\(es\), got \(1,\)",
        vectors_per_class=[1],
        **of_two,
    )
    refused(
        "SVMClassifier",
        FrontendError,
        "of 4 support vectors and 2 classes expected 4 coefficients and 1 rho, got 6",
        vectors_per_class=[1, 3],
        **of_two,
    )
    coupled = {"vectors_per_class": [1, 1], "prob_a": [1.0, 2.0], "prob_b": [0.0]}
    refused("SVMClassifier", FrontendError, "prob_a and prob_b: expected 1 of each, got 2 and 1", **coupled, **of_two)
    refused(
        "CategoryMapper",
        FrontendError,
        "as many of one as of the other, got 2 and 1",
        cats_strings=["a", "b"],
        cats_int64s=[1],
    )
    refused(
        "SVMRegressor",
        UnsupportedError,
        "the kernel CUBIC",
        kernel_type="CUBIC",
        n_supports=1,
        support_vectors=[1.0, 2, 3],
        coefficients=[1.0],
    )
    refused("OneHotEncoder", UnsupportedError, "categories that are no numbers", cats_strings=["a"])
    refused("Imputer", FrontendError, "expected imputed_value_floats for float32")
    refused("Imputer", FrontendError, "one for each of 3 features, got 2", imputed_value_floats=[1.0, 2.0])
    refused("FeatureVectorizer", FrontendError, "inputdimensions: expected 1, got 2", inputdimensions=[3, 2])
    refused(
        "LinearClassifier",
        FrontendError,
        r"coefficients: expected some for each of 2 class\(es\), got 3",
        coefficients=[1.0, 2, 3],
        intercepts=[0.0, 1],
    )
