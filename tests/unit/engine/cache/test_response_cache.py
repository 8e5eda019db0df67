"""The response cache: what it keeps, what counts as the same request, and which requests wait for which."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.datatype import DataType
from naiad.core.environment.model_call import ModelCall
from naiad.core.errors import ErrorCode, InferError, unavailable
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.cache.cached_model import CachedModel
from naiad.engine.cache.redis_store import decode, encode
from naiad.engine.cache.response_store import CachedResponse, LocalCache, Share
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import Answers
from support.model_call_parts import FakeServed as CalledModel
from support.model_call_parts import make_call

SPEC = TensorSpec("IN", DataType.UINT8, (2,))
OUT = TensorSpec("OUT", DataType.UINT8, (2,))


def response(size: int) -> CachedResponse:
    return CachedResponse((OUT,), [bytes(size)])


class TestLocalStore:
    def test_forgets_what_was_not_used_for_longest(self) -> None:
        # K4
        store = LocalCache(3 * response(100).byte_size)
        for key in (b"a", b"b", b"c"):
            store.put(key, response(100))
        assert store.get(b"a") is not None
        store.put(b"d", response(100))
        assert [store.get(key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
        counts = store.counts()
        assert (counts.entry_count, counts.eviction_count) == (3, 1)
        assert counts.byte_size == 3 * response(100).byte_size

    def test_keeps_nothing_that_is_larger_than_itself(self) -> None:
        store = LocalCache(1000)
        store.put(b"small", response(10))
        store.put(b"large", response(1000))
        assert store.get(b"small") is not None
        assert store.get(b"large") is None

    def test_an_entry_replaces_one_of_the_same_key(self) -> None:
        store = LocalCache(10_000)
        store.put(b"a", response(100))
        store.put(b"a", response(200))
        assert store.counts().byte_size == response(200).byte_size

    def test_entry_lives_for_its_stated_time(self) -> None:
        now = [0.0]
        store = LocalCache(10_000, ttl_s=5, now_s=lambda: now[0])
        store.put(b"a", response(1))
        now[0] = 5
        assert store.get(b"a") is not None
        assert store.counts().oldest_age_s == 5
        now[0] = 5.1
        assert store.get(b"a") is None
        assert store.counts().byte_size == 0

    def test_a_full_share_makes_room_of_its_own(self) -> None:
        # K6
        store = LocalCache(100_000)
        share = Share(2 * response(100).byte_size)
        store.put(b"other", response(100))
        for key in (b"a", b"b"):
            store.put(key, response(100), share)
        assert store.get(b"a") is not None
        store.put(b"c", response(100), share)
        assert [store.get(key) is not None for key in (b"other", b"a", b"b", b"c")] == [True, True, False, True]
        assert store.counts().eviction_count == 1

    def test_keeps_nothing_that_is_larger_than_its_share(self) -> None:
        store = LocalCache(100_000)
        share = Share(1000)
        store.put(b"a", response(1000), share)
        assert store.get(b"a") is None
        assert share.byte_size == 0

    @given(
        st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.integers(0, 900), st.integers(0, 2)), max_size=60)
    )
    def test_no_share_takes_more_than_it_may(self, puts: list[tuple[bytes, int, int]]) -> None:
        # K6
        store = LocalCache(4000)
        shares = [Share(1500), Share(3000)]
        for key, size, owner in puts:
            store.put(bytes([owner]) + key, response(size), shares[owner] if owner < 2 else None)
            assert all(share.byte_size <= share.limit_bytes for share in shares)
            assert sum(share.byte_size for share in shares) <= store.counts().byte_size <= 4000
            kept = [key for share in shares for key in share.keys]
            assert all(store.get(key) is not None for key in kept)

    @given(st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.integers(0, 900)), max_size=60))
    def test_never_takes_more_than_it_may(self, puts: list[tuple[bytes, int]]) -> None:
        # K4
        store = LocalCache(4000)
        for key, size in puts:
            store.put(key, response(size))
            counts = store.counts()
            assert counts.byte_size <= 4000
            assert counts.entry_count <= 4000 // 512


class FakeServed:
    """A model that answers when the test says so."""

    is_waiting = CalledModel.is_waiting

    def __init__(self) -> None:
        self.name, self.version = "m", "1"
        self.config = self.labels = None
        self.is_decoupled = False
        self.statistics = ModelStatistics("m", "1")
        self.asked: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.refusal: InferError | None = None
        self.pending_count = 0

    def submit(self, request: InferRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        request.model = self
        self.asked.append(request)

    def cancel(self, request: InferRequest) -> bool:
        self.cancelled.append(request)
        request.cancelled = True
        return False

    @property
    def in_flight_count(self) -> int:
        return len(self.asked)

    def answer(self, data: bytes = b"xy", error: InferError | None = None, **fields: object) -> None:
        request = self.asked.pop(0)
        header = ResponseHeader("m", "1", (OUT,) if error is None else ())
        request.on_response(request, InferResponse(header, [data] if error is None else [], error=error, **fields))


class LaterStore(LocalCache):
    """Looks elsewhere: look-ups are answered when the test says so."""

    def __init__(self) -> None:
        super().__init__(100_000)
        self.questions: list[tuple[bytes, Callable[[CachedResponse | None], object]]] = []

    def get(self, key: bytes) -> CachedResponse | None:
        return None

    def fetch(self, key: bytes, found: Callable[[CachedResponse | None], object]) -> bool:
        self.questions.append((key, found))
        return True


@pytest.fixture
def served() -> FakeServed:
    return FakeServed()


@pytest.fixture
def model(served: FakeServed) -> CachedModel:
    return CachedModel(served, LocalCache(100_000))  # type: ignore[arg-type]


def ask(model: CachedModel, answers: Answers, name: str, data: bytes = b"ab", **fields: object) -> InferRequest:
    header = RequestHeader(model_name="m", inputs=[SPEC], **fields)  # type: ignore[arg-type]
    request = InferRequest(header, [data], answers, id=name, arrival_ns=1)
    model.submit(request)
    return request


def got(answers: Answers) -> list[tuple[str, bytes]]:
    return [(name, bytes(each.data[0])) for name, each in answers.received if each.error is None]


def cancelled(answers: Answers) -> list[str]:
    return [name for name, each in answers.received if each.error and each.error.code is ErrorCode.CANCELLED]


class TestCachedModel:
    def test_the_second_is_answered_without_the_model(self, model, served) -> None:
        # K2
        answers = Answers()
        ask(model, answers, "a")
        served.answer()
        ask(model, answers, "b")
        assert got(answers) == [("a", b"xy"), ("b", b"xy")]
        assert not served.asked
        counts = model.statistics.snapshot()
        assert (counts.cache_hit.count, counts.cache_miss.count, counts.execution_count) == (1, 1, 0)

    def test_a_response_says_where_it_came_from(self, model, served) -> None:
        # K5
        answers = Answers()
        ask(model, answers, "a")
        ask(model, answers, "b")
        served.answer(parameters={"mine": 7})
        ask(model, answers, "c")
        assert [(name, dict(each.parameters)) for name, each in answers.received] == [
            ("a", {"mine": 7, "cache": "miss"}),
            ("b", {"mine": 7, "cache": "hit"}),
            ("c", {"mine": 7, "cache": "hit"}),
        ]

    def test_looked_up_request_is_hit_or_miss(self, model, served) -> None:
        # K5
        answers = Answers()
        ask(model, answers, "fails")
        model.cancel(ask(model, answers, "gives up"))
        ask(model, answers, "executed")
        served.answer(error=unavailable("no"))
        served.answer()
        ask(model, answers, "known")
        counts = model.statistics.snapshot()
        assert (counts.cache_hit.count, counts.cache_miss.count) == (1, 3)
        assert len(answers.received) == 4

    def test_rejected_request_is_neither_hit_nor_miss(self, model, served) -> None:
        served.refusal = unavailable("stopping")
        with pytest.raises(InferError):
            ask(model, Answers(), "a")
        counts = model.statistics.snapshot()
        assert (counts.cache_hit.count, counts.cache_miss.count) == (0, 0)

    def test_reloaded_version_is_executed_again(self) -> None:
        # K7
        store, answers = LocalCache(100_000), Answers()
        for name, data in (("old", b"11"), ("new", b"22")):
            served = FakeServed()
            model = CachedModel(served, store)  # type: ignore[arg-type]
            ask(model, answers, name)
            served.answer(data)
        assert got(answers) == [("old", b"11"), ("new", b"22")]

    def test_entry_size_is_limited_to_a_share(self, served) -> None:
        store = LocalCache(100_000)
        model = CachedModel(served, store, limit_bytes=1100)  # type: ignore[arg-type]
        for number in range(5):
            ask(model, Answers(), "a", bytes([number, 0]))
            served.answer()
        assert store.counts().entry_count == 2

    @pytest.mark.parametrize(
        "fields",
        [
            {"parameters": {"a": 1}},
            {"parameters": {"a": True}},
            {"outputs": [RequestedOutput("OUT")]},
            {"outputs": [RequestedOutput("OUT", classification=2)]},
        ],
    )
    def test_requested_outputs_are_part_of_the_key(self, model, served, fields) -> None:
        # K1
        answers = Answers()
        ask(model, answers, "a")
        ask(model, answers, "b", **fields)
        assert [request.id for request in served.asked] == ["a", "b"]

    def test_shape_and_datatype_are_part_of_the_key(self, model, served) -> None:
        # K1
        for spec in (SPEC, TensorSpec("IN", DataType.UINT8, (1, 2)), TensorSpec("IN", DataType.FP16, (1,))):
            header = RequestHeader(model_name="m", inputs=[spec])
            model.submit(InferRequest(header, [b"ab"], Answers(), arrival_ns=1))
        assert len(served.asked) == 3

    def test_key_ignores_order_of_inputs(self, model, served) -> None:
        # K1
        answers = Answers()
        sent = {"IN": (SPEC, b"ab"), "ALSO": (TensorSpec("ALSO", DataType.UINT8, (2,)), b"cd")}
        for names in (("IN", "ALSO"), ("ALSO", "IN")):
            header = RequestHeader(model_name="m", inputs=[sent[name][0] for name in names])
            model.submit(InferRequest(header, [sent[name][1] for name in names], answers, arrival_ns=1))
        assert len(served.asked) == 1
        swapped = RequestHeader(model_name="m", inputs=[sent["IN"][0], sent["ALSO"][0]])
        model.submit(InferRequest(swapped, [b"cd", b"ab"], answers, arrival_ns=1))
        assert len(served.asked) == 2

    def test_input_boundaries_are_part_of_the_key(self, model, served) -> None:
        # K1
        header = RequestHeader(model_name="m", inputs=[SPEC, TensorSpec("MORE", DataType.UINT8, (2,))])
        model.submit(InferRequest(header, [b"ab", b"c"], Answers(), arrival_ns=1))
        model.submit(InferRequest(header, [b"a", b"bc"], Answers(), arrival_ns=1))
        assert len(served.asked) == 2

    def test_concurrent_equal_requests_execute_once(self, model, served) -> None:
        # K3
        answers = Answers()
        for name in "abc":
            ask(model, answers, name)
        assert len(served.asked) == 1
        served.answer()
        assert got(answers) == [("a", b"xy"), ("b", b"xy"), ("c", b"xy")]
        counts = model.statistics.snapshot()
        assert counts.cache_hit.count + counts.cache_miss.count == 3

    def test_error_is_neither_cached_nor_shared(self, model, served) -> None:
        # K2
        answers = Answers()
        ask(model, answers, "a")
        ask(model, answers, "b")
        served.answer(error=unavailable("no"))
        assert [(name, each.error is None) for name, each in answers.received] == [("a", False)]
        served.answer(b"22")
        assert got(answers) == [("b", b"22")]

    def test_waiting_requests_get_responses_after_rejection(self, model, served) -> None:
        answers = Answers()
        ask(model, answers, "a")
        ask(model, answers, "b")
        ask(model, answers, "c")
        served.refusal = unavailable("stopping")
        served.answer(error=unavailable("no"))
        assert [name for name, _ in answers.received] == ["a", "b", "c"]
        assert all(each.error is not None for _, each in answers.received)
        with pytest.raises(InferError, match="stopping"):
            ask(model, answers, "d")

    def test_many_waiting_requests_survive_immediate_failure(self) -> None:
        # As an ensemble does whose member refuses a step.
        class Full(FakeServed):
            def submit(self, request: InferRequest) -> None:
                super().submit(request)
                if self.is_full:
                    self.answer(error=unavailable("Exceeds maximum queue size"))

            is_full = False

        full, answers = Full(), Answers()
        model = CachedModel(full, LocalCache(100_000))  # type: ignore[arg-type]
        for number in range(5_000):
            ask(model, answers, str(number))
        full.is_full = True
        full.answer(error=unavailable("no"))
        assert [name for name, _ in answers.received] == [str(number) for number in range(5_000)]
        assert all(each.error is not None for _, each in answers.received)
        assert model.in_flight_count == 0
        full.is_full = False
        ask(model, answers, "later")
        full.answer()
        assert got(answers) == [("later", b"xy")]

    def test_cancelling_one_that_waits(self, model, served) -> None:
        answers = Answers()
        ask(model, answers, "a")
        waiting = ask(model, answers, "b")
        model.cancel(waiting)
        served.answer()
        assert [(name, each.error.code if each.error else None) for name, each in answers.received] == [
            ("b", ErrorCode.CANCELLED),
            ("a", None),
        ]

    def test_cancelling_the_first_keeps_other_requests(self, model, served) -> None:
        # K3
        answers = Answers()
        first = ask(model, answers, "a")
        ask(model, answers, "b")
        assert first.model.cancel(first)
        assert not first.model.cancel(first)
        assert not served.cancelled
        assert cancelled(answers) == ["a"]
        served.answer()
        assert got(answers) == [("b", b"xy")]
        counts = model.statistics.snapshot()
        assert (counts.cancelled_in_queue_count, counts.cancelled_in_execution_count) == (1, 0)

    def test_execution_without_waiting_requests_is_cancelled(self, model, served) -> None:
        answers = Answers()
        requests = [ask(model, answers, name) for name in "ab"]
        model.cancel(requests[0])
        assert not model.cancel(requests[1])
        assert served.cancelled == served.asked
        # It goes on without a response to share: a request that comes now does not wait for it.
        ask(model, answers, "c")
        assert len(served.asked) == 2
        served.answer(b"no")
        served.answer(b"xy")
        ask(model, answers, "d")
        assert got(answers)[-2:] == [("c", b"xy"), ("d", b"xy")]
        assert model.in_flight_count == 0

    def test_execution_stands_for_first_waiting_request(self, model, served) -> None:
        answers = Answers()
        header = RequestHeader(model_name="m", inputs=[SPEC])
        call = ModelCall(header, [b"ab"], answers, id="a", arrival_ns=1)
        model.submit(call)
        second = ask(model, answers, "b")
        (asked,) = served.asked
        assert asked.call is call
        asked.queue = "queue"
        assert model.is_waiting(call)
        assert model.is_waiting(second)
        asked.queue = None
        assert not model.is_waiting(call)
        model.cancel(call)
        assert asked.call is None
        served.answer()
        assert not model.is_waiting(second)
        assert asked.source is None

    def test_call_for_its_callers_request_is_rejected(self, model, served) -> None:
        answers = Answers()
        ask(model, answers, "a")
        (asked,) = served.asked
        call = make_call(CalledModel("m"), CalledModel("m"), parents=[asked])
        call.header, call.data = asked.header, asked.data
        with pytest.raises(InferError, match=r"would wait for itself \(m -> m\): .*response_cache") as caught:
            model.submit(call)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        other = make_call(CalledModel("n"), CalledModel("m"))
        other.header, other.data, other.on_response = asked.header, asked.data, answers
        model.submit(other)
        served.answer()
        assert len(got(answers)) == 2

    def test_cancelled_look_up_does_not_reach_the_model(self, served) -> None:
        store = LaterStore()
        model = CachedModel(served, store)  # type: ignore[arg-type]
        answers = Answers()
        request = ask(model, answers, "a")
        assert model.pending_count == 1
        assert model.cancel(request)
        assert model.pending_count == 0
        store.questions[0][1](None)
        assert not served.asked
        assert cancelled(answers) == ["a"]
        ask(model, answers, "b")
        store.questions[1][1](None)
        served.answer()
        assert got(answers) == [("b", b"xy")]

    def test_a_store_elsewhere(self, served) -> None:
        store = LaterStore()
        model = CachedModel(served, store)  # type: ignore[arg-type]
        answers = Answers()
        ask(model, answers, "a")
        ask(model, answers, "b")
        assert not served.asked
        (_, found), *others = store.questions
        assert not others
        found(CachedResponse((OUT,), [b"zz"]))
        assert got(answers) == [("a", b"zz"), ("b", b"zz")]
        ask(model, answers, "c")
        store.questions[-1][1](None)
        assert [request.id for request in served.asked] == ["c"]

    def test_stop_waits_for_pending_look_ups(self, served, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LaterStore()
        model = CachedModel(served, store)  # type: ignore[arg-type]
        answers = Answers()
        ask(model, answers, "a")
        seen: list[int] = []

        def happens(timeout_s: float) -> bool:
            assert not model._nothing_waits.is_set()
            store.questions[0][1](None)
            assert not model._nothing_waits.is_set()
            served.answer()
            return model._nothing_waits.is_set()

        def stop(timeout_s: float) -> bool:
            seen.append(len(answers))
            return True

        monkeypatch.setattr(model._nothing_waits, "wait", happens)
        served.stop = stop
        # It was reloaded, for example: requests that were accepted before are executed nevertheless.
        assert model.stop(60.0)
        assert got(answers) == [("a", b"xy")]
        assert seen == [1]

    def test_stop_has_a_time_limit(self, served) -> None:
        model = CachedModel(served, LaterStore())  # type: ignore[arg-type]
        ask(model, Answers(), "a")
        served.stop = lambda timeout_s: timeout_s > 0
        assert not model.stop(0.0)

    @given(st.lists(st.tuples(st.binary(min_size=2, max_size=2), st.sampled_from(["", "OUT"])), max_size=40))
    def test_requests_never_get_foreign_responses(self, asked: list[tuple[bytes, str]]) -> None:
        # K1
        served = FakeServed()
        model = CachedModel(served, LocalCache(3000))  # type: ignore[arg-type]
        answers = Answers()
        for data, output in asked:
            before = len(answers)
            outputs = [RequestedOutput(output)] if output else []
            ask(model, answers, repr((data, output)), data, outputs=outputs)
            if served.asked:
                served.answer(data + output.encode())
            assert len(answers) == before + 1
        assert [bytes(each.data[0]) for _, each in answers.received] == [d + o.encode() for d, o in asked]


@given(st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=20)), max_size=4))
def test_redis_gets_back_what_it_was_given(tensors: list[tuple[str, bytes]]) -> None:
    kept = CachedResponse(
        tuple(TensorSpec(name, DataType.UINT8, (len(data),)) for name, data in tensors),
        [data for _, data in tensors],
        {"p": "v", "n": 1, "b": True},
    )
    assert decode(encode(kept)) == kept


NO_PARAMETERS = b"\x0c\x00\x00\x00[[], [1, 2]]"


@pytest.mark.parametrize(
    "data", [b"", b"xx", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00[]rest", b"\x02\x00\x00\x00{}", NO_PARAMETERS]
)
def test_what_is_no_response_is_a_miss(data: bytes) -> None:
    assert decode(data) in (None, CachedResponse((), []))
