"""Rollouts in a server with several processes: changes reach all of them, and counts are sums."""

import asyncio
import json
import pickle
from collections.abc import Callable

import pytest

from naiad.cluster.member.all_processes import OwnAnswers
from naiad.cluster.member.sharing import ClusterOperations, order_of
from naiad.cluster.messages import (
    AskRollouts,
    BroadcastRequest,
    ControlCall,
    ControlOutcome,
    ModelControl,
    OperationCall,
    RolloutControl,
)
from naiad.cluster.process_channel import ClusterChannelError
from naiad.cluster.supervisor.control_broadcast import ControlBroadcast
from naiad.cluster.supervisor.scatter_gather import sum_rollouts
from naiad.config.rollout.guard import RolloutCounts, SideCounts
from naiad.config.rollout.rollout_declaration import Guard, Rollout
from naiad.config.rollout.state import RolloutState
from naiad.core.request import InferRequest, RequestHeader
from naiad.frontend.control.control import ControlCalls
from naiad.frontend.rest.routes import RestApi
from naiad.frontend.router import Router
from naiad.operations.repository import LOAD, UNLOAD
from naiad.operations.requests import LoadRequest, UnloadRequest
from naiad.repository.rollout_records import RolloutRecords
from support.engine_parts import Answers
from support.http_context import response_of
from support.rollout_parts import ScriptedVersion, member_engine

STATE = RolloutState(Rollout(1, 2, weight=10.0, aliases={"old": 1}, guard=Guard(max_p99_ms=3.0)), "digest", 4)
PATH = "/v2/models/m/rollout"


def counts(requests: int, revision: int = 0) -> RolloutCounts:
    side = SideCounts(requests, 1, {64: requests - 1})
    return RolloutCounts(("", revision), side, side, {"equal": 2})


def test_state_reaches_other_processes_unchanged() -> None:
    call = RolloutControl("m", STATE)
    assert pickle.loads(pickle.dumps(call, pickle.HIGHEST_PROTOCOL)) == call


def test_counts_of_processes_are_added() -> None:
    total = sum_rollouts([{"m": counts(5), "n": counts(1)}, {"m": counts(7)}])
    assert (total["m"].canary.requests, total["m"].stable.errors, total["n"].stable.requests) == (12, 2, 1)
    assert total["m"].shadow["equal"] == 4
    assert total["m"].canary.latencies == {64: 10}


def test_counts_of_earlier_states_are_left_out() -> None:
    assert sum_rollouts([{"m": counts(5)}, {"m": counts(7, revision=1)}])["m"] == counts(7, revision=1)


UNLOADS = [OperationCall(UNLOAD.name, UnloadRequest("m", {})), ModelControl("m", is_load=False, parameters={})]
LOADS = [OperationCall(LOAD.name, LoadRequest("m", {})), ModelControl("m", is_load=True, parameters={})]


class Member:
    def __init__(self) -> None:
        self.name = "member"
        self.done: list[object] = []

    async def ask(self, query: object, timeout_s: float | None = None) -> ControlOutcome:
        await asyncio.sleep(0)
        self.done.append(query)
        return ControlOutcome(True)


@pytest.mark.parametrize(("calls", "is_kept"), [(LOADS, True), (UNLOADS, False)])
def test_unload_removes_rollout_from_the_log(calls: list[OperationCall | ModelControl], is_kept: bool) -> None:
    async def run(call: OperationCall | ModelControl) -> list[object]:
        serving = [Member()]
        orders = ControlBroadcast(lambda: serving)  # type: ignore[arg-type,return-value]  # the part that is used
        calls: tuple[ControlCall, ...] = (RolloutControl("m", STATE), RolloutControl("other", STATE), call)
        for each in calls:
            await orders.broadcast(BroadcastRequest(each, order_of(each)))
        late = Member()
        await orders.catch_up(late)  # type: ignore[arg-type]  # the part that is used
        return late.done

    for call in calls:
        done = asyncio.run(run(call))
        assert (RolloutControl("m", STATE) in done) is is_kept
        assert RolloutControl("other", STATE) in done


def test_change_does_not_wait_for_a_load() -> None:
    keys = [order_of(call).key[:2] for call in (RolloutControl("m", STATE), *LOADS)]
    assert keys[0] not in keys[1:]


class Processes:
    """Two processes with an engine and routes each, and a supervisor that broadcasts between them."""

    def __init__(self) -> None:
        self.members = [self._member() for _ in range(2)]
        self.on_broadcast: Callable[[], object] = lambda: None

    def _member(self) -> tuple[ClusterOperations, Router]:
        engine, processes = member_engine()
        engine.models.publish({"m": {1: ScriptedVersion(1), 2: ScriptedVersion(2)}}, "m")
        operations = ClusterOperations(engine, processes, self.ask)
        operations.control_calls = ControlCalls(engine, distribution=operations)
        return operations, RestApi(engine, calls=operations.control_calls).router()

    async def ask(self, query: object) -> object:
        await asyncio.sleep(0)
        if isinstance(query, AskRollouts):
            return sum_rollouts([OwnAnswers(routes.engine).answer(query) for routes, _ in self.members])  # type: ignore[misc]
        assert isinstance(query, BroadcastRequest)
        self.on_broadcast()
        outcomes = [await routes.execute_here(query.call) for routes, _ in self.members]
        return next((outcome for outcome in outcomes if not outcome.is_success), outcomes[0])

    async def send(self, method: str, body: object = None, member: int = 0) -> tuple[int, object]:
        routes, router = self.members[member]
        routes.connect()
        routes.engine.rollout_commands.keep(RolloutRecords(), asyncio.get_running_loop())
        found = await response_of(router, method, PATH, json.dumps(body).encode() if body else b"")
        return found.status, json.loads(found.body)

    def states(self) -> list[RolloutState | None]:
        return [routes.engine.rollouts.state("m") for routes, _ in self.members]


def test_change_applies_to_all_processes() -> None:
    processes = Processes()
    status, document = asyncio.run(processes.send("POST", {"canary": 1, "weight": 10}))
    assert status == 200
    assert document["rollout"]["stable"] == 2  # type: ignore[index]  # an object
    one, other = processes.states()
    assert one == other
    assert one is not None


def test_figures_cover_all_processes() -> None:
    processes = Processes()

    async def run() -> object:
        await processes.send("POST", {"to": 1})
        for routes, _ in processes.members:
            request = InferRequest(RequestHeader(model_name="m"), (), Answers(), arrival_ns=1)
            routes.engine.inference.submit(request)
            request.model.answer()
        return (await processes.send("GET", member=1))[1]

    document = asyncio.run(run())
    assert document["stable"]["requests"] == 2  # type: ignore[index]  # an object


def test_overtaken_change_is_made_again() -> None:
    processes = Processes()

    def interfere() -> None:
        processes.on_broadcast = lambda: None
        for routes, _ in processes.members:
            engine = routes.engine
            engine.rollout_commands.apply("m", engine.rollout_commands.changed("m", {"aliases": {"old": 1}}))

    async def run() -> object:
        await processes.send("POST", {"canary": 1, "weight": 10})
        processes.on_broadcast = interfere
        return (await processes.send("POST", {"action": "rollback"}))[1]

    document = asyncio.run(run())
    rollout = document["rollout"]  # type: ignore[index]  # an object
    assert (rollout["weight"], rollout["aliases"]) == (0.0, {"old": 1})


def test_end_applies_to_all_processes() -> None:
    processes = Processes()

    async def run() -> tuple[int, object]:
        await processes.send("POST", {"to": 1})
        return await processes.send("DELETE", member=1)

    status, document = asyncio.run(run())
    assert (status, document["rollout"]) == (200, None)  # type: ignore[index]  # an object
    assert all(state is not None and state.rollout is None for state in processes.states())


@pytest.mark.parametrize(
    ("method", "body", "status", "words"),
    [
        ("GET", None, 404, "has no rollout; declare one"),
        ("DELETE", None, 404, "has no rollout"),
        ("POST", None, 400, "has no fields; send an object"),
        ("POST", [1], 400, "has no fields; send an object"),
        ("POST", {"canary": 7}, 400, "version 7 is not ready"),
        ("POST", {"action": "rollback"}, 404, "has no rollout"),
    ],
)
def test_wrong_call_has_an_error(method: str, body: object, status: int, words: str) -> None:
    processes = Processes()
    found, document = asyncio.run(processes.send(method, body))
    assert found == status
    assert words in document["error"]  # type: ignore[index]  # an object
    assert processes.states() == [None, None]


def test_change_fails_without_the_supervisor() -> None:
    processes = Processes()

    def end() -> None:
        raise ClusterChannelError("the supervisor has exited")

    processes.on_broadcast = end
    status, document = asyncio.run(processes.send("POST", {"to": 1}))
    assert status == 503
    assert "could not be reached" in document["error"]  # type: ignore[index]  # an object
