"""Calls on their way to the engine: depth, ancestors, and the limit for calls that wait."""

import time

import pytest

from naiad.core.environment.model_call import ModelCall
from naiad.core.errors import ErrorCode, InferError, not_found
from naiad.core.request import InferRequest, RequestHeader
from naiad.engine.model_calls import MOST_NESTED, ModelCalls
from support.model_call_parts import FakeEngine, FakeServed, ManualLoop, make_call


def client_request(model: FakeServed) -> InferRequest:
    """A request of a client that `model` executes."""
    return InferRequest(RequestHeader(model_name=model.name), (), lambda request, response: None)


class StepOf(InferRequest):
    """The request of an ensemble's step, made for a call."""

    __slots__ = ("made_for",)

    def __init__(self, made_for: ModelCall, header: RequestHeader) -> None:
        super().__init__(header, (), lambda request, response: None)
        self.made_for = made_for

    @property
    def call(self) -> ModelCall:
        return self.made_for


class Scene:
    def __init__(self, wait_timeout_s: float = 60.0) -> None:
        self.engine, self.loop = FakeEngine(), ManualLoop()
        self.calls = ModelCalls(self.engine, self.loop, wait_timeout_s)
        self.refused: list = []

    def call(self, *, waited_s: float = 0.0, **fields):
        """A call of `b` by `a`, which came so long ago."""
        arrival_ns = time.monotonic_ns() - int(waited_s * 1e9)
        return make_call(FakeServed("a"), FakeServed("b"), refused=self.refused, arrival_ns=arrival_ns, **fields)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_call_reaches_engine_and_can_be_cancelled(scene):
    call = make_call(FakeServed("a"), FakeServed("b"))
    scene.calls.submit(call)
    scene.calls.cancel(call)
    assert scene.engine.submitted == scene.engine.cancelled == [call]
    assert call.depth == 1


def test_rejected_call_is_not_watched(scene):
    scene.engine.refusal = not_found("there is no such model")
    with pytest.raises(InferError, match="no such model"):
        scene.calls.submit(scene.call())
    assert scene.loop.timers == []


def test_depth_counts_calls_up_to_the_client(scene):
    a = FakeServed("a")
    call = make_call(a, a)
    for depth in range(1, MOST_NESTED + 1):
        scene.calls.submit(call)
        assert call.depth == depth
        call = make_call(a, a, parents=[call])
    with pytest.raises(InferError, match=f"nested more than {MOST_NESTED} deep: model 'a' calls 'a'") as caught:
        scene.calls.submit(call)
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_call_that_waits_too_long_is_refused(scene, caplog):
    early, late = scene.call(waited_s=59), scene.call(waited_s=61)
    for call in (early, late):
        scene.calls.submit(call)
    scene.loop.fire()
    ((refused, error),) = scene.refused
    assert refused is late
    assert error.code is ErrorCode.UNAVAILABLE
    for words in ("model 'b' by model 'a'", "waited for 60 s (--call-wait-timeout-secs)", "(a -> b)"):
        assert words in error.message
    assert caplog.messages == [error.message]


def test_calls_that_wait_are_refused_oldest_first(scene):
    oldest, newest = scene.call(waited_s=90), scene.call(waited_s=61)
    scene.calls.submit(newest)
    scene.calls.submit(oldest)
    scene.loop.fire()
    assert [call for call, _ in scene.refused] == [oldest]
    scene.calls.close(oldest)
    newest.queue = None  # what the oldest has held is free now
    scene.loop.fire()
    assert [call for call, _ in scene.refused] == [oldest]


def test_refused_call_that_stays_open_is_logged_once(scene):
    scene.calls.submit(scene.call(waited_s=61))
    scene.loop.fire()
    scene.loop.fire()
    assert len(scene.refused) == 1


def test_executing_call_has_no_limit_after_waiting(scene):
    call = scene.call(waited_s=1000, is_queued=False)
    scene.calls.submit(call)
    scene.loop.fire()
    call.queue = "queue"  # its worker has died, for example
    scene.loop.fire()
    assert scene.refused == []


def test_limit_of_zero_is_no_limit():
    scene = Scene(wait_timeout_s=0)
    scene.calls.submit(scene.call(waited_s=10**6))
    assert scene.loop.timers == []


def test_looks_end_with_the_last_call(scene):
    call = scene.call()
    scene.calls.submit(call)
    scene.loop.fire()
    assert len(scene.loop.timers) == 1
    scene.calls.close(call)
    scene.loop.fire()
    assert scene.loop.timers == []
    scene.calls.submit(call)
    assert len(scene.loop.timers) == 1


# --- the calls before a call ----------------------------------------------------------------------------------------


def test_instances_held_by_a_chain_of_calls(scene):
    a, b, c = FakeServed("a"), FakeServed("b"), FakeServed("c")
    request = client_request(a)
    first = make_call(a, b, parents=[request])
    second = make_call(b, c, parents=[first, client_request(b)])
    third = make_call(c, a, parents=[second])
    for call in (first, second, third):
        scene.calls.submit(call)
    assert third.held == {id(model.instances[0]) for model in (a, b, c)}
    assert request in list(third.ancestors())
    assert third.chain(third) == "a -> b -> c -> a"


def test_call_without_blocked_caller_holds_nothing(scene):
    a, b = FakeServed("a"), FakeServed("b")
    first = make_call(a, b, parents=[client_request(a)], holds=False)
    second = make_call(b, a, parents=[first])
    for call in (first, second):
        scene.calls.submit(call)
    assert first.held == frozenset()
    assert second.held == {id(b.instances[0])}
    assert list(second.ancestors()) == [first]


def test_ancestors_of_shared_parents_are_visited_once(scene):
    a = FakeServed("a")
    calls = [make_call(a, a, parents=[client_request(a)])]
    for _ in range(40):
        calls = [make_call(a, a, parents=calls) for _ in range(2)]
    assert len(list(calls[0].ancestors())) == 2 + 38 * 4 + 2 + 1


def test_chain_names_the_ensemble_and_its_member(scene):
    lonely = FakeServed("lonely")
    call = make_call(lonely, FakeServed("wrapped"), parents=[client_request(lonely)])
    assert call.chain(client_request(lonely)) == "lonely -> wrapped -> lonely"
    # The member makes a call of its own: its parent is the step, which is made for the first call.
    step = client_request(lonely)
    inner = make_call(lonely, FakeServed("other"), parents=[StepOf(call, step.header)])
    assert inner.chain(inner) == "lonely -> wrapped -> lonely -> other"


def test_readiness_of_unknown_models_is_false(scene):
    assert scene.calls.is_ready("m", "") is True
    scene.engine.refusal = not_found("unknown")
    assert scene.calls.is_ready("m", "") is False
    assert scene.calls.is_decoupled("decoupled", "") is True
