"""Every backend answers for every datatype and shape what the protocol promises: one suite for all of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from naiad.backend.api import Instance
from naiad.backend.identity import IdentityBackend
from naiad.backend.onnx.backend import OnnxRuntimeBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.tensor import Array
from support import onnx_models
from support.backend_parts import (
    execute,
    infer,
    load_model,
    make_context,
    make_header,
    make_request,
    new_instance,
    output_arrays,
    strings,
)
from support.isolated_instances import LoopbackInstance

MakeIdentity = Callable[[Path, DataType, Sequence[int], int], Instance]
"""Directory, datatype, dims and max_batch_size to an instance that returns INPUT0 as OUTPUT0."""


def _config(backend: str, datatype: DataType, dims: Sequence[int], max_batch_size: int) -> ModelConfig:
    made = ModelConfig(name="m", backend=backend, max_batch_size=max_batch_size)
    made.input.add(name="INPUT0", data_type=datatype.config_name, dims=dims)
    made.output.add(name="OUTPUT0", data_type=datatype.config_name, dims=dims)
    return made


def identity_backend(path: Path, datatype: DataType, dims: Sequence[int], max_batch_size: int) -> Instance:
    model, _ = load_model(IdentityBackend(), make_context(_config("identity", datatype, dims, max_batch_size)))
    return new_instance(model)


def onnxruntime_backend(path: Path, datatype: DataType, dims: Sequence[int], max_batch_size: int) -> Instance:
    onnx_dims = ([None] if max_batch_size else []) + [dim if dim > 0 else None for dim in dims]
    (path / "1").mkdir()
    (path / "1" / "model.onnx").write_bytes(onnx_models.identity(datatype, onnx_dims))
    context = make_context(_config("onnxruntime", datatype, dims, max_batch_size), path)
    model, _ = load_model(OnnxRuntimeBackend(), context)
    return new_instance(model)


def isolated_backend(path: Path, datatype: DataType, dims: Sequence[int], max_batch_size: int) -> Instance:
    onnx_dims = ([None] if max_batch_size else []) + [dim if dim > 0 else None for dim in dims]
    (path / "1").mkdir()
    (path / "1" / "model.onnx").write_bytes(onnx_models.identity(datatype, onnx_dims))
    return LoopbackInstance(make_context(_config("onnxruntime", datatype, dims, max_batch_size), path))


@pytest.fixture(
    params=[identity_backend, onnxruntime_backend, isolated_backend], ids=["identity", "onnxruntime", "isolated"]
)
def make_identity(request) -> MakeIdentity:
    return request.param


every_datatype = pytest.mark.parametrize("datatype", DataType, ids=lambda datatype: datatype.value)


def sample(datatype: DataType, shape: Sequence[int], seed: int = 0) -> Array:
    """Return values of a datatype, the extremes among them."""
    count = int(np.prod(shape))
    if datatype is DataType.BYTES:
        texts = [b"", b"nul\x00inside", "grün €".encode(), b"x" * 1000]
        return strings(*[texts[(i + seed) % len(texts)] for i in range(count)]).reshape(shape)
    random = np.random.default_rng(seed)
    if datatype.numpy.kind in "iu":
        info = np.iinfo(datatype.numpy)
        values = random.integers(info.min, info.max, count, datatype.numpy, endpoint=True)
        values[:2] = (info.min, info.max)[: min(2, count)]
    elif datatype is DataType.BOOL:
        values = random.integers(0, 2, count).astype(np.bool_)
    else:
        values = random.normal(0, 100, count).astype(datatype.numpy)
        values[:3] = np.array([np.nan, np.inf, -0.0])[: min(3, count)].astype(datatype.numpy)
    return values.reshape(shape)


def same(a: Array, b: Array) -> bool:
    """Whether arrays are equal bit by bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


@every_datatype
@pytest.mark.parametrize("count", [1, 2, 5])
def test_batches_of_every_datatype(tmp_path, make_identity, datatype, count):
    instance = make_identity(tmp_path, datatype, [-1], 8)
    arrays = [sample(datatype, (1, 4), seed) for seed in range(count)]
    header = make_header({"INPUT0": arrays[0]})
    for _ in range(2):
        responses = execute(instance, [make_request({"INPUT0": a}, header=header) for a in arrays])
        for response, array in zip(responses, arrays, strict=True):
            assert response.header.outputs[0].datatype is datatype
            assert same(output_arrays(response)["OUTPUT0"], array)


@every_datatype
def test_batches_of_requests_of_different_sizes(tmp_path, make_identity, datatype):
    instance = make_identity(tmp_path, datatype, [-1, 3], 8)
    arrays = [sample(datatype, (rows, 2, 3), rows) for rows in (1, 3, 2)]
    requests = [make_request({"INPUT0": a}, rows=a.shape[0]) for a in arrays]
    for response, array in zip(execute(instance, requests), arrays, strict=True):
        assert same(output_arrays(response)["OUTPUT0"], array)


@every_datatype
@pytest.mark.parametrize("shape", [(3,), (0,), (1,)])
def test_models_that_do_not_batch(tmp_path, make_identity, datatype, shape):
    instance = make_identity(tmp_path, datatype, [-1], 0)
    array = sample(datatype, shape)
    for _ in range(2):
        assert same(infer(instance, {"INPUT0": array})["OUTPUT0"], array)


@every_datatype
@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_tensors_without_elements(tmp_path, make_identity, datatype, shape):
    instance = make_identity(tmp_path, datatype, [-1], 8)
    array = sample(datatype, shape)
    header = make_header({"INPUT0": array})
    requests = [make_request({"INPUT0": array}, header=header, rows=shape[0]) for _ in range(2)]
    for response in execute(instance, requests):
        assert same(output_arrays(response)["OUTPUT0"], array)


@every_datatype
def test_large_tensors(tmp_path, make_identity, datatype):
    instance = make_identity(tmp_path, datatype, [-1], 8)
    arrays = [sample(datatype, (1, 20_000), seed) for seed in range(2)]
    header = make_header({"INPUT0": arrays[0]})
    for batch in (arrays[:1], arrays):
        responses = execute(instance, [make_request({"INPUT0": a}, header=header) for a in batch])
        for response, array in zip(responses, batch, strict=True):
            assert same(output_arrays(response)["OUTPUT0"], array)


@every_datatype
@pytest.mark.parametrize("offset", [1, 3, 4])
def test_data_at_any_offset(tmp_path, make_identity, datatype, offset):
    instance = make_identity(tmp_path, datatype, [-1], 0)
    for size in (5, 20_000):
        request = make_request({"INPUT0": sample(datatype, (size,))})
        body = memoryview(bytes(offset) + bytes(request.data[0]))
        request.data = (body[offset:],)
        assert same(output_arrays(execute(instance, [request])[0])["OUTPUT0"], sample(datatype, (size,)))


def test_answers_stay_when_the_instance_goes_on(tmp_path, make_identity):
    instance = make_identity(tmp_path, DataType.FP32, [-1], 8)
    header = make_header({"INPUT0": sample(DataType.FP32, (1, 4))})
    kept = []
    for seed in range(4):
        array = sample(DataType.FP32, (1, 4), seed)
        kept.append((execute(instance, [make_request({"INPUT0": array}, header=header)])[0], array))
    assert all(same(output_arrays(response)["OUTPUT0"], array) for response, array in kept)
