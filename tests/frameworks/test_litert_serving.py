"""TFLite models in a server, asked by tritonclient."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.digits_classifier import digits_classifier
from support.model_repository import write_model
from support.server_process import serving
from support.tflite_models import digits_tflite, quantised_digits

DELAYED = "dynamic_batching { max_queue_delay_microseconds: 20000 }"


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
    with serving(tmp_path_factory.mktemp("log") / "log", f"--model-repository={repository}") as server:
        connected = triton.InferenceServerClient(server.grpc_url)
        yield connected
        connected.close()


def ask(client, model, images, output="probabilities", name="image", datatype="FP32"):
    tensor = triton.InferInput(name, list(images.shape), datatype)
    tensor.set_data_from_numpy(images)
    return client.infer(model, [tensor]).as_numpy(output)


@pytest.mark.parametrize("model", ["digits", "one_row", "batched"])
@pytest.mark.parametrize("rows", [1, 4])
def test_probabilities_equal_those_of_numpy(client, model, rows):
    digits = digits_classifier()
    answer = ask(client, model, digits.images[:rows])
    np.testing.assert_allclose(answer, digits.probabilities(digits.images[:rows]), atol=1e-5)


def test_openvino_serves_the_same_file(client):
    digits = digits_classifier()
    config = client.get_model_config("openvino", as_json=True)["config"]
    (tensor,), (output,) = config["input"], config["output"]
    answer = ask(client, "openvino", digits.images[:4], output["name"], tensor["name"])
    np.testing.assert_allclose(answer, digits.probabilities(digits.images[:4]), atol=1e-5)


@pytest.mark.parametrize("model", ["digits", "one_row"])
def test_configuration_comes_from_the_model(client, model):
    config = client.get_model_config(model, as_json=True)["config"]
    assert (config["backend"], config["max_batch_size"]) == ("litert", 4)
    assert "dynamic_batching" in config
    (image,), (output,) = config["input"], config["output"]
    assert (image["name"], image["data_type"], image["dims"]) == ("image", "TYPE_FP32", ["64"])
    assert (output["name"], output["data_type"], output["dims"]) == ("probabilities", "TYPE_FP32", ["10"])


def test_quantised_tensors_pass_as_they_are(client):
    digits = digits_classifier()
    images = np.rint(digits.images[:4] * 255).astype(np.uint8)
    answer = ask(client, "quantised", images, datatype="UINT8")
    assert answer.dtype == np.uint8
    np.testing.assert_allclose(answer / 256, digits.probabilities(digits.images[:4]), atol=0.1)


def test_concurrent_requests_form_batches(client):
    digits = digits_classifier()
    rows = [digits.images[index : index + 1] for index in range(64)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda row: ask(client, "batched", row), rows))
    np.testing.assert_allclose(np.concatenate(answers), digits.probabilities(digits.images[:64]), atol=1e-5)
    (statistics,) = client.get_inference_statistics("batched").model_stats
    assert statistics.execution_count < statistics.inference_count
