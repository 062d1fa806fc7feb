"""treelite.Model, as its own inference computes it; and every error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.sklearn import data
from tests.needs import require

import weft
from weft.errors import FrontendError, UnsupportedError
from weft_testing.frontend import FrontendCase, check_frontend

require("treelite", "sklearn", "xgboost", "lightgbm")
import lightgbm as lgb  # noqa: E402
import treelite  # noqa: E402
import xgboost as xgb  # noqa: E402
from sklearn import ensemble  # noqa: E402

ROWS = data.rows(missing=False)
ROWS = np.where(np.isinf(ROWS) | (ROWS < -0.4) & (ROWS > -1), np.float32(9), ROWS)


def made(name: str, classes: int) -> Any:
    x, y = data.training(missing=0.0)
    labels = data.classes(y, classes)
    kinds = ["q"] * data.CATEGORICAL + ["c"] * 2
    if name == "xgboost":
        model = xgb.XGBClassifier(n_estimators=4, max_depth=4, feature_types=kinds, enable_categorical=True)
        return treelite.frontend.from_xgboost(model.fit(x, labels).get_booster())
    if name == "lightgbm":
        found = lgb.LGBMClassifier(n_estimators=4, verbose=-1, min_child_samples=5)
        return treelite.frontend.from_lightgbm(found.fit(x, labels, categorical_feature=[4, 5]).booster_)
    if name == "forest":
        return treelite.sklearn.import_model(ensemble.RandomForestClassifier(4, random_state=0).fit(x, labels))
    if name == "regression":
        return treelite.sklearn.import_model(ensemble.RandomForestRegressor(4, random_state=0).fit(x, y))
    if name == "isolation":
        return treelite.sklearn.import_model(ensemble.IsolationForest(n_estimators=9, random_state=0).fit(x))
    boosted = ensemble.GradientBoostingClassifier(n_estimators=4, random_state=0)
    return treelite.sklearn.import_model(boosted.fit(x, labels))


@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "forest", "boosted", "regression", "isolation"])
@pytest.mark.parametrize("classes", [2, 4])
def test_models(name: str, classes: int) -> None:
    model = made(name, classes)
    x = ROWS.astype(model.input_type)

    def answer(inputs: Any) -> Any:
        found = np.asarray(treelite.gtil.predict(model, inputs["x"]))[:, 0]
        return {"prediction": found[:, 0] if found.shape[1] == 1 else found}

    check_frontend(FrontendCase(model, {"x": x}, answer, rtol=1e-5), None)


def test_errors() -> None:
    x, y = data.training(missing=0.0)
    two = treelite.sklearn.import_model(ensemble.RandomForestRegressor(2).fit(x, np.stack([y, y], 1)))
    with pytest.raises(UnsupportedError, match="2 targets"):
        weft.load(two)
    model = made("xgboost", 2)
    model.get_header_accessor().set_field("postprocessor", "other")
    with pytest.raises(UnsupportedError, match="postprocessor other"):
        weft.load(model)
    model = made("xgboost", 2)
    first = model.get_tree_accessor(0)
    first.set_field("cleft", np.zeros_like(first.get_field("cleft")))
    with pytest.raises(FrontendError, match="nodes that are no trees"):
        weft.load(model)
    with pytest.raises(FrontendError, match=r"is no treelite\.Model"):
        weft.load(first)
