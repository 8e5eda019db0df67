"""Why nobody waits for an answer any more."""

import enum
from typing import Protocol

from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest


class Departure(enum.Enum):
    """What a transport tells those who work on an answer: the code it comes to, and the words for the log."""

    DISCONNECTED = (ErrorCode.CANCELLED, "the client went away")
    """The connection has ended."""
    CANCELLED = (ErrorCode.CANCELLED, "the client cancelled the request")
    """RST_STREAM."""
    DROPPED = (ErrorCode.CANCELLED, "the client was dropped because it does not take its answers")
    REFUSED = (ErrorCode.CANCELLED, "the call was ended because of what its client sent")
    DEADLINE = (ErrorCode.DEADLINE_EXCEEDED, "the deadline passed")

    def error(self, *, waited: bool) -> InferError:
        """Return the failure of a request that waited for an instance then, or else executed."""
        code, words = self.value
        return InferError(code, f"{words} while {'it waited' if waited else 'it was executed'}")


class CancellingEngine(Protocol):
    """What is asked of the engine when a client leaves."""

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a submitted request; True when it was dropped, False when something executes it."""


def version_of(request: InferRequest) -> str:
    """Return the version that serves a request, or the one it asked for."""
    return request.header.model_version if request.model is None else request.model.version
