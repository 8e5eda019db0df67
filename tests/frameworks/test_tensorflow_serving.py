"""TensorFlow models in a server, asked by tritonclient."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.digits_classifier import digits_classifier
from support.model_repository import write_model
from support.server_process import serving
from support.tensorflow_models import keras_digits, save_digits

DELAYED = "dynamic_batching { max_queue_delay_microseconds: 20000 }"
OUTPUTS = {"saved": "probabilities", "batched": "probabilities", "keras": "output_0", "h5": "output_0"}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    save_digits(write_model(repository, "saved", None) / "1" / "model.savedmodel")
    config = f'platform: "tensorflow_savedmodel" max_batch_size: 16 {DELAYED}'
    save_digits(write_model(repository, "batched", config) / "1" / "model.savedmodel")
    config = 'parameters { key: "TF_SIGNATURE_DEF" value { string_value: "measure" } }'
    save_digits(write_model(repository, "text", config) / "1" / "model.savedmodel")
    keras_digits().save(write_model(repository, "keras", None) / "1" / "model.keras")
    keras_digits().save(write_model(repository, "h5", None) / "1" / "model.h5")
    log = tmp_path_factory.mktemp("log") / "log"
    with serving(log, f"--model-repository={repository}", "--log-verbose=0") as server:
        connected = triton.InferenceServerClient(server.grpc_url)
        yield connected
        connected.close()


def ask(client, model, images):
    tensor = triton.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    return client.infer(model, [tensor]).as_numpy(OUTPUTS[model])


@pytest.mark.parametrize("model", OUTPUTS)
@pytest.mark.parametrize("rows", [1, 4])
def test_probabilities_equal_those_of_numpy(client, model, rows):
    digits = digits_classifier()
    answer = ask(client, model, digits.images[:rows])
    np.testing.assert_allclose(answer, digits.probabilities(digits.images[:rows]), atol=1e-5)


@pytest.mark.parametrize("model", ["saved", "keras", "h5"])
def test_configuration_comes_from_the_model(client, model):
    config = client.get_model_config(model, as_json=True)["config"]
    assert (config["backend"], config["max_batch_size"]) == ("tensorflow", 4)
    assert "dynamic_batching" in config
    (image,), (output,) = config["input"], config["output"]
    assert (image["name"], image["data_type"], image["dims"]) == ("image", "TYPE_FP32", ["64"])
    assert (output["name"], output["data_type"], output["dims"]) == (OUTPUTS[model], "TYPE_FP32", ["10"])


def test_strings_pass_in_and_out(client):
    texts = np.array([["naiad", "né"], ["", "x"]], object)
    tensor = triton.InferInput("text", [2, 2], "BYTES")
    tensor.set_data_from_numpy(texts)
    answer = client.infer("text", [tensor])
    assert answer.as_numpy("upper").tolist() == [[b"NAIAD", "NÉ".encode()], [b"", b"X"]]
    assert answer.as_numpy("length").tolist() == [[5, 3], [0, 1]]


def test_concurrent_requests_form_batches(client):
    digits = digits_classifier()
    rows = [digits.images[index : index + 1] for index in range(64)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda row: ask(client, "batched", row), rows))
    np.testing.assert_allclose(np.concatenate(answers), digits.probabilities(digits.images[:64]), atol=1e-5)
    (statistics,) = client.get_inference_statistics("batched").model_stats
    assert statistics.execution_count < statistics.inference_count
