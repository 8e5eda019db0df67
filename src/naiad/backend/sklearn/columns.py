"""What an estimator knows of its columns: text, categories, dates; read from its fitted attributes."""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.backend.trees.booster_features import CUT_NAMES, cut_categories, lightgbm_features, xgboost_features
from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument


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
    """The categories of pandas that the model was trained on, in its order. Clients send those that are neither
    numbers nor text as `text_of` writes them."""
    empty: object = ""
    """What empty text is: for a step that knows missing text its mark for it."""

    @property
    def datatype(self) -> DataType:
        """The datatype of its tensor."""
        if self.kind is ColumnKind.FLAG:
            return DataType.BOOL
        return DataType.BYTES if isinstance(self.example, str) else DataType.FP64


_PLAIN = (str, bool, np.bool_, int, float, np.number)


def text_of(category: Any) -> Any:
    """Return a category as clients send it: a date in ISO 8601, an interval as `(20.0, 30.0]`; others as they are."""
    if category is None or isinstance(category, _PLAIN):
        return category
    return category.isoformat() if hasattr(category, "isoformat") else str(category)


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
    """Return the columns that the first step knows more of than that they are numbers.

    Raises InferError(INVALID_ARG) for categories of XGBoost whose names are not known.
    """
    found = _of_later_steps(estimator, names)
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
        return {name: _of_categories(values) for name, values in pairs if len(values)}
    statistics = getattr(step, "statistics_", None)
    if statistics is not None and statistics.dtype == object:
        return {name: _column(value, step.missing_values) for name, value in zip(names, statistics, strict=False)}
    return {**_of_booster(step, names), **found}


def _of_later_steps(estimator: Any, names: Sequence[str]) -> dict[str, Column]:
    """Return the categories that reach a later step of a pipeline as they came: it has seen the name of the column.

    A ColumnTransformer that gives tables puts the name of the transformer before it: `passthrough__city`.
    """
    while not hasattr(estimator, "steps") and (inner := _fitted(estimator)) is not None:
        estimator = inner
    found: dict[str, Column] = {}
    for _, step in getattr(estimator, "steps", ())[1:]:
        own = [str(name) for name in getattr(step, "feature_names_in_", ())]
        for name, column in read_columns(step, own).items() if own else ():
            original = name if name in names else name.partition("__")[2]
            if column.kind is ColumnKind.CATEGORY and original in names:
                found.setdefault(original, column)
    return found


def _of_booster(step: Any, names: Sequence[str]) -> dict[str, Column]:
    """Return the pandas categories of an estimator of XGBoost or LightGBM."""
    module = type(step).__module__.partition(".")[0]
    if module == "xgboost" and hasattr(step, "get_booster"):
        booster = step.get_booster()
        if cut := cut_categories(booster):
            raise invalid_argument(
                f"the categories of column '{cut[0]}' are not known: {CUT_NAMES}; train with categories of numbers "
                "or of ASCII text"
            )
        features = xgboost_features(booster)
    elif module == "lightgbm" and hasattr(step, "booster_"):
        features = lightgbm_features(step.booster_, step.booster_.model_to_string())
    else:
        return {}
    places = dict(zip(features.names, names, strict=False))
    return {
        places[name]: Column(ColumnKind.CATEGORY, text_of(categories[0]), tuple(categories))
        for name, categories in features.categories.items()
        if categories and name in places
    }


def _of_categories(values: Any) -> Column:
    """Return the column of an encoder's categories."""
    if values.dtype.kind == "M":
        return Column(ColumnKind.DATE, str(values[0]))
    if values[0] is None or isinstance(values[0], _PLAIN):
        return _column(values[0], _missing(values))
    known = tuple(value for value in values if value is not None and value == value)
    return Column(ColumnKind.CATEGORY, text_of(known[0]), known) if known else NUMBER


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
