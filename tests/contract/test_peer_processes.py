"""Two members of a server and the sockets between them: requests of sequences, answers, news, ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.cluster.member.peers import Peers, SequenceModel, owner_of
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, invalid_argument, not_found
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from support.one_engine import OneEngine
from support.uvloop_run import run
from support.waiting import until

SPEC = TensorSpec("X", DataType.UINT8, (4,))
HERE = next(number for number in range(1, 99) if owner_of("m", number, 2) == 0)
THERE = next(number for number in range(1, 99) if owner_of("m", number, 2) == 1)


class Served:
    """A model that keeps its requests until a test answers them."""

    name, version, is_decoupled, statistics = "m", "7", True, None
    live_sequence_count = 0

    def __init__(self) -> None:
        self.labels: dict[str, Any] = {}
        self.config = ModelConfig(name="m")
        self.config.sequence_batching.SetInParent()
        self.taken: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.refusal: InferError | None = None

    def submit(self, request: InferRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        request.model = self
        self.taken.append(request)

    def cancel(self, request: InferRequest) -> bool:
        self.cancelled.append(request)
        return False


class Engine(OneEngine):
    own_sequence_count = 0

    def __init__(self) -> None:
        self.model: SequenceModel | None = None

    def served(self, name: str, version: str = "") -> SequenceModel:
        if self.model is None or (name, version) != ("m", "7"):
            raise not_found(f"no model '{name}' version '{version}'")
        return self.model

    def cancel(self, request: InferRequest) -> bool:
        return bool(request.model.cancel(request))


class Member:
    def __init__(self, directory: Path, slot: int) -> None:
        self.engine, self.served = Engine(), Served()
        self.peers = Peers(self.engine, directory, slot)  # type: ignore[arg-type]
        membership = SimpleNamespace(slot=slot, process_count=2, is_successor=False)
        self.model = SequenceModel("m", self.served, membership, self.peers)  # type: ignore[arg-type]
        self.engine.model = self.model


class Client:
    """A request and what has come of it."""

    def __init__(self, sequence: int = THERE, **header: Any) -> None:
        self.responses: list[InferResponse] = []
        self.news = asyncio.Event()
        made = RequestHeader(model_name="m", inputs=[SPEC], sequence_id=sequence, sequence_start=True, **header)
        self.request = InferRequest(made, [b"abcd"], self._take, id="r", arrival_ns=5)

    def _take(self, request: InferRequest, response: InferResponse) -> None:
        assert request is self.request
        self.responses.append(response)
        self.news.set()

    async def next(self) -> InferResponse:
        while not self.responses:
            self.news.clear()
            await self.news.wait()
        return self.responses.pop(0)


def response(data: bytes = b"wxyz", **more: Any) -> InferResponse:
    return InferResponse(ResponseHeader("m", "7", [TensorSpec("Y", DataType.UINT8, (len(data),))]), [data], **more)


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[tuple[Member, Member]]:
    one, other = Member(directory, 0), Member(directory, 1)
    for member in (one, other):
        member.peers.listen()
    try:
        yield one, other
    finally:
        for member in (one, other):
            await member.peers.close()
        await asyncio.sleep(0)


async def forwarded(one: Member, other: Member, client: Client) -> InferRequest:
    count = len(other.served.taken)
    one.model.submit(client.request)
    await until(lambda: len(other.served.taken) > count)
    return other.served.taken[-1]


def test_requests_reach_the_owner_and_responses_return(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (one, other):
            client = Client(parameters={"p": 1})
            arrived = await forwarded(one, other, client)
            assert (arrived.id, arrived.arrival_ns, list(arrived.data)) == ("r", 5, [b"abcd"])
            assert (arrived.header.sequence_id, arrived.header.parameters) == (THERE, {"p": 1})
            arrived.on_response(arrived, response(b"ab", final=False, parameters={"n": 1}))
            arrived.on_response(arrived, response(b"cd"))
            first, last = await client.next(), await client.next()
            assert (list(first.data), first.final, first.parameters) == ([b"ab"], False, {"n": 1})
            assert (list(last.data), last.final) == ([b"cd"], True)
            assert first.header is last.header
            assert first.header.outputs[0].name == "Y"
            own = Client(HERE)
            one.model.submit(own.request)
            assert one.served.taken == [own.request]

    run(main)


def test_both_directions_at_once_keep_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (one, other):
            clients = [(one, Client(THERE)) for _ in range(200)] + [(other, Client(HERE)) for _ in range(200)]
            for member, client in clients:
                member.model.submit(client.request)
            for member in (one, other):
                await until(lambda member=member: len(member.served.taken) == 200)
                for number, request in enumerate(member.served.taken):
                    request.on_response(request, response(b"%d" % number))
            numbers = [int(bytes((await client.next()).data[0])) for _, client in clients]
            assert numbers == [*range(200), *range(200)]

    run(main)


def test_refusals_come_as_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (one, other):
            other.served.refusal = invalid_argument("not so")
            client = Client()
            one.model.submit(client.request)
            error = (await client.next()).error
            assert error is not None
            assert (error.code, error.message) == (ErrorCode.INVALID_ARG, "not so")
            other.engine.model = None
            client = Client()
            one.model.submit(client.request)
            error = (await client.next()).error
            assert error is not None
            assert error.code is ErrorCode.NOT_FOUND

    run(main)


def test_cancellation_and_pause_are_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (one, other):
            client = Client()
            arrived = await forwarded(one, other, client)
            arrived.on_response(arrived, response(final=False))
            client.request.is_paused = True  # as a frontend finds when it has sent a response
            await client.next()
            arrived.on_response(arrived, response(final=False))
            await until(lambda: arrived.is_paused)
            client.request.is_paused = False
            await until(lambda: not arrived.is_paused)
            assert not one.model.cancel(client.request)
            await until(lambda: other.served.cancelled == [arrived])
            arrived.on_response(arrived, response())
            await until(lambda: any(each.final for each in client.responses))

    run(main)


def test_an_owner_that_ends_answers_everything_that_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (one, other):
            clients = [Client() for _ in range(5)]
            for client in clients:
                await forwarded(one, other, client)
            await other.peers.close()
            for client in clients:
                error = (await client.next()).error
                assert error is not None
                assert error.code is ErrorCode.UNAVAILABLE
                assert f"process 2 of this server has ended with sequence {THERE} of model 'm'" in error.message
            late = Client()
            with pytest.raises(InferError, match=r"process 2 of this server.* cannot be reached"):
                one.model.submit(late.request)
            successor = Member(tmp_path, 1)
            successor.peers.listen()
            arrived = await forwarded(one, successor, late)
            arrived.on_response(arrived, response())
            assert (await late.next()).error is None
            await successor.peers.close()

    run(main)


def test_foreign_sequences_are_known_at_the_sender(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (one, other):
            other.engine.in_flight.own_sequence_count = 3
            assert one.peers.live_sequence_count() == 0
            await forwarded(one, other, Client())
            assert one.peers.live_sequence_count() == 1  # there may be one: it has not been asked yet
            await until(lambda: one.peers.live_sequence_count() == 3)
            other.engine.in_flight.own_sequence_count = 0
            await until(lambda: one.peers.live_sequence_count() == 0)
            other.engine.in_flight.own_sequence_count = 2
            await until(lambda: one.peers.live_sequence_count() == 2)
            await other.peers.close()
            await until(lambda: one.peers.live_sequence_count() == 0)
            assert other.peers.live_sequence_count() == 0

    run(main)


def test_an_asker_that_ends_has_its_requests_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (one, other):
            arrived = await forwarded(one, other, Client())
            await one.peers.close()
            await until(lambda: other.served.cancelled == [arrived])

    run(main)


def test_large_answers_are_sent_before_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (one, other):
            client = Client()
            arrived = await forwarded(one, other, client)
            large = bytes(30_000_000)
            arrived.on_response(arrived, response(large))
            await other.peers.close()
            assert bytes((await client.next()).data[0]) == large

    run(main)


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(InferError, match=f"{tmp_path / 'gone' / 'process1'}: No such file"):
            Member(tmp_path / "gone", 0).peers.listen()

    run(main)
