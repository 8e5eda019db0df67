"""The ticker of live streams: what each client gets, slow clients, bounds, lost rights, and the end."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.errors import InferError, unavailable
from naiad.core.model import IndexEntry, ModelState, ServerMetadata
from naiad.frontend.context import CancelReason
from naiad.frontend.dashboard.live_feed import LiveFeed
from naiad.frontend.dashboard.live_request import LiveRequest
from naiad.frontend.dashboard.live_stream import MAX_UNREAD_BYTES, Rights
from naiad.telemetry.live.live_answer import FailureEntry, LiveAnswer, LiveQuery, TailPart
from naiad.telemetry.statistics.live_counts import LiveCounts
from naiad.wire.event_stream import EventParser

CATEGORIES = ("inference", "model-repository", "rollout", "logging", "statistics")
INTERVAL_S = 0.01


class Client:
    """A context of a client, with the events that it got."""

    def __init__(self, *denied: str) -> None:
        self.denied = set(denied)
        self.key_name = ""
        self.client: object = None
        self.unread_bytes = 0
        self.on_disconnect: Callable[[CancelReason], object] | None = None
        self.has_ended = False
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._parser = EventParser()

    def start_stream(self, status: int, headers: object) -> None:
        assert status == 200

    def send(self, parts: Sequence[bytes]) -> None:
        assert not self.has_ended
        for event in self._parser.feed(b"".join(parts)):
            self.events.append((event.name, orjson.loads(event.data)))

    def end(self) -> None:
        self.has_ended = True

    def of(self, name: str) -> list[dict[str, Any]]:
        return [data for event, data in self.events if event == name]


class Server:
    """An engine with one model, and the answers of its processes."""

    def __init__(self) -> None:
        served = SimpleNamespace(config=SimpleNamespace(HasField=lambda name: False, backend="identity", platform=""))
        self.phase = SimpleNamespace(is_draining=False, started_ms=1)
        rows = {"m": {"1": served}}
        self.models = SimpleNamespace(rows=rows, named=rows)
        self.rollouts = SimpleNamespace(state=lambda key: None, states=dict)
        index = [IndexEntry("m", "1", ModelState.READY)]
        self.views = SimpleNamespace(
            server_metadata=lambda: ServerMetadata("naiad", "1", ("statistics",)),
            repository_index=lambda: index,
            survey_repository=lambda: [*index, IndexEntry("unloaded")],
        )
        self.success = 0
        self.queries: list[LiveQuery] = []
        self.is_away = False
        self.failures: list[FailureEntry] = []

    async def ask(self, query: LiveQuery) -> LiveAnswer:
        self.queries.append(query)
        await asyncio.sleep(0)
        if self.is_away:
            raise unavailable("the processes could not be queried")
        rows = {("m", "1"): LiveCounts(success=self.success)} if self.success else {}
        part = TailPart(1, len(self.failures), tuple(self.failures))
        return LiveAnswer(True, 1.0, 2, 3, rows, failures=(part,))


def rights(context: Any) -> Rights:
    return Rights({name: {"allowed": name not in context.denied} for name in CATEGORIES})


def open_stream(feed: LiveFeed, *denied: str, key: str = "", **fields: Any) -> Client:
    client = Client(*denied)
    client.key_name = key
    feed.open(client, LiveRequest(**{"interval_s": INTERVAL_S, **fields}), rights)  # type: ignore[arg-type]
    return client


async def until(is_met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_met():
            await asyncio.sleep(INTERVAL_S)


def run(scene: Callable[[Server, LiveFeed], Any], **options: Any) -> None:
    async def act() -> None:
        server = Server()
        feed = LiveFeed(server, ask=server.ask, **options)  # type: ignore[arg-type]
        await scene(server, feed)
        feed.close("the test ends")
        await until(lambda: not feed._tasks)

    asyncio.run(act())


def test_only_changed_versions_are_sent() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        client = open_stream(feed)
        await until(lambda: len(client.of("sample")) >= 3)
        assert [name for name, _ in client.events[:3]] == ["server", "models", "sample"]
        samples = client.of("sample")
        assert [list(sample["versions"]) for sample in samples[:3]] == [["m/1"], [], []]
        server.success = 5
        await until(lambda: any(sample["versions"] for sample in client.of("sample")[1:]))
        changed = [sample["versions"]["m/1"]["success"] for sample in client.of("sample")[1:] if sample["versions"]]
        assert changed == [5]
        assert len(client.of("server")) == len(client.of("models")) == 1

    run(scene)


def test_failing_ticker_ends_its_streams() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        client = open_stream(feed)
        await until(lambda: bool(client.of("sample")))
        server.rollouts.states = lambda: 1 / 0
        await until(lambda: client.has_ended)
        assert "its log has the reason" in client.of("gone")[0]["reason"]
        assert feed.stream_count == 0
        server.rollouts.states = dict
        again = open_stream(feed)
        await until(lambda: bool(again.of("sample")))

    run(scene)


def test_slow_client_gets_nothing_until_it_reads() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        slow, other = open_stream(feed), open_stream(feed)
        await until(lambda: bool(slow.of("sample")))
        slow.unread_bytes = MAX_UNREAD_BYTES + 1
        await asyncio.sleep(0)
        count = len(slow.events)
        server.success = 7
        before = len(other.events)
        await until(lambda: len(other.events) > before + 5)
        assert len(slow.events) <= count + 1  # one may have been under way
        slow.unread_bytes = 0
        await until(lambda: any(s["versions"].get("m/1", {}).get("success") == 7 for s in slow.of("sample")))

    run(scene)


def test_clients_see_what_their_rights_allow() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        all_rights, few = open_stream(feed), open_stream(feed, "logging", "model-repository", has_log=True)
        await until(lambda: bool(few.of("sample")) and bool(all_rights.of("sample")))
        assert [row["name"] for row in all_rights.of("models")[0]["models"]] == ["m", "unloaded"]
        assert [row["name"] for row in few.of("models")[0]["models"]] == ["m"]
        assert not any(query.has_log for query in server.queries)
        for model, version in (("m", "1"), ("m", "text of a client"), ("text of a client", "1")):
            server.failures.append(FailureEntry(1, "id", model, version, "INTERNAL", "text of a client"))
        await until(lambda: bool(few.of("failures")) and bool(all_rights.of("failures")))
        assert all_rights.of("failures")[0]["failures"][0]["message"] == "text of a client"
        shown = few.of("failures")[0]["failures"][0]
        assert (shown["code"], shown["id"], shown["message"]) == ("INTERNAL", "", "")
        named = [
            [(row["model"], row["version"]) for row in each.of("failures")[0]["failures"]]
            for each in (few, all_rights)
        ]
        assert named[0] == [("m", "1"), ("m", ""), ("", "")]
        assert named[1] == [("m", "1"), ("m", "text of a client"), ("text of a client", "1")]
        few.denied.add("statistics")
        await until(lambda: few.has_ended)
        assert "no longer" in few.of("gone")[0]["reason"]
        assert feed.stream_count == 1

    run(scene)


def test_one_question_serves_all_streams() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        clients = [open_stream(feed, model="m", interval_s=0.2) for _ in range(10)]
        await until(lambda: all(len(client.of("sample")) >= 2 for client in clients))
        assert len(server.queries) <= 4
        assert server.queries[0].details == frozenset({("m", "")})

    run(scene)


def test_no_client_keeps_all_streams_from_others() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        greedy = [open_stream(feed, key="greedy") for _ in range(4)]
        modest = [open_stream(feed, key="modest"), open_stream(feed, key="modest")]
        assert [client.has_ended for client in greedy] == [True, True, False, False]
        assert "another client needed one" in greedy[0].of("gone")[0]["reason"]
        for key in ("greedy", "modest"):
            with pytest.raises(InferError, match="maximum, and 2 of them belong to this client"):
                open_stream(feed, key=key)
        late = open_stream(feed, key="late")
        assert [client.has_ended for client in (*greedy[2:], *modest, late)].count(True) == 1
        assert feed.stream_count == 4
        await until(lambda: bool(late.of("sample")))

    run(scene, max_streams=4)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40))
def test_share_of_streams_is_fair_in_any_order(events: list[tuple[str, bool]]) -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        opened: dict[str, list[Client]] = {key: [] for key in "abcd"}
        for key, is_end in events:
            alive = {each: [client for client in opened[each] if not client.has_ended] for each in opened}
            if is_end and alive[key]:
                client = alive[key][0]
                assert client.on_disconnect is not None
                client.on_disconnect(CancelReason.DISCONNECTED)
                client.has_ended = True
                continue
            is_full = sum(map(len, alive.values())) == 6
            most = max(map(len, alive.values()))
            try:
                opened[key].append(open_stream(feed, key=key))
            except InferError:
                assert is_full
                assert len(alive[key]) + 1 >= most
        assert feed.stream_count <= 6

    run(scene, max_streams=6)


def test_streams_are_bounded_in_number() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        first, _ = open_stream(feed), open_stream(feed)
        with pytest.raises(InferError, match="2 live streams are open"):
            open_stream(feed)
        assert first.on_disconnect is not None
        first.on_disconnect(CancelReason.DISCONNECTED)
        open_stream(feed)
        server.phase.is_draining = True
        with pytest.raises(InferError, match="Server exiting"):
            open_stream(feed)

    run(scene, max_streams=2)


def test_stream_goes_on_after_processes_were_away() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        server.is_away = True
        client = open_stream(feed)
        await until(lambda: len(server.queries) > 3)
        assert client.events == []
        server.is_away = False
        await until(lambda: bool(client.of("sample")))

    run(scene)


def test_nothing_is_asked_without_streams() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        client = open_stream(feed, interval_s=60.0)
        await until(lambda: bool(client.of("sample")))
        feed.close("the server shuts down")
        assert client.of("gone") == [{"reason": "the server shuts down"}]
        assert client.has_ended
        await until(lambda: not feed._tasks)
        asked = len(server.queries)
        await asyncio.sleep(5 * INTERVAL_S)
        assert len(server.queries) == asked

    run(scene)


def test_streams_have_one_ticker() -> None:
    async def scene(server: Server, feed: LiveFeed) -> None:
        for _ in range(5):
            client = open_stream(feed)
            await until(lambda: bool(client.of("sample")))  # noqa: B023 - of this round
            feed.close("next round")
        client = open_stream(feed)
        await until(lambda: len(client.of("sample")) > 2)
        assert len([task for task in feed._tasks if not task.done()]) == 1

    run(scene)
