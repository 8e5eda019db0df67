"""What the errors of predictions at some configurations say about others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.analyze.search.modes.error_model import ErrorModel

FIELDS = st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0]), st.sampled_from(["", "int8"]))


def expected(model: ErrorModel, errors: list[float], place: tuple[float | str, ...]) -> float:
    return float(model.weights(place) @ errors)


def test_measured_error_is_nearly_expected() -> None:
    model = ErrorModel([(0.0, 0.0), (1.0, 1.0)], [1, 1])
    assert expected(model, [-0.4, 0.0], (0.0, 0.0)) == pytest.approx(-0.4, abs=0.08)


def test_effect_of_a_field_carries_over() -> None:
    # Configurations with the last value of the first field are 20 % better than predicted.
    model = ErrorModel([(0.0, 0.0), (1.0, 0.0), (0.0, 0.5), (1.0, 0.5)], [1, 1, 1, 1])
    errors = [0.0, 0.2, 0.0, 0.2]
    assert expected(model, errors, (1.0, 1.0)) > expected(model, errors, (0.0, 1.0)) + 0.08


def test_other_format_shares_only_the_common_error() -> None:
    model = ErrorModel([("", 0.0)], [1])
    assert 0 < expected(model, [0.3], ("int8", 0.0)) < expected(model, [0.3], ("", 0.0))


@given(places=st.lists(FIELDS, min_size=1, max_size=12, unique=True), place=FIELDS, repeats=st.integers(1, 5))
def test_measurements_never_add_uncertainty(
    places: list[tuple[float | str, ...]], place: tuple[float | str, ...], repeats: int
) -> None:
    all_once = ErrorModel(places, [1] * len(places))
    fewer = ErrorModel(places[:1], [1])
    again = ErrorModel(places, [repeats] * len(places))
    assert again.deviation(place) <= all_once.deviation(place) + 1e-9
    assert all_once.deviation(place) <= fewer.deviation(place) + 1e-9
    assert all_once.deviation(places[0]) < 0.06
