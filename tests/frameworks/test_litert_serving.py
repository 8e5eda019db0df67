"""TFLite models in a server, asked by tritonclient."""

from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.digits_classifier import digits_classifier
from support.digits_serving import DELAYED, check_batches, check_completed_config, check_probabilities, connected
from support.model_repository import write_model
from support.tflite_models import digits_tflite, quantised_digits


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "digits", None, {"1/model.tflite": digits_tflite()})
    write_model(repository, "one_row", None, {"1/model.tflite": digits_tflite(1)})
    write_model(repository, "quantised", None, {"1/model.tflite": quantised_digits()})
    config = f'backend: "tflite" max_batch_size: 16 instance_group {{ count: 2 }} {DELAYED}'
    write_model(repository, "batched", config, {"1/model.tflite": digits_tflite()})
    openvino = 'backend: "openvino" default_model_filename: "model.tflite"'
    write_model(repository, "openvino", openvino, {"1/model.tflite": digits_tflite()})
    with connected(repository, tmp_path_factory) as client:
        yield client


def ask(client, model, images, output="probabilities", name="image", datatype="FP32"):
    tensor = triton.InferInput(name, list(images.shape), datatype)
    tensor.set_data_from_numpy(images)
    return client.infer(model, [tensor]).as_numpy(output)


@pytest.mark.parametrize("model", ["digits", "one_row", "batched"])
@pytest.mark.parametrize("rows", [1, 4])
def test_probabilities_equal_numpy(client, model, rows):
    check_probabilities(partial(ask, client, model), rows)


def test_openvino_serves_the_same_file(client):
    config = client.get_model_config("openvino", as_json=True)["config"]
    (tensor,), (output,) = config["input"], config["output"]
    check_probabilities(partial(ask, client, "openvino", output=output["name"], name=tensor["name"]), 4)


@pytest.mark.parametrize("model", ["digits", "one_row"])
def test_configuration_comes_from_the_model(client, model):
    check_completed_config(client, model, "litert", "image", "probabilities")


def test_quantised_tensors_pass_as_they_are(client):
    digits = digits_classifier()
    images = np.rint(digits.images[:4] * 255).astype(np.uint8)
    answer = ask(client, "quantised", images, datatype="UINT8")
    assert answer.dtype == np.uint8
    np.testing.assert_allclose(answer / 256, digits.probabilities(digits.images[:4]), atol=0.1)


def test_concurrent_requests_form_batches(client):
    check_batches(client, "batched", partial(ask, client, "batched"))
