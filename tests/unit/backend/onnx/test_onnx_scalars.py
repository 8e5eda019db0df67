"""Scalars of ONNX models, as inputs and outputs, without batching and with it."""

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from support import onnx_models
from support.backend_parts import (
    execute,
    infer,
    load_onnx,
    make_header,
    make_request,
    new_instance,
    output_arrays,
    strings,
)


def tensor(name: str, dims, **fields):
    return {"name": name, "dims": dims, "data_type": "TYPE_FP32", **fields}


def identity_io(dims, **fields):
    return {"input": [tensor("INPUT0", dims, **fields)], "output": [tensor("OUTPUT0", dims, **fields)]}


SCALED_IO = {
    "input": [tensor("INPUT0", [4]), tensor("FACTOR", [1])],
    "output": [tensor("OUTPUT0", [4])],
}


def identity(tmp_path, **fields):
    model, _ = load_onnx(tmp_path, onnx_models.identity(dims=[], output_dims=[]), **fields)
    return new_instance(model)


@pytest.mark.parametrize("dims", [[1], [1, 1], [1, 1, 1]])
def test_scalars_have_the_dimensions_of_the_configuration(tmp_path, dims):
    instance = identity(tmp_path, **identity_io(dims))
    returned = infer(instance, {"INPUT0": np.full(dims, 7, np.float32)})["OUTPUT0"]
    assert returned.shape == tuple(dims)
    assert returned.item() == 7


def test_scalar_strings_work(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.identity(DataType.BYTES, dims=[], output_dims=[]))
    returned = infer(new_instance(model), {"INPUT0": strings("ü".encode())})
    assert returned["OUTPUT0"].tolist() == ["ü".encode()]


@pytest.mark.parametrize("fields", [identity_io([1]), identity_io([1], reshape={"shape": []})])
def test_each_row_of_a_batch_is_a_scalar(tmp_path, fields):
    instance = identity(tmp_path, max_batch_size=4, **fields)
    values = np.array([[1], [2], [3]], np.float32)
    np.testing.assert_array_equal(infer(instance, {"INPUT0": values})["OUTPUT0"], values)
    # The instance has learnt that the output is a scalar; equal rows are not taken for one run.
    same = np.ones((3, 1), np.float32)
    np.testing.assert_array_equal(infer(instance, {"INPUT0": same})["OUTPUT0"], same)


@pytest.mark.parametrize("factors", [[2, 2, 2], [2, 3, 4], [np.nan, 1, 1]])
def test_rows_get_their_own_scalar(tmp_path, factors):
    model, _ = load_onnx(tmp_path, onnx_models.scaled(), max_batch_size=4, **SCALED_IO)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    column = np.array(factors, np.float32).reshape(3, 1)
    returned = infer(new_instance(model), {"INPUT0": rows, "FACTOR": column})
    np.testing.assert_array_equal(returned["OUTPUT0"], rows * column)


def test_requests_of_a_batch_get_their_own_scalar(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.scaled(), max_batch_size=4, **SCALED_IO)
    arrays = [
        {"INPUT0": np.ones((1, 4), np.float32), "FACTOR": np.full((1, 1), factor, np.float32)} for factor in (2, 5)
    ]
    header = make_header(arrays[0])
    responses = execute(new_instance(model), [make_request(each, header=header) for each in arrays])
    assert [output_arrays(response)["OUTPUT0"].tolist() for response in responses] == [[[2] * 4], [[5] * 4]]


def test_other_dimensions_of_a_scalar_are_refused(tmp_path):
    with pytest.raises(InferError) as caught:
        identity(tmp_path, **identity_io([1, 2]))
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert "scalar tensor 'INPUT0', should only provide 1 in the model configuration" in caught.value.message
    assert "Model configuration provided: [1,2]." in caught.value.message
