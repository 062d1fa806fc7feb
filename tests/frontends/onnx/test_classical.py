"""Operators of classical pipelines beside ONNX Runtime's, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx.models import info, load, model

import weft
from weft.errors import FrontendError, UnsupportedError
from weft.graph.evaluate import evaluate

F = np.float32
ML = helper.make_opsetid("ai.onnx.ml", 3)
X = np.random.default_rng(0).standard_normal((6, 3)).astype(F)
VECTORS = np.random.default_rng(1).standard_normal((4, 3)).astype(F)


def alike(kind: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> None:
    ort = pytest.importorskip("onnxruntime")
    names, results = [f"x{k}" for k in range(len(inputs))], [f"y{k}" for k in range(outputs)]
    node = helper.make_node(kind, names, results, domain="ai.onnx.ml", **attributes)
    infos = [info(n, ["n", *a.shape[1:]], helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in zip(names, inputs)]
    made = model([node], infos, [helper.make_empty_tensor_value_info(r) for r in results], opset=17, domains=[ML])
    made.ir_version = 8
    wanted = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, dict(zip(names, inputs)))
    for got, want in zip(evaluate(weft.load(made), inputs), wanted):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_classifier(post: str) -> None:
    coefficients = VECTORS[:3].reshape(-1).tolist()
    alike("LinearClassifier", [X], 2, coefficients=coefficients, intercepts=[0.1, 0.2, 0.3], classlabels_ints=[4, 2, 9], post_transform=post)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
def test_linear_classifier_of_two(post: str) -> None:
    alike("LinearClassifier", [X], 2, coefficients=VECTORS[0].tolist(), intercepts=[0.1], classlabels_ints=[4, 2], post_transform=post)


KERNELS = {"LINEAR": [0.0, 0.0, 0.0], "RBF": [0.3, 0.0, 0.0], "POLY": [0.3, 0.5, 3.0], "SIGMOID": [0.3, 0.1, 0.0]}


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_svm_regressor(kernel: str, one_class: int) -> None:
    alike(
        "SVMRegressor", [X], kernel_type=kernel, kernel_params=KERNELS[kernel], n_supports=4, support_vectors=VECTORS.reshape(-1).tolist(),
        coefficients=[0.5, -1.0, 0.25, 1.5], rho=[0.3], one_class=one_class,
    )  # fmt: skip


def test_imputer() -> None:
    x = X.copy()
    x[1, 2] = x[3, 0] = np.nan
    alike("Imputer", [x], imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    alike("Imputer", [np.array([[1, -1], [-1, 2]])], imputed_value_int64s=[7], replaced_value_int64=-1)


def test_feature_vectorizer() -> None:
    alike("FeatureVectorizer", [X, X[:, :2]], inputdimensions=[3, 2])


def test_one_hot_encoder() -> None:
    alike("OneHotEncoder", [np.array([[1, 5], [3, 4]])], cats_int64s=[5, 1, 3], zeros=1)


def test_what_is_refused() -> None:
    def refused(kind: str, error: Any, message: str, **attributes: Any) -> None:
        with pytest.raises(error, match=message):
            load([helper.make_node(kind, ["x"], ["y"], domain="ai.onnx.ml", **attributes)], [info("x", ["n", 3])], ["y"], domains=[ML])

    refused("ZipMap", UnsupportedError, "maps are no tensors; skl2onnx exports without them", classlabels_int64s=[0, 1])
    refused("SVMClassifier", UnsupportedError, "votes and coupled probabilities")
    refused("SVMRegressor", UnsupportedError, "kernel_type CUBIC", kernel_type="CUBIC", n_supports=1, support_vectors=[1.0, 2, 3], coefficients=[1.0])
    refused("OneHotEncoder", UnsupportedError, "categories that are no numbers", cats_strings=["a"])
    refused("Imputer", FrontendError, "expected imputed_value_floats for float32")
    refused("Imputer", FrontendError, "one for each of 3 features, got 2", imputed_value_floats=[1.0, 2.0])
    refused("FeatureVectorizer", FrontendError, "inputdimensions: expected 1, got 2", inputdimensions=[3, 2])
    refused("LinearClassifier", FrontendError, r"coefficients: expected some for each of 2 class\(es\), got 3", coefficients=[1.0, 2, 3], intercepts=[0.0, 1])
