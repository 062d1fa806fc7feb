"""LightGBM: every objective, boosting, categories and all that may be missing, from objects and files, against its own
predict and predict_proba; and every error. Sums are float64: the tolerance is 1e-9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends.sklearn import data
from tests.needs import require

import weft
from weft.errors import FrontendError, UnsupportedError
from weft_testing.changed import check_changed_bytes
from weft_testing.frontend import FrontendCase, check_frontend

require("lightgbm")
import lightgbm as lgb  # noqa: E402

SMALL: dict[str, Any] = {
    "verbose": -1, "n_estimators": 8, "min_child_samples": 5, "min_data_per_group": 5, "cat_smooth": 1,
    "num_threads": 1,
}  # fmt: skip
COLUMNS = [4, 5]


def check(model: Any, answer: Any, x: Any = None, target: str | None = None, rtol: float = 1e-9) -> None:
    x = data.rows().astype(np.float64) if x is None else x
    check_frontend(FrontendCase(model, {"x": x}, answer, others=[{"x": x[:3]}], rtol=rtol, atol=rtol), target)


def predicted(model: Any) -> Any:
    return lambda inputs: {"prediction": model.predict(inputs["x"])}


def proba(model: Any) -> Any:
    def answer(inputs: Any) -> Any:
        label = model.predict(inputs["x"])
        return {
            "label": label.astype(object) if label.dtype.kind == "U" else label,
            "probabilities": model.predict_proba(inputs["x"]),
        }

    return answer


@pytest.mark.parametrize(
    "objective",
    ["regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie",
     "cross_entropy", "cross_entropy_lambda"],
)  # fmt: skip
def test_regressors(objective: str) -> None:
    x, y = data.training()
    y = y - y.min() + 0.1
    y = np.clip(y, 0, 1) if "entropy" in objective else y
    model = lgb.LGBMRegressor(objective=objective, **SMALL).fit(x, y, categorical_feature=COLUMNS)
    check(model, predicted(model))


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("classes", [2, 4])
def test_classifiers(zero: bool, missing: bool, classes: int, tmp_path: Path) -> None:
    """Nothing is missing, NaN is, zeros are; classes are texts. The file gives what the booster does."""
    x, y = data.training(zeros=0.2)
    names = np.array(["ant", "bee", "cat", "dog"])[data.classes(y, classes)]
    model = lgb.LGBMClassifier(zero_as_missing=zero, use_missing=missing, **SMALL)
    model.fit(x, names, categorical_feature=COLUMNS)
    check(model, proba(model), target="llvm" if zero and missing else None)
    model.booster_.save_model(tmp_path / "m.txt")
    for source in (model.booster_, tmp_path / "m.txt", (tmp_path / "m.txt").read_bytes()):
        check(source, lambda inputs: {"prediction": model.booster_.predict(inputs["x"])})


@pytest.mark.parametrize(
    "more",
    [
        {"boosting_type": "dart"},
        {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.7},
        {"objective": "multiclassova", "sigmoid": 0.7},
        {"objective": "multiclassova", "boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.7},
    ],
    ids=str,
)
def test_boostings(more: Any) -> None:
    x, y = data.training()
    model = lgb.LGBMClassifier(**SMALL, **more).fit(x, data.classes(y, 3))
    check(model, proba(model))


def test_roots_ranks_and_early_stopping() -> None:
    x, y = data.training()
    model: Any = lgb.LGBMRegressor(reg_sqrt=True, **SMALL).fit(x, y - y.min())
    check(model, predicted(model))
    ranker: Any = lgb.LGBMRanker(**SMALL).fit(x, data.classes(y, 3), group=[100, 200])
    check(ranker, predicted(ranker))
    stopped: Any = lgb.LGBMRegressor(**SMALL | {"n_estimators": 80}, early_stopping_round=2)
    stopped.fit(x[:200], y[:200], eval_set=[(x[200:], y[200:])])
    assert stopped.best_iteration_ < 80
    check(stopped, predicted(stopped))


def test_trees_of_one_leaf() -> None:
    model = lgb.LGBMRegressor(**SMALL).fit(np.zeros((50, 2)), np.arange(50.0))
    check(model, predicted(model), np.ones((3, 2)))


def test_float32() -> None:
    """Numbers that are float32 compare with float64 thresholds as LightGBM compares them."""
    x, y = data.training()
    model = lgb.LGBMRegressor(**SMALL).fit(x, y, categorical_feature=COLUMNS)
    splits = [float(w) for line in model.booster_.model_to_string().split("\n") if line.startswith("threshold=")
              for w in line[10:].split()]  # fmt: skip
    x = data.rows(thresholds=splits)
    case = FrontendCase(model, {"x": x}, predicted(model), frontend="lightgbm -dtype=float32", rtol=1e-9, atol=1e-9)
    check_frontend(case, "llvm")


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 40), st.integers(1, 6), st.sampled_from([0.0, 0.3]), st.booleans(), st.integers(0, 1000))
def test_any_regression(leaves: int, trees: int, missing: float, zero: bool, seed: int) -> None:
    """Rows that hold the very numbers of the splits."""
    x, y = data.training(seed, 150, missing, 0.2)
    more = SMALL | {"n_estimators": trees, "num_leaves": leaves, "zero_as_missing": zero, "seed": seed}
    model = lgb.LGBMRegressor(**more).fit(x, y, categorical_feature=COLUMNS)
    splits = [float(w) for line in model.booster_.model_to_string().split("\n") if line.startswith("threshold=")
              for w in line[10:].split()]  # fmt: skip
    rows = data.rows(seed, 40).astype(np.float64)
    rows[15:, : data.CATEGORICAL] = np.random.default_rng(seed).choice([*splits, 0.0], (25, data.CATEGORICAL))
    check(model, predicted(model), rows)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text() -> str:
    x, y = data.training()
    model = lgb.LGBMClassifier(**SMALL | {"n_estimators": 2}).fit(x, data.classes(y, 2), categorical_feature=COLUMNS)
    return str(model.booster_.model_to_string())


def replaced(text: str, key: str, value: str | None) -> bytes:
    """The text with another value of a key, everywhere."""
    lines = [line for line in text.split("\n") if value is not None or not line.startswith(f"{key}=")]
    return "\n".join(f"{key}={value}" if line.startswith(f"{key}=") else line for line in lines).encode()


ERRORS = {
    "version": ("version", "v9", "is of version 'v9'"),
    "objective": ("objective", "other", "objective other"),
    "linear": ("is_linear", "1", "2 linear trees"),
    "slope": ("objective", "binary sigmoid:x", "objective: sigmoid:x"),
    "no leaves": ("num_leaves", None, "num_leaves: expected an integer, got nothing"),
    "many leaves": ("num_leaves", "1000000000", "expected 1000000000 numbers"),
    "features": ("max_feature_idx", "99999999999", "expected an integer from 0 to 16777216"),
    "few features": ("max_feature_idx", "0", "expected features below 1"),
    "iterations": ("num_tree_per_iteration", "3", "it has 2 trees, 3 for each iteration"),
    "children": ("left_child", "99999", "numbers, got '99999'"),
    "values": ("leaf_value", "x y", "numbers, got 'x y'"),
    "bounds": ("cat_boundaries", "5 1", "cat_boundaries: expected"),
    "words": ("cat_threshold", "1", "cat_boundaries: expected ascending"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str, text: str) -> None:
    key, value, said = ERRORS[case]
    with pytest.raises(FrontendError) as error:
        weft.load(replaced(text, key, value), frontend="lightgbm")
    assert said in str(error.value)
    assert isinstance(error.value, UnsupportedError) == (case in ("objective", "linear"))


def test_nodes_that_are_no_trees(text: str) -> None:
    head, _, rest = text.partition("left_child=")
    for line, said in ((lambda w: ["0", *w[1:]], "child of two nodes"), (lambda w: ["500", *w[1:]], "left_child")):
        words, _, behind = rest.partition("\n")
        with pytest.raises(FrontendError, match=said):
            weft.load(f"{head}left_child={' '.join(line(words.split()))}\n{behind}".encode())


def test_files_that_are_no_models(tmp_path: Path, text: str) -> None:
    for content, said in ((b"", "it begins with ''"), (b"hello", "it begins with 'hello'"),
                          (text[: len(text) // 4].encode(), "it has no line 'end of trees'")):  # fmt: skip
        (tmp_path / "m.txt").write_bytes(content)
        with pytest.raises(FrontendError) as error:
            weft.load(tmp_path / "m.txt", frontend="lightgbm")
        assert said in str(error.value)
    (tmp_path / "m.txt").write_text("hello")
    with pytest.raises(FrontendError, match="no frontend takes"):
        weft.load(tmp_path / "m.txt")


def test_objects_that_are_no_models() -> None:
    with pytest.raises(FrontendError, match="the Dataset is no model of LightGBM"):
        weft.load(lgb.Dataset(np.zeros((1, 1))))
    with pytest.raises(FrontendError, match="fit it first"):
        weft.load(lgb.LGBMRegressor())
    x, y = data.training()
    own = lgb.LGBMClassifier(objective=lambda t, p: (p - t, np.ones_like(p)), **SMALL).fit(x, data.classes(y, 2))
    with pytest.raises(UnsupportedError, match="which has no probabilities"):
        weft.load(own)


def test_changed_bytes(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.txt").write_text(text)
    check_changed_bytes(tmp_path / "m.txt", count=60)


def test_the_engine(tmp_path: Path) -> None:
    from weft_sklearn.engines import open_lightgbm

    x, y = data.training()
    model = lgb.LGBMRegressor(**SMALL).fit(x, y)
    model.booster_.save_model(tmp_path / "m.txt")
    (got,) = open_lightgbm(str(tmp_path / "m.txt"), 1)({"x": x})
    np.testing.assert_array_equal(got, model.predict(x))
