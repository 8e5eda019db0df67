"""Runners of instances: idle ones, woken ones, removed ones."""

from collections.abc import Collection

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.engine.serving.dispatch.dispatcher import Dispatcher
from naiad.engine.serving.dispatch.response_queue import ResponseQueue
from naiad.engine.serving.dispatch.runners import InstanceRunners, join_all
from naiad.scheduler.factory import create_scheduler
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import Answers, ScriptedInstance, StepLoop, config, request


class NotedDriver:
    """Notes how often it was woken."""

    def __init__(self, index: int, *, ends: bool = True) -> None:
        self.index = index
        self.free_ns = 0
        self.instance = ScriptedInstance()
        self.woken = 0
        self.ends = ends
        self.joined_for_s = -1.0

    def start(self) -> None: ...

    def wake(self) -> None:
        self.woken += 1

    def wake_now(self) -> None:
        self.woken += 1

    def join(self, timeout_s: float) -> bool:
        self.joined_for_s = timeout_s
        return self.ends


class Woken:
    """A scheduler that has got something for these instances."""

    def __init__(self, *indices: int) -> None:
        self.indices = indices

    def pop_woken(self) -> Collection[int]:
        return self.indices


@pytest.fixture
def three() -> tuple[InstanceRunners, list[NotedDriver]]:
    runners, noted = InstanceRunners(), [NotedDriver(index) for index in range(3)]
    runners.replace(noted)
    runners.idle.extend(noted)
    return runners, noted


def test_only_runners_with_work_are_woken(
    three: tuple[InstanceRunners, list[NotedDriver]],
) -> None:
    runners, noted = three
    assert runners.pop_woken(Woken(1, 2)) is noted[1]
    assert [runner.woken for runner in noted] == [0, 0, 1]
    assert runners.idle == [noted[0]]
    assert runners.pop_woken(Woken(1, 2)) is None


def test_runner_taken_off_the_idle_list_cannot_withdraw(three: tuple[InstanceRunners, list[NotedDriver]]) -> None:
    runners, noted = three
    assert runners.withdraw(noted[1])
    assert not runners.withdraw(noted[1])
    assert runners.idle == [noted[0], noted[2]]


def test_removed_idle_runner_is_woken(
    three: tuple[InstanceRunners, list[NotedDriver]],
) -> None:
    runners, noted = three
    runners.withdraw(noted[0])  # it executes
    assert runners.replace([noted[2]]) == noted[:2]
    assert [runner.woken for runner in noted] == [0, 1, 0]
    assert runners.idle == [noted[2]]
    assert runners.leaving == set(noted[:2])
    runners.forget(noted[:2])
    assert not runners.leaving


def test_healthiest_instance_gives_health_of_version(three: tuple[InstanceRunners, list[NotedDriver]]) -> None:
    runners, noted = three
    for runner in noted:
        runner.instance.reason = f"instance {runner.index} is ill"
    assert runners.health == "instance 2 is ill"
    noted[1].instance.reason = ""
    assert runners.health == ""


def test_all_runners_are_joined_despite_one_timeout() -> None:
    noted = [NotedDriver(0, ends=False), NotedDriver(1)]
    assert not join_all(noted, deadline_s=0.0)
    assert [runner.joined_for_s for runner in noted] == [0.0, 0.0]


@pytest.fixture
def dispatcher() -> Dispatcher:
    return make_dispatcher(config())


def make_dispatcher(made: ModelConfig) -> Dispatcher:
    loop = StepLoop()
    return Dispatcher(
        config=made,
        scheduler=create_scheduler(made),
        statistics=ModelStatistics("m", "1"),
        response_queue=ResponseQueue(loop),
        loop=loop,
    )


def test_unwoken_runner_is_on_idle_list_once(dispatcher: Dispatcher) -> None:
    # The event loop looks for a driver whose worker has died while it was idle.
    runner = NotedDriver(0)
    dispatcher.runners.replace([runner])
    for _ in range(2):
        assert dispatcher.take(runner) == (None, 0)
    assert dispatcher.runners.idle == [runner]


def test_unwoken_runner_with_work_leaves_idle_list(dispatcher: Dispatcher) -> None:
    runner = NotedDriver(0)
    dispatcher.runners.replace([runner])
    assert dispatcher.take(runner) == (None, 0)
    dispatcher._scheduler.enqueue(request(Answers()), 1)
    batch, _ = dispatcher.take(runner)
    assert batch is not None
    assert dispatcher.runners.idle == []


def test_an_ill_runner_is_not_woken_for_requests(dispatcher: Dispatcher) -> None:
    noted = [NotedDriver(0), NotedDriver(1)]
    dispatcher.runners.replace(noted)
    for runner in noted:
        dispatcher.take(runner)
    noted[1].instance.reason = "it is being restarted"
    assert dispatcher.handle_unhealthy(noted[1])
    dispatcher.enqueue(request(Answers()))
    assert [runner.woken for runner in noted] == [1, 0]


def test_taking_a_batch_wakes_another_instance() -> None:
    dispatcher = make_dispatcher(config(max_batch_size=1, dynamic_batching={}))
    noted = [NotedDriver(0), NotedDriver(1)]
    dispatcher.runners.replace(noted)
    for runner in noted:
        dispatcher.take(runner)
    for _ in range(2):
        dispatcher.enqueue(request(Answers()))
    assert [runner.woken for runner in noted] == [0, 1]
    batch, _ = dispatcher.take(noted[1])
    assert batch is not None
    assert [runner.woken for runner in noted] == [1, 1]
