"""The end of one HTTP/2 connection, and of calls that take too long: drain, age, keepalive, time limits, farewell.

Nothing here has a timer: the server sweeps its connections about every second.
"""

import asyncio
import logging
import random

from naiad.core.errors import excerpt
from naiad.core.ports import Loop
from naiad.frontend.exchange import GrpcService
from naiad.frontend.farewell import FAREWELL_S, Delivery, Farewell, undelivered_bytes
from naiad.frontend.http2_answering import Http2Answering
from naiad.frontend.http2_call import Http2Call
from naiad.frontend.http2_clock import Http2Clock
from naiad.wire.grpc import GrpcError, GrpcStatus
from naiad.wire.http2 import Http2Connection
from naiad.wire.http2_frames import Http2Code, Http2Error
from naiad.wire.keepalive import Keepalive, KeepaliveStep
from naiad.wire.limits import Http2Limits
from naiad.wire.preface import is_http1

_log = logging.getLogger(__name__)

_HTTP1_TEXT = b"This port speaks gRPC (HTTP/2). REST is served on the HTTP port (--http-port, 8000 by default).\n"
_HTTP1_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_HTTP1_TEXT), _HTTP1_TEXT)
)


class Http2Ending:
    """Ends a connection: when its last call is answered, when its peer is too slow or breaks the protocol."""

    def __init__(
        self,
        service: GrpcService,
        limits: Http2Limits,
        connection: Http2Connection[Http2Call],
        answering: Http2Answering,
        now_ns: int,
    ) -> None:
        self._service = service
        self._limits = limits
        self._connection = connection
        self._answering = answering
        self._output = answering.output
        self._begin_ns = now_ns
        self._clock = Http2Clock(limits, now_ns)
        # gRPC: ages differ by a tenth up or down, so that clients do not come back all at once.
        self._keepalive = Keepalive(limits.keepalive, now_ns, random.uniform(0.9, 1.1))
        self._ends_streams = False
        self._drain_sweeps = 0
        self._is_lingering = False
        self._linger_sweeps = 0
        self._delivery = Delivery(limits.write_timeout_s)
        self._farewell: Farewell | None = None
        """Once the connection is closed."""

    # --- at its last answer -------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more calls, and have streaming ones end."""
        self._ends_streams = True
        self._connection.start_drain()
        self._drain_streams()

    def _drain_streams(self) -> None:
        """Have streaming calls end, which else would last as long as their clients like."""
        for call in list(self._connection.streams.values()):
            if call.is_streaming and not call.is_local_closed:
                self._service.stream_draining(call)

    def close_if_drained(self, transport: asyncio.Transport) -> None:
        """Close once the peer has the last answer.

        A socket that is closed answers what still comes, a WINDOW_UPDATE say, with a reset, and the kernel then drops
        what it has not delivered. So this side says that it is done and reads on until the peer, which has been sent
        GOAWAY, closes; not for long.
        """
        if self._is_lingering or not self._connection.is_drained:
            return
        if not (self._clock.has_sent_lately(self._output.data_count) or undelivered_bytes(transport)):
            transport.close()
            return
        self._is_lingering = True
        self._answering.stop()
        self._connection.close()
        if transport.can_write_eof():  # not with TLS
            transport.write_eof()

    # --- for another connection ---------------------------------------------------------------------------------

    def idle_since_ns(self, heard_ns: int) -> int:
        """Return since when there has been no call; 0 when there is one, or the connection ends already."""
        has_ended = self._is_lingering or self._connection.is_draining
        return 0 if has_ended or self._connection.streams else heard_ns or self._begin_ns

    def make_way(self, transport: asyncio.Transport, loop: Loop) -> None:
        """Close for a new connection; GOAWAY tells the peer that nothing it sends now is served."""
        self._connection.finish_drain()
        self.end(transport)
        loop.call_later(FAREWELL_S, transport.abort)  # over TLS the peer has to close, too

    # --- at a mistake of the peer's -----------------------------------------------------------------------------

    def fail(self, transport: asyncio.Transport, error: Http2Error, data: bytes) -> None:
        """Close after a connection error, which `data` held."""
        if not self._connection.is_set_up and is_http1(data):
            self._output.take()
            transport.write(_HTTP1_ANSWER)
        _log.info("HTTP/2 connection closed: %s", excerpt(str(error)))
        self.end(transport)

    def end(self, transport: asyncio.Transport) -> None:
        """Write what there is, and close."""
        self._answering.flush()
        self._answering.stop()
        transport.close()

    # --- after a time -------------------------------------------------------------------------------------------

    def sweep(self, transport: asyncio.Transport, now_ns: int, heard_ns: int, *, is_reading: bool) -> None:
        """Enforce the time limits; `heard_ns` is when the peer last sent anything."""
        if transport.is_closing():
            self._check_farewell(transport, now_ns)
            return
        if self._is_lingering:
            self._sweep_lingering(transport, now_ns)
            return
        connection, clock = self._connection, self._clock
        if not is_reading or connection.windows.is_held:
            clock.excuse(now_ns)
        unsent_bytes = transport.get_write_buffer_size() and undelivered_bytes(transport)
        clock.note_sent(self._output.data_count, now_ns)
        if self._delivery.is_too_slow(transport, unsent_bytes, now_ns):
            _log.info("HTTP/2 connection dropped: its client takes its answers too slowly")
            transport.abort()
        elif not connection.is_set_up and clock.setup_is_late(now_ns):
            connection.fail(Http2Code.SETTINGS_TIMEOUT, "no preface and SETTINGS in time")
            self.end(transport)
        elif clock.frame_is_late(connection.incomplete_since_ns, now_ns):
            connection.fail(Http2Code.ENHANCE_YOUR_CALM, "a frame was not completed in time")
            self.end(transport)
        # A peer whose bytes are not read may have answered.
        elif self._lives_on(transport, now_ns, heard_ns if is_reading else now_ns):
            self._sweep_calls(now_ns)
            self._answering.flush()
            self.close_if_drained(transport)

    def _check_farewell(self, transport: asyncio.Transport, now_ns: int) -> None:
        if self._farewell is None:
            self._farewell = Farewell(self._limits.write_timeout_s)
        if self._farewell.is_over(transport, now_ns):
            transport.abort()

    def _sweep_lingering(self, transport: asyncio.Transport, now_ns: int) -> None:
        undelivered = undelivered_bytes(transport)
        if self._delivery.is_too_slow(transport, undelivered, now_ns):
            transport.abort()
        elif not undelivered:
            self._linger_sweeps += 1
            if self._linger_sweeps > 1:
                transport.close()

    def _lives_on(self, transport: asyncio.Transport, now_ns: int, heard_ns: int) -> bool:
        """Take care of keepalive and age; false when the connection was dropped."""
        streams = self._connection.streams
        step = self._keepalive.next_step(now_ns, heard_ns, self._output.data_count, has_calls=bool(streams))
        if step is KeepaliveStep.PING:
            self._connection.ping()
        elif step is KeepaliveStep.RETIRE:
            self._connection.start_drain()
        elif step is not KeepaliveStep.NOTHING:
            why = "no answer to a keepalive PING" if step is KeepaliveStep.DEAD else "the grace of its age is over"
            _log.info("HTTP/2 connection with %d open calls dropped: %s", len(streams), why)
            transport.abort()
            return False
        return True

    def _sweep_calls(self, now_ns: int) -> None:
        streams = self._connection.streams
        for call in self._clock.slow_bodies(streams.values(), now_ns):
            text = f"the request is too slow: {call.body_bytes} bytes of it have come"
            self._answering.refuse(call, GrpcError(GrpcStatus.DEADLINE_EXCEEDED, text))
        for call in self._clock.slow_readers(streams.values(), self._output, now_ns):
            self._answering.give_up(call)
        if self._ends_streams:
            self._drain_streams()
        if self._connection.is_draining:
            self._drain_sweeps += 1
            if self._drain_sweeps > 1:  # a whole second: the peer has not answered the first GOAWAY's PING
                self._connection.finish_drain()
