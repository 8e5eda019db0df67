"""Tensors that stay on a GPU between two engines, over a fake of TensorRT and one of CUDA, whose memory is real."""

import gc

import numpy as np
import pytest

from naiad.backend.cuda.cuda import CudaRuntime
from naiad.core.datatype import DataType
from naiad.core.device_tensor import DeviceTensor
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.worker.api.dlpack import header_of
from support.backend_parts import execute
from support.tensorrt_engines import engine, tensor
from unit.backend.tensorrt.test_tensorrt_backend import backend, config_of, cudart, load, new_instance, rows

__all__ = ["backend", "cudart", "new_instance"]


@pytest.fixture
def copies(monkeypatch):
    """Note the copies between host and GPU."""
    noted = []
    for name in ("copy_to_host", "copy_to_device", "read"):
        call = getattr(CudaRuntime, name)
        monkeypatch.setattr(
            CudaRuntime, name, lambda *args, name=name, call=call: noted.append(name) or call(*args), raising=True
        )
    return noted


def step(data, *, stays):
    is_on_device = isinstance(data, DeviceTensor)
    header = RequestHeader(
        model_name="m",
        inputs=[TensorSpec("IN", DataType.FP32, data.shape)],
        outputs=[RequestedOutput("OUT", stays_on_device=stays)],
        has_device_inputs=is_on_device,
    )
    request = InferRequest(header, [data if is_on_device else data.tobytes()], lambda request, response: None)
    request.batch_size = data.shape[0]
    return request


def run(instance, data, *, stays):
    (response,) = execute(instance, [step(data, stays=stays)])
    return response.data[0]


def test_engines_pass_tensors_on_their_gpu(backend, tmp_path, new_instance, copies):
    model, _ = load(backend, tmp_path, engine((1, 8)))
    first, second = new_instance(model), new_instance(model)
    passed = run(first, rows(3), stays=True)
    assert copies == ["copy_to_device"]
    passed = run(second, passed, stays=True)
    assert (passed.device, passed.shape, len(passed)) == ((2, 0), (3, 4), 48)
    assert copies == ["copy_to_device"]
    answer = run(first, passed, stays=False)
    assert copies == ["copy_to_device", "copy_to_host"]
    np.testing.assert_array_equal(np.frombuffer(answer, np.float32).reshape(3, 4), rows(3) * 8)


def test_another_gpu_gets_a_copy(backend, tmp_path, new_instance, copies):
    model, _ = load(backend, tmp_path, engine((1, 8)), config_of(gpus=[0, 1]))
    passed = run(new_instance(model, 0), rows(2), stays=True)
    answer = run(new_instance(model, 1), passed, stays=False)
    np.testing.assert_array_equal(np.frombuffer(answer, np.float32).reshape(2, 4), rows(2) * 4)
    assert copies == ["copy_to_device", "read", "copy_to_device", "copy_to_host"]


def test_tensor_stays_after_next_run(backend, tmp_path, new_instance):
    model, _ = load(backend, tmp_path, engine((1, 8)))
    instance = new_instance(model)
    first = run(instance, rows(1), stays=True)
    second = run(instance, rows(1) + 1, stays=True)
    assert first.tensor.address != second.tensor.address
    np.testing.assert_array_equal(np.frombuffer(first.to_host(), np.float32).reshape(1, 4), rows(1) * 2)


def test_memory_is_used_again(backend, tmp_path, new_instance):
    model, _ = load(backend, tmp_path, engine((1, 8)))
    instance = new_instance(model)
    addresses = {run(instance, rows(1), stays=True).tensor.address for _ in range(5)}
    assert len(addresses) == 1


def test_shape_tensors_come_from_gpu(backend, tmp_path, new_instance, copies):
    content = engine((1, 8))
    content["tensors"].insert(1, tensor("SIZE", "INPUT", 4, location="HOST"))
    content["tensors"][0]["shape"] = content["tensors"][2]["shape"] = [4]
    content["profiles"] = [{}]
    model, _ = load(backend, tmp_path, content)
    instance = new_instance(model)
    header = RequestHeader(
        model_name="m",
        inputs=[TensorSpec(name, DataType.FP32, (4,)) for name in ("IN", "SIZE")],
        outputs=[RequestedOutput("OUT", stays_on_device=True)],
        has_device_inputs=True,
    )
    data = [np.full(4, value, np.float32).tobytes() for value in (1, 5)]
    (response,) = execute(instance, [InferRequest(header, data, lambda request, response: None)])
    passed = response.data[0]
    (response,) = execute(instance, [InferRequest(header, [data[0], passed], lambda request, response: None)])
    np.testing.assert_array_equal(np.frombuffer(response.data[0].to_host(), np.float32), np.full(4, 2 + 7))


def test_tensor_outlives_its_instance(backend, tmp_path, new_instance):
    model, _ = load(backend, tmp_path, engine((1, 8)))
    instance = new_instance(model)
    passed = run(instance, rows(1), stays=True)
    capsule = passed.tensor.__dlpack__(stream=None)
    instance.close()
    address = passed.tensor.address
    del passed
    gc.collect()
    header = header_of(capsule)
    assert (header.data, header.device.kind, header.device.number) == (address, 2, 0)


@pytest.mark.parametrize(("datatype", "code", "bits"), [("BF16", 4, 16), ("BOOL", 6, 8), ("INT64", 0, 64)])
def test_capsules_have_datatype_and_device(backend, cudart, datatype, code, bits):
    backend.gpu_unsupported_reason()
    from naiad.backend.cuda.cuda import load_runtime
    from naiad.backend.tensorrt.buffers import Blocks, DeviceArray

    runtime = load_runtime()
    runtime.set_device(0)
    blocks = Blocks(runtime, 64)
    tensor = DeviceArray(blocks, (2, 3), DataType[datatype], (2, 1))
    capsule = tensor.__dlpack__(stream=1)
    header = header_of(capsule)
    assert (header.dtype.code, header.dtype.bits, header.device.kind, header.device.number) == (code, bits, 2, 1)
    assert [header.shape[0], header.shape[1]] == [2, 3]
    with pytest.raises(BufferError, match="not on"):
        tensor.__dlpack__(dl_device=(1, 0))
    del capsule, tensor
    blocks.close()
