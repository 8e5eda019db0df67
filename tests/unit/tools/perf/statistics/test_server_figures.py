import numpy as np
import pytest

from naiad.tools.perf.records import GeneratorFacts, Measurement
from naiad.tools.perf.statistics.server_figures import server_figures


def stats(success=0, us=100, *, hits=0, misses=0, executions=0):
    def duration(count, each_us):
        return {"count": str(count), "ns": count * each_us * 1000}

    computed = success - hits
    return {
        "inference_count": success,
        "execution_count": executions,
        "inference_stats": {
            "success": duration(success, us),
            "queue": duration(success, 10),
            "compute_input": duration(computed, 5),
            "compute_infer": duration(computed, 60),
            "compute_output": duration(computed, 5),
            "cache_hit": duration(hits, 8),
            "cache_miss": duration(misses, 4),
        },
    }


def measurement(before, after, composing=None):
    facts = GeneratorFacts(1, 1.0, 0.0, 0.0, np.zeros(0, np.int64), 0.0)
    return Measurement(0, 1, [0, 1], None, facts, before, after, composing or {})  # type: ignore[arg-type]


def test_means_follow_difference_of_counters():
    found = server_figures(measurement({"m/1": stats(100)}, {"m/1": stats(300, executions=50)}), "m")
    assert found is not None
    assert (found.success_count, found.execution_count, found.inference_count) == (200, 50, 200)
    assert (found.queue_us, found.compute_input_us, found.compute_infer_us, found.compute_output_us) == (10, 5, 60, 5)
    assert found.overhead_us == pytest.approx(20)


def test_overhead_is_not_negative():
    found = server_figures(measurement({}, {"m/1": stats(10, us=50)}), "m")
    assert found is not None
    assert found.overhead_us == 0


def test_version_is_that_which_moved():
    before = {"m/1": stats(5), "m/2": stats(5), "m/10": stats(5)}
    after = {"m/1": stats(5), "m/2": stats(9), "m/10": stats(6), "mm/11": stats(9)}
    moved = server_figures(measurement(before, after), "m")
    assert moved is not None
    assert moved.version == "10"
    asked = server_figures(measurement(before, after), "m", "2")
    assert asked is not None
    assert asked.success_count == 4


def test_unmoved_counters_give_no_figures():
    same = {"m/1": stats(5)}
    assert server_figures(measurement(same, same), "m") is None
    assert server_figures(measurement({}, {}), "m") is None


def test_restarted_server_counts_from_zero():
    found = server_figures(measurement({"m/1": stats(100)}, {"m/1": stats(30)}), "m")
    assert found is not None
    assert found.success_count == 30


def test_cache_times_are_spread_over_all_requests():
    found = server_figures(measurement({}, {"m/1": stats(100, hits=75, misses=25)}), "m")
    assert found is not None
    assert found.compute_infer_us == 15
    assert found.cache_hit_us == 6
    assert found.cache_miss_us == 1
    assert found.queue_us == 10


def test_ensemble_sums_its_models_recursively():
    after = {"top/1": stats(10, us=400), "inner/1": stats(10), "a/1": stats(10), "b/1": stats(10)}
    composing = {"top": ["a", "inner"], "inner": ["a", "b:1", "top"]}
    found = server_figures(measurement({}, after, composing), "top")
    assert found is not None
    assert found.compute_infer_us == 180
    assert [each.model for each in found.composing] == ["a", "inner"]
    assert [each.model for each in found.composing[1].composing] == ["a", "b"]


def test_called_models_are_nested_not_summed():
    after = {"caller/1": stats(10), "a/1": stats(20)}
    found = server_figures(measurement({}, after), "caller", called=["a", "missing"])
    assert found is not None
    assert found.compute_infer_us == 60
    assert [(each.model, each.success_count) for each in found.composing] == [("a", 20)]
