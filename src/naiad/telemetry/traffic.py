"""Recording of traffic: every inference request as a line of JSON in a ring of two files.

The files are `PATH` and, before it, `PATH.1`, each with up to half of the size. Their first line, and one for every
start of a server that continues them, relates the monotonic clock of the lines that follow to the wall clock.

A request becomes a line, with its outcome, when its final response is there. Steps of ensembles and calls of models
by models are not recorded: a replay of the client's request repeats them. A thread writes the lines from a queue that
is bounded in bytes.
"""

import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
import time
from binascii import b2a_base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from naiad.core.bounded_cache import BoundedCache
from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.telemetry.trace.record import encode_json
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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise OSError(errno.EBUSY, "another server records in it", self._path) from None
        size_bytes = file.tell()
        if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
            file.write(b"\n")  # ends the incomplete line of a process that was killed
            size_bytes += 1
        file.write(self._opening)
        self._size_bytes = size_bytes + len(self._opening)
        file.flush()
        return file

    def append(self, parts: Iterable[Buffer], size_bytes: int) -> None:
        """Write a line of `size_bytes`, which may stay in a buffer until `flush`. Raises OSError."""
        if self._size_bytes + size_bytes > self._half_bytes:
            self._file.close()
            os.replace(self._path, self._older_path)
            self._file = self._open()
        self._file.writelines(parts)
        self._size_bytes += size_bytes

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
_LINE_OVERHEAD_BYTES = 512
"""Memory of a queued line besides its bytes; data counts as its base64, which is larger."""

Payload = Sequence[Buffer | None]
"""The data of each input; None if it is not in the message."""


class TrafficWriter:
    """The queue and its thread. `put` is called on the event loop; the counters may be read on any thread."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._lines: deque[tuple[bytes, Payload | None, int]] = deque()
        # A line that does not fit into a file is dropped as one that does not fit into the queue.
        self._max_queued_bytes = min(_MAX_QUEUED_BYTES, ring.max_line_bytes)
        # One counter for each thread: no lock is needed.
        self._put_bytes = self._taken_bytes = 0
        self._wake = threading.Event()
        self._is_closing = False
        self._has_logged_drops = False
        self.is_open = True
        """False after an error: nothing is recorded any more."""
        self.written_count = 0
        self.dropped_count = 0
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    def put(self, line: bytes, payload: Payload | None = None) -> None:
        """Queue a line: an object of JSON and a newline. It gets the member `data` from a payload. Never blocks."""
        line_bytes = len(line)
        if payload:
            line_bytes += len(_DATA) + sum(map(_base64_bytes, payload)) + len(payload)
        size_bytes = _LINE_OVERHEAD_BYTES + line_bytes
        queued_bytes = self._put_bytes - self._taken_bytes + size_bytes
        if queued_bytes > self._max_queued_bytes or not self.is_open:
            self.dropped_count += 1
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
        try:
            while not self._is_closing:
                self._wake.wait(_INTERVAL_S)
                self._wake.clear()
                self._write_queued()
            self._write_queued()  # what came between the last look and the closing
            self._ring.close()
        except OSError as error:
            self._stop(error)

    def _write_queued(self) -> None:
        while self._lines:
            entries = [self._lines.popleft() for _ in range(min(len(self._lines), _TURN_LINES))]
            turn_bytes = sum([line_bytes for _, _, line_bytes in entries])
            if turn_bytes > self._ring.max_line_bytes or any(payload for _, payload, _ in entries):
                for line, payload, line_bytes in entries:
                    self._ring.append(_with_data(line, payload) if payload else (line,), line_bytes)
            else:
                self._ring.append([line for line, _, _ in entries], turn_bytes)
            self._taken_bytes += turn_bytes + len(entries) * _LINE_OVERHEAD_BYTES
            self.written_count += len(entries)
            if self._lines:
                time.sleep(_PAUSE_S)
        self._ring.flush()
        if self.dropped_count and not self._has_logged_drops:
            self._has_logged_drops = True
            _log.warning(
                "requests are missing in the recording: they came faster than they could be written, or are larger "
                "than half of --record-traffic-size; naiad_traffic_records_dropped_total counts them"
            )

    def _stop(self, error: OSError) -> None:
        self.is_open = False
        self._lines.clear()
        _log.error("the recording of traffic has stopped, requests continue: %s", error)
        try:
            self._ring.close()
        except OSError as again:
            _log.debug("closing the recording: %s", again)


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
        if not transport or not self._writer.is_open:
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
