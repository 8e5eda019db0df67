"""Requests over HTTP/1.1: a connection carries one request at a time and is kept for the next."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from urllib.parse import quote

from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer
from naiad.protocol.json.client import RepeatedRequest, decode_error, decode_response
from naiad.protocol.status_table import code_of_http
from naiad.tools.perf.perf_exchange import Prepared, RequestTemplate, SentRequest
from naiad.tools.perf.perf_plan import ServerTarget
from naiad.tools.perf.targets.connections import SocketTarget, TargetConnection
from naiad.tools.perf.targets.ending import TIMEOUT, WRONG_ANSWER, fail
from naiad.wire.compression import WINDOW_BITS, compress
from naiad.wire.http1_client import Http1ClientConnection, Http1ClientLimits, Response, ResponseError, ResponseHeads

_OK = 200
_UNCOPIED_BYTES = 8 * 1024
_JSON = b"application/json"
_CONTENT_TYPES = frozenset((_JSON, b"application/octet-stream"))
_OUTPUTS = b'"outputs"'
"""A response without it is an error or a page, also where it has the size of right responses."""
_BEGIN_BYTES = 1024
_SHOWN_BYTES = 80
_TIMING_FIELD = b"x-naiad-timing: 1\r\n"


class PreparedRequest:
    """A request as bytes: whole, and in the parts around what varies."""

    __slots__ = ("_begin", "_bits", "_request", "whole")

    def __init__(
        self, service: ServerTarget, fields: Sequence[tuple[bytes, bytes]], template: RequestTemplate
    ) -> None:
        """Encode a template; `fields` are the header fields, from Host on."""
        header = _with_outputs(template.header, is_binary=service.has_binary_outputs)
        self._request = RepeatedRequest(header, template.data, binary_inputs=service.has_binary_inputs)
        path = f"/v2/models/{quote(header.model_name, safe='')}"
        if header.model_version:
            path += f"/versions/{quote(header.model_version, safe='')}"
        self._bits = 0
        if service.compression != "none":
            self._bits = WINDOW_BITS[service.compression.encode()]
            fields = (*fields, (b"Content-Encoding", service.compression.encode()))
        lines = [f"POST {path}/infer HTTP/1.1".encode()]
        lines += [b"%b: %b" % field for field in fields]
        self._begin = b"\r\n".join((*lines, b""))
        self.whole = self._encode(self._request.text, b"")
        """A request without id, sequence and timing."""

    def varied(self, exchange: SentRequest) -> list[Buffer]:
        """Return the request with the variation of `exchange`."""
        text = self._request.varied(
            exchange.request_id,
            exchange.sequence_id,
            starts_sequence=exchange.sequence_start,
            ends_sequence=exchange.sequence_end,
        )
        return self._encode(text, _TIMING_FIELD if exchange.wants_timing else b"")

    def _encode(self, text: bytes, fields: bytes) -> list[Buffer]:
        request = self._request
        size = len(text) + request.tail_bytes
        if request.is_binary:
            fields += b"Inference-Header-Content-Length: %d\r\n" % len(text)
        if self._bits:
            body = compress((text, *request.tail), self._bits)
            return [b"%b%bContent-Length: %d\r\n\r\n" % (self._begin, fields, len(body)), body]
        head = b"%b%bContent-Length: %d\r\n\r\n%b" % (self._begin, fields, size, text)
        if request.tail_bytes < _UNCOPIED_BYTES:
            return [b"".join((head, *request.tail))]
        return [head, *request.tail]


def _with_outputs(header: RequestHeader, *, is_binary: bool) -> RequestHeader:
    changed = copy(header)
    changed.binary_output_default = is_binary
    changed.outputs = tuple(
        [replace(output, binary=is_binary and output.shared_memory is None) for output in header.outputs]
    )
    changed.wants_empty_final = False  # A stream of gRPC has it, HTTP has none.
    return changed


class HttpConnection(TargetConnection):
    """A connection with at most one request."""

    _target: "HttpTarget"

    def __init__(self, target: "HttpTarget", heads: ResponseHeads) -> None:
        super().__init__(target)
        self._http = Http1ClientConnection(Http1ClientLimits(), heads)
        self._exchange: SentRequest | None = None

    @property
    def outstanding(self) -> Iterable[SentRequest]:
        """The request that it carries."""
        return () if self._exchange is None else (self._exchange,)

    @property
    def is_free(self) -> bool:
        """Whether it takes a request."""
        return self._http.can_send and self.transport is not None

    def send(self, prepared: PreparedRequest, exchange: SentRequest) -> None:
        """Send a request; the connection is free."""
        transport = self.transport
        assert transport is not None
        is_plain = not (exchange.request_id or exchange.sequence_id or exchange.wants_timing)
        parts = prepared.whole if is_plain else prepared.varied(exchange)
        self._http.expect()
        self._exchange = exchange
        if len(parts) == 1:
            self.write(parts[0])
        else:
            transport.writelines(parts)
        exchange.sent_ns = time.monotonic_ns()

    def expire(self, before_ns: int, message: str) -> None:
        """Fail a request that has started before `before_ns`; only closing the connection cancels it."""
        if self._exchange is not None and self._exchange.start_ns < before_ns:
            self.has_served = True  # The server is there: the next connection needs no pause.
            self.abort(message)
            self.fail_outstanding(TIMEOUT, message)

    def abort(self, why: str = "") -> None:
        """Close the connection at once; its request fails."""
        self._target.withdraw(self)
        super().abort(why)

    def fail_outstanding(self, kind: str, message: str) -> None:
        """Fail the request, if there is one."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            fail(exchange, kind, message)

    def data_received(self, data: bytes) -> None:
        """Take received bytes."""
        # hot: bench/micro_perf.py
        now_ns = time.monotonic_ns()
        try:
            response = self._http.receive_data(data)
        except ResponseError as error:
            self.abort(str(error))
            return
        if response is not None:
            self._end(response, now_ns)

    def eof_received(self) -> None:
        """The server sends no more; a response without a length is complete."""
        try:
            response = self._http.receive_eof()
        except ResponseError as error:
            self.abort(str(error))
            return
        if response is None:
            self.abort("the server closed the connection")
        else:
            self._end(response, time.monotonic_ns())

    def _end(self, response: Response, now_ns: int) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return  # It has expired.
        self.has_served = True
        exchange.first_ns = exchange.end_ns = now_ns
        exchange.responses = 1
        if exchange.wants_timing:
            exchange.timing = response.headers.get(b"server-timing", b"").decode("latin-1")
        if response.status != _OK:
            exchange.failure = code_of_http(response.status).name.lower()
            message = decode_error(response.body)
            exchange.failure_message = message or f"the server answered with HTTP status {response.status}"
        elif response.headers.get(b"content-type", _JSON) not in _CONTENT_TYPES:
            _check_content_type(exchange, response)
        is_kept = not exchange.failure and exchange.keeps(len(response.body))
        if is_kept or (not exchange.failure and _OUTPUTS not in bytes(response.body[:_BEGIN_BYTES])):
            exchange.body_bytes = len(response.body)
            _keep_body(exchange, response)
        if self._http.can_send:
            self._target.freed(self)
        else:
            self.abort("the server closes the connection after its response")
        exchange.on_end(exchange)


def _check_content_type(exchange: SentRequest, response: Response) -> None:
    """Fail the request if the response is not of a type that carries tensors, with or without parameters."""
    content_type = response.headers[b"content-type"].split(b";")[0].strip().lower()
    if content_type not in _CONTENT_TYPES:
        exchange.failure = WRONG_ANSWER
        begin = bytes(response.body[:_SHOWN_BYTES]).decode("utf-8", "replace")
        exchange.failure_message = (
            f"status 200 with content type '{content_type.decode('latin-1')}', expected application/json or "
            f"application/octet-stream; the body begins with: {begin}"
        )


def _keep_body(exchange: SentRequest, response: Response) -> None:
    length = response.headers.get(b"inference-header-content-length")
    try:
        json_length = None if length is None else int(length[:20])
        request_id, decoded = decode_response(response.body, json_length)
        if not decoded.header.outputs and b'"error"' in bytes(response.body):
            raise ValueError("it has no outputs")
    except (InferError, ValueError) as error:
        exchange.failure = WRONG_ANSWER
        text = decode_error(response.body) if b'"error"' in bytes(response.body) else ""
        exchange.failure_message = (
            f"status 200 with an error: {text}" if text else f"the response cannot be decoded: {error}"
        )
        return
    if exchange.is_answered_by(decoded.header.model_name, request_id):
        exchange.body = [(decoded.header.outputs, decoded.data)]


class HttpTarget(SocketTarget[HttpConnection]):
    """A server behind HTTP/1.1: as many connections as requests are outstanding."""

    def __init__(self, service: ServerTarget) -> None:
        """Raises InferError(INVALID_ARG) for an address, a header or a TLS file that is wrong."""
        super().__init__(service, is_grpc=False)
        self._fields = [(b"Host", self._address.authority.encode()), *self._headers]
        self._heads = ResponseHeads()
        self._free: deque[HttpConnection] = deque()

    def prepare(self, template: RequestTemplate) -> PreparedRequest:
        """Encode a template. Raises InferError(INVALID_ARG) for one that HTTP cannot carry."""
        return PreparedRequest(self._service, self._fields, template)

    def send(self, prepared: Prepared, exchange: SentRequest) -> None:
        """Send a request over the connection that has been free for the longest time."""
        assert isinstance(prepared, PreparedRequest)
        exchange.start_ns = time.monotonic_ns()
        if self._free:
            self._free.popleft().send(prepared, exchange)
        else:
            self._enqueue(prepared, exchange)

    def freed(self, connection: HttpConnection) -> None:
        """Send the next request that waits over a connection, or keep it."""
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            self._free.append(connection)

    def withdraw(self, connection: HttpConnection) -> None:
        """Send no more requests over a connection."""
        if connection in self._free:
            self._free.remove(connection)

    def connection_lost(self, connection: HttpConnection) -> None:
        """Take a connection out and have another opened."""
        self.withdraw(connection)
        super().connection_lost(connection)

    async def close(self) -> None:
        """Close connections, also if the server does nothing; outstanding requests fail as `connection`."""
        self._free.clear()  # Thousands that are lost would be looked up one by one.
        await super().close()

    def _connection_count(self, outstanding: int) -> int:
        return outstanding

    def _make(self) -> HttpConnection:
        return HttpConnection(self, self._heads)

    def _use(self, opened: Sequence[HttpConnection]) -> None:
        for connection in opened:
            if connection.is_free:
                self.freed(connection)
