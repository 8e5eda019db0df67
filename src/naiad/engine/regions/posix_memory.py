"""POSIX shared memory: open an object by its key, map a part of it, read and write it."""

import mmap
import os
import stat

from naiad.core.errors import excerpt, invalid_argument, unsupported, wrong_request
from naiad.core.model import SystemRegionStatus
from naiad.core.tensor import Buffer
from naiad.engine.regions import bus_error

RESERVED_PREFIX = "triton_python_backend_shm_region_"
"""Triton: keys of its Python backend's own memory, which clients may not register."""
DIRECTORY = "/dev/shm"
"""Directory of POSIX shared-memory objects on Linux."""
_MAX_KEY_BYTES = 255


class SystemRegion:
    """A mapped part of a shared-memory object. Views of it keep the mapping alive after it is unregistered."""

    __slots__ = ("_mapping", "_memory", "_watched", "file", "is_leaving", "key", "name", "offset", "user_count")

    def __init__(self, name: str, key: str, offset: int, byte_size: int, directory: str = DIRECTORY) -> None:
        """Map `byte_size` bytes from `offset`. Raises InferError with Triton's codes and texts."""
        if not bus_error.is_available():
            raise unsupported("system shared memory needs Linux on a 64-bit processor; send tensors in requests")
        descriptor = _open(name, key, directory)
        try:
            status = os.fstat(descriptor)
            _check(name, key, offset, byte_size, status)
            # The mapping has a descriptor of its own, through which it knows the size of the file.
            self._mapping = mmap.mmap(descriptor, byte_size, offset=offset)
            self._watched = bus_error.guard().watch(self._mapping)
        except (OSError, ValueError, OverflowError) as error:
            raise invalid_argument(
                f"failed to register shared memory region '{excerpt(name)}': unable to process address space: {error}"
            ) from error
        finally:
            os.close(descriptor)
        self.name = name
        self.key = key
        self.offset = offset
        self.file = (status.st_dev, status.st_ino)
        """Identity of the file, independent of the spelling of the key."""
        self.user_count = 0
        """Number of requests that use the region."""
        self.is_leaving = False
        """The region is unregistered when the last request that uses it has ended."""
        self._memory = memoryview(self._mapping)

    @property
    def byte_size(self) -> int:
        """Bytes that requests may use."""
        return len(self._memory)

    @property
    def status(self) -> SystemRegionStatus:
        """The status of the region."""
        return SystemRegionStatus(self.name, self.key, self.offset, self.byte_size)

    def check_alive(self) -> None:
        """Check that the file still has all of the region's bytes. Raises InferError(INVALID_ARG).

        This gives a clear message in the usual case. The client can truncate the file a moment later: see
        `bus_error`.
        """
        if self._watched.is_broken or self._mapping.size() < self.offset + self.byte_size:
            raise invalid_argument(
                f"Invalid offset + byte size for shared memory region: '{excerpt(self.name)}': its object "
                f"'{excerpt(self.key)}' has "
                f"become smaller than offset {self.offset} + byte_size {self.byte_size}, with which it was "
                "registered; unregister it and register it again"
            )

    def check_intact(self) -> None:
        """Check that no access has failed. Raises InferError(INVALID_ARG)."""
        if self._watched.is_broken:
            raise wrong_request(
                f"shared memory region '{excerpt(self.name)}' could not be accessed: its object "
                f"'{excerpt(self.key)}' was truncated "
                "while a request used it, or memory for it was not available (is /dev/shm full?); unregister it "
                "and register it again"
            )

    def view(self, offset: int, byte_size: int) -> memoryview:
        """Return a writable view of a part of the region."""
        return self._memory[offset : offset + byte_size]

    def read(self, offset: int, byte_size: int) -> Buffer:
        """Return a part of the region as a view, without a copy."""
        return self._memory[offset : offset + byte_size].toreadonly()

    def close(self) -> None:
        """Release the memory; it is unmapped when no view of it is left."""
        self._memory = memoryview(b"")


def _open(name: str, key: str, directory: str) -> int:
    """Open an object as shm_open(3) does, without following links. Raises InferError."""
    base = key.lstrip("/")
    if base.startswith(RESERVED_PREFIX):
        raise invalid_argument(
            f"cannot register shared memory region '{excerpt(name)}' with key '{excerpt(key)}' as the key contains "
            "the reserved prefix "
            f"'{RESERVED_PREFIX}'"
        )
    # Only a plain name: with "/" or ".." a client could reach files outside of the directory.
    if (
        base in ("", ".", "..")
        or "/" in base
        or "\0" in base
        or len(base.encode("utf-8", "replace")) > _MAX_KEY_BYTES
    ):
        raise wrong_request(
            f"Unable to open shared memory region: '{key[:_MAX_KEY_BYTES]}': a key is a name of at most "
            f"{_MAX_KEY_BYTES} bytes without '/', after an optional '/' at its beginning"
        )
    try:
        # Without O_NONBLOCK opening a named pipe would wait for its other side.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(f"{directory}/{base}", flags)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or "not a file name"
        raise wrong_request(
            f"Unable to open shared memory region: '{excerpt(key)}': {reason}; the server must run on the client's "
            "machine, "
            "see its /dev/shm and may read and write the object"
        ) from error


def _check(name: str, key: str, offset: int, byte_size: int, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise wrong_request(
            f"Unable to open shared memory region: '{excerpt(key)}': it is not a shared-memory object"
        )
    if offset + byte_size > status.st_size:
        raise invalid_argument(
            f"failed to register shared memory region '{excerpt(name)}': invalid args: offset {offset} + byte_size "
            f"{byte_size} is beyond the {status.st_size} bytes of '{excerpt(key)}'"
        )
    if not byte_size:
        raise invalid_argument(
            f"failed to register shared memory region '{excerpt(name)}': unable to process address space: "
            "byte_size is 0"
        )
    if offset % mmap.ALLOCATIONGRANULARITY:
        raise invalid_argument(
            f"failed to register shared memory region '{excerpt(name)}': unable to process address space: offset "
            f"{offset} is not a multiple of the page size {mmap.ALLOCATIONGRANULARITY}; register "
            "from offset 0 and use offsets in requests"
        )
