"""Custom metrics: their holders, their lifetime, and their exposition."""

import gc
import os
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from naiad.backend import custom_metrics
from naiad.backend.custom_metrics import CustomMetrics, InstanceMetrics, define
from naiad.core.errors import ErrorCode, InferError
from naiad.worker.api.metric_family import CELLS, MetricCells


@pytest.fixture
def metrics() -> Iterator[CustomMetrics]:
    made = CustomMetrics(lambda name: name == "nv_inference_count")
    yield made
    made.close()


def shown(metrics: CustomMetrics) -> dict[str, float]:
    text = "\n".join(metrics.render()) + "\n"
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_no_memory_is_mapped_before_first_metric(metrics):
    assert list(metrics.render()) == []
    holder = metrics.holder()
    holder.new_family("mine", "My description", "gauge")
    assert "".join(metrics.render()) == ""


def test_what_is_counted_is_shown(metrics):
    holder = metrics.holder()
    family = holder.new_family("sizes", "", "histogram")
    cell, bounds = holder.new_metric(family, {"a": "b"}, [0.5, 1])
    assert bounds == (0.5, 1)
    for bucket, value in ((0, 0.5), (1, 0.75), (2, 10)):
        holder.cells.observe(cell, bucket, value)
    counter, _ = holder.new_metric(holder.new_family("n_total", "", "counter"), {}, None)
    holder.cells.add(counter, 2)
    gauge, _ = holder.new_metric(holder.new_family("level", "", "gauge"), {}, None)
    holder.cells.set(gauge, -1.5)
    assert shown(metrics) == {
        "sizes_bucket a=b le=0.5": 1,
        "sizes_bucket a=b le=1": 2,
        "sizes_bucket a=b le=+Inf": 3,
        "sizes_sum a=b": 11.25,
        "sizes_count a=b": 3,
        "n_total": 2,
        "level": -1.5,
    }


def test_equal_metrics_are_shared_until_last_close(metrics):
    first, second = metrics.holder(), metrics.holder()
    cell, _ = first.new_metric(first.new_family("n", "first", "histogram"), {"a": "1", "b": "2"}, [1])
    # The bounds of later holders have no effect.
    assert second.new_metric(second.new_family("n", "second", "histogram"), {"b": "2", "a": "1"}, [5]) == (cell, (1,))
    assert "first" in "".join(metrics.render())
    first.cells.observe(cell, 0, 1)
    first.close()
    assert shown(metrics)["n_count a=1 b=2"] == 1
    second.close()
    assert shown(metrics) == {}
    third = metrics.holder()
    assert third.new_metric(third.new_family("n", "", "histogram"), {}, [1])[0] == cell
    assert shown(metrics)["n_count"] == 0


def test_holder_releases_family_twice(metrics):
    holder = metrics.holder()
    numbers = [holder.new_family("n", "", "gauge") for _ in range(2)]
    for number in numbers:
        holder.new_metric(number, {}, None)
        holder.new_metric(number, {}, None)
    holder.release_family(numbers[0])
    holder.release_family(numbers[0])
    assert shown(metrics) == {"n": 0}
    holder.release_family(numbers[1])
    assert shown(metrics) == {}
    with pytest.raises(InferError, match="there is no metric family 1"):
        holder.new_metric(numbers[0], {}, None)


def test_release_under_lock_is_deferred_to_holder(metrics):
    holder = metrics.holder()
    number = holder.new_family("n", "", "gauge")
    with metrics._locked():
        holder.release_family(number)  # as the garbage collector may, in the thread that has the lock
        assert holder.held
    assert not holder.held


@pytest.mark.parametrize(
    ("name", "kind", "code", "said"),
    [
        ("n", "gauge", ErrorCode.ALREADY_EXISTS, "Family name already exists with different type: 'n' is a counter"),
        (
            "nv_inference_count",
            "counter",
            ErrorCode.ALREADY_EXISTS,
            "has a metric family 'nv_inference_count'",
        ),
        ("7up", "counter", ErrorCode.INVALID_ARG, "Invalid metric name '7up'"),
        ("a\n", "counter", ErrorCode.INVALID_ARG, r"Invalid metric name 'a\\n'"),
        ("a" * 257, "counter", ErrorCode.INVALID_ARG, "at most 256 characters"),
        ("m", "summary", ErrorCode.INVALID_ARG, "kind 'summary' is not one of counter, gauge, histogram"),
    ],
)
def test_families_that_cannot_be(metrics, name, kind, code, said):
    holder = metrics.holder()
    holder.new_family("n", "", "counter")
    with pytest.raises(InferError, match=said) as caught:
        holder.new_family(name, "", kind)
    assert caught.value.code is code
    assert len(holder.held) == 1


def test_a_metric_that_cannot_be_leaves_nothing(metrics):
    holder = metrics.holder()
    number = holder.new_family("n", "", "gauge")
    with pytest.raises(InferError, match="a gauge has no buckets"):
        holder.new_metric(number, {}, [1])
    with pytest.raises(InferError, match="Invalid label name"):
        holder.new_metric(number, {"": ""}, None)
    assert (shown(metrics), holder.cell_count) == ({}, 0)


def test_one_holder_cannot_fill_the_page(metrics, monkeypatch):
    monkeypatch.setattr(custom_metrics, "MOST_HELD_CELLS", 3)
    holder, other = metrics.holder(), metrics.holder()
    number = holder.new_family("n", "", "gauge")
    for label in "abc":
        holder.new_metric(number, {"id": label}, None)
    with pytest.raises(InferError, match="may have 3 values; use labels with few values"):
        holder.new_metric(number, {"id": "d"}, None)
    holder.new_metric(number, {"id": "a"}, None)
    other.new_metric(other.new_family("n", "", "gauge"), {"id": "d"}, None)
    holder.release_family(number)
    holder.new_metric(holder.new_family("n", "", "gauge"), {"id": "e"}, None)
    assert set(shown(metrics)) == {"n id=d", "n id=e"}


def test_a_page_that_is_full_says_so(metrics):
    holder = metrics.holder()
    metrics._unused_from = CELLS - 1
    number = holder.new_family("n", "", "histogram")
    with pytest.raises(InferError, match=f"the {CELLS} values that a server may have are in use"):
        holder.new_metric(number, {}, [1])
    holder.new_metric(holder.new_family("g", "", "gauge"), {}, None)


def test_families_for_backends_in_this_process(metrics):
    holder = metrics.holder()
    family = holder.family("n_total", "Mine", "counter")
    family.Metric({"model": "m"}).increment(2)
    assert family.Metric({"model": "m"}).value() == 2
    assert shown(metrics) == {"n_total model=m": 2}
    with pytest.raises(InferError, match="different type"):
        holder.family("n_total", "", "gauge")
    del family
    gc.collect()
    assert shown(metrics) == {}


def test_two_mappings_of_a_page_show_the_same(metrics):
    holder = metrics.holder()
    cell, _ = holder.new_metric(holder.new_family("n", "", "gauge"), {}, None)
    descriptor = os.dup(metrics.descriptor)
    other = MetricCells(descriptor)
    other.add(cell, 1)
    holder.cells.add(cell, 1)
    assert (other.value(cell), list(holder.cells.read(cell, 1))) == (2, [2])
    other.renew_lock()
    other.set(cell, 5)
    assert shown(metrics) == {"n": 5}
    os.close(descriptor)


# --- of instances ---------------------------------------------------------------------------------------------------


def test_a_worker_that_takes_over_goes_on_counting(metrics):
    of_instance = InstanceMetrics(metrics)
    of_instance.begin()
    for _ in range(2):
        holder = of_instance.holder
        assert holder is not None
        answer = define(holder, {"family": "n_total", "description": "", "kind": "counter"})
        cell = define(holder, {"metric_of": answer["family"], "labels": {}, "buckets": []})["cell"]
        holder.cells.add(int(cell), 1)
        of_instance.settle()
        of_instance.begin()
    assert shown(metrics) == {"n_total": 2}
    # The third has made nothing by the time that it is ready.
    of_instance.settle()
    assert shown(metrics) == {}


def test_an_instance_that_is_closed_shows_nothing(metrics):
    of_instance = InstanceMetrics(metrics)
    of_instance.close()
    of_instance.begin()
    of_instance.begin()
    assert of_instance.holder is not None
    define(of_instance.holder, {"family": "n_total", "description": "", "kind": "counter"})
    of_instance.close()
    assert list(metrics.render()) == []


def test_instances_without_a_server_have_no_metrics():
    of_instance = InstanceMetrics(None)
    of_instance.begin()
    assert (of_instance.descriptor, of_instance.holder) == (-1, None)
    of_instance.close()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("size", "histogram"), ("size_count", "counter")),
        (("size_bucket", "gauge"), ("size", "histogram")),
    ],
)
def test_families_never_share_a_series(metrics, first, second):
    holder = metrics.holder()
    holder.new_family(first[0], "", first[1])
    with pytest.raises(InferError, match=f"'{second[0]}' would have the series 'size_") as failure:
        holder.new_family(second[0], "", second[1])
    assert failure.value.code is ErrorCode.ALREADY_EXISTS
    holder.close()
    metrics.holder().new_family(second[0], "", second[1])
