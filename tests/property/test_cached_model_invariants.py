"""For all actions of a cached model, its store and its clients, each request gets its own response once."""

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, FailureReason, InferError, unavailable
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.cache.cached_model import CachedModel
from naiad.engine.cache.response_store import CachedResponse, LocalCache
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.long_run import examples

_QUESTIONS = st.tuples(
    st.sampled_from([b"aabb", b"aacc"]),
    st.sampled_from([(2,), (1, 2)]),
    st.sampled_from([DataType.INT16, DataType.UINT16]),
    st.sampled_from(["", "OUT"]),
    st.sampled_from([0, 1]),
)


def answer_to(request: InferRequest) -> bytes:
    """What the model makes of a request: it depends on all that may be part of a key."""
    header = request.header
    spec = header.inputs[0]
    outputs = [output.name for output in header.outputs]
    parts = (bytes(request.data[0]), spec.shape, spec.datatype.value, outputs, sorted(header.parameters.items()))
    return repr(parts).encode()


class Served:
    """A model that responds on command."""

    def __init__(self) -> None:
        self.name, self.version = "m", "1"
        self.config = self.labels = None
        self.is_decoupled = False
        self.statistics = ModelStatistics("m", "1")
        self.open: list[InferRequest] = []
        self.refusals = 0
        self.drops = False
        self.pending_count = 0

    def submit(self, request: InferRequest) -> None:
        if self.refusals:
            self.refusals -= 1
            raise unavailable("the queue is full")
        self.open.append(request)

    def cancel(self, request: InferRequest) -> bool:
        request.cancelled = True
        if self.drops:
            self.answer(request, InferError(ErrorCode.CANCELLED, "", reason=FailureReason.CANCELED))
        return self.drops

    @property
    def in_flight_count(self) -> int:
        return len(self.open)

    def answer(self, request: InferRequest, error: InferError | None = None) -> None:
        self.open.remove(request)
        data = answer_to(request)
        header = ResponseHeader("m", "1", () if error else (TensorSpec("OUT", DataType.UINT8, (len(data),)),))
        request.on_response(request, InferResponse(header, [] if error else [data], error=error))


class Elsewhere(LocalCache):
    """A store like Redis: it is asked, and says later what it had then."""

    def __init__(self) -> None:
        super().__init__(4000)
        self.asked: list[tuple[bytes, Callable[[CachedResponse | None], object]]] = []

    def get(self, key: bytes) -> CachedResponse | None:
        return None

    def fetch(self, key: bytes, found: Callable[[CachedResponse | None], object]) -> bool:
        self.asked.append((key, found))
        return True

    def answer(self, number: int, *, is_away: bool) -> None:
        key, found = self.asked.pop(number)
        found(None if is_away else super().get(key))


class CacheMachine(RuleBasedStateMachine):
    """Clients that ask few different things, a model, a store."""

    @initialize(is_elsewhere=st.booleans())
    def start(self, is_elsewhere):
        self.served = Served()
        self.store = Elsewhere() if is_elsewhere else LocalCache(2000)
        self.model = CachedModel(self.served, self.store)
        self.asked: list[InferRequest] = []
        self.answers: dict[InferRequest, InferResponse] = {}

    def on_response(self, request, response):
        assert request not in self.answers, "a request was answered twice"
        self.answers[request] = response
        if response.error is None:
            assert bytes(response.data[0]) == answer_to(request), "an answer to another question"

    @rule(question=_QUESTIONS, is_refused=st.sampled_from([False, False, False, True]))
    def ask(self, question, is_refused):
        data, shape, datatype, output, parameter = question
        header = RequestHeader(
            model_name="m",
            inputs=[TensorSpec("IN", datatype, shape)],
            outputs=[RequestedOutput(output)] if output else [],
            parameters={"p": parameter} if parameter else {},
        )
        request = InferRequest(header, [data], self.on_response, arrival_ns=1)
        self.served.refusals = int(is_refused)
        try:
            self.model.submit(request)
        except InferError:
            assert is_refused
            assert request not in self.answers
        else:
            self.asked.append(request)
        self.served.refusals = 0

    @rule(data=st.data(), refusals=st.sampled_from([0, 0, 1, 9]))
    def store_answers(self, data, refusals):
        if isinstance(self.store, Elsewhere) and self.store.asked:
            self.served.refusals = refusals
            number = data.draw(st.integers(0, len(self.store.asked) - 1))
            self.store.answer(number, is_away=data.draw(st.booleans()))
            self.served.refusals = 0

    @rule(data=st.data(), fails=st.sampled_from([False, False, True]), refusals=st.sampled_from([0, 0, 0, 1]))
    def model_answers(self, data, fails, refusals):
        if self.served.open:
            self.served.refusals = refusals
            request = data.draw(st.sampled_from(self.served.open))
            self.served.answer(request, unavailable("broken") if fails else None)
            self.served.refusals = 0

    @rule(data=st.data(), drops=st.booleans())
    def cancel(self, data, drops):
        if not self.asked:
            return
        request = data.draw(st.sampled_from(self.asked))
        was_answered = request in self.answers
        self.served.drops = drops
        is_dropped = self.model.cancel(request)
        self.served.drops = False
        if was_answered:
            assert not is_dropped
        if is_dropped:
            assert self.answers[request].error.code is ErrorCode.CANCELLED

    @invariant()
    def the_same_is_asked_once(self):
        if hasattr(self, "served"):
            wanted = [answer_to(request) for request in self.served.open if not request.cancelled]
            assert len(set(wanted)) == len(wanted)

    @invariant()
    def no_request_is_forgotten(self):
        if hasattr(self, "served"):
            assert self.model.in_flight_count == len(self.asked) - len(self.answers)

    @invariant()
    def hits_and_misses_add_up(self):
        """Each response is a hit or a miss, also an error; a parameter has which."""
        if hasattr(self, "served"):
            found = self.served.statistics.snapshot()
            assert found.cache_hit.count + found.cache_miss.count == len(self.answers)
            said = [response.parameters.get("cache") for response in self.answers.values()]
            assert said.count("hit") == found.cache_hit.count

    def teardown(self):
        if not hasattr(self, "served"):
            return
        while self.served.open or getattr(self.store, "asked", ()):
            if self.served.open:
                self.served.answer(self.served.open[0])
            else:
                self.store.answer(0, is_away=False)
        assert self.answers.keys() == set(self.asked), "a request was never answered"
        assert (self.model.pending_count, self.model.in_flight_count) == (0, 0)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=examples(120), stateful_step_count=40)
