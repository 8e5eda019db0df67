"""Programs of ExecuTorch: in a server, asked by tritonclient, and those that are refused."""

from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf import text_format
from tritonclient.utils import InferenceServerException

from naiad.backend.api import ModelContext
from naiad.backend.executorch.backend import ExecuTorchBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.digits_serving import DELAYED, check_batches, check_probabilities, connected
from support.executorch_models import add_program, digits_program
from support.forests import parameters
from support.model_repository import write_model


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "portable", None, {"1/model.pte": digits_program(16)})
    batched = f'backend: "executorch" max_batch_size: 16 {DELAYED} instance_group {{ count: 2 }}'
    write_model(repository, "xnnpack", batched, {"1/model.pte": digits_program(16, has_xnnpack=True)})
    write_model(repository, "fixed", None, {"1/model.pte": digits_program()})
    write_model(repository, "add", None, {"1/model.pte": add_program()})
    with connected(repository, tmp_path_factory) as client:
        yield client


def ask(client, model, *arrays, datatype="FP32"):
    tensors = []
    for index, array in enumerate(arrays):
        tensors.append(triton.InferInput(f"input_{index}", list(array.shape), datatype))
        tensors[-1].set_data_from_numpy(array)
    return client.infer(model, tensors)


def classify(client, model, images):
    return ask(client, model, images).as_numpy("output_0")


@pytest.mark.parametrize(("model", "rows"), [("portable", 1), ("portable", 4), ("xnnpack", 16), ("fixed", 3)])
def test_probabilities_equal_numpy(client, model, rows):
    check_probabilities(partial(classify, client, model), rows)


def test_several_inputs_and_outputs_are_served(client):
    left, right = np.array([5, 6]), np.array([1, 2])
    answer = ask(client, "add", left, right, datatype="INT64")
    assert answer.as_numpy("output_0").tolist() == [6, 8]
    assert answer.as_numpy("output_1").tolist() == [4, 4]


@pytest.mark.parametrize(("model", "rows", "dims"), [("portable", 4, ["64"]), ("fixed", 0, ["3", "64"])])
def test_configuration_comes_from_the_program(client, model, rows, dims):
    config = client.get_model_config(model, as_json=True)["config"]
    assert (config["backend"], config.get("max_batch_size", 0)) == ("executorch", rows)
    (image,) = config["input"]
    assert (image["name"], image["data_type"], image["dims"]) == ("input_0", "TYPE_FP32", dims)


def test_concurrent_requests_form_batches(client):
    check_batches(client, "xnnpack", partial(classify, client, "xnnpack"))


def test_other_shapes_are_refused(client):
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'input_0'"):
        ask(client, "fixed", np.zeros((2, 64), np.float32))


def load(directory, content, config=""):
    (directory / "model.pte").write_bytes(content)
    backend = ExecuTorchBackend()
    parsed = text_format.Parse(config, ModelConfig(name="model", backend="executorch"))
    completed = backend.auto_complete(ModelContext("model", 1, parsed, directory, directory, 2))
    return backend.load(ModelContext("model", 1, completed, directory, directory, 2))


def failure(directory, content, config=""):
    with pytest.raises(InferError) as raised:
        load(directory, content, config)
    assert "model 'model'" in raised.value.message
    return raised.value.message


@pytest.mark.parametrize("length", [9, 100, -100])
def test_truncated_file_is_named(tmp_path, length):
    message = failure(tmp_path, add_program()[:length])
    assert f"{tmp_path}/model.pte cannot be loaded: " in message
    assert "copy it again" in message


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 an archive", bytes(1000)])
def test_other_formats_are_named(tmp_path, content):
    assert "is no ExecuTorch program: it does not have 'ET12' at byte 4" in failure(tmp_path, content)


def test_unknown_method_lists_the_existing_ones(tmp_path):
    message = failure(tmp_path, add_program(), parameters(method="embed"))
    assert "has no method 'embed'; set the parameter 'method' to one of forward" in message


def test_too_large_batches_are_refused(tmp_path):
    shape = "data_type: TYPE_FP32 dims: {} "
    tensors = f'input {{ name: "input_0" {shape.format(64)} }} output {{ name: "output_0" {shape.format(10)} }}'
    message = failure(tmp_path, digits_program(16), f"max_batch_size: 17 {tensors}")
    assert "takes 16 rows at most, but the configuration has max_batch_size: 17" in message
    assert "takes no rows at most" in failure(tmp_path, digits_program(), f"max_batch_size: 2 {tensors}")
