"""What models have of GPUs, over readings as NVML gives them: with processes, and in containers that show none."""

from collections.abc import Mapping

import pytest

from naiad.repository.control.on_demand.memory.device_meter import DeviceMeter, parent_process_id
from naiad.repository.control.on_demand.memory.device_sizes import DeviceLoad, DeviceSizes
from naiad.repository.control.on_demand.memory.memory_meter import MemoryMeter
from naiad.telemetry.metrics.gpus import GpuMemory, NvmlError

MB = 1 << 20
OWN, WORKER, CHILD, OTHER = 100, 200, 201, 999
PARENTS = {WORKER: OWN, CHILD: WORKER, OTHER: 1}
ON_FIRST = DeviceLoad({"gpu:0"}, 10 * MB, ())
CONTEXT = 400 * MB


class Machine:
    """Two GPUs whose processes are known to the test; `shows`: whether NVML reports them."""

    def __init__(self, *, shows: bool = True) -> None:
        self.processes: dict[int, dict[int, int]] = {0: {OTHER: 50 * MB}, 1: {}}
        self.shows = shows
        self.failure: NvmlError | None = None
        self.meter = DeviceMeter(
            self, ["gpu:0", "gpu:1"], process_id=OWN, parent_of=lambda each: PARENTS.get(each, 0)
        )
        self.sizes = DeviceSizes(self.meter)
        self.memory = MemoryMeter(lambda: 0, lambda: None, self.meter)

    def read(self) -> Mapping[int, GpuMemory]:
        if self.failure is not None:
            raise self.failure
        return {
            number: GpuMemory(1000 * MB, sum(processes.values()), dict(processes) if self.shows else {})
            for number, processes in self.processes.items()
        }

    def take(self, process_id: int, megabytes: int, gpu: int = 0) -> None:
        processes = self.processes[gpu]
        processes[process_id] = processes.get(process_id, 0) + megabytes * MB

    def load(self, megabytes: int, process_id: int = OWN, gpu: int = 0, **loads: DeviceLoad) -> None:
        with self.memory.measure() as measure:
            self.take(process_id, megabytes, gpu)
        self.sizes.note_loads(loads, measure)

    def sweep(self, *active: str, workers: Mapping[str, list[int]] | None = None) -> set[str]:
        readings = self.meter.read()
        self.sizes.note_workers(workers or {}, readings)
        return self.sizes.note_growth(active, {"gpu:0": 1000 * MB}, readings)


@pytest.mark.parametrize("shows", [True, False])
def test_growth_during_a_load_counts_without_cuda_itself(shows: bool) -> None:
    machine = Machine(shows=shows)
    machine.load(400 + 15, a=ON_FIRST)
    assert machine.sizes.amounts("a") == {"gpu:0": 28 * MB}, "at most twice its files and 8 MiB, the rest is CUDA's"
    machine.load(15, b=ON_FIRST)
    assert machine.sizes.amounts("b") == {"gpu:0": 15 * MB}
    machine.load(40, gpu=1, c=DeviceLoad({"gpu:1"}, 30 * MB, ()))
    assert machine.sizes.amounts("c") == {"gpu:1": 40 * MB}
    machine.sizes.leave("b")
    assert machine.sizes.amounts("b") == {}


def test_memory_of_others_is_not_counted() -> None:
    machine = Machine()
    machine.load(400 + 15, a=ON_FIRST)
    machine.load(300, process_id=OTHER, b=DeviceLoad((), 10 * MB, ()))
    assert machine.sizes.amounts("b") == {}
    hidden = Machine(shows=False)
    hidden.load(300, process_id=OTHER, b=DeviceLoad((), 10 * MB, ()))
    assert hidden.sizes.amounts("b") == {}, "it has no instance on a GPU"


def test_workers_count_whole_with_their_processes() -> None:
    machine = Machine()
    machine.take(CHILD, 30)
    machine.load(500, process_id=WORKER, a=DeviceLoad({"gpu:0"}, 10 * MB, [WORKER]))
    assert machine.sizes.amounts("a") == {"gpu:0": 530 * MB}
    machine.take(WORKER, 70)
    machine.sweep(workers={"a": [WORKER]})
    assert machine.sizes.amounts("a") == {"gpu:0": 600 * MB}


def test_worker_in_a_container_counts_by_growth() -> None:
    machine = Machine(shows=False)
    machine.load(500, process_id=WORKER, a=DeviceLoad({"gpu:0"}, 10 * MB, [WORKER]))
    assert machine.sizes.amounts("a") == {"gpu:0": 500 * MB}
    machine.take(OTHER, 300)
    assert machine.sweep("a") == set(), "growth may be that of others"


def test_growth_after_loads_counts_for_active_models() -> None:
    machine = Machine()
    for name in ("a", "b"):
        machine.load(50, **{name: DeviceLoad({"gpu:0"}, 50 * MB, ())})
    machine.take(OWN, 60)
    assert machine.sweep("a") == {"a"}
    assert machine.sizes.amounts("a") == {"gpu:0": 110 * MB}
    assert machine.sizes.amounts("b") == {"gpu:0": 50 * MB}


def test_load_beside_another_counts_as_its_files() -> None:
    machine = Machine()
    machine.load(50, a=DeviceLoad({"gpu:0"}, 50 * MB, ()))
    assert machine.sizes.is_measured("a")
    with machine.memory.disturb():
        machine.load(500, b=DeviceLoad({"gpu:0"}, 40 * MB, ()))
    assert machine.sizes.amounts("b") == {"gpu:0": 40 * MB}
    assert not machine.sizes.is_measured("b")
    machine.sizes.forget("a")
    assert not machine.sizes.is_measured("a")


def test_pinned_models_are_no_growth() -> None:
    machine = Machine()
    machine.load(50, a=DeviceLoad({"gpu:0"}, 50 * MB, ()))
    with machine.memory.measure() as measure:
        machine.take(OWN, 200)
    machine.sizes.note_others(measure)
    assert machine.sweep("a") == set()


def test_reading_that_fails_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.failure = NvmlError("nvmlDeviceGetMemoryInfo failed with error 15: GPU is lost")
    for name in ("a", "b"):
        machine.load(50, **{name: ON_FIRST})
    assert machine.sizes.amounts("a") == {"gpu:0": 10 * MB}, "its files"
    assert caplog.text.count("the memory of GPUs cannot be read") == 1


def test_parent_of_a_process_is_read(tmp_path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a ) name) S 5 7 7 0 -1\n")
    assert parent_process_id(7, tmp_path) == 5
    assert parent_process_id(8, tmp_path) == 0
