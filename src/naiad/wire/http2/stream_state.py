"""One HTTP/2 stream: what both directions know of it."""

from collections import deque

from naiad.wire.http2.headers import Head


class Stream:
    """A stream; transports derive their calls from it, so a request costs one object.

    A stream is in the connection's table until both sides have ended it or one side has reset it.
    """

    __slots__ = (
        "accepted_bytes",
        "end_block",
        "head",
        "id",
        "is_held",
        "is_local_closed",
        "is_remote_closed",
        "queue",
        "queued_bytes",
        "receive_window",
        "received_bytes",
        "window_offset",
    )

    def __init__(self, stream_id: int, head: Head, receive_window: int) -> None:
        self.id = stream_id
        self.head = head
        """Of what the peer sends: the request on a server, the response on a client."""
        self.window_offset = 0
        """The window for sending, less the peer's SETTINGS_INITIAL_WINDOW_SIZE, whose changes thus cost nothing."""
        self.receive_window = receive_window
        self.received_bytes = 0
        """Body bytes so far, padding left out. Stays 0 for a request that came in one piece."""
        self.is_held = False
        """The peer gets no more window for this stream: what it has sent is not taken yet."""
        self.is_remote_closed = False
        self.is_local_closed = False
        """Nothing more may be sent: the end is sent or queued, or the stream was reset."""
        self.queue: deque[memoryview] | None = None
        """Pieces that wait for a window; None or non-empty."""
        self.queued_bytes = 0
        self.accepted_bytes = 0
        """What was ever queued: without `queued_bytes` it is what the peer has taken of it."""
        self.end_block: bytes | None = None
        """Trailers that follow the queue; b"" for an end without trailers, None while the answer goes on."""
