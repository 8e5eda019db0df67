"""Every backend answers for every datatype and shape what the protocol promises: one suite for all of them.

ONNX's own operator tests follow: models of every datatype with known inputs and outputs.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.backend.test.case.node import collect_testcases

from naiad.backend.api import Instance
from naiad.backend.identity import IdentityBackend
from naiad.backend.onnx.backend import OnnxRuntimeBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType, from_numpy
from naiad.core.errors import InferError
from naiad.core.tensor import Array
from support import onnx_models
from support.backend_parts import (
    execute,
    infer,
    load_model,
    load_onnx,
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


# --- ONNX's operator tests ------------------------------------------------------------------------------------------

_LEFT_OUT = ("strnormalizer", "bernoulli", "dropout", "training", "random")
"""The first needs the locale en_US.UTF-8 to be installed, the other ones draw random numbers."""
_LEAST_COUNT = 1300
"""Of about 1900 cases; the rest have sequences or optional values, or operators newer than ONNX Runtime."""


def _operator_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return [case for case in cases if not any(word in case.name for word in _LEFT_OUT)]


def _arrays(names: Sequence[str], values: Sequence[Any]) -> dict[str, Array] | None:
    """Return tensors as they travel; None when the protocol cannot carry them."""
    arrays: dict[str, Array] = {}
    for name, value in zip(names, values, strict=False):
        if not isinstance(value, np.ndarray | np.generic) or from_numpy(np.asarray(value).dtype) is None:
            return None
        array = np.asarray(value)
        if array.dtype.kind in "OSU":
            texts = [e if isinstance(e, bytes) else str(e).encode() for e in array.ravel().tolist()]
            array = strings(*texts).reshape(array.shape)
        # Triton: a scalar travels as one element, and 'reshape' takes the dimension away again.
        arrays[name] = array.reshape(array.shape or (1,))
    return arrays


def _bare_outputs(case: Any) -> Sequence[Any] | None:
    """Return what ONNX Runtime itself computes, None when it fails; what ONNX expects where it has no arrays (BF16).

    Where ONNX Runtime computes something else than ONNX expects, that is not for a server to correct.
    """
    inputs, outputs = case.data_sets[0]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options)
    feed = {i.name: np.asarray(value) for i, value in zip(case.model.graph.input, inputs, strict=False)}
    try:
        return session.run([output.name for output in case.model.graph.output], feed)
    except RuntimeError:
        return outputs
    except Exception:  # a different class for each status
        return None


def _agree(returned: Array, expected: Array) -> bool:
    if returned.shape != expected.shape or returned.dtype != expected.dtype:
        return False
    if expected.dtype == object or expected.dtype.kind in "biu":
        return returned.tolist() == expected.tolist()
    return np.allclose(returned.astype(np.float64), expected.astype(np.float64), rtol=1e-6, equal_nan=True)


def _serve(path: Path, case: Any) -> tuple[dict[str, Array], dict[str, Array]] | None:
    """Return served outputs and expected ones; None for a case that does not load or cannot be asked for."""
    graph = case.model.graph
    inputs = _arrays([i.name for i in graph.input], case.data_sets[0][0])
    if not inputs or _arrays([o.name for o in graph.output], case.data_sets[0][1]) is None:
        return None
    try:
        # A first dimension is a batch only in models made for it; these are not.
        model, config = load_onnx(
            path, case.model.SerializeToString(), backend_config={"default-max-batch-size": "0"}
        )
    except InferError:
        return None
    bare = _bare_outputs(case)
    expected = _arrays([o.name for o in graph.output], bare) if bare is not None else None
    if expected is None:
        return None
    return infer(new_instance(model), {t.name: inputs[t.name] for t in config.input}), expected


@pytest.mark.timeout(900)  # thousands of small models
def test_operator_tests_of_onnx(tmp_path):
    count, wrong = 0, []
    for number, case in enumerate(_operator_cases()):
        try:
            served = _serve(tmp_path / str(number), case)
        except InferError as error:
            wrong.append(f"{case.name}: {error.message[:200]}")
            continue
        if served is None:
            continue
        count += 1
        returned, expected = served
        wrong += [f"{case.name}: output '{n}'" for n in expected if not _agree(returned[n], expected[n])]
    assert count >= _LEAST_COUNT
    assert wrong == []
