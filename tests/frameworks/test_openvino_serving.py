"""OpenVINO models in a server, asked by tritonclient."""

from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.digits_classifier import digits_classifier
from support.digits_serving import DELAYED, check_batches, check_completed_config, check_probabilities, connected
from support.model_repository import write_model
from support.onnx_digits import onnx_digits
from support.openvino_models import digits_model, save


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    save(digits_model(), repository, "ir")
    save(digits_model(rows=1), repository, "one_row")
    save(digits_model(), repository, "batched", f'backend: "openvino" max_batch_size: 16 {DELAYED}')
    config = 'backend: "openvino" default_model_filename: "model.onnx"'
    write_model(repository, "onnx", config, {"1/model.onnx": onnx_digits()})
    with connected(repository, tmp_path_factory) as client:
        yield client


def ask(client, model, images):
    tensor = triton.InferInput("IMAGE", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    return client.infer(model, [tensor]).as_numpy("PROBABILITIES")


@pytest.mark.parametrize("model", ["ir", "one_row", "batched", "onnx"])
@pytest.mark.parametrize("rows", [1, 4])
def test_probabilities_equal_numpy(client, model, rows):
    check_probabilities(partial(ask, client, model), rows)


def test_served_classifier_knows_digits(client):
    digits = digits_classifier()
    answers = [ask(client, "ir", digits.images[start : start + 4]) for start in range(0, 200, 4)]
    assert (np.concatenate(answers).argmax(1) == digits.labels[:200]).mean() > 0.85


@pytest.mark.parametrize("model", ["ir", "one_row", "onnx"])
def test_configuration_comes_from_the_model(client, model):
    check_completed_config(client, model, "openvino", "IMAGE", "PROBABILITIES")


def test_concurrent_requests_form_batches(client):
    check_batches(client, "batched", partial(ask, client, "batched"))
