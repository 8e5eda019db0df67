"""GPU metrics, and the handling of failures."""

import logging
import sys
from types import SimpleNamespace

import pytest

from naiad.telemetry.metrics import exposition as exposition_sum
from naiad.telemetry.metrics.gpu_memory import GpuMemoryReader
from naiad.telemetry.metrics.gpus import (
    GPU_FAMILIES,
    Gpu,
    GpuMemory,
    GpuMeter,
    GpuReading,
    Nvml,
    NvmlError,
    NvmlPackageError,
    gpus_of_driver,
    load_nvml,
    visible,
)
from naiad.telemetry.metrics.metrics import Registry

GPUS = [Gpu(1, "GPU-aa1", "A"), Gpu(2, "GPU-ab2", "B"), Gpu(3, "GPU-b3", "C")]
READING = GpuReading(0.5, 100, 40, 20.5, 70, 1000.0)


class FakeNvml:
    """Returns the given values in turn; raises given errors."""

    def __init__(self, *readings):
        self.readings = list(readings)
        self.is_closed = False

    def gpus(self):
        return GPUS[:1]

    def read(self, gpu):
        found = self.readings.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self):
        self.is_closed = True


def test_nothing_is_shown_before_the_first_measurement():
    assert list(GpuMeter(1.0).render()) == []


def test_energy_counts_from_start():
    meter = GpuMeter(1.0)
    nvml = FakeNvml(READING, GpuReading(0.0, None, None, None, None, 1012.5))
    meter.measure(nvml, GPUS[:1])
    text = "\n".join(meter.render())
    assert 'nv_gpu_utilization{gpu_uuid="GPU-aa1"} 0.5' in text
    assert 'nv_gpu_power_usage{gpu_uuid="GPU-aa1"} 20.5' in text
    assert 'nv_energy_consumption{gpu_uuid="GPU-aa1"} 0\n' in text + "\n"
    assert "# TYPE nv_energy_consumption counter" in text
    meter.measure(nvml, GPUS[:1])
    text = "\n".join(meter.render())
    assert 'nv_energy_consumption{gpu_uuid="GPU-aa1"} 12.5' in text
    assert "nv_gpu_memory_used_bytes{" not in text
    assert all(Registry().has_family(name) for name in GPU_FAMILIES)


@pytest.mark.parametrize(
    ("error", "gpus", "level"),
    [
        (NvmlError("nvmlInit failed with error 12: NVML Shared Library Not Found"), GPUS, logging.DEBUG),
        (NvmlPackageError("install nvidia-ml-py"), [], logging.DEBUG),
        (NvmlPackageError("install nvidia-ml-py"), GPUS, logging.WARNING),
    ],
)
def test_log_says_why_there_are_no_metrics(caplog, monkeypatch, error, gpus, level):
    def missing():
        raise error

    monkeypatch.setattr("naiad.telemetry.metrics.gpus.gpus_of_driver", lambda: gpus)
    caplog.set_level(logging.DEBUG, logger="naiad")
    meter = GpuMeter(1.0, load=missing)
    meter.run()
    assert list(meter.render()) == []
    assert caplog.record_tuples == [("naiad.telemetry.metrics.gpus", level, f"no GPU metrics: {error}")]


def test_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlPackageError, match=r"nvidia-ml-py with pip install 'naiad\[gpu\]'"):
        load_nvml()


def test_driver_shows_gpus_without_nvml(tmp_path):
    for bus, uuid in (("0000:65:00.0", "GPU-b"), ("0000:17:00.0", "GPU-a")):
        (tmp_path / bus).mkdir()
        text = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 65\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\n"
        (tmp_path / bus / "information").write_text(text)
    assert gpus_of_driver(tmp_path) == [Gpu(None, "GPU-a", "NVIDIA H200"), Gpu(None, "GPU-b", "NVIDIA H200")]
    assert gpus_of_driver(tmp_path / "absent") == []


def test_a_gpu_that_is_lost_ends_it(caplog):
    lost = NvmlError("nvmlDeviceGetUtilizationRates failed with error 15: GPU is lost")
    nvml = FakeNvml(READING, lost, READING, *[lost] * 5)
    meter = GpuMeter(0.0, load=lambda: nvml)
    meter.run()
    assert nvml.readings == []
    assert list(meter.render()) == []
    assert "GPU metrics stopped: nvmlDeviceGetUtilizationRates failed with error 15: GPU is lost" in caplog.text


def test_it_measures_until_it_is_closed():
    nvml = FakeNvml(READING)
    meter = GpuMeter(3600.0, load=lambda: nvml)
    meter.close()
    meter.run()
    assert nvml.is_closed
    assert nvml.readings == []


@pytest.mark.parametrize(
    ("setting", "uuids"),
    [
        (None, ["GPU-aa1", "GPU-ab2", "GPU-b3"]),
        ("", []),
        ("2,0", ["GPU-b3", "GPU-aa1"]),
        ("1,1", ["GPU-ab2"]),
        ("0,7,1", ["GPU-aa1"]),
        ("-1,0", []),
        (" GPU-b , 0", ["GPU-b3", "GPU-aa1"]),
        ("GPU-a", []),
    ],
)
def test_cuda_visible_devices(setting, uuids):
    assert [gpu.uuid for gpu in visible(GPUS, setting)] == uuids


class Pynvml:
    """The module pynvml over a driver that gives the given answers; an error number is raised as its error."""

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__({9: "Driver Not Loaded", 15: "GPU is lost"}.get(value, "another"))
            self.value = value

    def __init__(self, **answers):
        self.answers = {"nvmlInit": None, **answers}

    def __getattr__(self, name):
        def call(*arguments):
            answer = self.answers.get(name, self.NVMLError(13))  # as of a function that an old driver has not
            if isinstance(answer, Exception):
                raise answer
            return answer

        call.__name__ = name
        return call


FIGURES = {
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=70, memory=3),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150, free=100, used=50),
    "nvmlDeviceGetPowerUsage": 20_500,
    "nvmlDeviceGetPowerManagementLimit": 70_000,
    "nvmlDeviceGetTotalEnergyConsumption": 1_000_250,
}


def test_figures_have_the_units_of_metrics():
    assert Nvml(Pynvml(**FIGURES)).read(GPUS[0]) == GpuReading(0.7, 150, 50, 20.5, 70.0, 1000.25)


@pytest.mark.parametrize("uuid", ["GPU-a", b"GPU-a"])
def test_gpus_have_names_and_identifiers(uuid):
    calls = {"nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": "handle", "nvmlDeviceGetUUID": uuid}
    assert Nvml(Pynvml(**calls, nvmlDeviceGetName="H200")).gpus() == [Gpu("handle", "GPU-a", "H200")]


def test_an_nvml_that_cannot_be_used_says_why():
    with pytest.raises(NvmlError, match="nvmlInit failed with error 9: Driver Not Loaded"):
        Nvml(Pynvml(nvmlInit=Pynvml.NVMLError(9)))


def test_values_unknown_to_old_driver_are_omitted():
    assert Nvml(Pynvml(nvmlDeviceGetPowerUsage=3000)).read(GPUS[0]) == GpuReading(None, None, None, 3.0, None, None)


@pytest.mark.parametrize("status", [2, 4, 13, 999])
def test_one_figure_may_be_missing(status):
    calls = {**FIGURES, "nvmlDeviceGetPowerUsage": Pynvml.NVMLError(status)}
    assert Nvml(Pynvml(**calls)).read(GPUS[0]) == GpuReading(0.7, 150, 50, None, 70.0, 1000.25)


def test_lost_gpu_has_no_reading():
    with pytest.raises(NvmlError, match="nvmlDeviceGetMemoryInfo failed with error 15: GPU is lost"):
        Nvml(Pynvml(nvmlDeviceGetMemoryInfo=Pynvml.NVMLError(15))).read(GPUS[0])


def test_every_process_has_the_same_gpus():
    line = "# HELP nv_energy_consumption x\n# TYPE nv_energy_consumption counter\nnv_energy_consumption %d\n"
    parsed = [exposition_sum.parse((line % value).encode()) for value in (3, 5)]
    assert exposition_sum.add(parsed).samples == {"nv_energy_consumption": {"nv_energy_consumption": 5}}


def test_memory_of_visible_gpus_has_their_processes(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    processes = [SimpleNamespace(pid=7, usedGpuMemory=30), SimpleNamespace(pid=8, usedGpuMemory=None)]
    calls = {**FIGURES, "nvmlDeviceGetComputeRunningProcesses": processes, "nvmlDeviceGetCount": 2}
    calls |= {"nvmlDeviceGetHandleByIndex": "handle", "nvmlDeviceGetUUID": "GPU-a", "nvmlDeviceGetName": "H200"}
    reader = GpuMemoryReader(lambda: Nvml(Pynvml(**calls)))
    assert reader.read() == {0: GpuMemory(150, 50, {7: 30})}


def test_memory_without_processes_is_read():
    hidden = {**FIGURES, "nvmlDeviceGetComputeRunningProcesses": Pynvml.NVMLError(3)}
    assert Nvml(Pynvml(**hidden)).read_memory(GPUS[0]) == GpuMemory(150, 50, {})
    with pytest.raises(NvmlError, match="nvmlDeviceGetMemoryInfo failed with error 3"):
        Nvml(Pynvml(nvmlDeviceGetMemoryInfo=Pynvml.NVMLError(3))).read_memory(GPUS[0])
