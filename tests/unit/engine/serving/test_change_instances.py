"""Instances come and go while a model serves: no request is lost, and what leaves finishes its batch first."""

import time

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.serving.served_model import ServedModel
from support.engine_parts import Answers, Gate, ScriptedInstance, Serve, StepLoop, config, header, request
from support.waiting import wait_until


def submit(model: ServedModel, answers: Answers, count: int = 1) -> None:
    for _ in range(count):
        model.submit(request(answers, arrival_ns=time.monotonic_ns()))


def test_new_instance_takes_requests_of_the_busy_one(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    busy, new = ScriptedInstance(gate), ScriptedInstance()
    model = serve([busy])
    submit(model, answers, 2)
    assert gate.reached.acquire(timeout=60)
    assert model.change_instances([busy, new], config()) is None
    loop.run_until(lambda: len(answers) == 1)
    assert len(new.batches) == 1
    assert model.instances == [busy, new]
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 2)


def test_removed_instance_finishes_its_batch_and_closes(serve: Serve, loop: StepLoop) -> None:
    gate, answers = Gate(), Answers()
    leaves, stays = ScriptedInstance(gate), ScriptedInstance()
    model = serve([leaves])
    submit(model, answers)
    assert gate.reached.acquire(timeout=60)
    left = model.change_instances([stays], config())
    assert left is not None
    submit(model, answers, 3)
    loop.run_until(lambda: len(answers) == 3)
    assert not leaves.closed
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 4)
    assert all(response.error is None for _, response in answers.received)
    assert left.stop(5.0)
    assert leaves.closed
    assert not stays.closed
    assert len(leaves.batches) == 1


def test_instance_removed_while_idle_takes_nothing(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    instances = [ScriptedInstance() for _ in range(4)]
    model = serve(instances)
    left = model.change_instances(instances[:1], config())
    assert left is not None
    assert left.stop(5.0)
    submit(model, answers, 20)
    loop.run_until(lambda: len(answers) == 20)
    assert [len(instance.batches) for instance in instances] == [20, 0, 0, 0]


def test_no_request_is_lost_over_many_changes(serve: Serve, loop: StepLoop) -> None:
    answers = Answers()
    instances = [ScriptedInstance() for _ in range(2)]
    model = serve(instances)
    for turn in range(200):
        submit(model, answers, 2)
        fresh = ScriptedInstance()
        left = model.change_instances([instances[turn % 2], fresh], config())
        submit(model, answers, 2)
        assert left is not None
        assert left.stop(5.0)
        instances = [instances[turn % 2], fresh]
    loop.run_until(lambda: len(answers) == 800)
    assert all(response.error is None for _, response in answers.received)
    assert model.stop(5.0)
    assert all(instance.closed for instance in instances)


@pytest.mark.parametrize(
    ("fields", "can"),
    [
        ({}, True),
        ({"dynamic_batching": {}}, True),
        ({"dynamic_batching": {"preserve_ordering": True}}, False),
        ({"sequence_batching": {}}, True),
        ({"model_transaction_policy": {"decoupled": True}}, True),
    ],
)
def test_what_is_updated_in_place(serve: Serve, fields: dict[str, object], can: bool) -> None:
    assert serve([ScriptedInstance()], config(**fields)).can_change_instances is can


def of_sequences(strategy: str) -> ModelConfig:
    made = config(max_batch_size=2)
    made.sequence_batching.max_sequence_idle_microseconds = 3_600_000_000
    getattr(made.sequence_batching, strategy).SetInParent()
    return made


class Client:
    """Sends requests of sequences one by one, and waits for each answer."""

    def __init__(self, model: ServedModel, loop: StepLoop) -> None:
        self.answers = Answers()
        self._model = model
        self._loop = loop
        self._sent_count = 0

    def ask(self, sequence_id: int, *, start: bool = False, end: bool = False) -> None:
        made = RequestHeader(
            model_name="m",
            inputs=header().inputs,
            sequence_id=sequence_id,
            sequence_start=start,
            sequence_end=end,
        )
        self._model.submit(request(self.answers, "", made, time.monotonic_ns()))
        self._sent_count += 1
        self._loop.run_until(lambda: len(self.answers) == self._sent_count)


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_live_sequences_stay_where_they_began(serve: Serve, loop: StepLoop, strategy: str) -> None:
    leaving = [ScriptedInstance(), ScriptedInstance(), ScriptedInstance()]
    stays = ScriptedInstance()
    model = serve(leaving, of_sequences(strategy))
    client = Client(model, loop)
    for sequence_id in (1, 2):
        client.ask(sequence_id, start=True)
    left = model.change_instances([stays], of_sequences(strategy))
    assert left is not None
    assert left.stop(60.0)
    assert [instance.closed for instance in leaving] == [False, False, True]
    client.ask(3, start=True)
    client.ask(1)
    assert [len(instance.batches) for instance in (*leaving, stays)] == [2, 1, 0, 1]
    client.ask(1, end=True)
    client.ask(2, end=True)
    wait_until(lambda: all(instance.closed for instance in leaving))
    client.ask(3, end=True)
    assert all(response.error is None for _, response in client.answers.received)
    assert len(stays.batches) == 2
    assert not stays.closed


def test_waiting_sequences_begin_on_new_instances(serve: Serve, loop: StepLoop) -> None:
    made = of_sequences("direct")
    made.max_batch_size = 1
    first, new = ScriptedInstance(), ScriptedInstance()
    model = serve([first], made)
    client = Client(model, loop)
    client.ask(1, start=True)
    waiting = Answers()
    started = RequestHeader(model_name="m", inputs=header().inputs, sequence_id=2, sequence_start=True)
    model.submit(request(waiting, "", started, time.monotonic_ns()))
    assert model.change_instances([first, new], made) is None
    loop.run_until(lambda: len(waiting) == 1)
    assert len(new.batches) == 1


def test_stop_ends_sequences_of_leaving_instances(serve: Serve, loop: StepLoop) -> None:
    leaves, stays = ScriptedInstance(), ScriptedInstance()
    model = serve([leaves], of_sequences("direct"))
    Client(model, loop).ask(1, start=True)
    left = model.change_instances([stays], of_sequences("direct"))
    assert left is not None
    assert left.stop(60.0)
    assert not leaves.closed
    assert model.stop(60.0)
    assert leaves.closed
    assert stays.closed


def test_open_requests_keep_their_instance(serve: Serve, loop: StepLoop) -> None:
    batches: list[Batch] = []

    def leave_open(batch: Batch) -> list[InferResponse]:
        batches.append(batch)
        return []

    made = config(model_transaction_policy={"decoupled": True})
    answers, leaves, stays = Answers(), ScriptedInstance(leave_open), ScriptedInstance(leave_open)
    model = serve([leaves], made)
    submit(model, answers)
    wait_until(lambda: len(batches) == 1)
    left = model.change_instances([stays], made)
    assert left is not None
    assert left.stop(60.0)
    submit(model, answers)
    wait_until(lambda: len(batches) == 2)
    assert not leaves.closed
    final = InferResponse(ResponseHeader("m", "1", ()), [], final=True, empty_final=True)
    assert batches[0].emit is not None
    batches[0].emit(batches[0].requests[0], final)
    wait_until(lambda: leaves.closed)
    assert not stays.closed
    assert batches[1].emit is not None
    batches[1].emit(batches[1].requests[0], final)
    loop.run_until(lambda: len(answers) == 2)
