"""Control calls to all processes, with simulated processes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from naiad.cluster.messages import BroadcastRequest, ControlCall, ControlOutcome, OperationCall
from naiad.cluster.process_channel import ClusterChannelError
from naiad.cluster.supervisor.control_broadcast import ControlBroadcast
from naiad.operations.requests import CommandOrder

OK = ControlOutcome(True, "ok")
BAD = ControlOutcome(False, text="bad")


def call(name: str) -> OperationCall:
    return OperationCall(name, None)


def name_of(call: ControlCall) -> str:
    assert isinstance(call, OperationCall)
    return call.operation


class Member:
    """Returns a given result; `hook` runs during a call."""

    def __init__(
        self, name: str, answer: ControlOutcome | Exception = OK, hook: Callable[[], object] | None = None
    ) -> None:
        self.name = name
        self.done: list[str] = []
        self._answer = answer
        self._hook = hook

    async def ask(self, query: ControlCall, timeout_s: float | None = None) -> ControlOutcome:
        await asyncio.sleep(0)
        if self._hook is not None:
            self._hook()
        self.done.append(name_of(query))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def orders_of(members: list[Any]) -> ControlBroadcast:
    return ControlBroadcast(lambda: list(members))


def model_order(path: str = "/load", name: str = "m") -> BroadcastRequest:
    return BroadcastRequest(call(path), CommandOrder(("model", name)))


def test_every_member_carries_it_out() -> None:
    members = [Member("a"), Member("b")]
    assert asyncio.run(orders_of(members).broadcast(model_order())) == OK
    assert [member.done for member in members] == [["/load"], ["/load"]]


def test_failure_of_one_process_is_result(caplog: pytest.LogCaptureFixture) -> None:
    members = [Member("a"), Member("b", BAD)]
    assert asyncio.run(orders_of(members).broadcast(model_order())) == BAD
    assert "/load failed in 1 of 2 processes" in caplog.text


def test_a_member_that_dies_meanwhile_does_not_matter() -> None:
    members = [Member("a", ClusterChannelError("gone")), Member("b")]
    assert asyncio.run(orders_of(members).broadcast(model_order())) == OK


def test_without_members_it_fails() -> None:
    with pytest.raises(ClusterChannelError):
        asyncio.run(orders_of([]).broadcast(model_order()))


def test_late_process_replays_successful_commands() -> None:
    async def run() -> Member:
        members: list[Member] = [Member("a")]
        orders = orders_of(members)
        await orders.broadcast(model_order("/load"))
        await orders.broadcast(model_order("/unload"))
        await orders.broadcast(BroadcastRequest(call("/register"), CommandOrder(("region", "system", "x"))))
        await orders.broadcast(BroadcastRequest(call("/unregister"), CommandOrder(("region", "system"), undoes=True)))
        members[0] = Member("b", BAD)
        await orders.broadcast(BroadcastRequest(call("/failed"), CommandOrder(("model", "n"))))
        late = Member("late")
        await orders.catch_up(late)  # type: ignore[arg-type]
        return late

    assert asyncio.run(run()).done == ["/unload"]


def test_process_joining_meanwhile_executes_command() -> None:
    members: list[Member] = []
    late = Member("late")
    members.append(Member("a", hook=lambda: members.append(late) if late not in members else None))
    asyncio.run(orders_of(members).broadcast(model_order()))
    assert late.done == ["/load"]


def test_command_during_replay_reaches_process() -> None:
    async def run() -> Member:
        members = [Member("a")]
        orders = orders_of(members)
        await orders.broadcast(model_order("/first", "x"))
        late = Member("late")
        await asyncio.gather(orders.catch_up(late), orders.broadcast(model_order("/second", "y")))  # type: ignore[arg-type]
        # Commands too late for the log run on the processes that serve by then.
        await orders.catch_up(late)  # type: ignore[arg-type]
        return late

    assert set(asyncio.run(run()).done) == {"/first", "/second"}


def test_calls_with_same_key_keep_order() -> None:
    running: set[str] = set()
    together: set[frozenset[str]] = set()

    class Slow(Member):
        async def ask(self, query: ControlCall, timeout_s: float | None = None) -> ControlOutcome:
            running.add(name_of(query))
            for _ in range(5):
                await asyncio.sleep(0)
                together.add(frozenset(running))
            running.discard(name_of(query))
            self.done.append(name_of(query))
            return OK

    member = Slow("a")

    async def run() -> None:
        orders = orders_of([member])
        calls = [("/m1", "m"), ("/m2", "m"), ("/n", "n")]
        await asyncio.gather(*[orders.broadcast(model_order(path, name)) for path, name in calls])
        assert orders._locks == {}

    asyncio.run(run())
    assert not any({"/m1", "/m2"} <= each for each in together)
    assert any({"/m1", "/n"} <= each for each in together)
    assert member.done.index("/m1") < member.done.index("/m2")


def test_command_of_dying_process_is_kept() -> None:
    async def run() -> tuple[Member, Member]:
        begun, may_end = asyncio.Event(), asyncio.Event()

        class Slow(Member):
            async def ask(self, query: ControlCall, timeout_s: float | None = None) -> ControlOutcome:
                begun.set()
                await may_end.wait()
                return await super().ask(query, timeout_s)

        member, successor = Slow("a"), Member("successor")
        orders = orders_of([member])
        asking = asyncio.ensure_future(orders.broadcast(model_order()))
        await begun.wait()
        # Its channel closes, and its commands are no longer waited for.
        asking.cancel()
        await asyncio.wait([asking])
        may_end.set()
        for _ in range(10):
            await asyncio.sleep(0)
        await orders.broadcast(model_order("/load other", "n"))
        await orders.catch_up(successor)  # type: ignore[arg-type]
        return member, successor

    member, successor = asyncio.run(run())
    assert member.done == ["/load", "/load other"]
    assert successor.done == ["/load", "/load other"]


def test_undo_during_replay_reaches_process() -> None:
    async def run() -> Member:
        orders = orders_of([Member("a")])
        await orders.broadcast(BroadcastRequest(call("/register"), CommandOrder(("region", "system", "x"))))
        await orders.broadcast(model_order("/load"))
        undone = asyncio.Event()

        class Late(Member):
            async def ask(self, query: ControlCall, timeout_s: float | None = None) -> ControlOutcome:
                if name_of(query) == "/load":
                    await orders.broadcast(
                        BroadcastRequest(call("/unregister"), CommandOrder(("region", "system", "x"), undoes=True))
                    )
                    undone.set()
                return await super().ask(query, timeout_s)

        late = Late("late")
        await orders.catch_up(late)  # type: ignore[arg-type]
        return late

    assert asyncio.run(run()).done == ["/register", "/load", "/unregister"]
