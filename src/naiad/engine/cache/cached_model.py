"""A version with cached responses: it answers repeated requests from the store, and sends the rest to the model.

Requests that equal one in progress wait for its response (request coalescing).
"""

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count

from naiad.core.environment.model_call import ModelCall
from naiad.core.errors import FailureReason, InferError, cancelled_request
from naiad.core.parameters import ParameterValue
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.cache.response_store import CachedResponse, ResponseStore, Share
from naiad.engine.serving.served import Served, ServedProxy

_now_ns = time.monotonic_ns
_DIGEST_BYTES = 24
"""Two requests share a key by chance less than once in 10^28."""
ORIGIN = "cache"
"""Parameter of a response: "hit" for a cached response, "miss" for a response of the model."""
_HIT: Mapping[str, ParameterValue] = {ORIGIN: "hit"}
_MISS: Mapping[str, ParameterValue] = {ORIGIN: "miss"}
_loads = count()


class _Pending:
    """A key in progress at the store or the model, and the requests that wait for it."""

    __slots__ = ("asked", "is_asking", "key", "lookup_ns", "waiting")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.is_asking = False
        """Whether a call is already submitting to the model, up the stack."""
        self.asked: SharedRequest | None = None
        """The request at the model. Cancelling one waiting request does not cancel it for the other ones."""
        self.lookup_ns = 0
        self.waiting: dict[InferRequest, None] = {}
        """In order of arrival; the model gets the first. Bounded by the requests in flight."""


class SharedRequest(InferRequest):
    """The request to the model on behalf of all requests that wait for the same response."""

    __slots__ = ("pending",)

    pending: _Pending

    @property
    def source(self) -> InferRequest | None:
        """The first waiting request; None without one."""
        return next(iter(self.pending.waiting), None)

    @property
    def call(self) -> ModelCall | None:
        """The call that the first waiting request is, if any."""
        source = self.source
        return None if source is None else source.call


class CachedModel(ServedProxy):
    """A proxy of a served version. All methods except `stop` and the counts are called on the event loop."""

    def __init__(self, served: Served, store: ResponseStore, limit_bytes: int = 0) -> None:
        """`limit_bytes`: limit of its responses in a store that is not shared; 0 for the whole store."""
        super().__init__(served)
        self._share = Share(limit_bytes) if limit_bytes else None
        self._store = store
        self._pending: dict[bytes, _Pending] = {}
        self._places: dict[InferRequest, _Pending] = {}
        """The key in progress of each waiting request."""
        self._is_stopping = False
        self._nothing_waits = threading.Event()
        """Set while the version stops."""
        self._asked_count = 0
        self._error_header = ResponseHeader(served.name, served.version, ())
        self._headers: dict[object, ResponseHeader] = {}
        names = [*filter(None, [served.statistics.namespace]), served.name, served.version]
        # A reloaded version may respond differently. Servers that share a store distinguish entries by version.
        self._seed = "\0".join(names if store.is_shared else [*names, str(next(_loads))]).encode()

    # --- called on the event loop -----------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Respond from the cache, join an equal request, or submit to the model.

        Raises InferError as the model does.
        """
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
            self._check_call(request, pending)
        request.model = self
        if pending is not None:
            self._place(request, pending)
            return
        pending = self._pending[key] = _Pending(key)
        pending.lookup_ns = _now_ns() - start_ns
        self._place(request, pending)
        if self._store.fetch(key, partial(self._fetched, pending, start_ns)):
            return
        try:
            self._ask(pending)
        except InferError:
            self._pop_first(pending)
            self._forget(pending)
            raise

    def _check_call(self, request: InferRequest, pending: _Pending) -> None:
        """Raise InferError(UNAVAILABLE) for a call with the key that its own caller is executing."""
        call: ModelCall | None = request.call
        if call is not None and any(parent is pending.asked for parent in call.ancestors()):
            raise call.deadlock(
                request,
                f"it asks model '{self.name}' for the response to the same request that makes the call "
                "(response_cache); give the call other inputs",
            )

    def _place(self, request: InferRequest, pending: _Pending) -> None:
        pending.waiting[request] = None
        self._places[request] = pending

    def _pop_first(self, pending: _Pending) -> InferRequest:
        first = next(iter(pending.waiting))
        self._displace(first, pending)
        return first

    def _displace(self, request: InferRequest, pending: _Pending) -> None:
        del pending.waiting[request], self._places[request]
        if self._is_stopping and not self._places:
            self._nothing_waits.set()

    def _forget(self, pending: _Pending) -> None:
        """Remove a key in progress, so that the next equal request starts again."""
        if self._pending.get(pending.key) is pending:
            del self._pending[pending.key]

    def _key(self, request: InferRequest) -> bytes:
        """Return a digest of everything that the response depends on.

        Triton: shapes, datatypes, parameters and requested outputs are not part of its key; here they are.
        """
        header = request.header
        memo = header.execution
        if memo is None or memo[0] is not self._seed:
            memo = header.execution = (self._seed, self._describe(header), _order(header))
        digest = hashlib.blake2b(memo[1], digest_size=_DIGEST_BYTES)
        for data in request.data if memo[2] is None else [request.data[place] for place in memo[2]]:
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.digest()

    def _describe(self, header: RequestHeader) -> bytes:
        inputs = sorted((spec.name, spec.datatype.value, spec.shape) for spec in header.inputs)
        outputs = [(output.name, output.classification) for output in header.outputs]
        parameters = sorted((name, type(value).__name__, value) for name, value in header.parameters.items())
        parts: tuple[object, ...] = (inputs, outputs, parameters)
        if header.sequence_id or header.sequence_start or header.sequence_end:
            # A model sees them, and an ensemble copies them to its response.
            parts += (header.sequence_id, header.sequence_start, header.sequence_end)
        return self._seed + repr(parts).encode("utf-8", "surrogateescape")

    def _fetched(self, pending: _Pending, start_ns: int, found: CachedResponse | None) -> None:
        pending.lookup_ns = _now_ns() - start_ns
        if found is None:
            self._submit_or_fail(pending)
            return
        self._forget(pending)
        while pending.waiting:
            request = self._pop_first(pending)
            self._hit(request, found, max(start_ns, request.arrival_ns))

    def _ask(self, pending: _Pending) -> None:
        """Submit the first waiting request to the model. Raises InferError as the model does."""
        first = next(iter(pending.waiting))
        asked = SharedRequest(first.header, first.data, self._answered, id=first.id, arrival_ns=first.arrival_ns)
        asked.pending = pending
        asked.times = first.times
        pending.asked = asked
        self._asked_count += 1
        try:
            self._served.submit(asked)
        except InferError:
            self._asked_count -= 1
            pending.asked = None
            raise

    def _submit_or_fail(self, pending: _Pending) -> None:
        """Submit the next waiting request that the model accepts, and fail the rejected ones."""
        if pending.is_asking:
            # The model has rejected the request of an outer call at once: that call continues. An ensemble does so if
            # a step is rejected, and one nested call per waiting request would exhaust the stack.
            return
        pending.is_asking = True
        try:
            while pending.waiting and pending.asked is None:
                self._ask_first(pending)
        finally:
            pending.is_asking = False
        if pending.asked is None:
            self._forget(pending)

    def _ask_first(self, pending: _Pending) -> None:
        try:
            self._ask(pending)
        except InferError as error:
            request = self._pop_first(pending)
            self.statistics.record_cache_miss(0)
            request.on_response(request, InferResponse(self._error_header, error=error))

    def _answered(self, asked: InferRequest, response: InferResponse) -> None:
        """Store the model's response, and pass it on to all waiting requests."""
        pending: _Pending = asked.pending  # type: ignore[attr-defined]  # made in _ask
        pending.asked = None
        self._asked_count -= 1
        first = self._pop_first(pending)
        if response.error is not None or asked.cancelled:
            self.statistics.record_cache_miss(pending.lookup_ns)
            first.on_response(first, response)
            # The failure of one request does not apply to the other ones.
            self._submit_or_fail(pending)
            return
        start_ns = _now_ns()
        kept = CachedResponse(response.header.outputs, [bytes(data) for data in response.data], response.parameters)
        self._store.put(pending.key, kept, self._share)
        self._forget(pending)
        self.statistics.record_cache_miss(pending.lookup_ns + _now_ns() - start_ns)
        parameters = {**response.parameters, **_MISS} if response.parameters else _MISS
        first.on_response(first, InferResponse(response.header, response.data, parameters=parameters))
        while pending.waiting:
            request = self._pop_first(pending)
            self._hit(request, kept, request.arrival_ns)

    def _hit(self, request: InferRequest, found: CachedResponse, start_ns: int) -> None:
        outputs = found.outputs
        header = self._headers.get(outputs)
        if header is None:
            if len(self._headers) > 1024:
                self._headers.clear()
            header = self._headers[outputs] = ResponseHeader(self.name, self.version, outputs)
        end_ns = _now_ns()
        self.statistics.record_cache_hit(request, end_ns - start_ns, end_ns)
        parameters = {**found.parameters, **_HIT} if found.parameters else _HIT
        request.on_response(request, InferResponse(header, found.data, parameters=parameters))

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a request that waits with equal ones and return True; without waiting requests the model's one is
        cancelled.
        """
        pending = self._places.get(request)
        if request.cancelled or pending is None:
            return False
        request.cancelled = True
        if len(pending.waiting) == 1 and pending.asked is not None:
            self._forget(pending)
            return self._served.cancel(pending.asked)
        self._displace(request, pending)
        self.statistics.record_cache_miss(0)
        self.statistics.record_cancelled(in_queue=True)
        self.statistics.record_dropped(request, FailureReason.CANCELED, _now_ns())
        request.on_response(request, InferResponse(self._error_header, error=cancelled_request()))
        return True

    def is_waiting(self, request: InferRequest) -> bool:
        """Return whether a submitted request waits for the store, or its request to the model waits."""
        pending = self._places.get(request)
        return pending is not None and (pending.asked is None or self._served.is_waiting(pending.asked))

    def close_to_new_sequences(self) -> None:
        """Do nothing: sequences are not cached."""

    # --- called on other threads ------------------------------------------------------------------------------------

    def stop(self, timeout_s: float) -> bool:
        """Stop the version once all waiting requests have their responses: some may not have reached the model
        yet.
        """
        deadline_s = time.monotonic() + timeout_s
        self._is_stopping = True
        if self._places:
            self._nothing_waits.wait(timeout_s)
        return super().stop(max(0.0, deadline_s - time.monotonic()))

    # --- state of the served version --------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance, for the store, or for the response to an equal request."""
        return self._served.pending_count + self._waiting_count

    @property
    def in_flight_count(self) -> int:
        """Requests queued or executing."""
        return self._served.in_flight_count + self._waiting_count

    @property
    def _waiting_count(self) -> int:
        """Waiting requests without those at the model."""
        return len(self._places) - self._asked_count

    @property
    def live_sequence_count(self) -> int:
        """0: sequences are not cached."""
        return 0


def _order(header: RequestHeader) -> Sequence[int] | None:
    """Return the positions of the inputs sorted by name, None if they are sorted: clients may send any order."""
    places = sorted(range(len(header.inputs)), key=lambda place: header.inputs[place].name)
    return None if places == list(range(len(places))) else places
