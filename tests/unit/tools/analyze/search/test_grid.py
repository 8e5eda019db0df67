"""Configurations, their coordinates, their loads, and how simple they are."""

import pytest
from tests.support.analyze_simulation import grid, settings

from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.search.configurations import (
    complexity,
    configurations,
    load_lists,
    repository_configuration,
    saturating_concurrency,
    useful_loads,
)
from naiad.tools.analyze.search.modes.grid import Grid
from naiad.tools.analyze.space import Point, Space, Variant

DEFAULT = Variant("m", "m_config_default", {})


def variant(name: str, source: str = "", **changes: object) -> Variant:
    return Variant("m", name, changes, source_model=source)


def test_coordinates_follow_ascending_values() -> None:
    found = Grid(grid((16, 2, 4), (3, 1)), settings())
    assert found.sizes == [3, 2, 1]
    assert found.first == (0, 0, 0)
    (least,) = found.configuration((0, 0, 0)) or ()
    (greatest,) = found.configuration((2, 1, 0)) or ()
    assert (least.settings["max_batch_size"], least.settings["instance_group.count"]) == (2, 1)
    assert (greatest.settings["max_batch_size"], greatest.settings["instance_group.count"]) == (16, 3)


def test_left_out_combinations_are_holes() -> None:
    variants = [DEFAULT, variant("a", max_batch_size=1, delay=0), variant("b", max_batch_size=2, delay=5)]
    found = Grid(Space(("m",), (), variants={"m": variants}), settings())
    assert found.configuration((0, 1)) is None
    assert found.configuration((1, 1)) == (variants[2],)


def test_delay_off_comes_before_zero() -> None:
    variants = [variant("a", delay=100), variant("b", delay=None), variant("c", delay=0)]
    found = Grid(Space(("m",), (), variants={"m": variants}), settings())
    assert [found.configuration((index,)) for index in range(3)] == [(variants[1],), (variants[2],), (variants[0],)]


def test_formats_are_a_dimension() -> None:
    variants = [variant("a", max_batch_size=1), variant("b", "m_int8", max_batch_size=1)]
    found = Grid(Space(("m",), (), variants={"m": [DEFAULT, *variants]}), settings())
    assert found.names == ["m.max_batch_size", "m.source_model"]
    assert found.configuration((0, 1)) == (variants[1],)


def test_several_models_are_combined() -> None:
    space = Space(
        ("m", "n"), (), variants={"m": grid((1, 2), (1,)).variants["m"], "n": [Variant("n", "n_config_default", {})]}
    )
    found = configurations(space)
    assert len(found) == 3
    assert found[0] == repository_configuration(space)
    assert all([each.model for each in configuration] == ["m", "n"] for configuration in found)


def test_other_format_is_not_the_repository() -> None:
    space = Space(("m",), (), variants={"m": [variant("int8", "m_int8"), DEFAULT]})
    assert repository_configuration(space) == (DEFAULT,)


def test_too_many_combinations_name_other_modes() -> None:
    variants = {name: grid().variants["m"] for name in "abcd"}
    with pytest.raises(ValueError, match=r"2825761 combinations of variants, over 100000; .* 'quick' or 'optuna'"):
        configurations(Space(tuple("abcd"), (), variants=variants))


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (DEFAULT, 2),
        (Variant("m", "a", {"max_batch_size": 8, "instance_group.count": 3}), 48),
        (Variant("m", "b", {}, '{"max_batch_size": 4, "instance_group": [{"count": 2}, {"count": 1}]}'), 24),
        (Variant("m", "c", {"max_batch_size": 1024, "instance_group.count": 8}), 1024),
    ],
)
def test_saturating_concurrency_is_two_batches(each: Variant, expected: int) -> None:
    assert saturating_concurrency((each,), settings()) == expected


def test_loads_end_at_saturation() -> None:
    space = grid()
    assert [load.concurrency for load in useful_loads(space, (variant("a", max_batch_size=8),), settings())] == [
        1, 2, 4, 8, 16,
    ]  # fmt: skip


def test_loads_of_the_user_come_first() -> None:
    space = Space(("m",), (), request_rates=(30.0, 10.0), batch_sizes=(1, 4))
    assert [[(load.request_rate, load.batch_size) for load in row] for row in load_lists(space, settings())] == [
        [(10.0, 1), (30.0, 1)],
        [(10.0, 4), (30.0, 4)],
    ]


def test_fewer_changes_are_simpler() -> None:
    few = Variant("m", "a", {"max_batch_size": 64, "instance_group.count": 1})
    more = Variant("m", "b", {"max_batch_size": 2, "instance_group.count": 2})
    assert complexity(Measured(Point((few,))), settings()) < complexity(Measured(Point((more,))), settings())
