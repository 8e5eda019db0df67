"""Periodic concurrency: which responses make the next group of requests leave."""

import time

from naiad.core.request import RequestHeader
from naiad.tools.perf.generator.loops import PeriodicLoop
from naiad.tools.perf.generator.next_request import Requests
from naiad.tools.perf.generator.setup import ModelSetup, Setup
from naiad.tools.perf.inputs.templates import TemplateSet
from naiad.tools.perf.perf_exchange import Prepared, RequestTemplate, SentRequest
from naiad.tools.perf.perf_plan import PeriodicConcurrency, Protocol, ServerTarget
from naiad.tools.perf.targets.ending import count_response, fail, finish

_TEMPLATE = RequestTemplate(RequestHeader(model_name="m"), [])
_SETUP = Setup(ServerTarget("grpc://localhost", Protocol.GRPC), [ModelSetup(TemplateSet([_TEMPLATE], [range(1)]))])


class _Target:
    def __init__(self) -> None:
        self.sent: list[SentRequest] = []

    async def open(self, connections: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def prepare(self, template: RequestTemplate) -> Prepared:
        return template

    def send(self, prepared: Prepared, exchange: SentRequest) -> None:
        exchange.start_ns = time.monotonic_ns()
        self.sent.append(exchange)


def _started(
    start: int, end: int, step: int, responses: int
) -> tuple[PeriodicLoop, list[SentRequest], list[SentRequest]]:
    """Return a loop that has sent its first group, what was sent, and what has ended."""
    target, ended = _Target(), []
    requests = Requests(_SETUP, target.prepare)
    loop = PeriodicLoop(PeriodicConcurrency(start, end, step, responses), target, requests, ended.append)
    loop.start()
    return loop, target.sent, ended


def test_group_leaves_after_responses_to_all() -> None:
    loop, sent, _ = _started(2, 6, 4, responses=2)
    assert len(sent) == 2
    for _ in range(2):
        count_response(sent[0], 1)
    count_response(sent[1], 1)
    assert len(sent) == 2
    count_response(sent[1], 1)
    assert (len(sent), loop.outstanding) == (6, 6)


def test_only_last_group_counts() -> None:
    _, sent, _ = _started(1, 3, 1, responses=1)
    count_response(sent[0], 1)
    for _ in range(5):
        count_response(sent[0], 1)
    assert len(sent) == 2
    count_response(sent[1], 1)
    assert len(sent) == 3


def test_request_that_ends_early_counts() -> None:
    loop, sent, ended = _started(1, 3, 1, responses=10)
    finish(sent[0], 1)
    fail(sent[1], "internal", "no")
    assert len(sent) == 3
    assert not loop.is_finished
    finish(sent[2], 1)
    assert loop.is_finished
    assert (loop.sent, ended) == (3, sent)


def test_stopped_loop_sends_no_group() -> None:
    loop, sent, _ = _started(1, 2, 1, responses=1)
    loop.stop(0)
    count_response(sent[0], 1)
    assert (len(sent), loop.is_finished) == (1, False)
    finish(sent[0], 1)
    assert loop.is_finished
