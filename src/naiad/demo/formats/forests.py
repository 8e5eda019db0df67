"""Forests of the same pictures, another kind of model, in the formats of their libraries."""

from pathlib import Path
from typing import Any

import numpy as np

from naiad.demo.clients import Array
from naiad.demo.formats.classifier import Digits

_ROUNDS = 20
_trained: dict[str, Any] = {}


def _xgboost(digits: Digits) -> Any:
    import xgboost

    if "xgboost" not in _trained:
        settings = {"objective": "multi:softprob", "num_class": 10, "max_depth": 4, "nthread": 1}
        data = xgboost.DMatrix(digits.trained_pictures, digits.trained_labels)
        _trained["xgboost"] = xgboost.train(settings, data, _ROUNDS)
    return _trained["xgboost"]


def _lightgbm(digits: Digits) -> Any:
    import lightgbm

    if "lightgbm" not in _trained:
        settings = {"objective": "multiclass", "num_class": 10, "num_threads": 1, "verbose": -1}
        data = lightgbm.Dataset(digits.trained_pictures, digits.trained_labels)
        _trained["lightgbm"] = lightgbm.train(settings, data, _ROUNDS)
    return _trained["lightgbm"]


def write_xgboost(digits: Digits, path: Path) -> str:
    """Write JSON or UBJSON, by the suffix."""
    _xgboost(digits).save_model(path)
    return ""


def write_treelite(digits: Digits, path: Path) -> str:
    """Write the forest of XGBoost as a treelite checkpoint."""
    import treelite

    treelite.frontend.from_xgboost(_xgboost(digits)).serialize(path)
    return ""


def write_lightgbm(digits: Digits, path: Path) -> str:
    """Write LightGBM's text."""
    _lightgbm(digits).save_model(path)
    return ""


def xgboost_probabilities(digits: Digits) -> Array:
    """Return what XGBoost itself answers, [n, 10]."""
    return np.asarray(_xgboost(digits).inplace_predict(digits.pictures))


def lightgbm_probabilities(digits: Digits) -> Array:
    """Return what LightGBM itself answers, [n, 10]."""
    return np.asarray(_lightgbm(digits).predict(digits.pictures, num_threads=1))
