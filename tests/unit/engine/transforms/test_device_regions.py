"""Tensors in CUDA shared memory and models on that GPU: what is copied, and how long the memory stays mapped."""

import contextlib
import ctypes

import numpy as np
import pytest

from naiad.backend.cuda.cuda import CudaError
from naiad.backend.tensor_instance import TensorInstance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.device_tensor import DeviceTensor
from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.tensor import TensorSpec
from naiad.engine.regions.regions import SharedMemory
from naiad.engine.transforms.device_headers import DeviceHeaders
from naiad.engine.transforms.shared_memory import SharedMemoryTensors
from naiad.worker.api.dlpack import header_of
from support.backend_parts import execute, make_context

GPU_0, GPU_1 = (2, 0), (2, 1)
REGION_BYTES = 4096
OUT = 2048
"""Where the outputs are."""


class HostGpu:
    """A runtime whose device memory is that of the host; notes every copy."""

    device_count = 2

    def __init__(self):
        whole = np.zeros(2 * REGION_BYTES, np.uint8)
        start = -whole.ctypes.data % REGION_BYTES
        self.memory = whole[start : start + REGION_BYTES]
        self.copies = []
        self.closed = 0
        self.is_broken = False

    @property
    def address(self):
        return self.memory.ctypes.data

    def open(self, handle, device_id):
        return self.address

    def close(self, address, device_id):
        self.closed += 1

    @contextlib.contextmanager
    def on_device(self, device_id):
        yield

    def read(self, address, byte_size, device_id):
        self.copies.append(("to host", byte_size))
        return ctypes.string_at(address, byte_size)

    def write(self, address, data, device_id):
        self.copies.append(("to device", len(data)))
        ctypes.memmove(address, bytes(data), len(data))

    def create_stream(self):
        return 7

    def destroy_stream(self, stream):
        assert stream == 7

    def copy_on_device(self, target, source, byte_size, stream):
        if self.is_broken:
            raise CudaError("cudaMemcpyAsync failed with error 700: an illegal memory access was encountered")
        self.copies.append(("on device", byte_size))
        ctypes.memmove(target, source, byte_size)

    def wait_for(self, stream):
        assert stream == 7


class OnGpu:
    """A framework's tensor on a GPU whose memory is that of the host."""

    def __init__(self, array, device):
        self.array, self.device = array, device
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows):
        return OnGpu(self.array[rows], self.device)

    def __dlpack__(self, *, dl_device=None, **options):
        return self.array.copy().__dlpack__() if dl_device else self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device


class Doubler(TensorInstance):
    """Returns twice its input, on its device if the client's memory is there."""

    def __init__(self, device, rows=0):
        config = ModelConfig(name="m", max_batch_size=rows)
        config.input.add(name="X", data_type="TYPE_FP32", dims=[-1])
        config.output.add(name="Y", data_type="TYPE_FP32", dims=[-1])
        super().__init__(make_context(config), device)
        self.given = []

    def run(self, inputs, output_names):
        given = inputs["X"]
        self.given.append(given)
        if not isinstance(given, np.ndarray):
            capsule = given.__dlpack__()
            header = header_of(capsule)
            assert (header.device.kind, header.device.number) == self.device
            given = np.ctypeslib.as_array((ctypes.c_float * given.shape[-1]).from_address(header.data))
            given = given.reshape(inputs["X"].shape)
        return [2 * given]

    def run_on_device(self, inputs, output_names, staying):
        (made,) = self.run(inputs, output_names)
        return [OnGpu(made, self.device)] if staying else [made]


class Bench:
    """A region of GPU 0, a model, and its answers."""

    def __init__(self, directory):
        self.gpu = HostGpu()
        self.memory = SharedMemory(is_allowed=True, directory=str(directory), runtime=lambda: self.gpu)
        self.memory.register_cuda("gpu", bytes(64), 0, REGION_BYTES)
        (directory / "key").write_bytes(bytes(4096))
        self.memory.register_system("system", "key", 0, 4096)
        self.gpu.copies.clear()  # registering reads a byte
        self.headers = DeviceHeaders()
        self.instance = Doubler(GPU_0)
        self.config, self.labels, self.takes_device_tensors = ModelConfig(max_batch_size=0), {}, True
        self.answers = []

    def put(self, offset, values):
        self.gpu.memory[offset : offset + values.nbytes] = values.view(np.uint8)

    def out(self, count):
        return self.gpu.memory[OUT : OUT + 4 * count].view(np.float32)

    def prepare(self, *, given=("gpu", 0), taken=("gpu", OUT), shape=(8,), out_bytes=None, data=b""):
        size = 4 * int(np.prod(shape))
        shared = {"X": SharedMemoryRegion(*given, size)} if given else {}
        place = SharedMemoryRegion(*taken, out_bytes or size) if taken else None
        header = RequestHeader(
            model_name="m",
            inputs=[TensorSpec("X", DataType.FP32, shape)],
            outputs=[RequestedOutput("Y", shared_memory=place)],
            shared_memory=shared,
        )
        return self.submit(header, data)

    def submit(self, header, data=b""):
        request = InferRequest(header, [data], lambda request, response: self.answers.append(response))
        SharedMemoryTensors(request, self, self.memory, self.headers)
        return request

    def run(self, *requests):
        for request, response in zip(requests, execute(self.instance, requests), strict=True):
            request.on_response(request, response)
        return self.answers[-len(requests) :]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


VALUES = np.arange(8, dtype=np.float32)


def test_input_and_output_stay_on_the_gpu(bench):
    bench.put(0, VALUES)
    (answer,) = bench.run(bench.prepare())
    assert answer.error is None
    assert answer.data == [b""]
    assert bench.out(8).tolist() == (2 * VALUES).tolist()
    assert bench.gpu.copies == [("on device", 32)]
    assert [region.user_count for region in bench.memory._regions.values()] == [0, 0]


def test_header_is_derived_once(bench):
    first = bench.prepare()
    second = InferRequest(first.header.origin, [b""], lambda *_: None)
    SharedMemoryTensors(second, bench, bench.memory, bench.headers)
    assert second.header is first.header
    assert first.header is not first.header.origin
    assert not first.header.origin.is_on_device


@pytest.mark.parametrize(
    ("given", "taken", "copies"),
    [
        (("gpu", 0), ("system", 0), []),
        (("gpu", 0), None, []),
        (("system", 0), ("gpu", OUT), [("on device", 32)]),
        (None, ("gpu", OUT), [("on device", 32)]),
        (("gpu", 4), ("gpu", OUT + 4), [("to host", 32), ("on device", 32)]),
    ],
    ids=["output elsewhere", "output sent", "input elsewhere", "input sent", "not aligned"],
)
def test_one_side_alone(bench, given, taken, copies):
    if given and given[0] == "gpu":
        bench.put(given[1], VALUES)
    data = VALUES.tobytes() if given is None else b""
    expected = np.zeros(8) if given == ("system", 0) else 2 * VALUES
    (answer,) = bench.run(bench.prepare(given=given, taken=taken, data=data))
    assert answer.error is None
    assert bench.gpu.copies == copies
    if taken and taken[0] == "gpu":
        found = bench.gpu.memory[taken[1] : taken[1] + 32].view(np.float32)
    elif taken:
        found = np.frombuffer(bench.memory._regions["system"].view(0, 32), np.float32)
    else:
        found = np.frombuffer(answer.data[0], np.float32)
    assert found.tolist() == expected.tolist()


def test_model_without_device_tensors_gets_copies(bench):
    bench.takes_device_tensors = False
    bench.instance = Doubler(None)
    bench.put(0, VALUES)
    request = bench.prepare()
    assert not request.header.is_on_device
    bench.run(request)
    assert bench.gpu.copies == [("to host", 32), ("to device", 32)]
    assert bench.out(8).tolist() == (2 * VALUES).tolist()


def test_instance_on_another_gpu_gets_copies(bench):
    bench.instance = Doubler(GPU_1)
    bench.put(0, VALUES)
    (answer,) = bench.run(bench.prepare())
    assert answer.error is None
    assert isinstance(bench.instance.given[0], np.ndarray)
    assert [kind for kind, _ in bench.gpu.copies] == ["to host", "to device"]
    assert bench.out(8).tolist() == (2 * VALUES).tolist()


def test_batch_joins_inputs_and_cuts_outputs_on_gpu(bench):
    bench.instance = Doubler(GPU_0, rows=8)
    bench.config.max_batch_size = 8
    bench.put(0, VALUES)
    bench.put(256, VALUES + 100)
    first = bench.prepare(shape=(1, 8))
    second = bench.prepare(given=("gpu", 256), taken=("gpu", OUT + 32), shape=(1, 8))
    bench.run(first, second)
    assert bench.gpu.copies == [("to host", 32), ("to host", 32), ("on device", 32), ("on device", 32)]
    assert bench.out(16).tolist() == [*(2 * VALUES), *(2 * (VALUES + 100))]


def test_output_that_is_too_large_is_not_written(bench):
    bench.put(0, VALUES)
    (answer,) = bench.run(bench.prepare(out_bytes=16))
    assert "(16 bytes) should be at least 32 bytes to hold the results" in answer.error.message
    assert not bench.out(8).any()


def test_copy_that_fails_is_the_answer(bench):
    bench.gpu.is_broken = True
    (answer,) = bench.run(bench.prepare())
    assert "region 'gpu' could not be written: cudaMemcpyAsync failed with error 700" in answer.error.message


def test_input_of_another_size_is_left_to_admission(bench):
    header = RequestHeader(
        model_name="m",
        inputs=[TensorSpec("X", DataType.FP32, (8,))],
        shared_memory={"X": SharedMemoryRegion("gpu", 0, 16)},
    )
    assert not isinstance(bench.submit(header).data[0], DeviceTensor)


def test_memory_is_mapped_while_tensors_refer_to_it(bench):
    bench.run(bench.prepare())
    bench.memory.unregister_cuda("gpu")
    assert bench.gpu.closed == 0  # the model has kept its input
    capsule = bench.instance.given.pop().__dlpack__()
    bench.answers.clear()
    assert bench.gpu.closed == 0
    del capsule
    assert bench.gpu.closed == 1
    with pytest.raises(InferError, match="Unable to find shared memory region"):
        bench.prepare()


def test_consumer_on_another_device_is_refused(bench):
    tensor = bench.prepare().data[0].tensor
    with pytest.raises(BufferError, match="on DLPack device"):
        tensor.__dlpack__(dl_device=(1, 0))
    assert tensor.__dlpack__(dl_device=GPU_0, stream=1, max_version=(1, 0))
