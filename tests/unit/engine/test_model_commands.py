"""Commands of models to load and unload others: where they are carried out, when they are done, what is refused."""

import threading

import pytest

from naiad.core.environment.model_call import ModelCommand
from naiad.core.errors import ErrorCode, InferError, invalid_argument
from naiad.engine.model_calls import MOST_COMMANDS, ModelCommands
from support.engine_parts import StepLoop
from support.model_call_parts import FakeEngine, FakeServed, make_call


class Scene:
    def __init__(self) -> None:
        self.engine, self.loop = FakeEngine(), StepLoop()
        self.commands = ModelCommands(self.engine, self.loop)
        self.done: list[InferError | None] = []

    def command(self, name="other", *, is_load=True, is_initializing=False, caller="caller", parents=()) -> None:
        command = ModelCommand(caller, is_initializing, parents, name, is_load, {"config": "{}"})
        self.commands.command(command, self.done.append)

    def wait(self, count: int = 1) -> None:
        self.loop.run_until(lambda: len(self.done) >= count)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_commands_reach_all_processes_except_during_initialization(scene):
    scene.command()
    scene.wait()
    scene.command(is_initializing=True)
    scene.wait(2)
    scene.command(is_load=False)
    scene.wait(3)
    assert [what for what, _, _ in scene.engine.commands] == ["load everywhere", "load", "unload everywhere"]
    assert scene.engine.commands[0][1:] == ("other", {"config": "{}"})
    assert scene.done == [None] * 3


def test_unload_ends_when_the_model_is_withdrawn(scene):
    goes_on = threading.Event()
    scene.engine.on_command = goes_on.wait
    scene.command(is_load=False)
    scene.wait()
    assert scene.done == [None]
    assert not goes_on.is_set()
    goes_on.set()


def test_unexpected_failures_are_reported_as_internal(scene):
    scene.engine.refusal = invalid_argument("the configuration is wrong")
    scene.command()
    scene.wait()
    scene.engine.refusal = None

    def fail() -> None:
        raise OSError("no disk")

    scene.engine.on_command = fail
    scene.command()
    scene.wait(2)
    first, second = scene.done
    assert (first.code, first.message) == (ErrorCode.INVALID_ARG, "the configuration is wrong")
    assert (second.code, second.message) == (ErrorCode.INTERNAL, "OSError: no disk")


def test_model_cannot_load_itself_or_waiting_models(scene):
    first = make_call(FakeServed("outermost"), FakeServed("middle"))
    second = make_call(FakeServed("middle"), FakeServed("caller"), parents=[first])
    for name in ("caller", "middle", "outermost"):
        scene.command(name, parents=[second])
        assert f"model 'caller' cannot load model '{name}' while it executes" in scene.done[-1].message
    assert scene.engine.commands == []
    scene.command("caller", is_load=False)
    scene.wait(4)
    assert scene.done[-1] is None


def test_models_that_load_each_other_while_loading(scene):
    goes_on = threading.Event()
    scene.engine.on_command = goes_on.wait
    scene.command("b", caller="a", is_initializing=True)
    scene.command("c", caller="b", is_initializing=True)
    scene.command("a", caller="c", is_initializing=True)
    (refusal,) = scene.done
    assert "model 'c' cannot load model 'a' while it is being loaded" in refusal.message
    goes_on.set()
    scene.wait(3)
    assert scene.done[1:] == [None, None]
    scene.command("a", caller="c", is_initializing=True)
    scene.wait(4)
    assert scene.done[3] is None


def test_commands_under_way_are_bounded(scene):
    goes_on = threading.Event()
    scene.engine.on_command = goes_on.wait
    for number in range(MOST_COMMANDS):
        scene.command(f"m{number}")
    scene.command("one-too-many")
    assert f"{MOST_COMMANDS} commands of models" in scene.done[0].message
    goes_on.set()
    scene.wait(MOST_COMMANDS + 1)
