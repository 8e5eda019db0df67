"""Limits of an HTTP/1.1 endpoint: how much a peer may send, and how long it may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Http1Limits:
    """Limits per connection unless said otherwise; times are seconds."""

    head_bytes: int = 32768
    """Request line and fields together; 431 beyond (414 when the request line alone is too long)."""
    target_bytes: int = 8192
    """The request target; 414 beyond."""
    header_count: int = 128
    """Fields of a request; 431 beyond."""
    body_bytes: int = 1 << 34
    """The body of a request; 413 beyond. Binary tensors are large, and memory is only taken for what arrives."""
    chunk_count: int = 65536
    """Chunks of one body with chunked coding; 400 beyond."""
    pipelined_requests: int = 32
    """Requests that wait for their answers; reading pauses at this number."""
    write_buffer_bytes: int = 1 << 20
    """Unsent bytes at which reading pauses until the peer has taken most of them."""
    streamed_bytes: int = 64 << 20
    """Unsent bytes of a streamed answer at which a peer that does not take them is dropped."""
    connections: int = 16384
    """Open connections of one endpoint; beyond it the longest idle is closed, or else the new one, with 503."""
    head_timeout_s: float = 30.0
    """From the first byte of a request to the end of its fields; 408 beyond."""
    first_byte_timeout_s: float = 30.0
    """From the connection to the first byte of a request; it is closed beyond."""
    body_timeout_s: float = 60.0
    """How far a body may fall behind `body_rate_bytes_per_s`; 408 beyond."""
    body_rate_bytes_per_s: int = 16384
    idle_timeout_s: float = 600.0
    """Between two requests of a connection; it is closed beyond."""
    send_timeout_s: float = 60.0
    """How far a peer may fall behind in taking its answers, at 1 KiB/s; the connection is dropped beyond."""
    linger_s: float = 2.0
    """How long a refused peer may send nothing before the connection is dropped."""
    linger_most_s: float = 30.0
    """How long a refused peer may go on sending, so that it finds the answer when it has sent its body."""
