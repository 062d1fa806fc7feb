"""XGBoost: every objective, booster and kind of leaf, categories and what is missing, from objects and files, against
its own predict and predict_proba; and every error. Sums are float32: the tolerance is 1e-5."""

from __future__ import annotations

import json
import subprocess
import sys
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
from weft_sklearn.ubjson import BadUbjson, decode
from weft_testing.changed import check_changed_bytes
from weft_testing.frontend import FrontendCase, check_frontend

require("xgboost")
import xgboost as xgb  # noqa: E402

KINDS = ["q"] * data.CATEGORICAL + ["c"] * (data.COLUMNS - data.CATEGORICAL)
MIXED: dict[str, Any] = {"feature_types": KINDS, "enable_categorical": True, "max_cat_to_onehot": 3, "max_depth": 4}


def check(model: Any, answer: Any, x: Any = None, target: str | None = None) -> Any:
    x = data.rows() if x is None else x
    others = [{"x": x[:3]}]
    return check_frontend(FrontendCase(model, {"x": x}, answer, others=others, rtol=1e-5), target)[0]


def predicted(model: Any) -> Any:
    return lambda inputs: {"prediction": model.predict(inputs["x"])}


def proba(model: Any) -> Any:
    return lambda inputs: {
        "label": model.predict(inputs["x"]).astype(np.int64),
        "probabilities": model.predict_proba(inputs["x"]),
    }


@pytest.mark.parametrize(
    "objective",
    ["reg:squarederror", "reg:squaredlogerror", "reg:logistic", "reg:pseudohubererror", "reg:absoluteerror",
     "count:poisson", "reg:gamma", "reg:tweedie", "reg:quantileerror"],
)  # fmt: skip
def test_regressors(objective: str) -> None:
    x, y = data.training()
    y = y if objective == "reg:squarederror" else y - y.min() + 0.1
    y = np.clip(y, 0, 1) if objective == "reg:logistic" else y
    more = {"quantile_alpha": [0.2, 0.7]} if objective == "reg:quantileerror" else {}
    model = xgb.XGBRegressor(n_estimators=8, objective=objective, **MIXED, **more).fit(x, y)
    check(model, predicted(model))


@pytest.mark.parametrize("booster", ["gbtree", "dart"])
@pytest.mark.parametrize("classes", [2, 4])
def test_classifiers(booster: str, classes: int, tmp_path: Path) -> None:
    """Objects, compiled, and files of both kinds, of which the booster's own prediction is the answer."""
    x, y = data.training()
    more = {"rate_drop": 0.4} if booster == "dart" else {}
    model = xgb.XGBClassifier(n_estimators=6, booster=booster, **MIXED, **more).fit(x, data.classes(y, classes))
    check(model, proba(model), target="llvm")
    raw = model.get_booster()
    for name in ("m.json", "m.ubj"):
        raw.save_model(tmp_path / name)
        answer = lambda inputs: {"prediction": raw.inplace_predict(inputs["x"])}
        check(tmp_path / name, answer)
        check((tmp_path / name).read_bytes(), answer)
    check(raw, answer)


@pytest.mark.parametrize("objective", ["multi:softmax", "binary:hinge", "binary:logitraw", "rank:pairwise"])
def test_boosters(objective: str) -> None:
    """Objectives whose prediction is a label, or a score."""
    x, y = data.training()
    matrix = xgb.DMatrix(x, data.classes(y, 3 if "multi" in objective else 2), group=[100, 200])
    params = {"objective": objective, "max_depth": 3, "base_score": 0.5}
    model = xgb.train(params | ({"num_class": 3} if "multi" in objective else {}), matrix, 5)
    check(model, lambda inputs: {"prediction": model.inplace_predict(inputs["x"])})


def test_survival() -> None:
    x, y = data.training()
    matrix = xgb.DMatrix(x)
    matrix.set_float_info("label_lower_bound", y - y.min() + 1)
    matrix.set_float_info("label_upper_bound", y - y.min() + 2)
    model = xgb.train({"objective": "survival:aft", "max_depth": 3}, matrix, 5)
    check(model, lambda inputs: {"prediction": model.inplace_predict(inputs["x"])})
    cox = xgb.train({"objective": "survival:cox", "max_depth": 3}, xgb.DMatrix(x, y - y.min() + 1), 5)
    check(cox, lambda inputs: {"prediction": cox.inplace_predict(inputs["x"])})


@pytest.mark.parametrize("strategy", ["multi_output_tree", "one_output_per_tree"])
def test_several_outputs(strategy: str) -> None:
    x, y = data.training()
    model = xgb.XGBRegressor(n_estimators=5, multi_strategy=strategy, tree_method="hist").fit(x, np.stack([y, -y], 1))
    check(model, predicted(model))


def test_what_is_missing_may_be_a_number() -> None:
    x, y = data.training()
    x = np.where(np.isnan(x), np.float32(-7), x)
    model = xgb.XGBRegressor(n_estimators=5, missing=-7.0).fit(x, y)
    rows = data.rows(missing=False)
    rows = np.where(np.isinf(rows), np.float32(-7), rows)
    rows[20:40, 1] = -7
    check(model, predicted(model), rows)


def test_early_stopping() -> None:
    """An estimator predicts by its best iteration, its booster by all."""
    x, y = data.training()
    more = {"n_estimators": 60, "early_stopping_rounds": 2}
    model = xgb.XGBClassifier(**more).fit(
        x[:200], data.classes(y, 3)[:200], eval_set=[(x[200:], data.classes(y, 3)[200:])], verbose=False
    )
    assert model.best_iteration < 59
    check(model, proba(model))
    raw = model.get_booster()
    check(raw, lambda inputs: {"prediction": raw.inplace_predict(inputs["x"], iteration_range=(0, 0))})


def test_random_forests_and_pruned_trees() -> None:
    x, y = data.training()
    model: Any = xgb.XGBRFClassifier(n_estimators=9).fit(x, data.classes(y, 3))
    check(model, proba(model))
    model = xgb.XGBRegressor(n_estimators=5, tree_method="exact", gamma=8.0, max_depth=8).fit(x, y)
    check(model, predicted(model))


def test_dtypes() -> None:
    """Features are float32 to XGBoost, whatever they come as."""
    x, y = data.training()
    model = xgb.XGBRegressor(n_estimators=5).fit(x, y)
    rows = data.rows().astype(np.float64) * (1 + 1e-9)
    answer = lambda inputs: {"prediction": model.predict(inputs["x"].astype(np.float32))}
    check_frontend(FrontendCase(model, {"x": rows}, answer, frontend="xgboost -dtype=float64", rtol=1e-5), None)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 7), st.integers(1, 6), st.sampled_from([0.0, 0.3]), st.sampled_from(["depthwise", "lossguide"]),
    st.integers(1, 40), st.integers(0, 1000),
)  # fmt: skip
def test_any_regression(depth: int, trees: int, missing: float, policy: str, onehot: int, seed: int) -> None:
    """Rows that hold the very numbers of the splits."""
    x, y = data.training(seed, 150, missing)
    more = MIXED | {"max_depth": depth, "max_cat_to_onehot": onehot}
    model = xgb.XGBRegressor(n_estimators=trees, grow_policy=policy, random_state=seed, **more).fit(x, y)
    document = json.loads(bytes(model.get_booster().save_raw("json")))
    found = document["learner"]["gradient_booster"]["model"]["trees"]
    splits = [s for t in found for s in t["split_conditions"]]
    check(model, predicted(model), data.rows(seed, 40, missing > 0, splits))


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document() -> Any:
    x, y = data.training()
    model = xgb.XGBClassifier(n_estimators=2, **MIXED).fit(x, data.classes(y, 2))
    return json.loads(bytes(model.get_booster().save_raw("json")))


def changed(document: Any, path: str, value: Any) -> bytes:
    """A document with another value at a path."""
    copy = json.loads(json.dumps(document))
    *way, last = path.split(".")
    at = copy
    for key in way:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is None:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return json.dumps(copy).encode()


TREES = "learner.gradient_booster.model.trees.0."
ERRORS: dict[str, tuple[str, Any, str]] = {
    "version": ("version", [4, 0, 0], "was written by XGBoost 4"),
    "objective": ("learner.objective.name", "reg:other", "objective reg:other"),
    "booster": ("learner.gradient_booster.name", "gblinear", "booster gblinear"),
    "no objective": ("learner.objective", None, "it has no 'learner.objective'"),
    "no trees": ("learner.gradient_booster.model.trees", [], "do not fit the number of trees"),
    "trees": ("learner.gradient_booster.model.trees", 5, "expected a list, got '5'"),
    "features": ("learner.learner_model_param.num_feature", "-1", "expected an integer from 0 to 16777216, got '-1'"),
    "many features": ("learner.learner_model_param.num_feature", "99999999999", "expected an integer from 0"),
    "few features": ("learner.learner_model_param.num_feature", "1", "a node tests feature"),
    "classes": ("learner.learner_model_param.num_class", "1000000", "trees are for outputs"),
    "base score": ("learner.learner_model_param.base_score", "[1.5E0]", "expected a base score that fits"),
    "base scores": ("learner.learner_model_param.base_score", "[5E-1,5E-1]", "expected 1 or 1 finite numbers"),
    "child": (TREES + "left_children.0", 10**7, "a child is node 10000000"),
    "cycle": (TREES + "left_children.0", 0, "a node is the child of two nodes"),
    "one child": (TREES + "right_children.0", -1, "a node has one child only"),
    "feature": (TREES + "split_indices.0", 99, "a node tests feature 99 of 6"),
    "lengths": (TREES + "default_left", [0], "expected lists of one length"),
    "split": (TREES + "split_conditions.0", float("nan"), "expected finite splits"),
    "word": (TREES + "left_children.0", "x", "expected a list of numbers"),
    "leaves": (TREES + "tree_param.size_leaf_vector", "7", "expected an integer from 0 to 1"),
    "segment": (TREES + "categories_segments.0", 10**6, "expected categories from 0 to"),
    "category": (TREES + "categories.0", -5, "expected categories from 0 to"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str, document: Any) -> None:
    path, value, said = ERRORS[case]
    with pytest.raises(FrontendError) as error:
        weft.load(changed(document, path, value), frontend="xgboost")
    assert said in str(error.value)
    assert isinstance(error.value, UnsupportedError) == (case in ("objective", "booster"))


def test_old_leaves_of_several_outputs() -> None:
    x, y = data.training()
    model = xgb.XGBRegressor(n_estimators=1, multi_strategy="multi_output_tree").fit(x, np.stack([y, -y], 1))
    document = json.loads(bytes(model.get_booster().save_raw("json")))
    with pytest.raises(UnsupportedError, match=r"before version 3\.1\n  hint: load it with XGBoost 3\.1"):
        weft.load(changed(document, TREES + "leaf_weights", None))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    for name, content, said in (
        ("a.json", b"{", "was it cut short"),
        ("b.json", b'{"layers": []}', "it has no 'learner'"),
        ("c.json", b"[" * 100_000, "is no XGBoost model"),
        ("d.ubj", b"\x00" * 64, "is no XGBoost model"),
        ("e.ubj", b"{L\0\0\0\0\0\0\0\7learner" + b"[" * 99, "more than 64 values in values"),
        ("f.json", b'{"learner": ' + b"[" * 100_000, "is no XGBoost model"),
        ("g.json", b"", "is no XGBoost model"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FrontendError) as error:
            weft.load(tmp_path / name, frontend="xgboost")  # MXNet's are .json too
        assert said in str(error.value), name


@pytest.mark.parametrize(
    "data_, said",
    [
        (b"", "1 bytes are wanted, 0 are left"),
        (b"[$l#L\x7f\xff\xff\xff\xff\xff\xff\xff", "bytes are wanted"),
        (b"[$T#U\xff", "which are no numbers"),
        (b"[#i\xff", "the length -1"),
        (b"{$i#i\x01", "an object of one type"),
        (b"[$i", "a type without a length"),
        (b"SU\x01\xff", "not UTF-8"),
        (b"x", "no type b'x'"),
        (b"TT", "1 bytes follow the end"),
        (b"Sd\0\0\0\0", "expected a length, got b'd'"),
    ],
)
def test_bad_ubjson(data_: bytes, said: str) -> None:
    with pytest.raises(BadUbjson) as error:
        decode(data_)
    assert said in str(error.value)


def test_ubjson() -> None:
    assert decode(b"{i\1a[TFZCxi\x05d\x3f\x80\0\0]U\1b[#i\2Si\1zNI\1\0}") == {
        "a": [True, False, None, "x", 5, 1.0], "b": ["z", 256],
    }  # fmt: skip
    assert decode(b"[$I#i\2\0\1\1\0").tolist() == [1, 256]


def test_objects_that_are_no_models() -> None:
    with pytest.raises(FrontendError, match="the DMatrix is no model of XGBoost"):
        weft.load(xgb.DMatrix(np.zeros((1, 1))))
    with pytest.raises(FrontendError, match="fit it first"):
        weft.load(xgb.XGBRegressor())
    x, y = data.training()
    raw = xgb.XGBClassifier(n_estimators=1, objective="binary:logitraw").fit(x, data.classes(y, 2))
    with pytest.raises(UnsupportedError, match="which has no probabilities"):
        weft.load(raw)
    several = xgb.XGBClassifier(n_estimators=1).fit(x, np.stack([data.classes(y, 2), data.classes(-y, 2)], 1))
    with pytest.raises(UnsupportedError, match="2 labels for each row"):
        weft.load(several)


@pytest.mark.parametrize("kind", ["json", "ubj"])
def test_changed_bytes(kind: str, tmp_path: Path) -> None:
    x, y = data.training()
    model = xgb.XGBClassifier(n_estimators=2, **MIXED).fit(x, data.classes(y, 3))
    model.get_booster().save_model(tmp_path / f"m.{kind}")
    check_changed_bytes(tmp_path / f"m.{kind}", count=60)


def test_nothing_is_imported_to_say_no() -> None:
    code = (
        "import sys, weft, weft_sklearn.plugin as p\nfor f in p.frontends(): assert not f.accepts(object())\n"
        "assert not {'sklearn', 'xgboost', 'lightgbm', 'treelite', 'weft_sklearn.models'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_engine(tmp_path: Path) -> None:
    from weft_sklearn.engines import open_xgboost

    x, y = data.training()
    model = xgb.XGBRegressor(n_estimators=3).fit(x, y)
    model.save_model(tmp_path / "m.ubj")
    (got,) = open_xgboost(str(tmp_path / "m.ubj"), 1)({"x": x})
    np.testing.assert_array_equal(got, model.predict(x))
