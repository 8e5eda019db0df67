"""The budgets of one process, from the flags and what the machine has."""

from collections.abc import Mapping

import pytest

from naiad.core.errors import InferError
from naiad.options.on_demand_options import OnDemandOptions
from naiad.options.options import ServerOptions
from naiad.repository.control.on_demand.memory.budgets import HOST
from naiad.server import on_demand_parts
from naiad.server.on_demand_parts import on_demand_settings
from naiad.telemetry.metrics.gpus import GpuMemory, NvmlError


class Gpus:
    def read(self) -> Mapping[int, GpuMemory]:
        return {0: GpuMemory(1000, 0, {}), 1: GpuMemory(2000, 0, {})}


def options(text: str, **others: int) -> ServerOptions:
    return ServerOptions(on_demand=OnDemandOptions(memory_budget="500", gpu_memory_budget=text), **others)


@pytest.fixture
def gpu_count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    count = [2]
    monkeypatch.setattr(on_demand_parts, "gpu_count", lambda: count[0])
    return count


def test_processes_share_the_budgets_equally(gpu_count: list[int]) -> None:
    settings = on_demand_settings(options("50%,1=800", process_count=2), Gpus)
    assert settings.budgets == {HOST: 250, "gpu:0": 250, "gpu:1": 400}
    assert settings.devices.budgets == {"gpu:0", "gpu:1"}


def test_nothing_is_measured_without_a_budget(gpu_count: list[int]) -> None:
    settings = on_demand_settings(options(""), lambda: 1 / 0)
    assert settings.budgets == {HOST: 500}
    assert settings.devices.read() == {}


def test_machine_without_gpus_says_so(gpu_count: list[int], caplog: pytest.LogCaptureFixture) -> None:
    gpu_count[0] = 0
    assert on_demand_settings(options("50%"), Gpus).budgets == {HOST: 500}
    assert "--model-gpu-memory-budget has no effect: no GPU was found" in caplog.text
    with pytest.raises(InferError, match="names GPU 0, which was not found; GPUs that were: none"):
        on_demand_settings(options("0=8GB"), Gpus)


def test_gpus_that_cannot_be_measured_are_refused(gpu_count: list[int]) -> None:
    def fail() -> Gpus:
        raise NvmlError("install nvidia-ml-py with pip install 'naiad[gpu]'")

    with pytest.raises(InferError, match=r"--model-gpu-memory-budget=50%: memory cannot be measured: install nvidia"):
        on_demand_settings(options("50%"), fail)


def test_part_of_a_tiny_budget_is_a_limit(gpu_count: list[int]) -> None:
    settings = on_demand_settings(ServerOptions(on_demand=OnDemandOptions(memory_budget="1"), process_count=2), Gpus)
    assert settings.budgets == {HOST: 1}
