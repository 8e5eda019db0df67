"""Requests with tensors in shared memory or classes for an answer: what the model sees and what the client gets."""

import pytest

from naiad.backend.cuda.cuda import CudaError
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, internal
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec, decode_bytes_elements
from naiad.engine.regions.regions import SharedMemory
from naiad.engine.transforms.device_headers import DeviceHeaders
from naiad.engine.transforms.shared_memory import SharedMemoryTensors

A = TensorSpec("A", DataType.UINT8, (1, 4))
B = TensorSpec("B", DataType.UINT8, (1, 4))
TEXT = TensorSpec("T", DataType.BYTES, (1, 1))


class Model:
    """The exchange's view of the model."""

    config = ModelConfig(max_batch_size=8)
    labels = {"A": ["zero", "one"]}  # noqa: RUF012
    takes_device_tensors = False


class Gpu:
    """A device of 16 bytes."""

    device_count = 1

    def __init__(self):
        self.memory = bytearray(b"0123456789abcdef")
        self.is_broken = False

    def open(self, handle, device_id):
        return 0

    def read(self, address, byte_size, device_id):
        return bytes(self.memory[address : address + byte_size])

    def write(self, address, data, device_id):
        if self.is_broken:
            raise CudaError("cudaMemcpy failed")
        self.memory[address : address + len(data)] = data

    def close(self, address, device_id):
        pass


class Bench:
    """Two system regions over one file, a CUDA region, and a request whose answers are kept."""

    def __init__(self, directory):
        self.file = directory / "key"
        self.file.write_bytes(bytes(range(256)) * 32)
        self.gpu = Gpu()
        self.memory = SharedMemory(is_allowed=True, directory=str(directory), runtime=lambda: self.gpu)
        self.memory.register_system("r", "key", 0, 8192)
        self.memory.register_system("page", "key", 4096, 4096)
        self.memory.register_cuda("gpu", bytes(64), 0, 16)
        self.answers = []

    def prepare(self, *, inputs=(A,), data=(b"",), shared=None, outputs=()):
        header = RequestHeader(model_name="m", inputs=inputs, outputs=outputs, shared_memory=shared or {})
        assert not header.is_plain
        request = InferRequest(header, list(data), lambda request, response: self.answers.append(response))
        return request, SharedMemoryTensors(request, Model(), self.memory, DeviceHeaders())

    def answer(self, request, *data, specs=(A,), **named):
        request.on_response(request, InferResponse(ResponseHeader("m", "1", specs), data, **named))
        return self.answers[-1]

    @property
    def users(self):
        return sum(region.user_count for region in self.memory._regions.values())


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def at(name, offset=0, byte_size=4):
    return SharedMemoryRegion(name, offset, byte_size)


class TestInputs:
    def test_are_views(self, bench):
        request, _ = bench.prepare(shared={"A": at("r", 10)})
        assert bytes(request.data[0]) == bytes([10, 11, 12, 13])
        with bench.file.open("r+b") as file:
            file.seek(10)
            file.write(b"new!")
        assert bytes(request.data[0]) == b"new!"

    def test_strings_are_copies(self, bench):
        """They are parsed more than once, and must say the same each time."""
        request, _ = bench.prepare(inputs=[TEXT], shared={"T": at("r", 0, 8)})
        assert type(request.data[0]) is bytes

    def test_of_a_gpu(self, bench):
        request, _ = bench.prepare(shared={"A": at("gpu", 10)})
        assert bytes(request.data[0]) == b"abcd"

    def test_beside_those_that_were_sent(self, bench):
        request, _ = bench.prepare(inputs=[A, B], data=[b"", b"sent"], shared={"A": at("page")})
        assert [bytes(data) for data in request.data] == [b"\0\1\2\3", b"sent"]

    def test_sent_back_as_they_are_become_copies(self, bench):
        request, _ = bench.prepare(shared={"A": at("r")})
        assert type(bench.answer(request, request.data[0]).data[0]) is bytes

    def test_other_answers_are_not_copied(self, bench):
        request, _ = bench.prepare(shared={"A": at("r")})
        own = memoryview(bytearray(4))
        assert bench.answer(request, own).data[0] is own


class TestOutputs:
    def test_are_copied_once_and_not_sent(self, bench):
        request, _ = bench.prepare(data=[b"abcd"], outputs=[RequestedOutput("A", shared_memory=at("page", 1, 10))])
        response = bench.answer(request, memoryview(b"abcd"))
        assert response.data == [b""]
        assert response.header.outputs == (A,)
        assert bench.file.read_bytes()[4096:4102] == b"\0abcd\5"

    def test_what_the_instance_has_put_there_stays(self, bench):
        request, _ = bench.prepare(data=[b"abcd"], outputs=[RequestedOutput("A", shared_memory=at("r", 8))])
        request.destinations["A"][:] = b"done"
        assert bench.answer(request, b"").error is None
        assert bench.file.read_bytes()[7:13] == b"\7done\14"

    @pytest.mark.parametrize(
        ("name", "offset", "is_offered"),
        [("r", 4096, False), ("r", 4099, False), ("r", 4100, True), ("page", 3, False), ("page", 4, True)],
    )
    def test_model_inputs_are_not_offered_for_writing(self, bench, name, offset, is_offered):
        outputs = [RequestedOutput("A", shared_memory=at(name, offset))]
        request, _ = bench.prepare(shared={"A": at("page")}, outputs=outputs)
        assert (request.destinations is not None) is is_offered
        assert bench.answer(request, request.data[0]).error is None
        start = offset if name == "r" else 4096 + offset
        assert bench.file.read_bytes()[start : start + 4] == b"\0\1\2\3"

    def test_too_large(self, bench):
        request, _ = bench.prepare(data=[b"abcd"], outputs=[RequestedOutput("A", shared_memory=at("r", 0, 3))])
        error = bench.answer(request, b"abcd").error
        assert error.triton_code is ErrorCode.INTERNAL
        assert error.message == (
            "shared memory size specified with the request for output 'A' (3 bytes) should be at least 4 bytes to "
            "hold the results"
        )
        assert bench.file.read_bytes()[:4] == b"\0\1\2\3"

    def test_to_a_gpu(self, bench):
        outputs = [RequestedOutput("A", shared_memory=at("gpu", 12))]
        request, _ = bench.prepare(data=[b"wxyz"], outputs=outputs)
        assert request.destinations is None
        assert bench.answer(request, b"wxyz").data == [b""]
        assert bench.gpu.memory == b"0123456789abwxyz"

    def test_a_gpu_that_fails(self, bench):
        outputs = [RequestedOutput("A", shared_memory=at("gpu"))]
        request, _ = bench.prepare(data=[b"wxyz"], outputs=outputs)
        bench.gpu.is_broken = True
        assert bench.answer(request, b"wxyz").error.triton_code is ErrorCode.INTERNAL

    def test_others_beside_them_are_sent(self, bench):
        outputs = [RequestedOutput("A"), RequestedOutput("B", shared_memory=at("r"))]
        request, _ = bench.prepare(data=[b"abcd"], outputs=outputs)
        assert bench.answer(request, b"1234", b"5678", specs=(A, B)).data == [b"1234", b""]


class TestClasses:
    def test_take_the_place_of_the_tensor(self, bench):
        request, _ = bench.prepare(data=[b"abcd"], outputs=[RequestedOutput("A", classification=2)])
        response = bench.answer(request, b"\1\4\3\2", b"5678", specs=(A, B))
        assert response.header.outputs == (TensorSpec("A", DataType.BYTES, (1, 2)), B)
        assert decode_bytes_elements(response.data[0]) == [b"4:1:one", b"3:2"]
        assert response.data[1] == b"5678"

    def test_header_is_made_once(self, bench):
        request, _ = bench.prepare(data=[b"abcd"], outputs=[RequestedOutput("A", classification=2)])
        header = ResponseHeader("m", "1", [A])
        for _ in range(2):
            request.on_response(request, InferResponse(header, [b"abcd"], final=False))
        first, second = bench.answers
        assert first.header is second.header

    def test_refused_datatype(self, bench):
        request, _ = bench.prepare(data=[b"abcd"], outputs=[RequestedOutput("A", classification=2)])
        response = bench.answer(request, b"abcd", specs=(TensorSpec("A", DataType.FP16, (1, 2)),))
        assert response.error.code is ErrorCode.INVALID_ARG


class TestUse:
    def test_ends_with_the_final_response(self, bench):
        outputs = [RequestedOutput("A", shared_memory=at("r"))]
        request, _ = bench.prepare(shared={"A": at("page")}, outputs=outputs)
        assert bench.users == 2
        bench.answer(request, b"abcd", final=False)
        assert bench.users == 2
        bench.answer(request, empty_final=True, specs=())
        assert bench.users == 0
        assert bench.answers[-1].empty_final

    def test_ends_with_a_failure(self, bench):
        request, _ = bench.prepare(shared={"A": at("page")})
        error = internal("it broke")
        assert bench.answer(request, error=error).error is error
        assert bench.users == 0

    def test_of_what_was_refused_later(self, bench):
        _, exchange = bench.prepare(shared={"A": at("page")})
        exchange.release()
        assert bench.users == 0

    def test_an_output_that_is_refused_frees_the_inputs(self, bench):
        outputs = [RequestedOutput("A", shared_memory=at("nothing"))]
        with pytest.raises(InferError, match="Unable to find shared memory region: 'nothing'"):
            bench.prepare(shared={"A": at("page")}, outputs=outputs)
        assert bench.users == 0

    def test_memory_that_went_away_fails_the_request(self, bench):
        request, _ = bench.prepare(shared={"A": at("page")})
        with bench.file.open("r+b") as file:
            file.truncate(0)
        error = bench.answer(request, bytes(request.data[0])).error
        assert error.triton_code is ErrorCode.INTERNAL
        assert "was truncated while a request used it" in error.message
        assert bench.users == 0

    def test_answers_keep_what_else_they_say(self, bench):
        request, _ = bench.prepare(shared={"A": at("page")})
        response = bench.answer(request, b"abcd", parameters={"k": 1}, final=False)
        assert (response.parameters, response.final) == ({"k": 1}, False)
