"""Shadow copies: requests that the canary executes for comparison. Clients never see their responses.

Theory of operation. When the response of stable has gone to the client, the copy is submitted in a later turn of the
event loop, so it does not delay that response. It refers to the data of the client's request, which nothing changes
after the request was received. Copies are the first work to be dropped: none is made while requests queue at stable
or requests of clients queue at the canary, beyond a number, or beyond a number of bytes.
"""

import logging
import time
from concurrent.futures import ThreadPoolExecutor

from naiad.config.rollout.guard import DIFFERENT, EQUAL, FAILED, SKIPPED
from naiad.config.rollout.splitter import EvenSplit, threshold
from naiad.core.device_tensor import DeviceTensor
from naiad.core.environment.ports import Loop
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.engine.rollout.response_comparison import ResponseComparison
from naiad.engine.rollout.sides import CanaryHeaders, RolloutTotals
from naiad.engine.serving.served import Served
from naiad.telemetry.last_resort import report

_log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 64
MAX_BYTES = 64 << 20
"""Limits of the copies of a model: number, and bytes of their requests and of the responses to compare with."""
_QUEUED_PER_INSTANCE = 2
"""Requests that may wait at stable, for each of its instances, before copies are dropped."""
_LARGE_BYTES = 1 << 18
"""Longer responses are compared on a thread: the event loop compares this size in less than a millisecond."""

_pool = ThreadPoolExecutor(1, thread_name_prefix="shadow")
"""Its queue is bounded by the copies in flight. The thread starts with the first long response."""


class ShadowCopies:
    """Copies a share of the requests of stable to the canary. All methods are called on the event loop."""

    def __init__(
        self,
        stable: Served,
        canary: Served,
        *,
        percent: float,
        rtol: float,
        atol: float,
        loop: Loop,
        totals: RolloutTotals,
    ) -> None:
        self._stable = stable
        self._canary = canary
        self._share = threshold(percent)
        self._split = EvenSplit()
        self._comparison = ResponseComparison(rtol, atol)
        self._loop = loop
        self._in_flight = 0
        self._held_bytes = 0
        self.results: dict[str, int] = dict.fromkeys((EQUAL, DIFFERENT, FAILED, SKIPPED), 0)
        self._totals = totals
        self._headers = CanaryHeaders()

    def is_between(self, stable: Served, canary: Served) -> bool:
        """Return whether these are the versions that it copies from and to."""
        return self._stable is stable and self._canary is canary

    def offer(self, request: InferRequest, response: InferResponse) -> None:
        """Copy a request of a client that has got its response from stable, if it belongs to the share."""
        # hot: once a request of a model with shadow copies
        if not self._split.takes(self._share):
            return
        size_bytes = (
            sum(map(len, request.data)) + sum(map(len, response.data)) if self._fits(request, response) else -1
        )
        if size_bytes < 0 or self._held_bytes + size_bytes > MAX_BYTES or self._is_busy():
            self._count(SKIPPED)
            return
        self._in_flight += 1
        self._held_bytes += size_bytes
        self._loop.call_soon(self._submit, _Shadow(request, response, size_bytes, self))

    def _fits(self, request: InferRequest, response: InferResponse) -> bool:
        """Return whether a request can be repeated: without effects on sequences, and without foreign memory."""
        header = request.header
        if not header.is_plain or header.sequence_id or self._canary.is_decoupled or header.is_on_device:
            return False
        return not any(isinstance(data, DeviceTensor) for data in (*request.data, *response.data))

    def _is_busy(self) -> bool:
        if self._in_flight >= MAX_IN_FLIGHT or self._canary.health:
            return True
        if self._canary.pending_count > self._in_flight:
            return True  # requests of clients wait there
        return self._stable.pending_count > _QUEUED_PER_INSTANCE * max(1, len(self._stable.instances))

    def _submit(self, shadow: "_Shadow") -> None:
        try:
            self._canary.submit(shadow.copy(self._headers))
        except InferError as error:
            # The canary is full, or it is being replaced.
            self._end(shadow, SKIPPED if error.code is ErrorCode.UNAVAILABLE else FAILED)

    def take(self, shadow: "_Shadow", response: InferResponse) -> None:
        """Compare the final response of a copy."""
        if response.error is not None:
            is_withdrawn = response.error.code is ErrorCode.CANCELLED
            self._end(shadow, SKIPPED if is_withdrawn else FAILED)
        elif sum(map(len, response.data)) > _LARGE_BYTES:
            _pool.submit(self._compare_on_thread, shadow, response)
        else:
            self._end(shadow, self._compare(shadow, response))

    def _compare(self, shadow: "_Shadow", response: InferResponse) -> str:
        try:
            return EQUAL if self._comparison.are_equal(shadow.expected, response) else DIFFERENT
        except InferError:
            return FAILED  # a tensor whose data does not fit its shape

    def _compare_on_thread(self, shadow: "_Shadow", response: InferResponse) -> None:
        result = FAILED
        try:
            result = self._compare(shadow, response)
        except BaseException as error:
            report("comparing the response of a shadow copy", error)
        try:
            self._loop.call_soon_threadsafe(self._end, shadow, result)
        except RuntimeError:
            _log.debug("a shadow copy was compared after the event loop had ended")

    def _end(self, shadow: "_Shadow", result: str) -> None:
        self._in_flight -= 1
        self._held_bytes -= shadow.size_bytes
        self._count(result)

    def _count(self, result: str) -> None:
        self.results[result] += 1
        self._totals.shadow[result] += 1


class _Shadow:
    """A copy in flight."""

    __slots__ = ("_copies", "_request", "expected", "size_bytes")

    def __init__(self, request: InferRequest, expected: InferResponse, size_bytes: int, copies: ShadowCopies) -> None:
        self._request = request
        self.expected = expected
        self.size_bytes = size_bytes
        self._copies = copies

    def copy(self, headers: CanaryHeaders) -> InferRequest:
        """Return the request for the canary; `headers` has its copies of headers."""
        source = self._request
        header = headers.get(source.header)
        if header is None:
            header = source.header.for_other_version()
            headers.keep(source.header, header)
        copy = InferRequest(header, source.data, self._take, id=source.id, arrival_ns=time.monotonic_ns())
        copy.element_counts = source.element_counts
        return copy

    def _take(self, request: InferRequest, response: InferResponse) -> None:
        if response.final:
            self._copies.take(self, response)
