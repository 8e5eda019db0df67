"""A request and its responses as the generator sees them, and the interface of what requests are sent to.

The generator prepares a `RequestTemplate` once for each target. For each request it makes a `SentRequest`, fills in
its variation, and calls `Target.send`, which returns at once. The target fills in the times and calls `on_end`,
once, on the event loop. All times are CLOCK_MONOTONIC in ns.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from naiad.core.request import RequestHeader
from naiad.core.tensor import Array, Buffer, TensorSpec

Body: TypeAlias = list[tuple[Sequence[TensorSpec], Sequence[Buffer]]]
"""Output specs and data of each response to a request."""

CONNECTION, TIMEOUT, UNANSWERED, WRONG_ANSWER = "connection", "timeout", "unanswered", "wrong_answer"
"""Kinds of failure that no server reports."""


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """A request that is sent many times: everything but its id and its place in a sequence."""

    header: RequestHeader
    data: Sequence[Buffer]
    """One buffer per input; empty for an input in shared memory."""
    expected: Mapping[str, Array] = field(default_factory=dict)
    """Outputs that a response must equal, for validation."""
    source: str = ""
    """Where the data comes from, for error messages: `data.json step 3`."""
    route: int = 0
    """Which of the services of the run it goes to; only a replay has more than one."""


class RightAnswers(set[int]):
    """Sizes of right responses to a template; of many sizes all between the least and the greatest count as known."""

    _LIMIT = 32
    models: Sequence[str] = ()
    """The names of the model that a response may have; none if any name is right."""
    is_single = False
    """Each request has exactly one response: the model is not decoupled."""
    least = greatest = -1
    """Of the sizes that count as known without being here; -1 for none."""

    def __contains__(self, size: object) -> bool:
        """Whether a response of a size needs no check."""
        return super().__contains__(size) or (isinstance(size, int) and self.least <= size <= self.greatest)

    def add(self, size: int) -> None:
        """Note the size of a right response."""
        if self.greatest >= 0:
            self.least, self.greatest = min(self.least, size), max(self.greatest, size)
            return
        super().add(size)
        if len(self) >= self._LIMIT:
            self.least, self.greatest = min(self), max(self)


_ANY = RightAnswers()
_ANY.least, _ANY.greatest = 0, sys.maxsize


class SentRequest:
    """One request in progress and what became of it."""

    __slots__ = (
        "body",
        "body_bytes",
        "end_ns",
        "failure",
        "failure_message",
        "first_ns",
        "gaps_ns",
        "intended_ns",
        "model_index",
        "on_end",
        "on_response",
        "request_id",
        "responses",
        "right_answers",
        "sent_ns",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "slot",
        "start_ns",
        "template_index",
        "timing",
        "wants_body",
        "wants_timing",
    )

    def __init__(self, on_end: "Callable[[SentRequest], object]") -> None:
        self.on_end = on_end
        """Called when the last response has arrived, or the request has failed."""
        self.on_response: Callable[[SentRequest], object] | None = None
        """Called after each response of a stream, `on_end` not included."""
        self.model_index = 0
        self.template_index = 0
        self.slot = 0
        """Number of the outstanding request: each has its own outputs in shared memory."""
        self.request_id = ""
        self.sequence_id = 0
        """0 for no sequence."""
        self.sequence_start = False
        self.sequence_end = False
        self.wants_timing = False
        """Ask the server for its times with this request."""
        self.wants_body = False
        """Keep the response for validation or export."""
        self.intended_ns = 0
        """When the load wanted it to leave; `start_ns` in a closed loop."""
        self.start_ns = 0
        """Before the request is encoded."""
        self.sent_ns = 0
        """After it was handed to the socket."""
        self.first_ns = 0
        """When the first response had arrived."""
        self.end_ns = 0
        """When the last response had arrived, or the request failed."""
        self.responses = self.body_bytes = 0
        self.gaps_ns: list[int] | None = None
        """Decoupled models: times between responses."""
        self.failure = ""
        """The kind of the failure: an ErrorCode's value, or one of those that no server reports (`connection`,
        `timeout`, `unanswered`, `wrong_answer`, `validation`); "" for success."""
        self.failure_message = ""
        self.timing = ""
        """The value of `server-timing`, if the server has sent one."""
        self.body: Body | None = None
        """With `wants_body`, or when the response has a size that is not known."""
        self.right_answers = _ANY
        """What is known of right responses to the same template; `body_bytes` is the size of the last one kept."""

    def keeps(self, size_bytes: int) -> bool:
        """Whether a response is kept: it is wanted, or the first one of its size, which is to be checked."""
        if not self.wants_body and size_bytes in self.right_answers:
            return False
        self.body_bytes = size_bytes
        return True

    def is_answered_by(self, model: str, request_id: str) -> bool:
        """Whether a response is to this request; if not, it is a wrong answer. Servers may leave out both names."""
        wrong, models = "", self.right_answers.models
        if model and models and model not in models:
            wrong = f"model '{model}' has answered in place of '{models[0]}'"
        elif request_id and self.request_id and request_id != self.request_id:
            wrong = f"the response has the id '{request_id}', the request '{self.request_id}'"
        if wrong:
            self.failure, self.failure_message = WRONG_ANSWER, wrong
        return not wrong


class Prepared(Protocol):
    """A template in the form of its target; opaque to the generator."""


class Target(Protocol):
    """What requests are sent to: a server over one protocol, or a model in this process.

    Belongs to one event loop. Connections are opened by `open` and again when they break; requests that were on a
    broken connection fail as `connection`.
    """

    async def open(self, connections: int) -> None:
        """Connect; `connections` is the number of requests that will be outstanding at once.

        Raises naiad.client.ConnectionFailedError.
        """

    def prepare(self, template: RequestTemplate) -> Prepared:
        """Encode a template."""

    def send(self, prepared: Prepared, exchange: SentRequest) -> None:
        """Send a request; `exchange.on_end` is called later, never before this returns."""

    async def close(self) -> None:
        """Close connections; outstanding requests fail as `connection`."""
