"""TensorFlow models in a server, asked by tritonclient."""

from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.digits_serving import DELAYED, check_batches, check_completed_config, check_probabilities, connected
from support.model_repository import write_model
from support.tensorflow_models import keras_digits, save_digits

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
    with connected(repository, tmp_path_factory, "--log-verbose=0") as client:
        yield client


def ask(client, model, images):
    tensor = triton.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    return client.infer(model, [tensor]).as_numpy(OUTPUTS[model])


@pytest.mark.parametrize("model", OUTPUTS)
@pytest.mark.parametrize("rows", [1, 4])
def test_probabilities_equal_numpy(client, model, rows):
    check_probabilities(partial(ask, client, model), rows)


@pytest.mark.parametrize("model", ["saved", "keras", "h5"])
def test_configuration_comes_from_the_model(client, model):
    check_completed_config(client, model, "tensorflow", "image", OUTPUTS[model])


def test_strings_pass_in_and_out(client):
    texts = np.array([["naiad", "né"], ["", "x"]], object)
    tensor = triton.InferInput("text", [2, 2], "BYTES")
    tensor.set_data_from_numpy(texts)
    answer = client.infer("text", [tensor])
    assert answer.as_numpy("upper").tolist() == [[b"NAIAD", "NÉ".encode()], [b"", b"X"]]
    assert answer.as_numpy("length").tolist() == [[5, 3], [0, 1]]


def test_concurrent_requests_form_batches(client):
    check_batches(client, "batched", partial(ask, client, "batched"))
