"""Names and categories of columns in the models of XGBoost and LightGBM."""

import json
import logging
import re
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

from naiad.config.tensors.features import Features

_log = logging.getLogger(__name__)


def xgboost_features(booster: Any) -> Features:
    """Return the names and the pandas categories of a `xgboost.Booster`."""
    encoders = _encoders(booster)
    if cut := [name for name, encoder in encoders.items() if _is_cut(encoder)]:
        _log.warning("the categories of features %s are not known: %s; send their indexes", ", ".join(cut), CUT_NAMES)
    categories = {name: _categories(encoder) for name, encoder in encoders.items() if name not in cut}
    return Features(tuple(booster.feature_names or ()), categories, null_is_nan=True)


def cut_categories(booster: Any) -> list[str]:
    """Return the features of a `xgboost.Booster` whose pandas categories have names that may have been cut."""
    return [name for name, encoder in _encoders(booster).items() if _is_cut(encoder)]


def _encoders(booster: Any) -> dict[str, Any]:
    """Return XGBoost's form of the categories of each feature that was a pandas category."""
    names = booster.feature_names or ()
    if not names or "c" not in (booster.feature_types or ()):
        return {}
    model = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
    encoders = model.get("gbtree", model)["model"].get("cats", {}).get("enc", [])
    return {name: encoder for name, encoder in zip(names, encoders, strict=False) if encoder["values"]}


def _categories(encoder: Any) -> list[object]:
    """Return the categories in XGBoost's form: numbers, or the bytes of all texts and where each begins."""
    if "offsets" not in encoder:
        return list(encoder["values"])
    data = _bytes(encoder)
    return [data[begin:end].decode() for begin, end in pairwise(encoder["offsets"])]


def _is_cut(encoder: Any) -> bool:
    """Return whether names may have been cut. Pieces of them may look like names, so all but ASCII counts."""
    return "offsets" in encoder and not _bytes(encoder).isascii()


def _bytes(encoder: Any) -> bytes:
    return bytes(value & 0xFF for value in encoder["values"])


CUT_NAMES = "XGBoost may have cut their names, because some are not ASCII"
"""It stores UTF-8, but only as many bytes as there are characters, where pandas has objects of Python."""


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
    if len(categorical) < len(categories):
        categorical = _with_ordered(ranges, categories)
    is_known = len(categorical) == len(categories)
    found = dict(zip(categorical, categories, strict=True)) if is_known else {}
    return Features(names, found, null_is_nan=True)


_RANGE = re.compile(r"\[(-?\d+):(\d+)\]")
_MOST_PLACES = 20
"""Columns of numbers among which ordered categories are looked for; there are many ways to choose from more."""


def _with_ordered(ranges: Sequence[tuple[str, str]], categories: Sequence[Sequence[object]]) -> list[str]:
    """Return the columns of all categories where ordered or constant ones are among them; nothing if several fit.

    LightGBM takes the index of an ordered category as a number, so its column looks like one of numbers.
    """
    sure = {place for place, (_, info) in enumerate(ranges) if info[0] not in "[n"}
    others = [place for place, (_, info) in enumerate(ranges) if place not in sure]
    missing = len(categories) - len(sure)
    if len(others) > _MOST_PLACES:
        return []
    fitting = []
    for chosen in combinations(others, missing):
        places = sorted({*sure, *chosen})
        if all(_may_be(ranges[place][1], len(each)) for place, each in zip(places, categories, strict=True)):
            fitting.append(places)
    return [ranges[place][0] for place in fitting[0]] if len(fitting) == 1 else []


def _may_be(info: str, count: int) -> bool:
    """Return whether a column may have the indexes of `count` categories; a constant one is 'none'."""
    found = _RANGE.fullmatch(info)
    if found is not None:
        return int(found[1]) >= -1 and int(found[2]) < count
    return not info.startswith("[")
