"""Functions of jax.export in a server, asked by tritonclient."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from support.digits_serving import DELAYED, check_batches, check_probabilities, connected
from support.jax_models import digits_function, serialise, shape, shapes_of_one_scope
from support.model_repository import write_model
from support.server_process import serving

PAD_BATCH = 'parameters { key: "pad_batch" value { string_value: "4,16" } }'


def scale(row, *, factor):
    return row * factor["by"], row.sum(1)


def wide_sum(numbers):
    return numbers.sum()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    digits = serialise(digits_function, shape("b, 64"))
    write_model(repository, "digits", None, {"1/model.jaxexport": digits})
    write_model(
        repository,
        "batched",
        f'backend: "jax" max_batch_size: 16 {DELAYED} instance_group {{ count: 2 }} {PAD_BATCH}',
        {"1/model.jaxexport": digits},
    )
    row, by = shapes_of_one_scope("b, n", np.float32, np.float32)
    write_model(repository, "scale", None, {"1/model.jaxexport": serialise(scale, row, factor={"by": by})})
    with jax.enable_x64(True):
        wide = serialise(wide_sum, jax.ShapeDtypeStruct((3,), np.int64))
    write_model(repository, "wide", None, {"1/model.jaxexport": wide})
    half = serialise(lambda x: x * 2, jax.ShapeDtypeStruct((2, 3), jnp.bfloat16))
    write_model(repository, "half", None, {"1/model.jaxexport": half})
    return repository


@pytest.fixture(scope="module")
def client(repository, tmp_path_factory):
    with connected(repository, tmp_path_factory) as client:
        yield client


def ask(client, model, **arrays):
    tensors = []
    for name, (datatype, array) in arrays.items():
        tensors.append(triton.InferInput(name.replace("__", "."), list(array.shape), datatype))
        tensors[-1].set_data_from_numpy(array)
    return client.infer(model, tensors)


def classify(client, model, images):
    return ask(client, model, input_0=("FP32", images)).as_numpy("probabilities")


@pytest.mark.parametrize("model", ["digits", "batched"])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_probabilities_equal_numpy(client, model, rows):
    check_probabilities(partial(classify, client, model), rows)


def test_configuration_comes_from_the_artefact(client):
    config = client.get_model_config("digits", as_json=True)["config"]
    assert (config["backend"], config["max_batch_size"]) == ("jax", 4)
    (image,), (output,) = config["input"], config["output"]
    assert (image["name"], image["data_type"], image["dims"]) == ("input_0", "TYPE_FP32", ["64"])
    assert (output["name"], output["data_type"], output["dims"]) == ("probabilities", "TYPE_FP32", ["10"])


def test_keys_of_trees_are_names(client):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    answer = ask(client, "scale", input_0=("FP32", rows), factor__by=("FP32", rows + 1))
    np.testing.assert_array_equal(answer.as_numpy("output_0"), rows * (rows + 1))
    np.testing.assert_array_equal(answer.as_numpy("output_1")[:, 0], rows.sum(1))


def test_integers_of_64_bits_keep_their_range(client):
    numbers = np.array([1 << 40, 1 << 41, 1], np.int64)
    answer = ask(client, "wide", input_0=("INT64", numbers)).as_numpy("output_0")
    assert answer.tolist() == [numbers.sum()]


def test_bfloat16_is_served(client):
    rows = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    assert ask(client, "half", input_0=("BF16", rows)).as_numpy("output_0").tolist() == (rows * 2).tolist()


def test_concurrent_requests_form_batches(client):
    check_batches(client, "batched", partial(classify, client, "batched"))


def test_contradicting_shapes_are_refused(client):
    rows = np.ones((2, 3), np.float32)
    with pytest.raises(InferenceServerException, match="Input shapes do not match"):
        ask(client, "scale", input_0=("FP32", rows), factor__by=("FP32", rows[:, :2].copy()))


def test_bare_file_is_served(tmp_path):
    (tmp_path / "double.jaxexport").write_bytes(serialise(lambda x: x * 2, shape("b, 3")))
    with (
        serving(tmp_path / "log", str(tmp_path / "double.jaxexport")) as server,
        triton.InferenceServerClient(server.grpc_url) as client,
    ):
        answer = ask(client, "double", input_0=("FP32", np.ones((2, 3), np.float32)))
        assert answer.as_numpy("output_0").tolist() == [[2.0] * 3] * 2
