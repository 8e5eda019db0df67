"""Calls on their way to the engine: depth, refusals, and the watch for calls that wait for themselves."""

import time

import pytest

from naiad.core.errors import ErrorCode, InferError, not_found
from naiad.engine.calls.calls import MOST_NESTED, ModelCalls
from support.model_call_parts import FakeEngine, FakeServed, ManualLoop, make_call


class Scene:
    def __init__(self) -> None:
        self.engine, self.loop = FakeEngine(), ManualLoop()
        self.calls = ModelCalls(self.engine, self.loop)
        self.refused: list = []

    def circle(self, **fields):
        a = FakeServed("a")
        return make_call(a, a, refused=self.refused, **fields)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_call_goes_to_the_engine_and_can_be_cancelled(scene):
    call = make_call(FakeServed("a"), FakeServed("b"))
    scene.calls.submit(call)
    scene.calls.cancel(call)
    assert scene.engine.submitted == scene.engine.cancelled == [call]
    assert call.depth == 1


def test_a_call_that_is_refused_at_the_door_is_not_watched(scene):
    scene.engine.refusal = not_found("there is no such model")
    with pytest.raises(InferError, match="no such model"):
        scene.calls.submit(scene.circle())
    assert scene.loop.timers == []


def test_depth_counts_calls_between_a_call_and_a_client(scene):
    a = FakeServed("a")
    call = make_call(a, a)
    for depth in range(1, MOST_NESTED + 1):
        scene.calls.submit(call)
        assert call.depth == depth
        call = make_call(a, a, parents=[call])
    with pytest.raises(InferError, match=f"nested more than {MOST_NESTED} deep: model 'a' calls 'a'") as caught:
        scene.calls.submit(call)
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_the_watch_refuses_the_newest_of_a_circle_one_at_a_time(scene):
    old, new = scene.circle(arrival_ns=1), scene.circle(arrival_ns=2)
    scene.calls.submit(old)
    scene.calls.submit(new)
    scene.loop.fire()
    ((refused, error),) = scene.refused
    assert refused is new
    assert error.code is ErrorCode.UNAVAILABLE
    assert "would wait for itself for ever (a -> a)" in error.message
    scene.calls.close(new)
    scene.loop.fire()
    assert [call for call, _ in scene.refused] == [new, old]


def test_the_watch_ends_with_the_last_call_and_begins_anew(scene):
    call = make_call(FakeServed("a"), FakeServed("b"))
    scene.calls.submit(call)
    scene.loop.fire()
    assert len(scene.loop.timers) == 1
    scene.calls.close(call)
    scene.loop.fire()
    assert scene.loop.timers == []
    scene.calls.submit(call)
    assert len(scene.loop.timers) == 1


def test_a_call_that_has_just_come_is_given_time(scene):
    scene.calls.submit(scene.circle(arrival_ns=time.monotonic_ns() + 10**12))
    scene.loop.fire()
    assert scene.refused == []


def test_a_call_of_another_thread_holds_the_execution_after_a_while(scene):
    recent = scene.circle(arrival_ns=time.monotonic_ns())
    recent.holds_execution = False
    scene.calls.submit(recent)
    scene.loop.fire()
    assert scene.refused == []
    recent.arrival_ns -= 10**10
    scene.loop.fire()
    assert [call for call, _ in scene.refused] == [recent]


def test_a_call_made_while_nothing_executes_holds_nothing(scene):
    scene.calls.submit(scene.circle(holds=False))
    scene.loop.fire()
    assert scene.refused == []


def test_readiness_of_unknown_models_is_false(scene):
    assert scene.calls.is_ready("m", "") is True
    scene.engine.refusal = not_found("unknown")
    assert scene.calls.is_ready("m", "") is False
    assert scene.calls.is_decoupled("decoupled", "") is True
