"""What the columns of a table are for a model: their names, the categories of text, what null is.

Frameworks that train on tables store names of features in the model file; the protocol has no field for them. They
are parameters of the configuration: the model's backend writes them at load, or the owner does in `config.pbtxt`.
Each source of columns with names (files of `naiad predict`, records in JSON) goes through `Features`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, excerpt, invalid_argument

NAMES = "feature_names"
"""A list in JSON: the columns of the only input, in its order."""
CATEGORIES = "feature_categories"
"""An object in JSON: feature to the list of its categories; the model takes the index of a category."""
NULLS = "feature_nulls"
"""`nan`: a null in an input of floating-point numbers is NaN, a missing value."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a model says of its columns."""

    names: Sequence[str] = ()
    """Of the columns of the only input, in its order; empty if they are not known or each column is an input."""
    categories: Mapping[str, Sequence[object]] = field(default_factory=lambda: MappingProxyType({}))
    null_is_nan: bool = False

    def columns(self, available: Sequence[str], where: str) -> list[str]:
        """Return the column of each feature among those that a source has, which may have others too.

        LightGBM stores names with underscores for blanks: such a column is found too. Raises InferError(INVALID_ARG)
        with both lists.
        """
        stored = {name.replace(" ", "_"): name for name in available}
        found = [name if name in available else stored.get(name, "") for name in self.names]
        if missing := [name for name, column in zip(self.names, found, strict=True) if not column]:
            raise invalid_argument(
                f"{where}: no column {_shown(missing)}; the model was trained on the columns {_shown(self.names)}, "
                f"and there are {_shown(available)}"
            )
        return found

    def record(self, values: Mapping[str, object], where: str) -> list[object]:
        """Return the values of a record in the order of the features. Raises InferError(INVALID_ARG)."""
        is_exact = all(name in values for name in self.names)
        columns = self.names if is_exact else self.columns(list(values), where)
        return [self.value(name, values[column], where) for name, column in zip(self.names, columns, strict=True)]

    def value(self, name: str, value: object, where: str) -> object:
        """Return a value as the model takes it: the index of a category, NaN for null.

        Raises InferError(INVALID_ARG) for a category that the model does not know.
        """
        if value is None and self.null_is_nan:
            return math.nan
        known = self.categories.get(name)
        if known is None or value is None or (isinstance(value, float) and math.isnan(value)):
            return value
        try:
            return known.index(value)
        except ValueError:
            raise invalid_argument(
                f"{where}: feature '{name}' has no category {value!r}; it has {_shown(known)}"
            ) from None


def _shown(names: Sequence[object]) -> str:
    return excerpt(", ".join(f"'{name}'" if isinstance(name, str) else str(name) for name in names) or "none")


def read_features(config: ModelConfig) -> Features:
    """Return the features in a configuration. Raises InferError(INVALID_ARG) for values of another form."""
    nulls = _text(config, NULLS)
    if nulls not in ("", "nan"):
        raise _wrong(config, NULLS, "nan, or no such parameter")
    names = _json(config, NAMES, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _wrong(config, NAMES, 'a list of names in JSON, ["age", "income"]')
    if len(set(names)) != len(names):
        raise _wrong(config, NAMES, "every name once")
    categories = _json(config, CATEGORIES, {})
    if not isinstance(categories, dict) or not all(isinstance(each, list) for each in categories.values()):
        raise _wrong(config, CATEGORIES, 'an object of lists in JSON, {"city": ["Oslo", "Rome"]}')
    return Features(tuple(names), categories, nulls == "nan")


def write_features(config: ModelConfig, features: Features | None) -> None:
    """Add what a model says of its features to its configuration; what the owner has written there stays.

    Raises InferError(INVALID_ARG) if the owner's names are others than the model's.
    """
    if features is None:
        return
    configured = read_features(config).names
    if configured and features.names and tuple(configured) != tuple(features.names):
        raise invalid_argument(
            f"model '{config.name}': parameter '{NAMES}' is {_shown(configured)}, but the model was trained on "
            f"{_shown(features.names)}; remove the parameter, or correct it"
        )
    values = {
        NAMES: json.dumps(list(features.names), ensure_ascii=False) if features.names else "",
        CATEGORIES: json.dumps(dict(features.categories), ensure_ascii=False) if features.categories else "",
        NULLS: "nan" if features.null_is_nan else "",
    }
    for name, text in values.items():
        if text and name not in config.parameters:
            config.parameters[name].string_value = text


def keep_features(config: ModelConfig, completed: ModelConfig) -> None:
    """Copy the parameters of features from a completed configuration, where `config` has none."""
    for name in (NAMES, CATEGORIES, NULLS):
        if name in completed.parameters and name not in config.parameters:
            config.parameters[name].CopyFrom(completed.parameters[name])


def ensemble_features(config: ModelConfig, members: Mapping[str, ModelConfig]) -> Features | None:
    """Return what the members that read the inputs of an ensemble say of them; None if they say nothing.

    The only input of the ensemble has the names of the members whose only input it is, if they agree. A null is NaN
    if it is for all members that read an input.
    """
    inputs = {each.name for each in config.input}
    readers = [
        (read_features(members[step.model_name]), members[step.model_name])
        for step in config.ensemble_scheduling.step
        if inputs.intersection(step.input_map.values())
    ]
    if not readers:
        return None
    null_is_nan = all(features.null_is_nan for features, _ in readers)
    named: list[tuple[Sequence[str], Mapping[str, Sequence[object]]]] = [
        (features.names, features.categories)
        for features, member in readers
        if features.names and len(member.input) == 1 and len(inputs) == 1
    ]
    names, categories = named[0] if named else ((), {})
    # Members that disagree, and names that the owner has written: the names of no member count.
    if NAMES in config.parameters or any(each != (names, categories) for each in named):
        names, categories = (), {}
    return Features(names, categories, null_is_nan) if names or null_is_nan else None


def _text(config: ModelConfig, name: str) -> str:
    return config.parameters[name].string_value if name in config.parameters else ""


def _json(config: ModelConfig, name: str, default: object) -> object:
    text = _text(config, name)
    try:
        return json.loads(text) if text else default
    except ValueError:
        return None


def _wrong(config: ModelConfig, name: str, expected: str) -> InferError:
    text = excerpt(_text(config, name))
    return invalid_argument(f"model '{config.name}': parameter '{name}' is '{text}', expected {expected}")
