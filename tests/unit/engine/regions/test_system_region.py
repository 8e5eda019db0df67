"""POSIX shared memory: accepted keys and parts, and truncation by a client."""

import gc
import mmap
import os
import sys
import threading

import numpy as np
import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.core.model import SystemRegionStatus
from naiad.engine.regions import bus_error
from naiad.engine.regions.posix_memory import SystemRegion

PAGE = 4096


@pytest.fixture
def directory(tmp_path):
    """A directory in place of /dev/shm, with the object "key" of two pages."""
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "key").write_bytes(bytes(range(256)) * 32)
    return tmp_path / "shm"


def refusal(directory, key="key", offset=0, byte_size=PAGE):
    with pytest.raises(InferError) as caught:
        SystemRegion("r", key, offset, byte_size, str(directory))
    return caught.value.triton_code, caught.value.message


class TestOpen:
    def test_reads_and_writes_the_object(self, directory):
        region = SystemRegion("r", "/key", PAGE, PAGE, str(directory))
        assert bytes(region.read(1, 3)) == b"\x01\x02\x03"
        region.view(0, 2)[:] = b"ab"
        assert (directory / "key").read_bytes()[PAGE : PAGE + 3] == b"ab\x02"
        assert region.status == SystemRegionStatus("r", "/key", PAGE, PAGE)

    def test_what_is_read_cannot_be_written_to(self, directory):
        assert SystemRegion("r", "key", 0, PAGE, str(directory)).read(0, 4).readonly

    @pytest.mark.parametrize("key", ["", "/", ".", "..", "/..", "a/b", "../shm/key", "k\0y", "k" * 256])
    def test_keys_that_are_no_names(self, directory, key):
        code, message = refusal(directory, key)
        assert code is ErrorCode.INTERNAL
        assert message.startswith(f"Unable to open shared memory region: '{key[:255]}'")
        assert "without '/'" in message

    def test_missing_object(self, directory):
        code, message = refusal(directory, "nothing")
        assert code is ErrorCode.INTERNAL
        assert message.startswith("Unable to open shared memory region: 'nothing': No such file or directory")

    def test_links_are_not_followed(self, directory):
        (directory.parent / "secret").write_bytes(bytes(PAGE))
        (directory / "link").symlink_to(directory.parent / "secret")
        assert refusal(directory, "link")[0] is ErrorCode.INTERNAL

    @pytest.mark.parametrize("kind", ["directory", "pipe"])
    def test_what_is_no_file(self, directory, kind):
        if kind == "pipe":
            os.mkfifo(directory / "odd")
        else:
            (directory / "odd").mkdir()
        code, message = refusal(directory, "odd")
        assert code is ErrorCode.INTERNAL
        assert message.startswith("Unable to open shared memory region: 'odd'")

    @pytest.mark.parametrize("key", ["triton_python_backend_shm_region_1", "//triton_python_backend_shm_region_"])
    def test_reserved_prefix(self, directory, key):
        code, message = refusal(directory, key)
        assert code is ErrorCode.INVALID_ARG
        assert "reserved prefix" in message

    @pytest.mark.parametrize(
        ("offset", "byte_size", "words"),
        [
            (PAGE, PAGE + 1, "invalid args: offset 4096 + byte_size 4097 is beyond the 8192 bytes of 'key'"),
            (3 * PAGE, 0, "invalid args"),
            (0, 2**64 - 1, "invalid args"),
            (2**64 - 1, 2**64 - 1, "invalid args"),
            (0, 0, "byte_size is 0"),
            (100, 100, "offset 100 is not a multiple of the page size"),
        ],
    )
    def test_parts_that_cannot_be(self, directory, offset, byte_size, words):
        code, message = refusal(directory, "key", offset, byte_size)
        assert code is ErrorCode.INVALID_ARG
        assert message.startswith("failed to register shared memory region 'r': ")
        assert words in message

    def test_rejected_platform(self, directory, monkeypatch):
        monkeypatch.setattr(bus_error, "is_available", lambda: False)
        assert refusal(directory)[0] is ErrorCode.UNSUPPORTED

    def test_no_descriptors_are_left(self, directory):
        for _ in range(3):
            refusal(directory, "key", 0, 3 * PAGE)
            SystemRegion("r", "key", 0, PAGE, str(directory)).close()
        gc.collect()
        # Other tests in this process open regions as well, so only regions of these files count.
        opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        assert not [path for path in opened if path.startswith(os.path.realpath(directory))]


class TestTruncation:
    """A client may truncate its file at any time; without the guard these tests end the process."""

    def test_checked_size(self, directory):
        region = SystemRegion("r", "key", PAGE, PAGE, str(directory))
        region.check_alive()
        os.truncate(directory / "key", 2 * PAGE - 1)
        with pytest.raises(InferError, match="has become smaller than offset 4096") as caught:
            region.check_alive()
        assert caught.value.code is ErrorCode.INVALID_ARG
        assert caught.value.message.startswith("Invalid offset + byte size for shared memory region: 'r'")

    def test_reading_truncated_memory_gives_zeros_and_error(self, directory):
        region = SystemRegion("r", "key", 0, 2 * PAGE, str(directory))
        view = region.read(0, 2 * PAGE)
        os.truncate(directory / "key", PAGE)
        region.check_intact()
        assert bytes(view) == bytes(range(256)) * 16 + bytes(PAGE)
        with pytest.raises(InferError, match="was truncated while a request used it") as caught:
            region.check_intact()
        assert (caught.value.code, caught.value.triton_code) == (ErrorCode.INVALID_ARG, ErrorCode.INTERNAL)

    def test_writing_to_truncated_memory(self, directory):
        region = SystemRegion("r", "key", 0, 2 * PAGE, str(directory))
        os.truncate(directory / "key", 0)
        region.view(0, 2 * PAGE)[:] = b"x" * (2 * PAGE)
        assert (directory / "key").read_bytes() == b""
        with pytest.raises(InferError):
            region.check_intact()

    def test_a_broken_region_stays_broken(self, directory):
        region = SystemRegion("r", "key", 0, 2 * PAGE, str(directory))
        os.truncate(directory / "key", 0)
        assert not any(region.read(0, PAGE))
        os.truncate(directory / "key", 2 * PAGE)
        with pytest.raises(InferError):
            region.check_alive()

    def test_threads_that_copy_without_the_interpreter_lock(self, directory):
        (directory / "key").write_bytes(b"\1" * (1 << 22))
        region = SystemRegion("r", "key", 0, 1 << 22, str(directory))
        source = np.frombuffer(region.read(0, 1 << 22), np.uint8)
        os.truncate(directory / "key", PAGE)
        copies = [np.empty(1 << 22, np.uint8) for _ in range(4)]
        threads = [threading.Thread(target=np.copyto, args=(copy, source)) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [int(copy.sum()) for copy in copies] == [PAGE] * 4

    def test_views_are_guarded_after_the_region_was_closed(self, directory):
        region = SystemRegion("r", "key", 0, 2 * PAGE, str(directory))
        view = region.read(0, 2 * PAGE)
        region.close()
        del region
        os.truncate(directory / "key", 0)
        assert bytes(view) == bytes(2 * PAGE)

    def test_the_guard_forgets_what_is_unmapped(self, directory):
        gc.collect()
        before = bus_error.guard().watched_count
        region = SystemRegion("r", "key", 0, PAGE, str(directory))
        view = region.read(0, 8)
        region.close()
        assert bus_error.guard().watched_count == before + 1
        del region, view
        gc.collect()
        assert bus_error.guard().watched_count == before

    def test_threads_do_not_lose_mappings(self):
        guard = bus_error.guard()
        before = guard.watched_count
        kept: list[list[mmap.mmap]] = [[], []]

        def churn(own: list[mmap.mmap]) -> None:
            for number in range(3000):
                mapping = mmap.mmap(-1, PAGE)
                guard.watch(mapping)
                if number % 10 == 0:
                    own.append(mapping)

        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=churn, args=(own,)) for own in kept]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval_s)
        assert guard.watched_count == before + 600
        kept.clear()
        gc.collect()
        assert guard.watched_count == before
