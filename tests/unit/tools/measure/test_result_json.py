import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.tools.measure.result import SCHEMA_VERSION, Interval, Result
from naiad.tools.measure.result_json import ResultFileError, from_json, to_json
from support.long_run import examples

EMPTY = Result(["naiad", "perf"], "2026-01-02T03:04:05Z", {}, None)


@cache
def values_of(kind):
    """Values of a field's type, as a file gives them back."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        fields = get_type_hints(kind).items()
        return st.deferred(lambda: st.builds(kind, **{name: values_of(each) for name, each in fields}))
    if origin is Sequence:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin is Mapping:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is UnionType:
        return st.one_of(*map(values_of, arguments))
    return st.floats(allow_nan=False, allow_infinity=False) if kind is float else st.from_type(kind)


@settings(max_examples=examples(100))
@given(values_of(Result))
def test_result_survives_file(result):
    result = dataclasses.replace(result, version=SCHEMA_VERSION)
    assert from_json(to_json(result)) == result


def changed(**fields):
    return json.dumps({**json.loads(to_json(EMPTY)), **fields})


def test_unknown_version_is_refused():
    with pytest.raises(ResultFileError, match="version 7 of the result is not supported, expected 1; measure again"):
        from_json(changed(version=7))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a JSON file"),
        ("[]", "not a result of `naiad perf --json`"),
        ("{}", "no field 'version'"),
        ("[" * 100_000, "not a JSON file"),
        ('{"version": 1}', "field 'command' is missing"),
        (changed(rows={}), "field 'rows': expected an array, got {}"),
        (changed(rows=[3]), r"field 'rows\[0\]': expected an object, got 3"),
        (changed(started=1), "field 'started': expected a string, got 1"),
        (changed(percentile=1.5), "field 'percentile': expected an integer, got 1.5"),
        (changed(percentile=True), "field 'percentile': expected an integer, got true"),
        (changed(found="much"), "field 'found': expected a number, got \"much\""),
        (changed(environment=[]), r"field 'environment': expected an object, got \[\]"),
        (changed(environment={"cpu": 1}), "field 'environment.cpu': expected a string, got 1"),
    ],
)
def test_misfit_is_named(text, message):
    with pytest.raises(ResultFileError, match=message):
        from_json(text)


def test_unknown_fields_and_missing_defaults_are_accepted():
    document = json.loads(changed(new_field=1))
    del document["exit_reason"]
    assert from_json(json.dumps(document)) == EMPTY


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="Out of range float"):
        to_json(dataclasses.replace(EMPTY, found=Interval(0, 0, 0).half_width_share))
    with pytest.raises(ResultFileError, match="NaN is not a JSON number"):
        from_json(changed(found=1).replace(": 1,", ": NaN,", 1))
