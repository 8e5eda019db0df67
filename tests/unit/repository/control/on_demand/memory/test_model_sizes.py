"""What a load counts, how growth is charged, and when models come back too often."""

import os

from naiad.repository.control.on_demand.memory.memory_meter import MemoryMeter, workers_bytes
from naiad.repository.control.on_demand.memory.model_sizes import ModelSizes
from naiad.repository.control.on_demand.reloads import Reloads

MB = 1 << 20


def test_load_beside_an_unload_is_not_measured() -> None:
    resident = [100 * MB]
    meter = MemoryMeter(lambda: resident[0])
    with meter.measure() as measure:
        resident[0] += 10 * MB
    assert measure.grown_bytes == 10 * MB
    with meter.measure() as measure, meter.disturb():
        resident[0] += 10 * MB - 4 * MB
    assert measure.grown_bytes is None


def test_memory_freed_by_a_load_is_not_counted() -> None:
    resident, freed = [100 * MB], [30 * MB]

    def return_freed() -> None:
        resident[0] -= freed[0]
        freed[0] = 0

    meter = MemoryMeter(lambda: resident[0], return_freed)
    with meter.measure() as measure:
        resident[0] += 25 * MB
        freed[0] = 15 * MB
    assert measure.begin_bytes == 70 * MB
    assert measure.grown_bytes == 10 * MB


def test_unmeasured_load_counts_as_before_or_learned() -> None:
    sizes = ModelSizes(MemoryMeter(lambda: 0))
    for number in range(100):
        sizes.note_loads({f"m{number}": MB}, 0, 3 * MB)
    sizes.leave("m0")
    sizes.note_loads({"m0": MB, "new": 2 * MB}, 0, None)
    assert sizes.own_bytes["m0"] == 3 * MB
    assert abs(sizes.own_bytes["new"] - 6 * MB) < MB // 100


def test_library_does_not_count_for_the_first_model() -> None:
    sizes = ModelSizes(MemoryMeter(lambda: 0))
    sizes.note_loads({"a": MB}, 100 * MB, 60 * MB, brings_library=True)
    assert sizes.own_bytes == {"a": 10 * MB}
    sizes.note_loads({"b": MB}, 160 * MB, 2 * MB)
    assert sizes.own_bytes["b"] == 2 * MB


def test_load_into_freed_memory_counts_half() -> None:
    sizes = ModelSizes(MemoryMeter(lambda: 0))
    sizes.note_loads({"a": 4 * MB}, 0, 0)
    assert sizes.own_bytes == {"a": 2 * MB}


def test_mapped_weights_count_before_they_are_used() -> None:
    sizes = ModelSizes(MemoryMeter(lambda: 0))
    sizes.note_loads({"a": 4 * MB}, 0, MB // 2, mapped={"a": 5 * MB})
    assert sizes.own_bytes == {"a": 5 * MB}
    sizes.leave("a")
    sizes.note_loads({"a": 4 * MB}, 0, None, mapped={"a": 5 * MB})
    assert sizes.own_bytes == {"a": 5 * MB}


def test_growth_is_charged_to_active_models() -> None:
    resident = [100 * MB]
    sizes = ModelSizes(MemoryMeter(lambda: resident[0]))
    sizes.note_loads({"a": 10 * MB, "b": 30 * MB}, 100 * MB, 40 * MB)
    resident[0] = 140 * MB
    assert not sizes.note_growth(["a", "b"], 0)
    resident[0] = 160 * MB
    assert set(sizes.note_growth(["a"], 0)) == {"a"}
    assert sizes.own_bytes == {"a": 30 * MB, "b": 30 * MB}
    resident[0] = 900 * MB
    sizes.note_growth(["a"], 0)
    assert sizes.own_bytes == {"a": 40 * MB, "b": 30 * MB}


def test_unexplained_growth_is_averaged_and_bounded() -> None:
    resident = [100 * MB]
    sizes = ModelSizes(MemoryMeter(lambda: resident[0]))
    assert sizes.note_unexplained(0, 400 * MB) == 0
    sizes.note_loads({"a": 10 * MB}, 100 * MB, 10 * MB)
    resident[0] = 130 * MB
    assert sizes.note_unexplained(12 * MB, 400 * MB) == 2 * MB
    for _ in range(40):
        found = sizes.note_unexplained(0, 400 * MB)
    assert abs(found - 20 * MB) < MB // 10
    resident[0] = 900 * MB
    for _ in range(60):
        found = sizes.note_unexplained(0, 400 * MB)
    assert abs(found - 100 * MB) < MB // 10
    resident[0] = 0
    for _ in range(60):
        found = sizes.note_unexplained(0, 400 * MB)
    assert abs(found + 50 * MB) < MB // 10


def test_load_in_progress_is_no_room_for_others() -> None:
    resident = [100 * MB]
    sizes = ModelSizes(MemoryMeter(lambda: resident[0]))
    sizes.note_loads({"a": 10 * MB}, 100 * MB, 10 * MB)
    resident[0] = 110 * MB
    for _ in range(40):
        found = sizes.note_unexplained(200 * MB, 400 * MB)
    assert found == 0
    resident[0] = 105 * MB
    for _ in range(60):
        found = sizes.note_unexplained(200 * MB, 400 * MB)
    assert abs(found + 5 * MB) < MB // 10


def test_growth_that_is_charged_is_explained() -> None:
    resident = [100 * MB]
    sizes = ModelSizes(MemoryMeter(lambda: resident[0]))
    sizes.note_loads({"a": 50 * MB}, 100 * MB, 50 * MB)
    resident[0] = 200 * MB
    for _ in range(60):
        found = sizes.note_unexplained(0, 400 * MB)  # a load goes on beside, so that no model is charged
    assert abs(found - 50 * MB) < MB // 10
    sizes.note_growth(["a"], 400 * MB)
    assert sizes.own_bytes == {"a": 100 * MB}
    assert abs(sizes.note_unexplained(0, 400 * MB)) < MB // 10, "it counts once"


def test_workers_count_with_their_whole_memory() -> None:
    assert workers_bytes([os.getpid()]) > MB
    assert workers_bytes([]) == 0


def test_frequent_reloads_are_noted_once() -> None:
    reloads = Reloads()
    warnings = [reloads.note_load(evicted_s=now_s - 5.0, now_s=now_s) for now_s in map(float, range(100, 400, 2))]
    assert [bool(warning) for warning in warnings].count(True) == 1
    assert "too small" in next(filter(None, warnings))
    assert reloads.count == 150
    assert reloads.note_load(evicted_s=0.0, now_s=1000.0) == ""
