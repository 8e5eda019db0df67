"""Conversions by OpenVINO's and PyTorch's own converters: faithful ones are accepted, sabotaged ones rejected."""

import openvino
import pytest
import torch

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.candidate import Precision
from naiad.tools.optimize.converters.conversion_plan import candidates, installed_packages
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.correctness.candidate_repository import write_repository
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.correctness.runners.served_runner import ServedRunner
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.samples.sample_reader import ArraySamples, shape_ranges
from support.digits_classifier import digits_classifier
from support.judged_conversions import ROWS, dense_source, files, reasons, verdict, verify_package
from support.onnx_digits import onnx_digits
from support.openvino_models import digits_model
from support.torch_digits import CONFIG, save_exported, save_torchscript, trained_digits


def torch_source():
    module = trained_digits().module
    return CallableRunner(lambda inputs: {"OUTPUT__0": module(torch.tensor(inputs["INPUT__0"])).detach().numpy()})


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_openvino_is_accepted_and_verified(precision, tmp_path):
    is_half = precision is Precision.FP16
    openvino.save_model(digits_model(), files(tmp_path) / "model.xml", compress_to_fp16=is_half)
    found = verdict(tmp_path, dense_source(), ROWS, "openvino", precision)
    assert found.is_accepted, reasons(found)
    assert verify_package(tmp_path, "openvino", precision) == 0


@pytest.mark.parametrize(
    "name", ["onnx-simplified", "onnx-fp16", "onnx-mixed", "onnx-int8-dynamic", "onnx-int8-minmax"]
)
def test_converted_onnx_is_accepted(name, tmp_path):
    (tmp_path / "digits.onnx").write_bytes(onnx_digits())
    inputs = (TensorSpec("IMAGE", DataType.FP32, (-1, 64)),)
    source = Source("digits", Format.ONNX, tmp_path / "digits.onnx", inputs)
    samples = ArraySamples({"IMAGE": digits_classifier().images[:40]}, inputs)
    planned = candidates(source, shape_ranges(samples), installed_packages())
    wanted = [each for each in planned if each.name in ("source", name)]
    made = list(Converter.open(source, samples, tmp_path / "work").convert_all(wanted))[-1]
    served = ServedRunner(write_repository(made, tmp_path / "repository"), name)
    try:
        found = judge(dense_source(), served, ROWS, made.candidate, Settings())
    finally:
        served.close()
    assert found.is_accepted, reasons(found)
    assert (found.worst_absolute["PROBABILITIES"] > 1e-5) == (name != "onnx-simplified")


def images():
    return [{"INPUT__0": image.numpy()} for image in trained_digits().images[:40]]


def test_torchscript_is_accepted(tmp_path):
    save_torchscript(trained_digits().module, files(tmp_path) / "model.pt")
    found = verdict(tmp_path, torch_source(), images(), "pytorch", config=CONFIG)
    assert found.is_accepted, reasons(found)


class FirstRowOnly(torch.nn.Module):
    """Scales all rows by the greatest probability of the first one."""

    def __init__(self):
        super().__init__()
        self.digits = trained_digits().module

    def forward(self, image):
        probabilities = self.digits(image)
        own = probabilities.max(1, keepdim=True)[0]
        return probabilities * own[:1] / own


def test_torchscript_that_mixes_rows_is_rejected(tmp_path):
    save_torchscript(FirstRowOnly(), files(tmp_path) / "model.pt")
    found = verdict(tmp_path, torch_source(), images(), "pytorch", config=CONFIG)
    assert ("OUTPUT__0", "batched") in {(failure.output, failure.check) for failure in found.failures}


def test_openvino_without_softmax_is_rejected(tmp_path):
    model = digits_model()
    softmax = next(node for node in model.get_ordered_ops() if node.get_type_name() == "Softmax")
    scores = softmax.input_value(0)
    scores.get_tensor().set_names({"PROBABILITIES"})
    model = openvino.Model([scores], model.get_parameters(), "digits")
    openvino.save_model(model, files(tmp_path) / "model.xml", compress_to_fp16=False)
    found = verdict(tmp_path, dense_source(), ROWS, "openvino")
    assert ("PROBABILITIES", "values") in {(failure.output, failure.check) for failure in found.failures}


def test_exported_program_is_accepted(tmp_path):
    save_exported(trained_digits().module, files(tmp_path) / "model.pt2", trained_digits().images[:2])
    found = verdict(
        tmp_path, torch_source(), images(), "pytorch", names=({"INPUT__0": "image"}, {"OUTPUT__0": "OUTPUT__0"})
    )
    assert found.is_accepted, reasons(found)
