"""Outputs that ONNX Runtime writes into memory of the client's, and when they come back as usual instead."""

import numpy as np
import pytest

from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.tensor import TensorSpec, to_array, to_buffer
from support import onnx_models
from support.backend_parts import load_onnx, new_instance

COUNT = 40_000
"""Too many elements for a staged run."""


def request(outputs, destinations, *, datatype=DataType.FP32, names=("INPUT0",), shape=(1, COUNT)):
    """Ask for outputs; those in `destinations` are wanted in shared memory."""
    array = np.arange(np.prod(shape), dtype=np.float32).astype(datatype.numpy).reshape(shape)
    wanted = [
        RequestedOutput(name, shared_memory=SharedMemoryRegion("r", 0, 1) if name in destinations else None)
        for name in outputs
    ]
    specs = [TensorSpec(name, datatype, shape) for name in names]
    header = RequestHeader(model_name="m", inputs=specs, outputs=wanted)
    made = InferRequest(header, [to_buffer(array)] * len(names), lambda request, response: None)
    made.batch_size = shape[0]
    made.destinations = {name: memoryview(memory) for name, memory in destinations.items()}
    return made, array


def run(instance, *requests):
    return instance.execute(Batch(requests, sum(one.batch_size for one in requests)))


@pytest.fixture
def identity(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.identity(dims=("N", "M")), max_batch_size=4)
    return new_instance(model)


def test_output_is_written_in_place(identity):
    memory = bytearray(COUNT * 4 + 8)
    memory[-8:] = b"untouch."
    made, array = request(["OUTPUT0"], {"OUTPUT0": memory})
    for _ in range(2):
        (response,) = run(identity, made)
        assert response.data == [b""]
        assert response.header.outputs == (TensorSpec("OUTPUT0", DataType.FP32, (1, COUNT)),)
        assert memory[:-8] == array.tobytes()
        assert memory[-8:] == b"untouch."
        memory[:4] = b"new!"


def test_others_come_back_as_usual(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.add_sub(("N", "M")), max_batch_size=4)
    memory = bytearray(COUNT * 4)
    made, array = request(["OUTPUT0", "OUTPUT1"], {"OUTPUT1": memory}, names=("INPUT0", "INPUT1"))
    (response,) = run(new_instance(model), made)
    assert bytes(response.data[0]) == (2 * array).tobytes()
    assert response.data[1] == b""
    assert not any(memory)


def test_bf16(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.identity(DataType.BF16, ("N", "M")), max_batch_size=4)
    memory = bytearray(COUNT * 2)
    made, array = request(["OUTPUT0"], {"OUTPUT0": memory}, datatype=DataType.BF16)
    (response,) = run(new_instance(model), made)
    assert response.data == [b""]
    assert memory == array.tobytes()


@pytest.mark.parametrize("trouble", ["too small", "not aligned"])
def test_memory_that_does_not_serve(identity, trouble):
    memory = memoryview(bytearray(COUNT * 4 + 1))
    made, array = request(["OUTPUT0"], {"OUTPUT0": memory[1:] if trouble == "not aligned" else memory[:-2]})
    (response,) = run(identity, made)
    assert bytes(response.data[0]) == array.tobytes()
    assert not any(memory)


def test_outputs_of_unknown_shape(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.non_zero())
    memory = bytearray(64)
    made, _ = request(["OUTPUT0"], {"OUTPUT0": memory}, shape=(4,))
    (response,) = run(new_instance(model), made)
    assert to_array(response.header.outputs[0], response.data[0]).tolist() == [[1, 2, 3]]
    assert not any(memory)


def test_small_tensors_are_staged_instead(identity):
    memory = bytearray(64)
    made, array = request(["OUTPUT0"], {"OUTPUT0": memory}, shape=(1, 16))
    (response,) = run(identity, made)
    assert bytes(response.data[0]) == array.tobytes()


def test_a_batch_is_cut_apart_as_usual(identity):
    memories = [bytearray(COUNT * 4), bytearray(COUNT * 4)]
    one, array = request(["OUTPUT0"], {"OUTPUT0": memories[0]})
    other, _ = request(["OUTPUT0"], {"OUTPUT0": memories[1]})
    for batch in ((one, other), (one, one)):
        responses = run(identity, *batch)
        assert [bytes(response.data[0]) for response in responses] == [array.tobytes()] * 2
    assert not any(memories[0])
    assert not any(memories[1])


def test_a_request_without_memory_of_the_same_form(identity):
    memory = bytearray(COUNT * 4)
    made, array = request(["OUTPUT0"], {"OUTPUT0": memory})
    made.destinations = None
    (response,) = run(identity, made)
    assert bytes(response.data[0]) == array.tobytes()


def test_a_run_that_fails_says_why(tmp_path):
    model, _ = load_onnx(tmp_path, onnx_models.reshape([1, 7], ("N",), (1, 7)), max_batch_size=0)
    made, _ = request(["OUTPUT0"], {"OUTPUT0": bytearray(64)}, shape=(COUNT,))
    with pytest.raises(Exception, match="onnx runtime error"):
        run(new_instance(model), made)
