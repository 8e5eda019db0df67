"""A model of sequences is stopped while sequences live, and a live sequence starts again."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.request import RequestHeader
from support.engine_parts import Answers, Gate, ScriptedInstance, Serve, StepLoop, config, header, request

HOUR_US = 3_600_000_000


def of_sequences() -> ModelConfig:
    made = config()
    made.sequence_batching.max_sequence_idle_microseconds = HOUR_US
    made.sequence_batching.direct.SetInParent()
    return made


def of_sequence(sequence_id: int, *, start: bool = False, end: bool = False) -> RequestHeader:
    plain = header()
    return RequestHeader(
        model_name="m", inputs=plain.inputs, sequence_id=sequence_id, sequence_start=start, sequence_end=end
    )


def test_stop_does_not_wait_for_abandoned_sequences(serve: Serve, loop: StepLoop) -> None:
    # A version that was unloaded or replaced: no request finds it any more.
    answers = Answers()
    model = serve([ScriptedInstance(), ScriptedInstance()], of_sequences())
    for sequence_id in (1, 2):
        model.submit(request(answers, "", of_sequence(sequence_id, start=True), time.monotonic_ns()))
    loop.run_until(lambda: len(answers) == 2)
    assert model.live_sequence_count == 2
    assert model.stop(3.0)


def test_requests_of_sequences_that_were_accepted_are_answered(serve: Serve, loop: StepLoop) -> None:
    answers, gate = Answers(), Gate()
    model = serve([ScriptedInstance(gate), ScriptedInstance(gate)], of_sequences())
    for sequence_id in (1, 2):
        model.submit(request(answers, "start", of_sequence(sequence_id, start=True), time.monotonic_ns()))
    gate.opened.release(4)
    loop.run_until(lambda: len(answers) == 2)
    for sequence_id in (1, 2):
        model.submit(request(answers, "next", of_sequence(sequence_id), time.monotonic_ns()))
    gate.opened.release(4)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(model.stop, 60.0)
        loop.run_until(lambda: len(answers) == 4)
        assert stopping.result(60)
    assert all(response.error is None for _, response in answers.received)


def test_restart_of_live_sequence_is_logged(serve: Serve, loop: StepLoop, caplog: pytest.LogCaptureFixture) -> None:
    # S6
    answers = Answers()
    model = serve([ScriptedInstance()], of_sequences())

    def send(sequence_id: int, *, end: bool = False) -> None:
        wanted = len(answers) + 1
        model.submit(request(answers, "", of_sequence(sequence_id, start=True, end=end), time.monotonic_ns()))
        loop.run_until(lambda: len(answers) == wanted)

    with caplog.at_level(logging.WARNING):
        send(1)
        send(2, end=True)
        send(2)
        assert not caplog.messages, "an id may be used again after END"
        for _ in range(3):
            send(1)
    assert len(caplog.messages) == 1, "at most one line every ten seconds"
    assert caplog.messages[0].startswith("sequence 1 for model 'm' has a conflict. The previous sequence did not end")
