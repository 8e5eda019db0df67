"""Watching calls that cannot be sent to: one that fails ends with a status, and the other calls go on."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.frontend.grpc import health_watch
from naiad.frontend.grpc.health_watch import HealthWatches
from naiad.wire.grpc import GrpcStatus


def make_call(fails_after: int) -> SimpleNamespace:
    """Return a call that fails after this number of messages."""
    call = SimpleNamespace(path="/grpc.health.v1.Health/Watch", queued_bytes=0, sent=[], ends=[], on_cancel=None)

    def send(parts: Any) -> None:
        if len(call.sent) == fails_after:
            raise RuntimeError("broken")
        call.sent.append(b"".join(parts))

    call.send = send
    call.finish = lambda status, message="", trailers=(): call.ends.append((status, message))
    return call


def test_call_that_fails_between_two_messages_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_watch, "PERIOD_S", 0.001)
    broken, whole = make_call(1), make_call(9)
    status = [b"\x08\x02"]

    async def run() -> None:
        watches = HealthWatches(lambda: status[0], lambda message: None)
        for call in (broken, whole):
            watches.open(call).take(b"")  # type: ignore[arg-type]  # what is used of it
        status[0] = b"\x08\x01"
        while not (broken.ends and len(whole.sent) == 2):
            await asyncio.sleep(0.001)

    with caplog.at_level(logging.ERROR):
        asyncio.run(asyncio.wait_for(run(), 20))
    assert [(end[0], "see the server log" in end[1]) for end in broken.ends] == [(GrpcStatus.INTERNAL, True)]
    assert (whole.ends, whole.sent) == ([], [b"\x08\x02", b"\x08\x01"])
    assert len(caplog.records) == 1
