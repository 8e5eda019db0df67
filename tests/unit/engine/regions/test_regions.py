"""The registry: names, limits, use by requests, and regions of a simulated GPU."""

import pytest

from naiad.backend.cuda.cuda import HANDLE_BYTES, CudaError
from naiad.core.errors import ErrorCode, InferError
from naiad.core.model import CudaRegionStatus, SystemRegionStatus
from naiad.core.request import SharedMemoryRegion
from naiad.engine.regions.regions import SharedMemory

HANDLE = bytes(HANDLE_BYTES)


class Gpu:
    """Two devices; the allocation behind every handle has 64 bytes."""

    device_count = 2

    def __init__(self):
        self.memory = bytearray(64)
        self.opened = []
        self.broken = False

    def open(self, handle, device_id):
        if self.broken:
            raise CudaError("cudaIpcOpenMemHandle failed with error 1: invalid argument")
        self.opened.append(device_id)
        return 1000

    def close(self, address, device_id):
        assert address == 1000
        self.opened.remove(device_id)
        if self.broken:
            raise CudaError("cudaIpcCloseMemHandle failed")

    def read(self, address, byte_size, device_id):
        start = address - 1000
        if self.broken or start + byte_size > len(self.memory):
            raise CudaError("cudaMemcpy failed with error 1: invalid argument")
        return bytes(self.memory[start : start + byte_size])

    def write(self, address, data, device_id):
        if self.broken:
            raise CudaError("cudaMemcpy failed with error 700: an illegal memory access was encountered")
        self.memory[address - 1000 : address - 1000 + len(data)] = data


@pytest.fixture
def gpu():
    return Gpu()


@pytest.fixture
def memory(gpu, tmp_path):
    """A registry over a directory with the object "key" of 8192 bytes, and over the GPU."""
    (tmp_path / "key").write_bytes(bytes(range(256)) * 32)
    return SharedMemory(is_allowed=True, max_regions=4, directory=str(tmp_path), runtime=lambda: gpu)


def refusal(function, *arguments):
    with pytest.raises(InferError) as caught:
        function(*arguments)
    return caught.value.code, caught.value.message


def part(name="a", offset=0, byte_size=64):
    return SharedMemoryRegion(name, offset, byte_size)


class TestControl:
    def test_status_is_ordered_by_name(self, memory):
        memory.register_system("b", "key", 4096, 4096)
        memory.register_system("a", "/key", 0, 100)
        memory.register_cuda("c", HANDLE, 1, 64)
        rows = [SystemRegionStatus("a", "/key", 0, 100), SystemRegionStatus("b", "key", 4096, 4096)]
        assert memory.system_status() == rows
        assert memory.system_status("b") == rows[1:]
        assert memory.cuda_status() == memory.cuda_status("c") == [CudaRegionStatus("c", 1, 64)]

    def test_names_are_unique_across_kinds(self, memory):
        memory.register_system("a", "key", 0, 100)
        expected = (ErrorCode.ALREADY_EXISTS, "shared memory region 'a' already in manager")
        assert refusal(memory.register_system, "a", "key", 0, 100) == expected
        assert refusal(memory.register_cuda, "a", HANDLE, 0, 64) == expected

    @pytest.mark.parametrize("name", ["", "n" * 1025])
    def test_names_that_are_none(self, memory, name):
        assert refusal(memory.register_system, name, "key", 0, 100)[0] is ErrorCode.INVALID_ARG

    def test_limit(self, memory):
        for number in range(4):
            memory.register_system(f"r{number}", "key", 0, 100)
        code, message = refusal(memory.register_system, "more", "key", 0, 100)
        assert code is ErrorCode.UNAVAILABLE
        assert "4 regions are registered" in message
        assert "--max-shared-memory-regions" in message
        memory.unregister_system("r0")
        memory.register_system("more", "key", 0, 100)

    def test_not_allowed(self, gpu):
        memory = SharedMemory(runtime=lambda: gpu)
        for call in (
            lambda: memory.register_system("a", "key", 0, 1),
            lambda: memory.register_cuda("a", HANDLE, 0, 1),
            memory.unregister_system,
            memory.unregister_cuda,
        ):
            code, message = refusal(call)
            assert code is ErrorCode.UNSUPPORTED
            assert message.startswith("Client shared memory is disabled")
        assert memory.system_status() == memory.cuda_status() == []

    def test_unknown_and_other_kind(self, memory):
        memory.register_system("a", "key", 0, 100)
        memory.register_cuda("c", HANDLE, 1, 64)
        missing = ErrorCode.NOT_FOUND
        assert refusal(memory.system_status, "x") == (missing, "Unable to find system shared memory region: 'x'")
        assert refusal(memory.cuda_status, "x") == (missing, "Unable to find cuda shared memory region: 'x'")
        assert refusal(memory.cuda_status, "a") == (
            missing,
            "The region named 'a' is registered as system shared memory, not CUDA shared memory",
        )
        assert refusal(memory.system_status, "c") == (
            missing,
            "The region named 'c' is registered as CUDA shared memory, not system shared memory",
        )

    def test_unregister_takes_its_own_kind_only(self, memory, gpu):
        memory.register_system("a", "key", 0, 100)
        memory.register_cuda("c", HANDLE, 1, 64)
        for call in (memory.unregister_cuda, memory.unregister_system):
            call("nothing")
        memory.unregister_cuda("a")
        memory.unregister_system("c")
        assert len(memory.system_status()) == len(memory.cuda_status()) == 1
        memory.unregister_system()
        assert (memory.system_status(), len(memory.cuda_status())) == ([], 1)
        memory.unregister_cuda()
        assert (memory.cuda_status(), gpu.opened) == ([], [])


class TestUse:
    def test_unregistered_while_in_use(self, memory):
        memory.register_system("a", "key", 0, 100)
        users = [memory.acquire(part()), memory.acquire(part())]
        view = users[0].read(0, 4)
        memory.unregister_system("a")
        assert len(memory.system_status()) == 1
        assert refusal(memory.acquire, part()) == (
            ErrorCode.NOT_FOUND,
            "Unable to find shared memory region: 'a'",
        )
        assert refusal(memory.register_system, "a", "key", 0, 100)[0] is ErrorCode.ALREADY_EXISTS
        memory.release(users[:1])
        assert len(memory.system_status()) == 1
        memory.release(users[1:])
        assert memory.system_status() == []
        assert bytes(view) == b"\0\1\2\3"

    @pytest.mark.parametrize("offset", [100, 4096, -1, 2**63])
    def test_offset_beyond_the_region(self, memory, offset):
        memory.register_system("a", "key", 0, 100)
        code, message = refusal(memory.acquire, part(offset=offset))
        assert code is ErrorCode.INVALID_ARG
        assert message.startswith("Invalid offset for shared memory region: 'a'")

    @pytest.mark.parametrize(("offset", "byte_size"), [(0, 101), (99, 2), (0, 0), (0, -1), (1, 2**64 - 1)])
    def test_end_beyond_the_region(self, memory, offset, byte_size):
        memory.register_system("a", "key", 0, 100)
        code, message = refusal(memory.acquire, part(offset=offset, byte_size=byte_size))
        assert code is ErrorCode.INVALID_ARG
        assert message.startswith("Invalid offset + byte size for shared memory region: 'a'")

    def test_rejected_use_does_not_count(self, memory):
        memory.register_system("a", "key", 0, 100)
        refusal(memory.acquire, part(byte_size=101))
        memory.unregister_system("a")
        assert memory.system_status() == []


class TestCuda:
    def test_no_runtime(self, tmp_path):
        def missing():
            raise CudaError("libcudart was not found")

        memory = SharedMemory(is_allowed=True, runtime=missing)
        assert refusal(memory.register_cuda, "c", HANDLE, 0, 64) == (
            ErrorCode.INVALID_ARG,
            "failed to register CUDA shared memory region: 'c', GPUs not supported: libcudart was not found",
        )

    @pytest.mark.parametrize(
        ("handle", "device_id", "byte_size", "words"),
        [
            (b"short", 0, 64, "raw_handle has 5 bytes"),
            (HANDLE, 2, 64, "device_id is 2, but there are 2 GPUs"),
            (HANDLE, -1, 64, "device_id is -1"),
            (HANDLE, 0, 0, "byte_size is 0"),
            (HANDLE, 0, 65, "byte_size 65 is beyond the allocation"),
        ],
    )
    def test_what_cannot_be_opened(self, memory, gpu, handle, device_id, byte_size, words):
        code, message = refusal(memory.register_cuda, "c", handle, device_id, byte_size)
        assert code is ErrorCode.INVALID_ARG
        assert message.startswith("failed to register CUDA shared memory region 'c': invalid args: ")
        assert words in message
        assert (gpu.opened, memory.cuda_status()) == ([], [])

    def test_reads_and_writes(self, memory, gpu):
        memory.register_cuda("c", HANDLE, 1, 64)
        region = memory.acquire(part("c"))
        region.write(60, b"abcd")
        assert region.read(58, 4) == b"\0\0ab"
        gpu.broken = True
        for call in (lambda: region.read(0, 1), lambda: region.write(0, b"a")):
            code, message = refusal(call)
            assert code is ErrorCode.INTERNAL
            assert message.startswith("CUDA shared memory region 'c' could not be ")

    def test_failure_to_close_does_not_keep_the_name(self, memory, gpu, caplog):
        memory.register_cuda("c", HANDLE, 1, 64)
        gpu.broken = True
        memory.unregister_cuda("c")
        assert memory.cuda_status() == []
        assert "closing CUDA shared memory region 'c' failed" in caplog.text
