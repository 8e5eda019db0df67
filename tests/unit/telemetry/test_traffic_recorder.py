"""Requests become lines: what is recorded of them, what is dropped, and what happens when the disk fails."""

import errno
import functools
import json
import logging
import os
import threading

import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, invalid_argument
from naiad.core.request import InferRequest, RequestHeader, SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.frontend.header_forwarding import _with_parameters
from naiad.options.trace import TraceOptions
from naiad.telemetry import traffic
from naiad.telemetry.trace.tracer import Tracer
from naiad.telemetry.traffic import Recorder, RingFile, TrafficWriter
from support.waiting import wait_until

X = TensorSpec("X", DataType.FP32, (1, 2))
DATA = b"12345678"
RESPONSE = ResponseHeader("m", "1", ())


class Frontend:
    protocol = "HTTP"
    transport = "http"

    def __init__(self):
        self.responses = []

    def take(self, request, response, more=()):
        self.responses.append(response)


class Scene:
    def __init__(self, path, *, size_bytes=1 << 20, has_payloads=False):
        self.path = path
        self.writer = TrafficWriter(lambda: RingFile(str(path), size_bytes))
        self.recorder = Recorder(self.writer, has_payloads=has_payloads)
        self.frontend = Frontend()

    def send(self, *, data=DATA, on_response=None, error=None, **header):
        request = InferRequest(
            RequestHeader(model_name="m", **{"inputs": (X,), **header}),
            (data,),
            on_response or self.frontend.take,
            id="7",
            arrival_ns=5,
        )
        self.recorder.begin(request)
        request.on_response(request, InferResponse(RESPONSE, error=error))

    def lines(self):
        """Close the recording and return its requests."""
        self.recorder.close()
        return [json.loads(line) for line in self.path.read_bytes().splitlines()[1:]]


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path / "t")


def test_a_plain_request(scene):
    scene.send()
    (line,) = scene.lines()
    assert line.pop("duration_ns") > 0
    assert line == {
        "arrival_ns": 5,
        "outcome": "OK",
        "transport": "http",
        "model": "m",
        "id": "7",
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2]}],
    }
    assert len(scene.frontend.responses) == 1


def test_the_error_is_the_outcome(scene):
    scene.send(error=InferError(ErrorCode.UNAVAILABLE, "no"))
    assert scene.lines()[0]["outcome"] == "UNAVAILABLE"


def test_an_error_before_the_end_counts(scene):
    request = InferRequest(RequestHeader(model_name="m"), (), scene.frontend.take)
    scene.recorder.begin(request)
    request.on_response(request, InferResponse(RESPONSE, error=invalid_argument("no"), final=False))
    request.on_response(request, InferResponse(RESPONSE, empty_final=True))
    (line,) = scene.lines()
    assert line["outcome"] == "INVALID_ARG"
    assert len(scene.frontend.responses) == 2


def test_rejected_requests_are_recorded(scene):
    request = InferRequest(RequestHeader(model_name="m"), (), scene.frontend.take)
    scene.recorder.begin(request).end(request, invalid_argument("no"))
    assert scene.lines()[0]["outcome"] == "INVALID_ARG"


def test_callbacks_with_more_arguments(scene):
    scene.send(on_response=functools.partial(scene.frontend.take, more=1))
    assert len(scene.lines()) == 1


def test_calls_within_the_server_are_not_recorded(scene):
    found = []
    scene.send(on_response=lambda request, response: found.append(response))
    assert scene.lines() == []
    assert len(found) == 1


def test_forwarded_header_fields_are_not_recorded(scene):
    header = RequestHeader(model_name="m", parameters={"a": 1})
    request = InferRequest(_with_parameters(header, (("secret", "key"),)), (), scene.frontend.take)
    assert request.header.parameters == {"a": 1, "secret": "key"}
    scene.recorder.begin(request).end(request, None)
    assert scene.lines()[0]["parameters"] == {"a": 1}


def test_payloads(tmp_path):
    scene = Scene(tmp_path / "t", has_payloads=True)
    region = {"Y": SharedMemoryRegion("r", 0, 8)}
    scene.send(inputs=(X, TensorSpec("Y", DataType.FP32, (2,))), shared_memory=region)
    scene.send(inputs=(X,), data=memoryview(bytes(200_000)))
    scene.send(inputs=())
    first, large, empty = scene.lines()
    assert first["data"] == [{"b64": "MTIzNDU2Nzg="}]
    assert len(large["data"][0]["b64"]) == -(-200_000 // 3) * 4
    assert "data" not in empty


def test_names_that_are_not_unicode(scene):
    scene.send(parameters={"a": "\ud800", "b": 1 << 70})
    assert scene.lines()[0]["parameters"] == {"a": "\ud800", "b": 1 << 70}


def test_traces_see_the_frontend_behind_it(scene, tmp_path):
    file = tmp_path / "trace"
    tracer = Tracer(TraceOptions(level=("TIMESTAMPS",), rate=1, file=str(file)))
    request = InferRequest(RequestHeader(model_name="m"), (), scene.frontend.take, arrival_ns=5)
    scene.recorder.begin(request)
    tracer.begin(request)
    request.on_response(request, InferResponse(RESPONSE))
    tracer.close()
    assert "HTTP_RECV_START" in file.read_text()
    assert len(scene.lines()) == 1


def test_what_does_not_fit_is_dropped_and_counted(tmp_path, caplog):
    scene = Scene(tmp_path / "t", size_bytes=1 << 14, has_payloads=True)
    scene.send(data=bytes(1 << 13))
    for _ in range(3):
        scene.send()
    scene.send(data=bytes(1 << 13))
    assert len(scene.lines()) == 3
    assert (scene.writer.written_count, scene.writer.dropped_count) == (3, 2)
    assert len([record for record in caplog.records if "missing in the recording" in record.message]) == 1


class StuckRing:
    """A disk that takes no more."""

    max_line_bytes = 10_000

    def __init__(self, error=None):
        self.error = error

    def append(self, parts, size_bytes):
        if self.error is not None:
            raise self.error
        wait_until(lambda: self.error is not None, "the test has not ended")

    def flush(self):
        pass

    def close(self):
        pass


def test_the_queue_is_bounded():
    ring = StuckRing()
    writer = TrafficWriter(lambda: ring)
    for _ in range(1000):
        writer.put(bytes(100))
    assert writer.dropped_count > 900
    assert writer._put_bytes - writer._taken_bytes <= ring.max_line_bytes
    ring.error = OSError("end")
    writer.close()


def refused(writer):
    request = InferRequest(RequestHeader(model_name="m"), (), Frontend().take)
    return Recorder(writer).begin(request)


def test_an_error_of_the_disk_pauses_the_recording(tmp_path, caplog, monkeypatch):
    """What is missing is counted: lines that waited, and requests while it could not be written."""
    monkeypatch.setattr(traffic, "_RETRY_S", 0.01)
    caplog.set_level(logging.WARNING)
    full = OSError(28, "No space left on device")
    rings = [StuckRing(full), full, full, RingFile(str(tmp_path / "t"), 1 << 20)]
    may_go_on = threading.Event()

    def open_ring():
        if len(rings) == 1:
            may_go_on.wait(60)
        ring = rings.pop(0)
        if isinstance(ring, OSError):
            raise ring
        return ring

    writer = TrafficWriter(open_ring)
    for _ in range(3):
        writer.put(b"{}\n")
    wait_until(lambda: not writer.is_open, "the writer has not stopped")
    assert refused(writer) is None
    assert (writer.written_count, writer.dropped_count) == (0, 4)
    assert writer._put_bytes == writer._taken_bytes
    may_go_on.set()
    wait_until(lambda: writer.is_open, "the recording has not begun again")
    writer.put(b"{}\n")
    writer.close()
    assert (writer.written_count, writer.dropped_count) == (1, 4)
    assert len((tmp_path / "t").read_bytes().splitlines()) == 2
    stopped, again = [record.message for record in caplog.records]
    assert stopped.startswith("the recording of traffic has stopped, requests continue: [Errno 28] No space left")
    assert again == "traffic is recorded again; 4 requests are missing so far"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_full_disk_does_not_end_a_start(number):
    def open_ring():
        raise OSError(number, os.strerror(number))

    writer = TrafficWriter(open_ring)
    assert refused(writer) is None
    assert writer.dropped_count == 1
    writer.close()


def test_other_errors_of_the_path_end_a_start():
    def open_ring():
        raise PermissionError(errno.EACCES, "Permission denied", "t")

    with pytest.raises(PermissionError):
        TrafficWriter(open_ring)
