"""The end of a load in progress: checks between steps, waits, and callbacks that end a step."""

import pytest

from naiad.backend.load_stop import LoadStop
from naiad.core.errors import ErrorCode, InferError


def test_load_goes_on_until_it_has_to_end() -> None:
    stop = LoadStop()
    stop.check()
    stop.wait(0.0)
    stop.request("the first reason")
    stop.request("another")
    for step in (stop.check, lambda: stop.wait(60.0)):
        with pytest.raises(InferError, match="the first reason") as caught:
            step()
        assert caught.value.code is ErrorCode.UNAVAILABLE


def test_callbacks_are_called_during_their_step_only() -> None:
    stop, called = LoadStop(), []
    with stop.calling(lambda: called.append("before")):
        pass
    with stop.calling(lambda: called.append("during")):
        assert called == []
        stop.request("reason")
        assert called == ["during"]
    with pytest.raises(InferError), stop.calling(lambda: called.append("after")):
        called.append("never")
    assert called == ["during"]


def test_failing_callback_does_not_keep_the_next(caplog: pytest.LogCaptureFixture) -> None:
    stop, called = LoadStop(), []

    def fail() -> None:
        raise ValueError("no process")

    with stop.calling(fail), stop.calling(lambda: called.append("second")):
        stop.request("reason")
    assert called == ["second"]
    assert "no process" in caplog.text
