import pytest

from naiad.config.problem import Problem, edit_distance, errors_of, nearest, one_of, raise_problems
from naiad.core.errors import ErrorCode, InferError


def test_problem_in_full():
    problem = Problem(
        message="unknown field 'nam'", filename="m/config.pbtxt", line=3, column=7, expected="a field of input",
        suggestion="name",
    )  # fmt: skip
    assert str(problem) == (
        "m/config.pbtxt:3:7: unknown field 'nam'; expected a field of input; did you mean 'name'?"
    )


def test_problem_without_a_place():
    assert str(Problem(message="it is wrong")) == "it is wrong"
    assert str(Problem(message="it is wrong", filename="m/1")) == "m/1: it is wrong"
    assert str(Problem(message="it is wrong", line=1, column=2)) == "<config>:1:2: it is wrong"


def test_warnings_are_marked_and_raise_nothing():
    warning = Problem(message="odd", filename="f", severity="warning")
    assert str(warning) == "f: warning: odd"
    assert errors_of([warning]) == []
    raise_problems([warning])


def test_errors_are_raised_together():
    problems = [Problem(message="a"), Problem(message="w", severity="warning"), Problem(message="b")]
    with pytest.raises(InferError) as raised:
        raise_problems(problems)
    assert raised.value.code is ErrorCode.INVALID_ARG
    assert raised.value.message == "a\nb"


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "abd", 1), ("abc", "acb", 1), ("abc", "ab", 1), ("abc", "xaby", 2)],
)
def test_edit_distance(a: str, b: str, distance: int):
    assert edit_distance(a, b) == distance
    assert edit_distance(b, a) == distance


def test_edit_distance_stops_at_its_limit():
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("kitten", "puppy and more") == 3


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nmae", "name"),
        ("NAME", "name"),
        ("dimms", "dims"),
        ("xy", ""),
        ("name", ""),
        ("dataType", "data_type"),
        ("", ""),
    ],
)
def test_nearest(name: str, meant: str):
    assert nearest(name, ["name", "dims", "data_type", "ab"]) == meant


def test_one_of_says_when_there_is_none():
    assert one_of(["a", "b"], "tensor") == "one of a, b"
    assert one_of([], "tensor") == "no tensor, because there is none"
