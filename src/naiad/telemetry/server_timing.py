"""Where the time of one request goes, as its client reads it: the `Server-Timing` of a response (W3C Server Timing).

A request with the field `x-naiad-timing: 1` gets it. The parts are contiguous: their sum is the time from the first
byte of the request to the hand-over of its response to the transport. Other requests have no `RequestTiming`.
"""

import re
import time
from itertools import accumulate, pairwise
from typing import Final

from naiad.core.request import ExecutionTimes, InferRequest
from naiad.core.response import InferResponse

TIMING_FIELD: Final = b"x-naiad-timing"
"""The header field (HTTP), or the metadata entry (gRPC), of a request."""
TIMING_VALUE: Final = b"1"

_CACHE = "cache"
_PARTS = ("parse", "queue", "hold", _CACHE, "gather", "compute", "scatter", "encode")
_MAX_STEPS = 16
_MAX_NAME_CHARACTERS = 64
"""Together they bound the field: clients refuse long header lists."""
_NOT_IN_TOKEN = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")  # RFC 9110 5.6.2

_now_ns = time.monotonic_ns


class RequestTiming(ExecutionTimes):
    """The moments of a request that asks for its timing, in monotonic ns; 0 for what has not happened."""

    __slots__ = ("_answered_ns", "_first_byte_ns", "_is_cached", "_steps", "_submitted_ns")

    def __init__(self, first_byte_ns: int) -> None:
        super().__init__()
        self._first_byte_ns = first_byte_ns
        self._submitted_ns = 0
        self._answered_ns = 0
        self._is_cached = False
        self._steps: list[tuple[str, int]] = []

    def submit(self, request: InferRequest) -> None:
        """Note that a request is handed over to the engine, which fills in its execution."""
        request.times = self
        self._submitted_ns = _now_ns()

    def note_answer(self, response: InferResponse) -> None:
        """Note that the engine has responded."""
        self._answered_ns = _now_ns()
        self._is_cached = response.parameters.get(_CACHE) == "hit"

    def note_step(self, model: str, duration_ns: int) -> None:
        """Note a completed step of an ensemble."""
        if len(self._steps) < _MAX_STEPS:
            self._steps.append((model, duration_ns))

    def value(self) -> bytes:
        """Return the value of `Server-Timing` for a response that is sent now."""
        moments = accumulate((self._first_byte_ns, *self._boundaries(_now_ns())), max)
        fields = [
            f"{name};dur={_milliseconds(end_ns - begin_ns)}"
            for name, (begin_ns, end_ns) in zip(_PARTS, pairwise(moments), strict=True)
            if name != _CACHE or self._is_cached
        ]
        fields.append(f'clock;desc="{self._first_byte_ns}"')
        for model, duration_ns in self._steps:
            name = _NOT_IN_TOKEN.sub("_", model[:_MAX_NAME_CHARACTERS])
            fields.append(f"step_{name};dur={_milliseconds(duration_ns)}")
        return ", ".join(fields).encode()

    def _boundaries(self, now_ns: int) -> tuple[int, ...]:
        """Return the end of each part; a part without a duration may end before it begins."""
        submitted_ns = self._submitted_ns or now_ns
        answered_ns = self._answered_ns or now_ns
        taken_ns = self.exec_start_ns
        if taken_ns:
            scattered_ns = answered_ns if self.is_open else min(self.exec_end_ns, answered_ns)
            computed_ns = scattered_ns if self.is_open else min(self.compute_end_ns or scattered_ns, answered_ns)
            # An instance that took its next batch at once was never free.
            free_ns = min(self.free_ns or taken_ns, taken_ns)
            gathered_ns = self.compute_start_ns
            return submitted_ns, free_ns, taken_ns, 0, gathered_ns, computed_ns, scattered_ns, now_ns
        if self._is_cached:
            return submitted_ns, 0, 0, answered_ns, 0, 0, 0, now_ns
        if self._steps:
            return submitted_ns, 0, 0, 0, 0, answered_ns, 0, now_ns
        return submitted_ns, answered_ns, 0, 0, 0, 0, 0, now_ns  # rejected, or dropped from the queue


def _milliseconds(duration_ns: int) -> str:
    return f"{duration_ns // 1_000_000}.{duration_ns % 1_000_000:06}"
