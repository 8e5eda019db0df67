from dataclasses import replace

from naiad.cluster.supervisor.scatter_gather import add_statistics, sum_statistics
from naiad.core.errors import FailureReason
from naiad.telemetry.statistics.version_statistics import BatchStatistics, Duration, VersionStatistics


def batch(size: int, count: int) -> BatchStatistics:
    return BatchStatistics(
        size, Duration(count, 10 * count), Duration(count, 20 * count), Duration(count, 30 * count)
    )


def counts(name: str = "m", version: str = "1", *, factor: int = 1, last_ms: int = 5) -> VersionStatistics:
    return VersionStatistics(
        name=name,
        version=version,
        last_inference_ms=last_ms,
        inference_count=8 * factor,
        execution_count=3 * factor,
        success=Duration(4 * factor, 400 * factor),
        fail=Duration(1 * factor, 100 * factor),
        queue=Duration(4 * factor, 40 * factor),
        batch_stats=[batch(1, factor), batch(4, 2 * factor)],
        failures={FailureReason.BACKEND: factor, FailureReason.OTHER: 0},
        release_reasons={"full": factor},
        latencies={"request": (factor, 0, 2 * factor)},
    )


def test_everything_adds_up_but_the_last_inference() -> None:
    total = add_statistics(counts(factor=1, last_ms=9), counts(factor=2, last_ms=7))
    assert total == replace(
        counts(factor=3, last_ms=9),
        # Missing counts stay missing.
        batch_stats=[batch(1, 3), batch(4, 6)],
    )


def test_batch_sizes_are_joined_and_stay_in_order() -> None:
    one = replace(counts(), batch_stats=[batch(1, 1), batch(8, 1)])
    other = replace(counts(), batch_stats=[batch(4, 2), batch(8, 2)])
    assert add_statistics(one, other).batch_stats == [batch(1, 1), batch(4, 2), batch(8, 3)]


def test_keys_of_one_side_alone_are_kept() -> None:
    one = replace(counts(), release_reasons={"full": 1}, latencies={"request": (1, 2)})
    other = replace(counts(), release_reasons={"delay": 2}, latencies={"request": (1, 2, 3)})
    total = add_statistics(one, other)
    assert total.release_reasons == {"full": 1, "delay": 2}
    assert total.latencies == {"request": (2, 4, 3)}


def test_what_is_added_stays_as_it_was() -> None:
    one, other = counts(), counts(factor=5)
    add_statistics(one, other)
    assert (one, other) == (counts(), counts(factor=5))


def test_versions_of_a_model_are_kept_apart() -> None:
    total = sum_statistics([[counts("a"), counts("a", "2")], [], [counts("b"), counts("a", "2", factor=2)]])
    assert [(row.name, row.version, row.inference_count) for row in total] == [
        ("a", "1", 8),
        ("a", "2", 24),
        ("b", "1", 8),
    ]
