"""Instances come and go while a model serves: no request is lost, and what leaves finishes its batch first."""

import time

import pytest

from naiad.engine.served_model import ServedModel
from support.engine_parts import Answers, Gate, ScriptedInstance, Serve, StepLoop, config, request


def submit(model: ServedModel, answers: Answers, count: int = 1) -> None:
    for _ in range(count):
        model.submit(request(answers, arrival_ns=time.monotonic_ns()))


def test_a_new_instance_takes_what_waits_for_the_busy_one(serve: Serve, loop: StepLoop) -> None:
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


def test_one_that_leaves_finishes_its_batch_and_is_closed(serve: Serve, loop: StepLoop) -> None:
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


def test_one_that_leaves_while_idle_takes_nothing_any_more(serve: Serve, loop: StepLoop) -> None:
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
        ({"sequence_batching": {}}, False),
        ({"model_transaction_policy": {"decoupled": True}}, False),
    ],
)
def test_what_belongs_to_instances_forbids_it(serve: Serve, fields: dict[str, object], can: bool) -> None:
    assert serve([ScriptedInstance()], config(**fields)).can_change_instances is can
