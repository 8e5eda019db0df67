"""Recording of traffic: every inference request as a line of JSON in a ring of two files.

The files are `PATH` and, before it, `PATH.1`, each with up to half of the size. Their first line, and one for every
start of a server that continues them, relates the monotonic clock of the lines that follow to the wall clock.

A request becomes a line, with its outcome, when its final response is there. Steps of ensembles and calls of models
by models are not recorded: a replay of the client's request repeats them. A thread writes the lines from a queue that
is bounded in bytes.
"""

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from binascii import b2a_base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from naiad.core.errors import InferError
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.files.held import try_lock
from naiad.telemetry.last_resort import keep_running
from naiad.telemetry.trace.trace_record import encode_json
from naiad.telemetry.trace.tracer import caller_of

FORMAT_VERSION = 1
_OPENING = b'{"naiad_traffic":%d,' % FORMAT_VERSION
_BUFFER_BYTES = 1 << 18


class RingFile:
    """The two files; used by one thread at a time. A process continues the files of an earlier one."""

    def __init__(self, path: str, size_bytes: int) -> None:
        """Open the files. Raises OSError if that is not possible, if one is not a recording, or if it is in use."""
        self._path = path
        wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        self._opening = _OPENING + b'"wall_ns":%d,"monotonic_ns":%d}\n' % (wall_ns, monotonic_ns)
        self._half_bytes = size_bytes // 2
        _check(self._older_path)
        self._file = self._open()

    @property
    def _older_path(self) -> str:
        return f"{self._path}.1"

    @property
    def max_line_bytes(self) -> int:
        """A longer line does not fit into a file."""
        return self._half_bytes - len(self._opening)

    def _open(self) -> IO[bytes]:
        _check(self._path)
        # Other users must not read what clients send.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        file = os.fdopen(descriptor, "ab", buffering=_BUFFER_BYTES)
        if not try_lock(descriptor):
            file.close()
            raise OSError(errno.EBUSY, "another server records in it", self._path)
        try:
            size_bytes = file.tell()
            if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
                file.write(b"\n")  # ends the incomplete line of a process that was killed
                size_bytes += 1
            file.write(self._opening)
            self._size_bytes = size_bytes + len(self._opening)
            file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # it cannot write its buffer either
                file.close()
            raise OSError(error.errno, error.strerror, self._path) from None
        return file

    def append(self, parts: Iterable[Buffer], size_bytes: int) -> None:
        """Write a line of `size_bytes`, which may stay in a buffer until `flush`. Raises OSError."""
        if self._size_bytes + size_bytes > self._half_bytes:
            self._file.close()
            os.replace(self._path, self._older_path)
            self._file = self._open()
        self._size_bytes += size_bytes
        self._file.writelines(parts)

    def flush(self) -> None:
        """Write what is in the buffer. Raises OSError."""
        self._file.flush()

    def close(self) -> None:
        """Close the file. Raises OSError if what is in its buffer cannot be written."""
        self._file.close()


def _check(path: str) -> None:
    """Raise OSError for a file that must not be replaced: one that exists, is not empty and not a recording."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        with open(path, "rb") as file:
            opening = file.read(len(_OPENING))
        if opening not in (b"", _OPENING):
            raise OSError(errno.EEXIST, "exists and is not a recording of this version", path)


_log = logging.getLogger(__name__)

_MAX_QUEUED_BYTES = 64 << 20
_INTERVAL_S = 0.2
"""A line is in the file after this time. To wake the thread for every line would cost more than the line."""
_TURN_LINES = 256
_PAUSE_S = 0.0001
"""After this number of lines the event loop gets its turn: it waits for less than a millisecond."""
_SLICE_BYTES = 3 << 14
"""Data is encoded in slices of this size, a multiple of 3: base64 holds the interpreter's lock."""
_CLOSE_TIMEOUT_S = 5.0
_RETRY_S = 5.0
"""Interval at which a recording that a full disk has stopped is tried again."""
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a disk, which pass; at the start all others are mistakes in the path."""
_LINE_OVERHEAD_BYTES = 512
"""Memory of a queued line besides its bytes; data counts as its base64, which is larger."""

Payload = Sequence[Buffer | None]
"""The data of each input; None if it is not in the message."""


class TrafficWriter:
    """The queue and its thread. `put` is called on the event loop; the counters may be read on any thread."""

    def __init__(self, open_ring: Callable[[], RingFile]) -> None:
        """`open_ring` opens the files: at the start, and again after an error of the disk.

        Raises OSError if the path cannot be used; a full disk is no reason, the recording begins when there is room.
        """
        self._open_ring = open_ring
        self._ring: RingFile | None = None
        self._lines: deque[tuple[bytes, Payload | None, int]] = deque()
        self._max_queued_bytes = _MAX_QUEUED_BYTES
        # One counter for each thread: no lock is needed.
        self._put_bytes = self._taken_bytes = 0
        self._wake = threading.Event()
        self._is_closing = False
        self._has_overrun = self._has_logged_drops = False
        self.is_open = False
        """False after an error, until the files could be opened again."""
        self.written_count = 0
        self._turn = (0, 0)
        """Number and bytes of the lines that are being written."""
        self._refused_count = self._lost_count = 0
        """Requests that were not queued, and those that were and are not in the file."""
        try:
            self._begin()
        except OSError as error:
            if error.errno not in _DISK_ERRORS:
                raise
            self._log_stop(error)
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    @property
    def dropped_count(self) -> int:
        """Requests that are missing in the recording."""
        return self._refused_count + self._lost_count

    def refuse(self) -> None:
        """Count a request that is not recorded."""
        self._refused_count += 1

    def put(self, line: bytes, payload: Payload | None = None) -> None:
        """Queue a line: an object of JSON and a newline. It gets the member `data` from a payload. Never blocks."""
        line_bytes = len(line)
        if payload:
            line_bytes += len(_DATA) + sum(map(_base64_bytes, payload)) + len(payload)
        size_bytes = _LINE_OVERHEAD_BYTES + line_bytes
        queued_bytes = self._put_bytes - self._taken_bytes + size_bytes
        if queued_bytes > self._max_queued_bytes or not self.is_open:
            self._refused_count += 1
            self._has_overrun = self._has_overrun or self.is_open
            return
        self._put_bytes += size_bytes
        self._lines.append((line, payload, line_bytes))
        if queued_bytes > self._max_queued_bytes // 4:
            self._wake.set()

    def close(self) -> None:
        """Write what is queued, within a time limit, and close the file."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        keep_running("the thread that records traffic", self._write_until_closed, self._pause)

    def _pause(self, seconds: float) -> bool:
        self._wake.wait(seconds)
        return self._is_closing

    def _write_until_closed(self) -> None:
        while not self._is_closing:
            if self._ring is None:
                self._try_again()
                continue
            self._wake.wait(_INTERVAL_S)
            self._wake.clear()
            self._write_or_stop(self._ring)
        if self._ring is not None:
            self._write_or_stop(self._ring)  # what came between the last look and the closing
        if self._ring is not None:
            self._close_ring(self._ring)

    def _begin(self) -> None:
        """Open the files. Raises OSError."""
        self._ring = self._open_ring()
        # A line that does not fit into a file is dropped as one that does not fit into the queue.
        self._max_queued_bytes = min(_MAX_QUEUED_BYTES, self._ring.max_line_bytes)
        self.is_open = True

    def _try_again(self) -> None:
        self._wake.wait(_RETRY_S)
        self._wake.clear()
        if self._is_closing:
            return
        try:
            self._begin()
        except OSError as error:
            _log.debug("traffic cannot be recorded yet: %s", error)
        else:
            _log.warning("traffic is recorded again; %d requests are missing so far", self.dropped_count)

    def _write_or_stop(self, ring: RingFile) -> None:
        written_count = self.written_count
        try:
            self._write_queued(ring)
        except OSError as error:
            self._ring = None
            # Lines in the buffer of the file may be in it, or not: they count as missing.
            self._lost_count += self.written_count - written_count
            self.written_count = written_count
            self._drop_queued()
            self._log_stop(error)
            self._close_ring(ring)
            self.is_open = False

    def _write_queued(self, ring: RingFile) -> None:
        while self._lines:
            entries = [self._lines.popleft() for _ in range(min(len(self._lines), _TURN_LINES))]
            turn_bytes = sum([line_bytes for _, _, line_bytes in entries])
            self._turn = (len(entries), turn_bytes)
            if turn_bytes > ring.max_line_bytes or any(payload for _, payload, _ in entries):
                for line, payload, line_bytes in entries:
                    ring.append(_with_data(line, payload) if payload else (line,), line_bytes)
            else:
                ring.append([line for line, _, _ in entries], turn_bytes)
            self._turn = (0, 0)
            self._taken_bytes += turn_bytes + len(entries) * _LINE_OVERHEAD_BYTES
            self.written_count += len(entries)
            if self._lines:
                time.sleep(_PAUSE_S)
        ring.flush()
        if self._has_overrun and not self._has_logged_drops:
            self._has_logged_drops = True
            _log.warning(
                "requests are missing in the recording: they came faster than they could be written, or are larger "
                "than half of --record-traffic-size; naiad_traffic_records_dropped_total counts them"
            )

    def _drop_queued(self) -> None:
        (count, turn_bytes), self._turn = self._turn, (0, 0)
        self._lost_count += count
        self._taken_bytes += turn_bytes + count * _LINE_OVERHEAD_BYTES
        while self._lines:
            _, _, line_bytes = self._lines.popleft()
            self._taken_bytes += line_bytes + _LINE_OVERHEAD_BYTES
            self._lost_count += 1

    def _log_stop(self, error: OSError) -> None:
        _log.error(
            "the recording of traffic has stopped, requests continue: %s; it is tried again every %g s, and "
            "naiad_traffic_records_dropped_total counts what is missing",
            error,
            _RETRY_S,
        )

    def _close_ring(self, ring: RingFile) -> None:
        try:
            ring.close()
        except OSError as error:
            _log.debug("closing the recording: %s", error)


_DATA = b',"data":['
_OPEN, _CLOSE, _ABSENT = b'{"b64":"', b'"}', b"null"


def _with_data(line: bytes, payload: Payload) -> Iterator[Buffer]:
    """Yield a line with the data of its inputs, in perf_analyzer's form."""
    yield line[:-2]  # without the closing brace and the newline
    separator = _DATA
    for data in payload:
        yield separator
        separator = b","
        if data is None:
            yield _ABSENT
            continue
        yield _OPEN
        view = memoryview(data)
        for start in range(0, len(view), _SLICE_BYTES):
            yield b2a_base64(view[start : start + _SLICE_BYTES], newline=False)
        yield _CLOSE
    yield b"]}\n"


def _base64_bytes(data: Buffer | None) -> int:
    return len(_ABSENT) if data is None else len(_OPEN) + -(-len(data) // 3) * 4 + len(_CLOSE)


_now_ns = time.monotonic_ns
OK = "OK"
"""The outcome of a request without an error."""


class Recorder:
    """Records the requests of clients. Used on the event loop only."""

    def __init__(self, writer: TrafficWriter, *, has_payloads: bool = False) -> None:
        self._writer = writer
        self._has_payloads = has_payloads
        self._members: BoundedCache[RequestHeader, bytes] = BoundedCache(
            max_entries=1024, max_bytes=1 << 20, max_entry_bytes=1 << 12
        )
        """The encoded members of headers that clients repeat."""

    def begin(self, request: InferRequest) -> "Recording | None":
        """Record a request before its submission, unless it comes from within the server."""
        # hot: every request of a server that records
        caller = caller_of(request.on_response)
        transport: str = getattr(caller, "transport", "")
        if not transport:
            return None
        if not self._writer.is_open:
            self._writer.refuse()
            return None
        recording = Recording(request, caller, transport, self)
        if self._has_payloads:
            recording.payload = _payload(request)
        request.on_response = recording.take
        return recording

    def members_of(self, header: RequestHeader) -> bytes:
        """Return the members of a line for a header, encoded and without braces."""
        found = self._members.get(header)
        if found is None:
            found = encode_json(_members_of(header))[1:-1]
            self._members.remember(header, found, len(found))
        return found

    def write(self, line: bytes, payload: Payload | None) -> None:
        """Queue a line."""
        self._writer.put(line, payload)

    def close(self) -> None:
        """Write what waits to be written, within a time limit."""
        self._writer.close()


class Recording:
    """A request in progress that is recorded. For the tracer it stands for the frontend."""

    __slots__ = ("_caller", "_error", "_header", "_on_response", "_recorder", "payload", "transport")

    def __init__(self, request: InferRequest, caller: object, transport: str, recorder: Recorder) -> None:
        self._recorder = recorder
        self._caller = caller
        self._on_response: Callable[[InferRequest, InferResponse], object] = request.on_response
        self._header = request.header
        self._error: InferError | None = None
        self.payload: Payload | None = None
        self.transport = transport

    @property
    def protocol(self) -> str:
        """The protocol of the frontend."""
        return getattr(self._caller, "protocol", "")

    @property
    def trace_fields(self) -> Any:
        """The method of the frontend; None if it has none."""
        return getattr(self._caller, "trace_fields", None)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Pass a response on; the final one completes the line."""
        if response.error is not None:
            self._error = response.error
        if response.final:
            self.end(request, self._error)
        self._on_response(request, response)

    def end(self, request: InferRequest, error: InferError | None) -> None:
        """Queue the line of a request that was answered or rejected."""
        line = b'{"arrival_ns":%d,"duration_ns":%d,"outcome":"%b","transport":"%b",%b%b}\n' % (
            request.arrival_ns,
            _now_ns() - request.arrival_ns,
            (OK if error is None else error.code.name).encode(),
            self.transport.encode(),
            self._recorder.members_of(self._header),
            b',"id":' + encode_json(request.id) if request.id else b"",
        )
        self._recorder.write(line, self.payload)


def _payload(request: InferRequest) -> Payload:
    """Return references to the data of a request, which nothing changes later."""
    elsewhere = request.header.shared_memory
    return [
        None if spec.name in elsewhere else data
        for spec, data in zip(request.header.inputs, request.data, strict=False)
    ]


def _members_of(header: RequestHeader) -> dict[str, Any]:
    """Return the members of a line for a header, without those that have their default."""
    # A forwarded header field is a parameter of the changed copy only.
    parameters: Mapping[str, object] = (header.origin or header).parameters
    members: dict[str, Any] = {
        "model": header.model_name,
        "inputs": [
            {"name": spec.name, "datatype": spec.datatype.value, "shape": spec.shape} for spec in header.inputs
        ],
    }
    more = {
        "version": header.model_version,
        "outputs": [output.name for output in header.outputs],
        "parameters": dict(parameters),
        "sequence_id": header.sequence_id,
        "sequence_start": header.sequence_start,
        "sequence_end": header.sequence_end,
        "priority": header.priority,
        "timeout_us": header.timeout_us,
    }
    members.update((name, value) for name, value in more.items() if value)
    return members
