"""What an estimator knows of its columns: text, categories, dates; read from its fitted attributes."""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.backend.trees.booster_features import lightgbm_features, xgboost_features
from naiad.core.datatype import DataType


class ColumnKind(enum.Enum):
    """What the values of a column are for the first step of an estimator."""

    NUMBER = "number"
    TEXT = "text"
    CATEGORY = "category"
    """A pandas category: of numbers or of text."""
    FLAG = "flag"
    DATE = "date"
    """A date or time, as text in ISO 8601."""


@dataclass(frozen=True, slots=True)
class Column:
    """One feature, as the first step of an estimator sees it."""

    kind: ColumnKind
    example: object
    """A value that the step accepts."""
    categories: Sequence[object] = ()
    """The categories of pandas that the model was trained on, in its order."""
    empty: object = ""
    """What empty text is: for a step that knows missing text its mark for it."""

    @property
    def datatype(self) -> DataType:
        """The datatype of its tensor."""
        if self.kind is ColumnKind.FLAG:
            return DataType.BOOL
        return DataType.BYTES if isinstance(self.example, str) else DataType.FP64


NUMBER = Column(ColumnKind.NUMBER, 0.0)
TRIALS = (Column(ColumnKind.TEXT, ""), Column(ColumnKind.FLAG, False), Column(ColumnKind.DATE, "2000-01-01"))
"""What columns may be of which an estimator says nothing, and which it does not take as numbers."""
_INNER = ("best_estimator_", "estimator_", "regressor_", "classifier_", "_preprocessor")
"""Attributes of estimators with the one that sees the input."""


def first_step(estimator: Any) -> Any:
    """Return the step of a pipeline, a union or a search that sees the input first."""
    while True:
        steps = getattr(estimator, "steps", None) or getattr(estimator, "transformer_list", None)
        inner = steps[0][1] if steps else _fitted(estimator)
        if inner is None:
            return estimator
        estimator = inner


def _fitted(estimator: Any) -> Any:
    """Return what an estimator around another one, or around several equal ones, has fitted."""
    for name in _INNER:
        found = getattr(estimator, name, None)
        if found is not None and hasattr(found, "get_params"):
            return found
    return next(_members(estimator), None)


def _members(estimator: Any) -> Iterator[Any]:
    """Yield the estimators of a vote, a stack, a calibration or several targets; all of them see the whole input."""
    for each in getattr(estimator, "calibrated_classifiers_", ()):
        yield each.estimator
    if hasattr(estimator, "estimators_features_"):
        return  # bagging: members see some of the columns
    members = getattr(estimator, "estimators_", ())
    for each in members if isinstance(members, list) else ():
        if hasattr(each, "get_params"):
            yield each


def read_columns(estimator: Any, names: Sequence[str]) -> dict[str, Column]:
    """Return the columns that the first step knows more of than that they are numbers."""
    found: dict[str, Column] = {}
    for member in _members(estimator):
        found = {**read_columns(member, names), **found}
    step = first_step(estimator)
    if hasattr(step, "build_analyzer"):
        return dict.fromkeys(names, Column(ColumnKind.TEXT, ""))
    if hasattr(step, "transformers_"):
        for _, transformer, selected in step.transformers_:
            for name, column in read_columns(transformer, _select(selected, names)).items():
                found.setdefault(name, column)
        return found
    categories = getattr(step, "categories_", None)
    if categories is not None:
        pairs = zip(names, categories, strict=False)
        return {name: _column(values[0], _missing(values)) for name, values in pairs if len(values)}
    statistics = getattr(step, "statistics_", None)
    if statistics is not None and statistics.dtype == object:
        return {name: _column(value, step.missing_values) for name, value in zip(names, statistics, strict=False)}
    return {**_of_booster(step, names), **found}


def _of_booster(step: Any, names: Sequence[str]) -> dict[str, Column]:
    """Return the pandas categories of an estimator of XGBoost or LightGBM."""
    module = type(step).__module__.partition(".")[0]
    if module == "xgboost" and hasattr(step, "get_booster"):
        features = xgboost_features(step.get_booster())
    elif module == "lightgbm" and hasattr(step, "booster_"):
        features = lightgbm_features(step.booster_, step.booster_.model_to_string())
    else:
        return {}
    places = dict(zip(features.names, names, strict=False))
    return {
        places[name]: Column(ColumnKind.CATEGORY, categories[0], tuple(categories))
        for name, categories in features.categories.items()
        if categories and name in places
    }


def _missing(categories: Any) -> Any:
    """Return the mark for missing text among categories; "" if there is none, or if empty text is a category."""
    if "" in list(categories):
        return ""
    return next((each for each in categories if each is None or each != each), "")


def _column(value: Any, empty: Any = "") -> Column:
    if isinstance(value, str):
        return Column(ColumnKind.TEXT, value, empty=empty)
    if isinstance(value, (bool, np.bool_)):
        return Column(ColumnKind.NUMBER, float(value))
    return Column(ColumnKind.NUMBER, float(value)) if isinstance(value, (int, float, np.number)) else NUMBER


def _select(selected: Any, names: Sequence[str]) -> list[str]:
    """Return the columns that a transformer of a ColumnTransformer gets: by name, index, slice or mask."""
    if isinstance(selected, str):
        return [selected]
    if isinstance(selected, slice) and not isinstance(selected.start or selected.stop, str):
        return list(names[selected])
    if isinstance(selected, slice):
        first = names.index(selected.start) if selected.start else 0
        return list(names[first : names.index(selected.stop) + 1 if selected.stop else None])
    items = np.atleast_1d(np.asarray(selected))
    if items.dtype == bool:
        return [name for name, is_selected in zip(names, items, strict=True) if is_selected]
    return [str(item) if isinstance(item, str) else names[int(item)] for item in items.tolist()]
