"""Models whose instances share resources: waiting ones are woken, stopped and failed ones release theirs."""

import time
from collections.abc import Iterator, Sequence

import pytest

from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, InferError, internal
from naiad.core.response import InferResponse
from naiad.engine.instances.instance_resources import Resources
from naiad.engine.serving.served_model import ServedModel
from naiad.options.execution_limits import ResourceAmount
from support.engine_parts import (
    Answers,
    Gate,
    ScriptedInstance,
    Serve,
    StepLoop,
    answers_of,
    config,
    request,
    served_model,
)
from support.waiting import wait_until


@pytest.fixture
def resources() -> Resources:
    return Resources()


@pytest.fixture
def serve(loop: StepLoop, resources: Resources) -> Iterator[Serve]:
    served: list[ServedModel] = []

    def make(*instances: ScriptedInstance, count: int = 1, shared: Resources = resources) -> ServedModel:
        made = config()
        group = made.instance_group.add(count=len(instances))
        group.rate_limiter.resources.add(name="R", count=count, **{"global": True})
        model = served_model(instances, loop, made, resources=shared.register(made))
        served.append(model)
        return model

    yield make
    for model in served:
        model.stop(5.0)


def now_request(answers: Answers, name: str = "") -> object:
    return request(answers, name, arrival_ns=time.monotonic_ns())


def waiting(resources: Resources) -> int:
    return resources.usage()[0].waiting


def test_other_model_waits_and_goes_on(serve: Serve, loop: StepLoop, resources: Resources) -> None:
    gate, answers = Gate(), Answers()
    second_instance = ScriptedInstance(answers_of)
    first, second = serve(ScriptedInstance(gate)), serve(second_instance)
    first.submit(now_request(answers, "a"))
    assert gate.reached.acquire(timeout=60)
    second.submit(now_request(answers, "b"))
    wait_until(lambda: waiting(resources) == 1)
    assert not second_instance.batches
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 2)
    assert [name for name, _ in answers.received] == ["a", "b"]
    wait_until(lambda: resources.usage()[0].held == 0)


def test_failed_execution_gives_back(serve: Serve, loop: StepLoop, resources: Resources) -> None:
    def fail(batch: Batch) -> Sequence[InferResponse]:
        raise internal("no luck")

    answers = Answers()
    first, second = serve(ScriptedInstance(fail)), serve(ScriptedInstance(answers_of))
    first.submit(now_request(answers))
    second.submit(now_request(answers))
    loop.run_until(lambda: len(answers) == 2)
    wait_until(lambda: resources.usage()[0].held == 0)


def test_ill_instance_holds_nothing(serve: Serve, loop: StepLoop, resources: Resources) -> None:
    answers = Answers()
    ill = ScriptedInstance()

    def fall_ill(batch: Batch) -> Sequence[InferResponse]:
        ill.reason = "the worker died"
        raise internal("the worker died")

    ill.script = fall_ill
    first, second = serve(ill), serve(ScriptedInstance(answers_of))
    first.submit(now_request(answers))
    loop.run_until(lambda: len(answers) == 1)
    second.submit(now_request(answers))
    loop.run_until(lambda: len(answers) == 2)
    assert answers.received[1][1].error is None
    ill.reason = ""


def test_one_instance_executes_while_another_waits(serve: Serve, loop: StepLoop) -> None:
    resources = Resources([ResourceAmount("R", 2)])
    gates = [Gate(), Gate(), Gate()]
    answers = Answers()
    model = serve(*[ScriptedInstance(gate) for gate in gates], shared=resources)
    for _ in range(3):
        model.submit(now_request(answers))
    wait_until(lambda: resources.usage()[0].held == 2 and waiting(resources) == 1)
    for gate in gates:
        gate.opened.release()
    for gate in gates:
        gate.opened.release(3)
    loop.run_until(lambda: len(answers) == 3)


def test_model_that_stops_lets_what_waits_execute(serve: Serve, loop: StepLoop, resources: Resources) -> None:
    gate, answers = Gate(), Answers()
    first, second = serve(ScriptedInstance(gate)), serve(ScriptedInstance(answers_of))
    first.submit(now_request(answers))
    assert gate.reached.acquire(timeout=60)
    second.submit(now_request(answers))
    wait_until(lambda: waiting(resources) == 1)
    gate.opened.release()
    assert second.stop(10.0)
    loop.run_until(lambda: len(answers) == 2)
    assert [response.error for _, response in answers.received] == [None, None]


def test_stop_of_model_has_a_time_limit(serve: Serve, loop: StepLoop, resources: Resources) -> None:
    gate, answers = Gate(), Answers()
    first, second = serve(ScriptedInstance(gate)), serve(ScriptedInstance(answers_of))
    first.submit(now_request(answers, "a"))
    assert gate.reached.acquire(timeout=60)
    second.submit(now_request(answers, "b"))
    wait_until(lambda: waiting(resources) == 1)
    assert not second.stop(0.05)
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert isinstance(error, InferError)
    assert error.code is ErrorCode.UNAVAILABLE
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 2)


def test_cancelled_request_leaves_no_claim(serve: Serve, loop: StepLoop, resources: Resources) -> None:
    gate, answers = Gate(), Answers()
    first, second = serve(ScriptedInstance(gate)), serve(ScriptedInstance(answers_of))
    first.submit(now_request(answers, "a"))
    assert gate.reached.acquire(timeout=60)
    waits = now_request(answers, "b")
    second.submit(waits)
    wait_until(lambda: waiting(resources) == 1)
    second.cancel(waits)
    gate.opened.release()
    loop.run_until(lambda: len(answers) == 2)
    wait_until(lambda: resources.usage()[0].held == 0)
    second.submit(now_request(answers, "c"))
    loop.run_until(lambda: len(answers) == 3)
    assert answers.received[2][1].error is None
