"""A version whose responses are cached: it answers what was asked before, and asks the model the rest.

Requests for the same that come while the model works on it wait for its answer instead of asking again.
"""

import hashlib
import time
from collections.abc import Sequence
from functools import partial

from naiad.backend.api import Instance
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.response_cache import CachedResponse, ResponseStore
from naiad.engine.served import Served

_now_ns = time.monotonic_ns
_DIGEST_BYTES = 24
"""Two requests share a key by chance less than once in 10^28."""


class _Pending:
    """A request that the store or the model works on, and those that wait for the same answer."""

    __slots__ = ("leader", "lookup_ns", "waiting")

    def __init__(self, leader: InferRequest, lookup_ns: int) -> None:
        self.leader = leader
        self.lookup_ns = lookup_ns
        self.waiting: list[InferRequest] = []
        """Bounded by the requests in flight."""


class CachedModel:
    """Stands before a served version. Everything but `stop` and the counts is called on the event loop."""

    def __init__(self, served: Served, store: ResponseStore) -> None:
        self._served = served
        self._store = store
        self._pending: dict[bytes, _Pending] = {}
        self._error_header = ResponseHeader(served.name, served.version, ())
        self._headers: dict[object, ResponseHeader] = {}
        self._seed = f"{served.name}\0{served.version}".encode()
        self.name = served.name
        self.version = served.version
        self.config = served.config
        self.statistics = served.statistics
        self.labels = served.labels
        self.is_decoupled = False
        self.load_duration_ns = 0

    # --- called on the event loop -----------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Answer from the cache, wait for the answer to the same, or ask the model. Raises InferError as it does."""
        header = request.header
        if header.shared_memory or any(output.shared_memory is not None for output in header.outputs):
            self._served.submit(request)
            return
        start_ns = _now_ns()
        key = self._key(request)
        found = self._store.get(key)
        if found is not None:
            self._hit(request, found, start_ns)
            return
        pending = self._pending.get(key)
        if pending is not None:
            request.model = self
            pending.waiting.append(request)
            return
        pending = self._pending[key] = _Pending(request, _now_ns() - start_ns)
        request.model = self
        if self._store.fetch(key, partial(self._fetched, key, pending, start_ns)):
            return
        try:
            self._ask(key, pending, request)
        except InferError:
            del self._pending[key]
            raise

    def _key(self, request: InferRequest) -> bytes:
        """Return what the answer depends on, condensed.

        Triton: shapes, datatypes, parameters and requested outputs are not part of its key; here they are.
        """
        header = request.header
        memo = header.execution
        if memo is None or memo[0] is not self:
            memo = header.execution = (self, self._describe(header))
        digest = hashlib.blake2b(memo[1], digest_size=_DIGEST_BYTES)
        for data in request.data:
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.digest()

    def _describe(self, header: RequestHeader) -> bytes:
        inputs = [(spec.name, spec.datatype.value, spec.shape) for spec in header.inputs]
        outputs = [(output.name, output.classification) for output in header.outputs]
        parameters = sorted((name, type(value).__name__, value) for name, value in header.parameters.items())
        return self._seed + repr((inputs, outputs, parameters)).encode("utf-8", "surrogateescape")

    def _fetched(self, key: bytes, pending: _Pending, start_ns: int, found: CachedResponse | None) -> None:
        pending.lookup_ns = _now_ns() - start_ns
        request = pending.leader
        if found is not None:
            self._store_answered(key, pending, found, start_ns)
        elif request.cancelled:
            self._pass_on(key, pending)
        else:
            self._ask_or_fail(key, pending, request)

    def _store_answered(self, key: bytes, pending: _Pending, found: CachedResponse, start_ns: int) -> None:
        del self._pending[key]
        for request in (pending.leader, *pending.waiting):
            if not request.cancelled:
                self._hit(request, found, max(start_ns, request.arrival_ns))

    def _ask_or_fail(self, key: bytes, pending: _Pending, request: InferRequest) -> None:
        try:
            self._ask(key, pending, request)
        except InferError as error:
            request.on_response(request, InferResponse(self._error_header, error=error))
            self._pass_on(key, pending)

    def _ask(self, key: bytes, pending: _Pending, request: InferRequest) -> None:
        pending.leader = request
        answer = request.on_response
        request.on_response = partial(self._answered, key, pending, answer)
        try:
            self._served.submit(request)
        except InferError:
            request.on_response = answer
            raise

    def _answered(
        self,
        key: bytes,
        pending: _Pending,
        answer: "object",
        request: InferRequest,
        response: InferResponse,
    ) -> None:
        """Keep the model's answer, pass it on to all who wait for it."""
        request.on_response = answer  # type: ignore[assignment]  # what `_ask` has taken away
        if response.error is not None or request.cancelled:
            request.on_response(request, response)
            # The failure of one request says nothing about the others.
            self._pass_on(key, pending)
            return
        start_ns = _now_ns()
        kept = CachedResponse(response.header.outputs, [bytes(data) for data in response.data])
        self._store.put(key, kept)
        self._pending.pop(key, None)
        self.statistics.record_cache_miss(pending.lookup_ns + _now_ns() - start_ns)
        request.on_response(request, response)
        for waiting in pending.waiting:
            if not waiting.cancelled:
                self._hit(waiting, kept, waiting.arrival_ns)

    def _pass_on(self, key: bytes, pending: _Pending) -> None:
        """Let the next of those who wait ask."""
        waiting = [request for request in pending.waiting if not request.cancelled]
        pending.waiting = waiting[1:]
        if waiting:
            self._ask_or_fail(key, pending, waiting[0])
        else:
            self._pending.pop(key, None)

    def _hit(self, request: InferRequest, found: CachedResponse, start_ns: int) -> None:
        outputs = found.outputs
        header = self._headers.get(outputs)
        if header is None:
            if len(self._headers) > 1024:
                self._headers.clear()
            header = self._headers[outputs] = ResponseHeader(self.name, self.version, outputs)
        end_ns = _now_ns()
        self.statistics.record_cache_hit(request, end_ns - start_ns, end_ns)
        request.on_response(request, InferResponse(header, found.data))

    def cancel(self, request: InferRequest) -> None:
        """Answer a request that waits for another's answer or for the store; the others are the model's to cancel."""
        if request.model is not self:
            request.model.cancel(request)
            return
        request.cancelled = True
        error = InferError(ErrorCode.CANCELLED, "", reason=FailureReason.CANCELED)
        self.statistics.record_dropped(request, FailureReason.CANCELED, _now_ns())
        request.on_response(request, InferResponse(self._error_header, error=error))

    def blockers(self, request: InferRequest) -> Sequence[InferRequest]:
        """Return the request whose answer this one will get too, if there is one."""
        for pending in self._pending.values():
            if any(each is request for each in pending.waiting):
                return (pending.leader,)
        return ()

    def close_to_new_sequences(self) -> None:
        """Nothing to do: sequences are not cached."""

    # --- what the served version tells ------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""
        return self._served.pending_count

    @property
    def in_flight_count(self) -> int:
        """Requests that wait or execute; those that wait for the answer to the same are not counted."""
        return self._served.in_flight_count

    @property
    def live_sequence_count(self) -> int:
        """Sequences are not cached."""
        return 0

    @property
    def served(self) -> Served:
        """The version whose answers are kept."""
        return self._served

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances of the version."""
        return self._served.instances

    @property
    def health(self) -> str:
        """What the version says."""
        return self._served.health

    @property
    def lost_reason(self) -> str:
        """What the version says."""
        return self._served.lost_reason

    def stop(self, timeout_s: float) -> bool:
        """Stop the version; those who wait for its answers get them or its refusal."""
        return self._served.stop(timeout_s)
