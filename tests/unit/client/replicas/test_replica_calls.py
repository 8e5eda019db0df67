"""Calls to several servers: which are sent again, and what is counted."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from naiad.client.connecting import ClientClosedError, ConnectionFailedError, NotConnectedError, parse_address
from naiad.client.replicas import replica_calls
from naiad.client.replicas.replica_calls import ReplicaCalls
from naiad.core.errors import ErrorCode, InferError, internal, rejected, unavailable
from naiad.core.limits.retry_budget import RetryBudget
from naiad.core.request import RequestHeader

PLAIN = RequestHeader(model_name="m")
URLS = ["grpc://a", "grpc://b", "grpc://c"]


class Scripted:
    """A server: `errors` are raised one after the other, then it answers with its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.errors: list[InferError] = []
        self.answers_first = False
        self.timeouts: list[float | None] = []
        self.is_closed = False
        self.looks = 0
        self.wait: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    async def infer(self, header: Any, request_id: Any, data: Any, timeout_s: float | None, headers: Any) -> str:
        self.timeouts.append(timeout_s)
        await self.wait()
        self._fail()
        return self.url

    async def infer_stream(self, header: Any, request_id: Any, data: Any, headers: Any) -> AsyncGenerator[str, None]:
        if self.answers_first:
            yield self.url
        self._fail()
        yield self.url

    async def is_live(self) -> bool:
        self._fail()
        return True

    async def is_model_ready(self, model: str, version: str) -> bool:
        self._fail()
        return self.answers_first

    async def model_metadata(self, model: str, version: str) -> str:
        self._fail()
        return self.url

    def close(self) -> None:
        self.is_closed = True


class Look:
    """A further connection to a server."""

    def __init__(self, server: Any) -> None:
        self._server = server

    async def is_live(self) -> Any:
        return await self._server.is_live()

    def close(self) -> None:
        self._server.looks += 1


class Scene:
    """Servers behind a client."""

    def __init__(self, urls: Sequence[str] = URLS, budget: RetryBudget | None = None, **more: Any) -> None:
        self.servers: dict[str, Any] = {}
        self.calls = ReplicaCalls([parse_address(each) for each in urls], self.open, budget or RetryBudget(), **more)

    def open(self, address: Any) -> Any:
        known = self.servers.get(address.url)
        if known is not None and not known.is_closed:
            return Look(known)
        made = self.servers[address.url] = Scripted(address.url)
        return made

    def fail_all(self, make: Callable[[str], InferError]) -> None:
        for url, server in self.servers.items():
            server.errors.append(make(url))

    async def infer(self, header: RequestHeader = PLAIN, timeout_s: float | None = None) -> Any:
        return await self.calls.infer(header, "", (), timeout_s, {})


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await body()

    asyncio.run(within())


@pytest.mark.parametrize("error", [NotConnectedError("no"), rejected("full"), unavailable("lost"), internal("bad")])
def test_only_what_was_not_begun_is_sent_again(error: InferError) -> None:
    async def body() -> None:
        scene = Scene()
        scene.servers["grpc://b"].errors.append(error)
        found = await asyncio.gather(*[scene.infer() for _ in range(3)], return_exceptions=True)
        failures = [each for each in found if isinstance(each, Exception)]
        assert failures == ([error] if error.has_begun else [])
        assert scene.calls.counts.retries == (0 if error.has_begun else 1)
        assert sum(each.moved for each in scene.calls.states) == scene.calls.counts.retries
        scene.calls.close()

    run(body)


def test_broken_connections_are_repeated_only_if_wanted() -> None:
    async def body() -> None:
        for wanted in (False, True):
            scene = Scene(URLS[:2], retries_begun=wanted)
            scene.servers["grpc://b"].errors.append(ConnectionFailedError("it broke"))
            found = await asyncio.gather(scene.infer(), scene.infer(), return_exceptions=True)
            assert sum(isinstance(each, InferError) for each in found) == (not wanted)
        header = RequestHeader(model_name="m", sequence_id=3, sequence_start=True)
        scene = Scene(URLS[:2], retries_begun=True)
        scene.fail_all(lambda url: ConnectionFailedError("it broke"))
        with pytest.raises(ConnectionFailedError, match="it broke"):
            await scene.infer(header)
        assert scene.calls.counts.retries == 0, "requests of a sequence are never executed twice"

    run(body)


def test_each_server_is_tried_once() -> None:
    async def body() -> None:
        scene = Scene()
        scene.fail_all(lambda url: rejected(f"full {url}"))
        with pytest.raises(InferError, match="full"):
            await scene.infer()
        assert [len(each.timeouts) for each in scene.servers.values()] == [1, 1, 1]
        scene = Scene(URLS[:2])
        scene.servers["grpc://a"].errors.append(NotConnectedError("away"))
        scene.calls.states  # noqa: B018 - readable before any call
        await asyncio.gather(scene.infer(), scene.infer())
        scene.servers["grpc://b"].errors.append(rejected("full"))
        with pytest.raises(InferError, match="full"):
            await scene.infer()
        assert [each.problem for each in scene.calls.states] == ["away", ""]
        scene.calls.close()

    run(body)


def test_the_budget_ends_retries_and_is_counted() -> None:
    async def body() -> None:
        scene = Scene(URLS[:2], RetryBudget(0.0, least_per_s=0.1))
        for _ in range(2):
            scene.fail_all(lambda url: rejected("full"))
        found = await asyncio.gather(*[scene.infer() for _ in range(4)], return_exceptions=True)
        assert sum(isinstance(each, InferError) for each in found) == 3
        counts = scene.calls.counts
        assert (counts.calls, counts.retries, counts.over_budget) == (4, 1, 3)

    run(body)


def test_calls_without_a_connection_need_no_budget() -> None:
    async def body() -> None:
        scene = Scene(URLS[:2], RetryBudget(0.0, least_per_s=0.1))
        scene.servers["grpc://a"].errors += [NotConnectedError("away") for _ in range(20)]
        found = await asyncio.gather(*[scene.infer() for _ in range(40)])
        assert set(found) == {"grpc://b"}
        counts = scene.calls.counts
        assert (counts.calls, counts.retries, counts.over_budget) == (40, 20, 0)
        for _ in range(2):
            scene.servers["grpc://a"].errors.append(NotConnectedError("away"))
            scene.servers["grpc://b"].errors.append(NotConnectedError("away too"))
            with pytest.raises(NotConnectedError, match="away"):
                await scene.infer()
        assert scene.calls.counts.over_budget == 1, "all are away: each try of another one is a retry"
        scene.calls.close()

    run(body)


def test_the_deadline_is_that_of_the_call() -> None:
    async def body() -> None:
        scene = Scene(URLS[:2])
        scene.fail_all(lambda url: rejected("full"))
        with pytest.raises(InferError):
            await scene.infer(timeout_s=5.0)
        first, second = (each.timeouts[0] for each in scene.servers.values())
        assert max(first, second) <= 5.0
        assert first != second, "the second try has what is left"

    run(body)


def test_streams_move_until_their_first_response() -> None:
    async def body() -> None:
        scene = Scene(URLS[:2])
        for has_answer in (False, True):
            for each in scene.servers.values():
                each.answers_first = has_answer
                each.errors = [rejected("full")]
            taken: list[Any] = []
            with pytest.raises(InferError, match="full"):
                await read(scene, taken)
            assert len(taken) == has_answer
            assert scene.calls.counts.retries == 1, "of the first stream"

    run(body)


async def read(scene: Scene, taken: list[Any]) -> None:
    async for each in scene.calls.infer_stream(PLAIN, "", (), {}):
        taken.append(each)


def test_sequences_stay_and_a_start_may_move() -> None:
    async def body() -> None:
        scene = Scene(URLS[:2])
        start = RequestHeader(model_name="m", sequence_id=1, sequence_start=True)
        later = RequestHeader(model_name="m", sequence_id=1)
        scene.servers["grpc://b"].errors.append(rejected("full"))
        scene.servers["grpc://a"].errors.append(rejected("full"))
        with pytest.raises(InferError, match="full"):
            await scene.infer(start)
        with pytest.raises(InferError, match="no server has begun it"):
            await scene.infer(later)
        holder = await scene.infer(start)
        assert {await scene.infer(later) for _ in range(4)} == {holder}
        scene.servers[holder].errors.append(NotConnectedError("no connection"))
        with pytest.raises(NotConnectedError, match="the server that has sequence 1 is away: no connection"):
            await scene.infer(later)
        scene.calls.close()

    run(body)


def test_a_server_comes_back_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_calls, "_AWAY_S", 0.001)

    async def body() -> None:
        scene = Scene(URLS[:2])
        scene.servers["grpc://a"].errors += [NotConnectedError("first"), NotConnectedError("second")]
        await asyncio.gather(scene.infer(), scene.infer())
        while any(each.problem for each in scene.calls.states):
            await asyncio.sleep(0.001)
        assert scene.servers["grpc://a"].errors == []
        assert {await scene.infer() for _ in range(2)} == set(URLS[:2])
        scene.calls.close()

    run(body)


def test_any_server_that_is_ready_counts() -> None:
    async def body() -> None:
        scene = Scene()
        assert not await scene.calls.is_model_ready("m", "")
        scene.servers["grpc://c"].answers_first = True
        scene.servers["grpc://a"].errors.append(NotConnectedError("away"))
        assert await scene.calls.is_model_ready("m", "")
        scene.fail_all(lambda url: ConnectionFailedError("broke"))
        with pytest.raises(ConnectionFailedError):
            await scene.calls.is_live()
        scene.servers["grpc://b"].errors.append(ConnectionFailedError("broke"))
        assert await scene.calls.model_metadata("m", "") in URLS
        scene.calls.close()
        assert all(each.is_closed for each in scene.servers.values())

    run(body)


@pytest.mark.parametrize("error", [ConnectionFailedError("broke"), internal("a proxy answers"), None])
def test_no_server_waits_for_another_one(error: InferError | None) -> None:
    """Without an error the server accepts the question and never answers."""

    async def body() -> None:
        scene = Scene()
        ended: list[str] = []

        async def fail(*arguments: Any) -> bool:
            try:
                if error is None:
                    await asyncio.sleep(3600)
            finally:
                ended.append("a")
            raise error or internal("not reached")

        scene.servers["grpc://a"].is_live = scene.servers["grpc://a"].is_model_ready = fail
        scene.servers["grpc://b"].answers_first = True
        assert await scene.calls.is_live()
        assert await scene.calls.is_model_ready("m", "")
        await asyncio.sleep(0)
        assert len(ended) == 2
        assert len(asyncio.all_tasks()) == 1, "nothing waits for it any more"
        assert scene.calls.counts.retries == 0
        if error is not None:
            for each in scene.servers.values():
                each.is_live = fail
            with pytest.raises(type(error), match=error.message):
                await scene.calls.is_live()
            return
        scene.servers["grpc://b"].answers_first = False
        waiting = asyncio.create_task(scene.calls.is_model_ready("m", ""))
        await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1, "a question that is cancelled is cancelled everywhere"

    run(body)


def test_a_server_that_flaps_has_one_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_calls, "_AWAY_S", 0.01)
    monkeypatch.setattr(replica_calls, "_LOOK_S", 0.01)

    async def body() -> None:
        scene = Scene(URLS[:1])
        server, looks = scene.servers["grpc://a"], 0

        async def hang() -> bool:
            nonlocal looks
            looks += 1
            if looks < 3:
                await asyncio.sleep(60)
            return True

        server.is_live = hang
        for _ in range(5):
            server.errors.append(NotConnectedError("away"))
            with pytest.raises(NotConnectedError):
                await scene.infer()
            await scene.infer()
        assert len(asyncio.all_tasks()) == 2, "this one and the watch"
        server.errors.append(NotConnectedError("away"))
        with pytest.raises(NotConnectedError):
            await scene.infer()
        while scene.calls.states[0].problem:
            await asyncio.sleep(0.001)
        assert looks == 3, "a look that hangs is repeated"
        server.errors.append(NotConnectedError("away"))
        closing = asyncio.create_task(scene.infer())
        await asyncio.sleep(0)
        scene.calls.close()
        with pytest.raises(ClientClosedError):
            await closing
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1, "a closed client watches nothing"

    run(body)


CALLS: dict[str, Callable[[ReplicaCalls], Awaitable[Any]]] = {
    "infer": lambda calls: calls.infer(PLAIN, "", (), None, {}),
    "start": lambda calls: calls.infer(
        RequestHeader(model_name="m", sequence_id=1, sequence_start=True), "", (), None, {}
    ),
    "stream": lambda calls: anext(calls.infer_stream(PLAIN, "", (), {})),
    "live": lambda calls: calls.is_live(),
    "model ready": lambda calls: calls.is_model_ready("m", ""),
    "metadata": lambda calls: calls.model_metadata("m", ""),
}


def closing_scene(error: InferError) -> Scene:
    """Return servers that wait until they are closed, and then fail."""
    scene = Scene(URLS[:2], retries_begun=True)

    def of(server: Any) -> None:
        closed = asyncio.Event()
        server.close = closed.set
        server.count = 0

        async def hang(*arguments: Any) -> Any:
            server.count += 1
            await closed.wait()
            raise error

        async def stream(*arguments: Any) -> AsyncGenerator[str, None]:
            yield await hang()

        server.infer = server.is_live = server.is_model_ready = server.model_metadata = hang
        server.infer_stream = stream

    for each in scene.servers.values():
        of(each)
    return scene


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("error", [ConnectionFailedError("lost"), NotConnectedError("away"), ClientClosedError()])
def test_calls_in_progress_end_with_the_client(
    call: Callable[[ReplicaCalls], Awaitable[Any]], error: InferError
) -> None:
    async def body() -> None:
        scene = closing_scene(error)
        waiting = asyncio.ensure_future(call(scene.calls))
        await asyncio.sleep(0.001)
        before = [each.count for each in scene.servers.values()]
        assert sum(before) > 0
        scene.calls.close()
        with pytest.raises(ClientClosedError) as raised:
            await waiting
        assert raised.value.has_begun == error.has_begun
        assert [each.count for each in scene.servers.values()] == before, "nothing is sent again"
        assert [each.problem for each in scene.calls.states] == ["", ""]
        assert len(asyncio.all_tasks()) == 1

    run(body)


def test_what_a_server_refuses_after_a_close_stays() -> None:
    async def body() -> None:
        scene = closing_scene(rejected("full"))
        waiting = asyncio.ensure_future(scene.infer())
        await asyncio.sleep(0.001)
        scene.calls.close()
        with pytest.raises(InferError, match="full"):
            await waiting
        assert scene.calls.counts.retries == 0

    run(body)


def test_a_client_that_was_closed_watches_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_calls, "_AWAY_S", 0.001)

    async def body() -> None:
        scene = Scene(URLS[:1])
        for _ in range(2):
            scene.servers["grpc://a"].errors.append(NotConnectedError("away"))
            with pytest.raises(NotConnectedError):
                await scene.infer()
            scene.calls.close()  # before the watch has begun
        scene.servers["grpc://a"].errors.append(NotConnectedError("away"))
        with pytest.raises(NotConnectedError):
            await scene.infer()
        while scene.calls.states[0].problem:
            await asyncio.sleep(0.001)
        scene.calls.close()

    run(body)


def test_a_name_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_calls, "_RESOLVE_S", 0.0)
    answers: list[list[str] | InferError] = [NotConnectedError("no address"), ["grpc://a", "grpc://b"]]

    async def resolve() -> Sequence[Any]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, InferError):
            raise answer
        return [parse_address(each) for each in answer]

    async def body() -> None:
        monkeypatch.setattr(replica_calls, "_AWAY_S", 0.0)
        scene = Scene((), resolve=resolve)
        with pytest.raises(NotConnectedError, match="no address"):
            await scene.infer()
        assert {await scene.infer() for _ in range(4)} == {"grpc://a", "grpc://b"}
        answers[:] = [["grpc://b", "grpc://c"]]
        while set(scene.servers) != {"grpc://a", "grpc://b", "grpc://c"}:
            await scene.infer()
        assert {await scene.infer() for _ in range(4)} == {"grpc://b", "grpc://c"}
        assert scene.servers["grpc://a"].is_closed
        answers[:] = [InferError(ErrorCode.UNAVAILABLE, "the name server is away")]
        assert {await scene.infer() for _ in range(4)} == {"grpc://b", "grpc://c"}, "known addresses stay"
        scene.calls.close()

    run(body)


def test_servers_that_left_end_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_calls, "_RESOLVE_S", 0.0)
    answers = [["grpc://a"], ["grpc://b"]]

    async def resolve() -> Sequence[Any]:
        return [parse_address(each) for each in (answers.pop(0) if len(answers) > 1 else answers[0])]

    async def body() -> None:
        scene = Scene((), resolve=resolve)
        await scene.infer()
        go_on = asyncio.Event()
        scene.servers["grpc://a"].wait = go_on.wait
        last = asyncio.create_task(scene.infer())
        while "grpc://b" not in scene.servers:
            await scene.calls.is_live()
            await asyncio.sleep(0)
        left = scene.servers["grpc://a"]
        assert not left.is_closed, "its call goes on"
        scene.calls.close()
        assert left.is_closed
        go_on.set()
        await last

    run(body)


def test_every_call_without_an_address_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown() -> Sequence[Any]:
        raise NotConnectedError("no address of 'naiad'")

    async def nothing() -> Sequence[Any]:
        return ()

    async def body() -> None:
        scene = Scene((), resolve=unknown)
        with pytest.raises(NotConnectedError, match=r"^no address of 'naiad'$"):
            await scene.infer()
        for call in CALLS.values():
            with pytest.raises(NotConnectedError, match=r"^no address of 'naiad'; it is looked up once a second$"):
                await call(scene.calls)
        with pytest.raises(NotConnectedError, match="the name has no address"):
            await Scene((), resolve=nothing).infer()

    run(body)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_close_ends_the_wait_for_a_name(call: Callable[[ReplicaCalls], Awaitable[Any]]) -> None:
    go_on = asyncio.Event()

    async def resolve() -> Sequence[Any]:
        await go_on.wait()
        return [parse_address("grpc://a")]

    async def body() -> None:
        scene = Scene((), resolve=resolve)
        for is_found in (False, True):
            waiting = asyncio.ensure_future(call(scene.calls))
            await asyncio.sleep(0.001)
            if is_found:
                go_on.set()
                while not scene.servers:
                    await asyncio.sleep(0)
            scene.calls.close()
            with pytest.raises(ClientClosedError):
                await waiting
        await call(scene.calls)  # a closed client may be used again
        scene.calls.close()

    run(body)


def test_a_cancelled_call_ends_no_look_up() -> None:
    async def resolve() -> Sequence[Any]:
        await asyncio.sleep(0.01)
        return [parse_address("grpc://a")]

    async def body() -> None:
        scene = Scene((), resolve=resolve)
        first, second = asyncio.create_task(scene.infer()), asyncio.create_task(scene.infer())
        await asyncio.sleep(0.001)
        first.cancel()
        assert await second == "grpc://a"
        with pytest.raises(asyncio.CancelledError):
            await first

    run(body)


async def hang(*arguments: Any) -> Any:
    await asyncio.sleep(3600)


async def lose(*arguments: Any) -> Any:
    raise ConnectionFailedError("the connection was lost")


async def no_connection(*arguments: Any) -> Any:
    raise NotConnectedError("no connection")


@pytest.mark.parametrize(
    ("infer", "look", "problem"),
    [
        (hang, no_connection, "no connection"),
        (hang, hang, "no answer within 0.01 s"),
        (lose, lose, "the connection was lost"),
        (lose, no_connection, "no connection"),
    ],
)
def test_a_server_that_answers_nothing_is_away(
    monkeypatch: pytest.MonkeyPatch, infer: Any, look: Any, problem: str
) -> None:
    monkeypatch.setattr(replica_calls, "_AWAY_S", 0.001)
    monkeypatch.setattr(replica_calls, "_LOOK_S", 0.01)

    async def body() -> None:
        scene = Scene(URLS[:2])
        server = scene.servers["grpc://a"]
        server.infer, server.is_live = infer, look
        while not scene.calls.states[0].problem:
            with contextlib.suppress(TimeoutError, ConnectionFailedError):
                async with asyncio.timeout(0.001):
                    await scene.infer()
        assert scene.calls.states[0].problem == problem
        assert {await scene.infer() for _ in range(4)} == {"grpc://b"}
        del server.infer, server.is_live
        while scene.calls.states[0].problem:
            await asyncio.sleep(0.001)
        assert {await scene.infer() for _ in range(4)} == {"grpc://a", "grpc://b"}
        scene.calls.close()

    run(body)


def test_a_slow_server_keeps_its_turn() -> None:
    async def body() -> None:
        scene = Scene(URLS[:1])
        server = scene.servers["grpc://a"]
        server.infer = hang
        for _ in range(6):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await scene.infer()
        assert server.looks == 1, "at most one each second"
        assert scene.calls.states[0].problem == ""
        scene.calls.close()

    run(body)


def test_questions_to_all_raise_no_doubts() -> None:
    async def body() -> None:
        scene = Scene(URLS[:2])
        scene.servers["grpc://a"].is_live = hang
        for _ in range(3):
            assert await scene.calls.is_live()
            await asyncio.sleep(0)
        assert {await scene.infer() for _ in range(2)} == set(URLS[:2])
        assert [each.looks for each in scene.servers.values()] == [0, 0]
        assert len(asyncio.all_tasks()) == 1

    run(body)


def test_a_server_that_left_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_calls, "_RESOLVE_S", 0.0)
    monkeypatch.setattr(replica_calls, "_AWAY_S", 0.0)
    answers = ["grpc://a"]

    async def resolve() -> Sequence[Any]:
        return [parse_address(each) for each in answers]

    async def body() -> None:
        scene = Scene((), resolve=resolve)
        await scene.infer()
        scene.servers["grpc://a"].is_live = hang
        scene.servers["grpc://a"].errors.append(NotConnectedError("away"))
        with pytest.raises(NotConnectedError):
            await scene.infer()
        answers[:] = ["grpc://b"]
        while "grpc://b" not in scene.servers:
            await scene.infer()
        await asyncio.sleep(0.001)
        assert len(asyncio.all_tasks()) == 1
        scene.calls.close()

    run(body)
