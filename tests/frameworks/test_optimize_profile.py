"""Profiles and served figures of OpenVINO and TorchScript."""

import openvino
import pytest

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize import profile
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.profile import finalist_serving, tuning
from naiad.tools.optimize.results.candidate_measurement import Runtime
from support.judged_conversions import ROWS
from support.long_run import is_long
from support.openvino_models import digits_model
from support.torch_digits import save_torchscript, trained_digits


@pytest.fixture
def dense(tmp_path):
    """A classifier in OpenVINO's format, the source and samples."""
    folder = tmp_path / "openvino"
    folder.mkdir()
    openvino.save_model(digits_model(), folder / "model.xml", compress_to_fp16=False)
    source = Source("digits", Format.ONNX, tmp_path, (TensorSpec("IMAGE", DataType.FP32, (-1, 64)),))
    return converted("openvino", Format.OPENVINO, folder), source, ROWS


@pytest.fixture
def network(tmp_path):
    """A network in TorchScript, whose file has no shapes; the source has other names."""
    folder = tmp_path / "torchscript"
    folder.mkdir()
    save_torchscript(trained_digits().module, folder / "model.pt")
    inputs = (TensorSpec("image", DataType.FP32, (-1, 1, 8, 8)),)
    source = Source("digits", Format.TORCH, tmp_path, inputs, (TensorSpec("scores", DataType.FP32, (-1, 10)),))
    return (
        converted("pytorch", Format.TORCHSCRIPT, folder),
        source,
        [{"image": image.numpy()} for image in trained_digits().images[:8]],
    )


def converted(backend, form, folder):
    return Conversion(Candidate(f"{backend}-fp32", form, Precision.FP32, backend), Status.PASSED, folder)


@pytest.mark.parametrize("case", ["dense", "network"])
def test_finalist_is_served(case, request, monkeypatch):
    monkeypatch.setattr(finalist_serving, "_ROUNDS", 2)
    conversion, source, samples = request.getfixturevalue(case)
    runtime = profile.runtimes(conversion.candidate, 2)[1]
    ((name, found),) = profile.serve([(conversion, runtime, 2)], samples, source, seconds=0.1)
    assert name == conversion.candidate.name
    assert not found.error
    assert (found.runtime, found.max_batch_size, found.concurrency) == (runtime, 2, 4)
    assert found.throughput.value > 0


def test_wrong_parameter_is_an_error(dense):
    conversion, source, samples = dense
    runtime = Runtime("wrong", {"PERFORMANCE_HINT": "FAST"})
    ((_, found),) = profile.measure([(conversion, [runtime])], samples, source)
    assert "PERFORMANCE_HINT" in found.error


@pytest.mark.parametrize("case", ["dense", "network"])
def test_runtimes_and_options_have_figures(case, request):
    conversion, source, samples = request.getfixturevalue(case)
    # CI tries one value of each option.
    count = None if is_long() else 1
    values = [each for alternatives in tuning.options(conversion.candidate) for each in alternatives[:count]]
    runtimes = [*profile.runtimes(conversion.candidate, 2), *(Runtime(str(each), each) for each in values)]
    wanted = [(conversion, runtimes)]
    found = [each for _, each in profile.measure(wanted, samples, source, seconds_per_profile=0.05)]
    assert [each.runtime for each in found] == runtimes
    for each in found:
        assert not each.error
        assert 0 < each.latency.low <= each.latency.value <= each.latency.high
        assert each.throughput.value > 0
        assert each.memory_mib > 1
