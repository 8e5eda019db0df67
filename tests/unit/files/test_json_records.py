import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.files.json_records import RecordFieldError, read_record, to_json


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    shape: tuple[int, ...]
    value: float | str


@dataclass(frozen=True)
class Outer:
    path: Path
    colour: Colour
    inner: Inner | None
    settings: Mapping[str, Any]
    by_colour: Mapping[Colour, Sequence[Inner]] = field(default_factory=dict)


RECORD = Outer(Path("/models"), Colour.BLUE, Inner((2, -1), "inf"), {"a": [1, None]}, {})


def test_record_survives_its_json():
    assert read_record(Outer, json.loads(to_json(RECORD))) == RECORD


def test_numbers_and_arrays_of_numpy_are_plain():
    assert json.loads(to_json({"a": np.float32(0.5), "b": np.arange(2)})) == {"a": 0.5, "b": [0, 1]}


def test_members_may_be_unknown_or_left_out():
    document = json.loads(to_json(RECORD))
    del document["by_colour"]
    assert read_record(Outer, {**document, "unknown": 1}) == RECORD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "green"}, "field 'colour': expected red or blue, got \"green\""),
        ({"path": 1}, "field 'path': expected a path, got 1"),
        ({"inner": {"shape": [1, "x"], "value": 1}}, "field 'inner.shape\\[1\\]': expected an integer"),
        ({"inner": {"shape": []}}, "field 'inner.value' is missing"),
        ({"inner": {"shape": [], "value": True}}, "field 'inner.value': expected a string, got true"),
        ({"by_colour": {"red": {}}}, "field 'by_colour.red': expected an array"),
    ],
)
def test_misfit_names_the_field(change, message):
    with pytest.raises(RecordFieldError, match=message):
        read_record(Outer, {**json.loads(to_json(RECORD)), **change})
