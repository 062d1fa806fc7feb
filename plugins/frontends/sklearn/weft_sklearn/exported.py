"""Estimators and pipelines that skl2onnx writes as ONNX, and weft-onnx reads."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import weft
from weft.errors import FrontendError, UnsupportedError, WeftError, from_signal
from weft.graph.nodes import Graph

INSTALL = 'pip install "weft-sklearn[skl2onnx]"'


def load_exported(model: Any, dtype: str) -> Graph:
    """The graph of a fitted estimator. Its input is `x` [n, n_features_in_], float32 unless `dtype` says otherwise.

    Raises:
        FrontendError: it is not fitted, skl2onnx or weft-onnx is missing.
        UnsupportedError: skl2onnx or weft-onnx does not support it.
    """
    name = type(model).__name__
    try:
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
    except ImportError as error:
        raise FrontendError(
            f"{name} is read through skl2onnx, which is missing", why=str(error), hint=INSTALL
        ) from None
    if importlib.util.find_spec("weft_onnx") is None:
        raise FrontendError(f"{name} is read through ONNX, and weft-onnx is missing", hint=INSTALL)
    features = _features(model)
    kind = DoubleTensorType if dtype == "float64" else FloatTensorType
    options = {id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = convert_sklearn(
                model, name, initial_types=[("x", kind([None, features]))], options=options, target_opset=None
            )
    except Exception as error:
        if from_signal(error):
            raise
        raise UnsupportedError(
            f"skl2onnx does not convert this {name}",
            why=str(error).strip().splitlines()[0][:400] or type(error).__name__,
        ) from error
    try:
        return weft.load(exported.SerializeToString(), frontend="onnx")
    except WeftError as error:
        raise type(error)(
            f"{name} was converted by skl2onnx, and the result cannot be read: {error.what}", where=error.where,
            why=error.why, hint=error.hint,
        ) from error  # fmt: skip


def _features(model: Any) -> int:
    """How many features a row has: `n_features_in_`, which an estimator gets when it is fitted."""
    try:
        found = model.n_features_in_
    except AttributeError:
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import check_is_fitted

        name = type(model).__name__
        try:
            check_is_fitted(model)
        except (NotFittedError, TypeError):
            raise FrontendError(f"the {name} is not fitted", hint="call fit first") from None
        raise UnsupportedError(f"{name} does not say how many features a row has (n_features_in_)") from None
    return int(found)


__all__ = ["load_exported"]
