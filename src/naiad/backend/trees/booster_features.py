"""Names and categories of columns in the models of XGBoost and LightGBM."""

import json
from itertools import pairwise
from typing import Any

from naiad.config.features import Features


def xgboost_features(booster: Any) -> Features:
    """Return the names and the pandas categories of a `xgboost.Booster`."""
    names = tuple(booster.feature_names or ())
    categories: dict[str, list[object]] = {}
    if names and "c" in (booster.feature_types or ()):
        model = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
        encoders = model.get("gbtree", model)["model"].get("cats", {}).get("enc", [])
        categories = {name: _categories(enc) for name, enc in zip(names, encoders, strict=False) if enc["values"]}
    return Features(names, categories, null_is_nan=True)


def _categories(encoder: Any) -> list[object]:
    """Return the categories in XGBoost's form: numbers, or the bytes of all texts and where each begins."""
    if "offsets" not in encoder:
        return list(encoder["values"])
    data = bytes(value & 0xFF for value in encoder["values"])
    bounds = encoder["offsets"]
    return [data[begin:end].decode("utf-8", "replace") for begin, end in pairwise(bounds)]


def lightgbm_features(booster: Any, text: str) -> Features:
    """Return names that are not LightGBM's own, `Column_0`, and the categories of columns that were pandas' ones."""
    names = tuple(booster.feature_name())
    if names == tuple(f"Column_{index}" for index in range(len(names))):
        return Features(null_is_nan=True)
    line = next((line for line in text.splitlines() if line.startswith("feature_infos=")), "")
    # Ranges of numbers have brackets, categories are numbers between colons, constant features are 'none'.
    infos = line.partition("=")[2].split()
    ranges = list(zip(names, infos, strict=False))
    categories = booster.pandas_categorical or []
    categorical = [name for name, info in ranges if ":" in info and info[0] != "["]
    if len(categorical) != len(categories):
        categorical = [name for name, info in ranges if info[0] != "["]
    is_known = len(categorical) == len(categories)
    found = dict(zip(categorical, categories, strict=True)) if is_known else {}
    return Features(names, found, null_is_nan=True)
