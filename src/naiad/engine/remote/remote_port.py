"""Other servers, as the engine reaches them; `naiad.server` has the transport."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer

if TYPE_CHECKING:
    from naiad.config.model_config_pb2 import ModelConfig
    from naiad.config.remote_settings import RemoteAccess


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """Why a request has no response."""

    error: InferError
    has_begun: bool = True
    """Whether the other server may have executed it, or part of it."""
    is_away: bool = False
    """Whether there was no connection."""


OnRemote = Callable[[InferResponse | RemoteFailure], object]
"""Called on the loop, once, unless the request is cancelled before."""
OnStream = Callable[[InferResponse | RemoteFailure | None], object]
"""Called on the loop for each response of a decoupled model, and once at the end of all: with a failure, or None.

Not any more after the request is cancelled.
"""


class Cancellable(Protocol):
    """A request in progress."""

    def cancel(self) -> object:
        """Cancel it, also on the other server; nothing is called back."""


class RemoteServer(Protocol):
    """One other server."""

    url: str

    def submit(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        *,
        timeout_s: float,
        traceparent: str,
        on_done: OnRemote,
    ) -> Cancellable:
        """Send a request; `on_done` is called later, never from here. On the loop only."""

    def stream(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        *,
        timeout_s: float,
        deadline_s: float | None,
        traceparent: str,
        is_paused: Callable[[], bool],
        on_stream: OnStream,
    ) -> Cancellable:
        """Send a request of a decoupled model. On the loop only; nothing is called back from here.

        `timeout_s` is the limit for each response, `deadline_s` for all of them. While `is_paused`, no response is
        taken, and the other server waits.
        """

    def describe(self, model: str, version: str) -> "Future[ModelConfig]":
        """Begin to ask for the configuration of a model that is ready there; the future has it, or an InferError.

        Callable on any thread.
        """

    def close(self) -> None:
        """Close the connections. On the loop only."""


class RemotePort(Protocol):
    """Makes connections to other servers."""

    def connect(self, url: str, access: "RemoteAccess") -> RemoteServer:
        """Return a server, without connecting yet.

        Raises InferError(INVALID_ARG) for a wrong address, and for a file that cannot be read.
        """
