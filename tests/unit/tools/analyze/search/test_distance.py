"""How far configurations are from each other."""

from naiad.tools.analyze.search import SearchSettings
from naiad.tools.analyze.search.distance import Places, distance, farthest
from naiad.tools.analyze.space import Space, Variant

COUNT, SIZE = "instance_group.count", "max_batch_size"


def space() -> Space:
    variants = [
        Variant("m", f"m_{count}_{size}", {COUNT: count, SIZE: size}) for count in (1, 2) for size in (1, 4, 8)
    ]
    return Space(("m",), (), variants={"m": [Variant("m", "m_default", {}), *variants]})


def test_least_and_greatest_values_are_apart() -> None:
    places = Places(space(), SearchSettings())
    least, middle, greatest = (
        places.of((Variant("m", "x", {COUNT: count, SIZE: size}),)) for count, size in ((1, 1), (1, 4), (2, 8))
    )
    assert distance(least, greatest) == 2.0
    assert distance(least, middle) == 0.5
    assert distance(least, least) == 0.0


def test_configured_values_place_the_default() -> None:
    places = Places(space(), SearchSettings(configured={"m": {COUNT: 2, SIZE: 8}}))
    default = places.of((Variant("m", "m_default", {}),))
    assert distance(default, places.of((Variant("m", "x", {COUNT: 2, SIZE: 8}),))) == 0.0


def test_other_format_is_one_apart() -> None:
    places = Places(space(), SearchSettings())
    own, other = (places.of((Variant("m", "x", {COUNT: 1, SIZE: 1}, source_model=name),)) for name in ("", "m_int8"))
    assert distance(own, other) == 1.0


def test_farthest_span_each_dimension() -> None:
    candidates = [(x, y) for x in (0.0, 0.5, 1.0) for y in (0.0, 1.0)]
    found = farthest(candidates, [(0.0, 0.0)], 3)
    assert [candidates[index] for index in found] == [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)]


def test_nothing_is_chosen_twice() -> None:
    assert farthest([(0.0,), (1.0,)], [(0.0,)], 5) == [1]
