"""Names of features: columns and records find their places, and what does not fit is refused with both lists."""

import math

import pytest

from naiad.config.autofill import merge_auto_completed
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.features import Features, ensemble_features, read_features, write_features
from naiad.core.errors import InferError

PEOPLE = Features(("age", "income", "city"), {"city": ["Oslo", "Rome"]}, null_is_nan=True)


def config(**parameters):
    result = ModelConfig(name="m")
    for name, text in parameters.items():
        result.parameters[name].string_value = text
    return result


def test_columns_are_found_by_name():
    assert PEOPLE.columns(["id", "city", "income", "age"], "file") == ["age", "income", "city"]


def test_names_with_blanks_find_underscores():
    assert Features(("mean_age", "x")).columns(["x", "mean age"], "file") == ["mean age", "x"]
    assert Features(("mean_age",)).columns(["mean age", "mean_age"], "file") == ["mean_age"]


def test_missing_columns_are_refused_with_both_lists():
    with pytest.raises(InferError) as raised:
        PEOPLE.columns(["age", "town"], "people.csv")
    assert raised.value.message == (
        "people.csv: no column 'income', 'city'; the model was trained on the columns 'age', 'income', 'city', and "
        "there are 'age', 'town'"
    )


def test_record_becomes_values_in_order():
    values = PEOPLE.record({"city": "Rome", "age": 3, "income": None}, "row 0")
    assert values[0] == 3
    assert math.isnan(values[1])
    assert values[2] == 1


def test_null_stays_null_where_it_means_nothing():
    assert Features(("a",)).record({"a": None}, "row 0") == [None]


def test_unknown_category_is_refused_with_the_known_ones():
    with pytest.raises(InferError, match="row 4: feature 'city' has no category 'Bonn'; it has 'Oslo', 'Rome'"):
        PEOPLE.record({"city": "Bonn", "age": 3, "income": 1}, "row 4")


def test_configuration_keeps_features():
    written = config()
    write_features(written, PEOPLE)
    assert read_features(written) == Features(("age", "income", "city"), {"city": ["Oslo", "Rome"]}, null_is_nan=True)
    assert read_features(merge_auto_completed(config(), written)) == read_features(written)


def test_features_of_the_owner_stay():
    own = config(feature_names='["a", "b"]')
    write_features(own, Features(null_is_nan=True))
    assert read_features(own).names == ("a", "b")
    with pytest.raises(InferError, match=r"'feature_names' is 'a', 'b', but the model was trained on 'b', 'a'"):
        write_features(own, Features(("b", "a")))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("feature_names", "age,income", "a list of names in JSON"),
        ("feature_names", "[1]", "a list of names in JSON"),
        ("feature_names", '["a", "a"]', "every name once"),
        ("feature_categories", "[]", "an object of lists in JSON"),
        ("feature_categories", '{"a": 1}', "an object of lists in JSON"),
        ("feature_nulls", "zero", "nan, or no such parameter"),
    ],
)
def test_values_of_another_form_are_refused(name, text, expected):
    with pytest.raises(InferError, match=f"parameter '{name}' is .*, expected {expected}"):
        read_features(config(**{name: text}))


def ensemble(*readers: str, inputs: int = 1) -> ModelConfig:
    """Return an ensemble whose input goes to members, and from them to one more."""
    result = ModelConfig(name="e")
    for index in range(inputs):
        result.input.add(name=f"X{index}")
    for name in readers:
        step = result.ensemble_scheduling.step.add(model_name=name)
        step.input_map["in"] = "X0"
        step.output_map["out"] = f"Y_{name}"
    last = result.ensemble_scheduling.step.add(model_name="last")
    last.input_map["in"] = f"Y_{readers[0]}"
    return result


def member(*names: str, inputs: int = 1, **more) -> ModelConfig:
    result = ModelConfig(name="member")
    for index in range(inputs):
        result.input.add(name=f"in{index}")
    write_features(result, Features(names, **more))
    return result


def test_ensemble_has_the_names_of_its_first_members():
    members = {"a": member("age", "city", categories={"city": ["Oslo"]}, null_is_nan=True), "last": member("p", "q")}
    found = ensemble_features(ensemble("a"), members)
    assert found == Features(("age", "city"), {"city": ["Oslo"]}, null_is_nan=True)
    members["b"] = member()  # another reader without names: a null is no NaN for it
    assert ensemble_features(ensemble("a", "b"), members) == Features(("age", "city"), {"city": ["Oslo"]})


@pytest.mark.parametrize(
    ("config", "members"),
    [
        (ensemble("a", inputs=2), {"a": member("age", "city")}),
        (ensemble("a"), {"a": member("age", "city", inputs=2)}),
        (ensemble("a"), {"a": member()}),
    ],
)
def test_ensemble_without_a_matrix_of_names_has_none(config, members):
    assert ensemble_features(config, {**members, "last": member("p")}) is None


def test_members_that_disagree_name_no_columns():
    members = {"a": member("age", "city"), "b": member("city", "age"), "last": member()}
    assert ensemble_features(ensemble("a", "b"), members) is None


def test_names_of_the_owner_of_an_ensemble_count():
    config = ensemble("a")
    config.parameters["feature_names"].string_value = '["years", "town"]'
    write_features(config, ensemble_features(config, {"a": member("age", "city", null_is_nan=True)}))
    assert read_features(config) == Features(("years", "town"), {}, null_is_nan=True)
