"""Loads one `ModelStreamInfer` call: a request, all its responses, the next request. A client that only counts.

gRPC's own client takes longer to parse a response than the server takes to send it, so it would be the limit. This
one looks for the borders of messages and for the last response of each request, nothing more; windows are wide open.
"""

import math
import socket
import struct
import time
from dataclasses import dataclass, field

import hpack
from tritonclient.grpc import service_pb2

from bench.process_tree import CpuMeter

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE = 4
_WINDOW_BYTES = (1 << 31) - 1
_REFILL_BYTES = 1 << 30
_RECEIVE_BYTES = 1 << 18
_STREAM = 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
# The map entry of the marker: a key of 21 bytes and a message { bool_param: true }.
_FINAL = b"\x0a\x15triton_final_response\x12\x02\x08\x01"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload) << 8 | kind) + struct.pack(">BI", flags, stream) + payload


@dataclass
class Streamed:
    """What came back in one run."""

    responses: int = 0
    """Without the empty last ones."""
    wall_s: float = 0.0
    cpu_us: float = 0.0
    """Of the whole server process tree for each response."""
    first_us: list[float] = field(default_factory=list)
    """From each request to its first response."""
    request_us: list[float] = field(default_factory=list)
    """From each request to its last response."""

    def as_dict(self) -> dict[str, float]:
        """Return the metrics of a row."""
        return {
            "responses": self.responses,
            "responses_per_s": self.responses / self.wall_s,
            "first_p50_us": _percentile(self.first_us, 0.50),
            "first_p99_us": _percentile(self.first_us, 0.99),
            "request_p50_us": _percentile(self.request_us, 0.50),
            "cpu_us": self.cpu_us,
        }


def _percentile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


class StreamClient:
    """One connection with one open call."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = bytearray()
        self._body = bytearray()
        self._unreturned_bytes = 0
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _WINDOW_BYTES)
        update = struct.pack(">I", _WINDOW_BYTES - 65_535)
        fields = [
            *((":method", "POST"), (":scheme", "http"), (":path", _PATH), (":authority", "127.0.0.1")),
            *(("content-type", "application/grpc"), ("te", "trailers")),
        ]
        head = _frame(_HEADERS, _END_HEADERS, _STREAM, hpack.Encoder().encode(fields))
        opening = _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, update)
        self._socket.sendall(_PREFACE + opening + head)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def run(self, message: bytes, expected: int, seconds: float, pid: int = 0) -> Streamed:
        """Repeat a request for so long; `pid` is the server's, 0 to leave its CPU time out.

        Raises RuntimeError when the responses of a request are not as many as `expected`, or not as long as for
        the first request.
        """
        found = Streamed()
        meter = CpuMeter(pid) if pid else None
        began = now = time.perf_counter()
        while now - began < seconds:
            sent = now
            first, count = self._ask(message)
            now = time.perf_counter()
            if count != expected:
                raise RuntimeError(f"{count} responses instead of {expected}")
            found.responses += count
            found.first_us.append((first - sent) * 1e6)
            found.request_us.append((now - sent) * 1e6)
        found.wall_s = now - began
        if meter is not None:
            found.cpu_us = meter.seconds() / found.responses * 1e6
        return found

    def _ask(self, message: bytes) -> tuple[float, int]:
        """Send a request; return when its first response came, and how many came before the empty last one."""
        framed = b"\0" + struct.pack(">I", len(message)) + message
        self._socket.sendall(_frame(_DATA, 0, _STREAM, framed))
        first, count = 0.0, 0
        while True:
            responses = self._receive()
            if responses and not first:
                first = time.perf_counter()
            if responses and _FINAL in responses[-1]:
                return first, count + len(responses) - 1
            count += len(responses)

    def _receive(self) -> list[bytes]:
        """Read once and return the messages that are complete."""
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise RuntimeError("the server closed the connection")
        frames = self._frames
        frames += data
        position, end = 0, len(frames)
        while end - position >= 9:
            length = int.from_bytes(frames[position : position + 3], "big")
            stop = position + 9 + length
            if stop > end:
                break
            self._take_frame(frames[position + 3], frames[position + 4], bytes(frames[position + 9 : stop]))
            position = stop
        del frames[:position]
        return self._messages()

    def _messages(self) -> list[bytes]:
        body, messages = self._body, []
        position, end = 0, len(body)
        while end - position >= 5:
            stop = position + 5 + int.from_bytes(body[position + 1 : position + 5], "big")
            if stop > end:
                break
            messages.append(bytes(body[position + 5 : stop]))
            position = stop
        del body[:position]
        return messages

    def _take_frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == _DATA:
            self._body += payload
            self._unreturned_bytes += len(payload)
            if self._unreturned_bytes > _REFILL_BYTES:
                increment = struct.pack(">I", self._unreturned_bytes)
                updates = _frame(_WINDOW_UPDATE, 0, 0, increment) + _frame(_WINDOW_UPDATE, 0, _STREAM, increment)
                self._socket.sendall(updates)
                self._unreturned_bytes = 0
        elif kind == _SETTINGS and not flags & _ACK:
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind in (_RST_STREAM, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
            raise RuntimeError(f"the server ended the call with frame type {kind}: {payload!r}")


def count_request(model: str, count: int) -> bytes:
    """Return a request for `count` responses of the model that `bench.models` writes."""
    request = _request(model)
    request.inputs.add(name="COUNT", datatype="INT32", shape=[1])
    request.raw_input_contents.append(struct.pack("<i", count))
    body: bytes = request.SerializeToString()
    return body


def repeat_request(model: str, count: int) -> bytes:
    """Return a request for `count` responses without delay of a model of the repeat backend."""
    request = _request(model)
    for name, datatype, values in (("IN", "INT32", count), ("DELAY", "UINT32", count), ("WAIT", "UINT32", 1)):
        request.inputs.add(name=name, datatype=datatype, shape=[values])
        request.raw_input_contents.append(bytes(4 * values))
    body: bytes = request.SerializeToString()
    return body


def _request(model: str) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request
