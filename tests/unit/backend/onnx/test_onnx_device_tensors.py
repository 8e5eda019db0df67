"""ONNX models that exchange tensors on a device, in whose place ONNX Runtime has the CPU here."""

import numpy as np
import pytest

from naiad.backend import device_tensors
from naiad.backend.api import InstanceSpec
from naiad.backend.onnx import gpu_instance
from naiad.backend.onnx.gpu_instance import GpuOnnxInstance, OrtTensor
from naiad.core.datatype import DataType
from naiad.core.device_tensor import DeviceTensor
from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.tensor import TensorSpec
from support import onnx_models
from support.backend_parts import execute, load_onnx

CPU = (1, 0)


@pytest.fixture
def new_instance(monkeypatch, tmp_path):
    monkeypatch.setattr(device_tensors, "_HOST_KINDS", ())
    monkeypatch.setattr(gpu_instance, "_CUDA", CPU[0])
    monkeypatch.setattr(gpu_instance, "_DEVICE_NAME", "cpu")

    def create(content, **fields):
        model, config = load_onnx(tmp_path / str(len(made)), content, **fields)
        context = model._context
        assert context.config == config
        made.append(GpuOnnxInstance(context, model.find(InstanceSpec("m_0_0", 0, "KIND_CPU")), 0))
        return made[-1]

    made = []
    return create


def step(specs, data, outputs, *, stays=True):
    header = RequestHeader(
        model_name="m",
        inputs=specs,
        outputs=[RequestedOutput(name, stays_on_device=stays) for name in outputs],
        has_device_inputs=True,
    )
    request = InferRequest(header, data, lambda request, response: None)
    request.batch_size = specs[0].shape[0]
    return request


def test_models_pass_tensors_on(new_instance, monkeypatch):
    instance = new_instance(onnx_models.add_sub(), max_batch_size=4)
    ones = np.ones((2, 16), np.float32)
    specs = [TensorSpec(name, DataType.FP32, ones.shape) for name in ("INPUT0", "INPUT1")]
    names = ("OUTPUT0", "OUTPUT1")
    (first,) = execute(instance, [step(specs, [ones.tobytes(), (2 * ones).tobytes()], names)])
    assert [(type(each.tensor), each.device, each.shape, len(each)) for each in first.data] == [
        (OrtTensor, CPU, (2, 16), 128)
    ] * 2
    monkeypatch.setattr(DeviceTensor, "to_host", lambda self: pytest.fail("a tensor is copied"))
    (second,) = execute(instance, [step(specs, first.data, names, stays=False)])
    assert [np.frombuffer(data, np.float32).tolist() for data in second.data] == [[2] * 32, [4] * 32]


def test_tensor_can_be_copied_to_the_host(new_instance):
    instance = new_instance(onnx_models.identity(DataType.INT64), max_batch_size=4)
    numbers = np.arange(8, dtype=np.int64).reshape(2, 4) << 40
    (response,) = execute(
        instance, [step([TensorSpec("INPUT0", DataType.INT64, (2, 4))], [numbers.tobytes()], ["OUTPUT0"])]
    )
    assert bytes(response.data[0].to_host()) == numbers.tobytes()
    np.testing.assert_array_equal(np.from_dlpack(response.data[0].tensor), numbers)


@pytest.mark.parametrize("datatype", [DataType.BOOL, DataType.BYTES])
def test_other_outputs_are_bytes(new_instance, datatype):
    # ONNX Runtime exports BOOL as UINT8.
    instance = new_instance(onnx_models.identity(datatype), max_batch_size=4)
    data = bytes([1, 0, 1, 1]) if datatype is DataType.BOOL else b"\1\0\0\0x" * 4
    (response,) = execute(instance, [step([TensorSpec("INPUT0", datatype, (1, 4))], [data], ["OUTPUT0"])])
    assert bytes(response.data[0]) == data


def test_batch_of_several_requests_is_bytes(new_instance):
    instance = new_instance(onnx_models.identity(), max_batch_size=4)
    rows = [np.full((1, 4), value, np.float32).tobytes() for value in (1, 2)]
    specs = [TensorSpec("INPUT0", DataType.FP32, (1, 4))]
    responses = execute(instance, [step(specs, [row], ["OUTPUT0"]) for row in rows])
    assert [bytes(response.data[0]) for response in responses] == rows


def test_failures_have_the_reason(new_instance):
    instance = new_instance(onnx_models.reshape((2, 2), ("N",), ("M", 2)), max_batch_size=0)
    header = step([TensorSpec("INPUT0", DataType.FP32, (3,))], [bytes(12)], ["OUTPUT0"])
    with pytest.raises(InferError, match="onnx runtime error"):
        execute(instance, [header])


def test_old_release_has_no_device(new_instance, monkeypatch):
    monkeypatch.delattr(gpu_instance.onnxruntime.OrtValue, "from_dlpack")
    assert new_instance(onnx_models.identity(), max_batch_size=4).device is None
