"""A batch: the requests that one instance executes together, and the times of that execution.

`SequenceEnd` reports the end of a sequence that its model has not seen: no request had the END flag.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import Buffer

if TYPE_CHECKING:
    from naiad.core.response import InferResponse


class LateResponses(Protocol):
    """Accepts the responses of requests that stay open after their batch was executed."""

    def open(self, requests: Sequence[InferRequest], owner: object) -> None:
        """Open requests of a batch; `owner` is the instance that will respond to them."""

    def emit(self, request: InferRequest, response: "InferResponse") -> None:
        """Send a response to an open request; callable from any thread."""


class Batch:
    """Requests in arrival order with the total of their rows.

    The scheduler makes it, the instance thread fills in the times (monotonic ns), statistics read them:
    exec_start <= compute_start <= compute_end <= exec_end.
    """

    __slots__ = (
        "compute_end_ns",
        "compute_start_ns",
        "decision",
        "emit",
        "exec_end_ns",
        "exec_start_ns",
        "free_ns",
        "is_answered",
        "late",
        "left_open",
        "release_reason",
        "replaced",
        "requests",
        "size",
        "slots",
    )

    def __init__(self, requests: Sequence[InferRequest], size: int, release_reason: str = "idle") -> None:
        self.requests = requests
        self.size = size
        """Total rows over all requests."""
        self.release_reason = release_reason
        """Why the scheduler closed the batch: full, preferred, delay, shape, strategy, priority, idle."""
        self.decision = ""
        """Adaptive batchers only: one of `core.model.DECISIONS`."""
        self.emit: Callable[[InferRequest, InferResponse], None] | None = None
        """Decoupled models only: sends one response of a request, from any thread, also after `execute` has returned,
        until the `final` one."""
        self.late: LateResponses | None = None
        """Ordinary models only: accepts responses after `execute` has returned; None if the batch waits for them."""
        self.left_open: Sequence[InferRequest] = ()
        """Requests whose responses come through `late`; `core.response.LATE` is in their place."""
        self.replaced: list[tuple[object, Sequence[tuple[RequestHeader, Sequence[Buffer]]]]] = []
        """The applied transforms with the headers and data that they replaced, in order; undone in reverse order."""
        self.slots: Sequence[int] = ()
        """Direct sequences only: the row of each request, ascending; other rows stay empty."""
        self.is_answered = False
        """Whether its responses were handed over: the last resort of a runner answers no request twice."""
        self.free_ns = 0
        """Since when the instance had been free; 0 if it took this batch as soon as it had executed another one."""
        self.exec_start_ns = 0
        self.compute_start_ns = 0
        self.compute_end_ns = 0
        self.exec_end_ns = 0

    def begin_transform(self, transform: object) -> None:
        """Note the headers and data of the requests, which a transform is about to replace."""
        self.replaced.append((transform, [(request.header, request.data) for request in self.requests]))

    def end_transform(self, transform: object) -> Sequence[tuple[RequestHeader, Sequence[Buffer]]]:
        """Return the headers and data of `begin_transform`, once; nothing if the transform was not begun."""
        if not self.replaced or self.replaced[-1][0] is not transform:
            return ()
        return self.replaced.pop()[1]


EndReason: TypeAlias = Literal["expired", "cancelled"]
"""The sequence was idle for too long, or one of its requests was cancelled while it waited."""


class SequenceEnd(NamedTuple):
    """A sequence whose state is no longer needed."""

    correlation_id: int | str
    reason: EndReason
