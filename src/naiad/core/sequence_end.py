"""The end of a sequence that its model has not seen: no request had the END flag."""

from typing import Literal, NamedTuple, TypeAlias

EndReason: TypeAlias = Literal["expired", "cancelled"]
"""It was idle for too long, or a request of it was cancelled while it waited."""


class SequenceEnd(NamedTuple):
    """A sequence whose state nobody needs any more."""

    correlation_id: int | str
    reason: EndReason
