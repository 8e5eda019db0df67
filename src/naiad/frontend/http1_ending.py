"""The end of an HTTP/1.1 connection: its peer sends no more, was refused, or takes what is left of its answers."""

import asyncio
import socket

from naiad.frontend.farewell import FAREWELL_S, Farewell
from naiad.frontend.http1_answer import CONTINUE
from naiad.frontend.http1_answering import AnswerLine
from naiad.frontend.http1_clock import PhaseClock
from naiad.frontend.http1_endpoint import Http1Endpoint

_PROBE_S, _PROBE_ANSWER_S = 0.05, 0.02
"""Who sends no more and is not answered within the first is asked whether it listens; after the second we look."""


class Ending:
    """What a connection knows of its end."""

    __slots__ = (
        "_answers",
        "_clock",
        "_endpoint",
        "_farewell",
        "_linger_end_ns",
        "has_heard",
        "is_cutting_off",
        "is_half_closed",
        "is_lingering",
        "transport",
    )

    def __init__(self, endpoint: Http1Endpoint, clock: PhaseClock, answers: AnswerLine) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._answers = answers
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set when the connection is made
        self.is_cutting_off = False
        """No request follows, and the peer may still be sending: its request was refused, or the server drains."""
        self.is_lingering = False
        """Read to the end, after a refusal."""
        self.has_heard = False
        """While it lingers, the peer has sent something since the last check."""
        self._linger_end_ns = 0
        self.is_half_closed = False
        """The peer sends no more, and waits for its answers or has gone."""
        self._farewell: Farewell | None = None
        """Once the connection is closed, or lingers."""

    # --- the peer sends no more -------------------------------------------------------------------------------------

    def half_close(self) -> bool:
        """Go on for a peer that waits for answers and sends no more; false when it counts as gone.

        One that has closed its socket looks the same until something is sent to it. Once a streamed answer has begun
        nothing can be sent but what the model makes, so that its client has to stay (Triton: as well). TLS has no
        half-closed connections.
        """
        exchanges = self._answers.exchanges
        if exchanges[0].has_begun or not self.transport.can_write_eof():
            return False
        self.is_half_closed = True
        self.is_cutting_off = False
        exchanges[-1].keep_alive = False
        self._endpoint.call_later(_PROBE_S, self._probe)
        return True

    def _probe(self) -> None:
        """Send an interim response, which a socket that was closed answers with a reset (RFC 9293 3.10.7)."""
        exchanges = self._answers.exchanges
        first = exchanges[0] if exchanges else None
        # RFC 9110 15.2: never one of those to HTTP/1.0, nor after the beginning of the final one.
        if first is not None and not (first.is_http_1_0 or first.has_begun or self.transport.is_closing()):
            self._answers.send([CONTINUE])
            self._endpoint.call_later(_PROBE_ANSWER_S, self.drop_if_reset)

    def drop_if_reset(self) -> None:
        """Drop the connection when its peer has gone."""
        # The loop does not look at a socket that is read to its end.
        connected: socket.socket | None = self.transport.get_extra_info("socket")
        if self.transport.is_closing() or connected is None:
            return
        if connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()

    # --- the last answer has been written ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Close, or linger while the refused peer may still be sending."""
        if self.is_cutting_off and self.transport.can_write_eof():
            # Closing with unread input would reset the connection and take the answer from the peer (RFC 9112 9.6).
            self.is_lingering = True
            self.transport.write_eof()
            self._clock.restart()
        else:
            self.transport.close()

    @property
    def has_begun(self) -> bool:
        """Whether the connection lingers, or is closed and its peer takes what is left."""
        return self.is_lingering or self.transport.is_closing()

    def check(self, now_ns: int) -> None:
        """Drop a peer that has had its time, once the end has begun."""
        limits = self._endpoint.limits
        if not self._linger_end_ns:
            self._linger_end_ns = now_ns + int(limits.linger_most_s * 1e9)
        if self._farewell is None or (self.has_heard and now_ns < self._linger_end_ns):
            self.has_heard = False
            self._farewell = Farewell(limits.send_timeout_s)
        limit_s = limits.linger_s if self.is_lingering else FAREWELL_S
        if self._farewell.is_over(self.transport, now_ns, limit_s):
            self.transport.abort()
