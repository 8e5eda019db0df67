"""OpenVINO models in a server, asked by tritonclient."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.digits_classifier import digits_classifier
from support.model_repository import write_model
from support.onnx_digits import onnx_digits
from support.openvino_models import digits_model, save
from support.server_process import serving

DELAYED = "dynamic_batching { max_queue_delay_microseconds: 20000 }"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    save(digits_model(), repository, "ir")
    save(digits_model(rows=1), repository, "one_row")
    save(digits_model(), repository, "batched", f'backend: "openvino" max_batch_size: 16 {DELAYED}')
    config = 'backend: "openvino" default_model_filename: "model.onnx"'
    write_model(repository, "onnx", config, {"1/model.onnx": onnx_digits()})
    with serving(tmp_path_factory.mktemp("log") / "log", f"--model-repository={repository}") as server:
        connected = triton.InferenceServerClient(server.grpc_url)
        yield connected
        connected.close()


def ask(client, model, images):
    tensor = triton.InferInput("IMAGE", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    return client.infer(model, [tensor]).as_numpy("PROBABILITIES")


@pytest.mark.parametrize("model", ["ir", "one_row", "batched", "onnx"])
@pytest.mark.parametrize("rows", [1, 4])
def test_probabilities_equal_those_of_numpy(client, model, rows):
    digits = digits_classifier()
    answer = ask(client, model, digits.images[:rows])
    np.testing.assert_allclose(answer, digits.probabilities(digits.images[:rows]), atol=1e-5)


def test_served_classifier_knows_digits(client):
    digits = digits_classifier()
    answers = [ask(client, "ir", digits.images[start : start + 4]) for start in range(0, 200, 4)]
    assert (np.concatenate(answers).argmax(1) == digits.labels[:200]).mean() > 0.85


@pytest.mark.parametrize("model", ["ir", "one_row", "onnx"])
def test_configuration_comes_from_the_model(client, model):
    config = client.get_model_config(model, as_json=True)["config"]
    assert config["max_batch_size"] == 4
    assert "dynamic_batching" in config
    (image,), (output,) = config["input"], config["output"]
    assert (image["name"], image["data_type"], image["dims"]) == ("IMAGE", "TYPE_FP32", ["64"])
    assert (output["name"], output["data_type"], output["dims"]) == ("PROBABILITIES", "TYPE_FP32", ["10"])


def test_concurrent_requests_form_batches(client):
    digits = digits_classifier()
    rows = [digits.images[index : index + 1] for index in range(64)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda row: ask(client, "batched", row), rows))
    np.testing.assert_allclose(np.concatenate(answers), digits.probabilities(digits.images[:64]), atol=1e-5)
    (statistics,) = client.get_inference_statistics("batched").model_stats
    assert statistics.execution_count < statistics.inference_count
