"""Conversions by OpenVINO's and PyTorch's own converters: faithful ones are accepted, sabotaged ones rejected."""

import openvino
import pytest
import torch

from naiad.optimizer.candidate import Precision
from naiad.optimizer.correctness.runner import CallableRunner
from support.judged_conversions import ROWS, dense_source, files, reasons, verdict
from support.openvino_models import digits_model
from support.torch_digits import CONFIG, save_exported, save_torchscript, trained_digits


def torch_source():
    module = trained_digits().module
    return CallableRunner(lambda inputs: {"OUTPUT__0": module(torch.tensor(inputs["INPUT__0"])).detach().numpy()})


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_openvino_is_accepted(precision, tmp_path):
    is_half = precision is Precision.FP16
    openvino.save_model(digits_model(), files(tmp_path) / "model.xml", compress_to_fp16=is_half)
    found = verdict(tmp_path, dense_source(), ROWS, "openvino", precision)
    assert found.is_accepted, reasons(found)


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
