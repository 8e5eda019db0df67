"""GPU metrics, and the handling of failures."""

import logging

import pytest

from naiad.telemetry.metrics import exposition as exposition_sum
from naiad.telemetry.metrics.gpus import GPU_FAMILIES, Gpu, GpuMeter, GpuReading, Nvml, NvmlError, load_nvml, visible
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


def test_a_machine_without_nvml_has_no_gpus(caplog):
    def missing(name):
        raise OSError(name)

    caplog.set_level(logging.DEBUG, logger="naiad")
    meter = GpuMeter(1.0, load=lambda: load_nvml(missing))
    meter.run()
    assert list(meter.render()) == []
    assert "no GPU metrics: libnvidia-ml.so.1 was not found; it comes with NVIDIA's driver" in caplog.text


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


class Library:
    """An NVML that lacks the functions that are not given."""

    def __init__(self, **results):
        self.nvmlErrorString = lambda status: b"Driver Not Loaded"
        for name, status in results.items():
            setattr(self, name, lambda *arguments, status=status: status)


def test_an_nvml_that_cannot_be_used_says_why():
    with pytest.raises(NvmlError, match="nvmlInit_v2 failed with error 9: Driver Not Loaded"):
        Nvml(Library(nvmlInit_v2=9))
    with pytest.raises(NvmlError, match=r"it lacks a call: .*nvmlInit_v2"):
        Nvml(Library())
    with pytest.raises(NvmlError, match="lacks a call"):
        Nvml(object())


def test_values_unknown_to_old_driver_are_omitted():
    nvml = Nvml(Library(nvmlInit_v2=0, nvmlDeviceGetUtilizationRates=0, nvmlDeviceGetPowerUsage=3))
    assert nvml.read(GPUS[0]) == GpuReading(0.0, None, None, None, None, None)


@pytest.mark.parametrize("status", [2, 4, 13, 999])
def test_one_figure_may_be_missing(status):
    calls = {"nvmlDeviceGetUtilizationRates": 0, "nvmlDeviceGetMemoryInfo": 0, "nvmlDeviceGetPowerUsage": status}
    assert Nvml(Library(nvmlInit_v2=0, **calls)).read(GPUS[0]) == GpuReading(0.0, 0, 0, None, None, None)


def test_lost_gpu_has_no_reading():
    with pytest.raises(NvmlError, match="nvmlDeviceGetMemoryInfo failed with error 15"):
        Nvml(Library(nvmlInit_v2=0, nvmlDeviceGetMemoryInfo=15)).read(GPUS[0])


def test_every_process_has_the_same_gpus():
    line = "# HELP nv_energy_consumption x\n# TYPE nv_energy_consumption counter\nnv_energy_consumption %d\n"
    parsed = [exposition_sum.parse((line % value).encode()) for value in (3, 5)]
    assert exposition_sum.add(parsed).samples == {"nv_energy_consumption": {"nv_energy_consumption": 5}}
