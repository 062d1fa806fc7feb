"""XGBoost and LightGBM as peers, for `weft bench` and `weft verify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.hooks import EngineKind

Run = Callable[[Mapping[str, Any]], list[Any]]


def _version(*distributions: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return None


def open_xgboost(path: str, threads: int) -> Run:
    import xgboost

    booster = xgboost.Booster(model_file=path)
    booster.set_param({"nthread": threads})
    return lambda inputs: [booster.inplace_predict(_features(inputs))]


def open_lightgbm(path: str, threads: int) -> Run:
    import lightgbm

    booster = lightgbm.Booster(model_file=path)
    return lambda inputs: [booster.predict(_features(inputs), num_threads=threads)]


def _features(inputs: Mapping[str, Any]) -> Any:
    (features,) = inputs.values()
    return features


ENGINES = [
    EngineKind("xgboost", lambda: _version("xgboost", "xgboost-cpu"), open_xgboost, frontends=("xgboost",)),
    EngineKind("lightgbm", lambda: _version("lightgbm"), open_lightgbm, frontends=("lightgbm",)),
]
"""The peers that this plugin contributes."""
