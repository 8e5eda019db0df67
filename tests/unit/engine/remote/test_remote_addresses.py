"""Which server gets a request."""

from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.engine.remote.remote_addresses import RemoteAddresses

if TYPE_CHECKING:
    from naiad.config.model_config_pb2 import ModelConfig


class Named:
    """A server that only has a name."""

    def __init__(self, url: str) -> None:
        self.url = url

    def submit(self, *arguments: object, **more: object) -> "Future[None]":
        raise AssertionError("nothing is sent here")

    def stream(self, *arguments: object, **more: object) -> "Future[None]":
        raise AssertionError("nothing is sent here")

    def describe(self, model: str, version: str) -> "Future[ModelConfig]":
        raise AssertionError("nothing is asked here")

    def close(self) -> None:
        pass


def addresses(count: int, ready: int | None = None) -> RemoteAddresses:
    made = RemoteAddresses([Named(f"grpc://{index}") for index in range(count)])
    for each in made.all[: count if ready is None else ready]:
        each.note_ready(0)
    return made


def header(sequence_id: int = 0, *, start: bool = False, end: bool = False) -> RequestHeader:
    return RequestHeader(model_name="m", sequence_id=sequence_id, sequence_start=start, sequence_end=end)


def chosen(made: RemoteAddresses, count: int) -> list[int]:
    return [made.all.index(made.choose(header())) for _ in range(count)]


def test_servers_take_turns_without_those_that_are_away() -> None:
    made = addresses(3)
    assert chosen(made, 4) == [0, 1, 2, 0]
    made.all[1].note_problem("away", 0)
    assert set(chosen(made, 6)) == {0, 2}
    assert made.problem == ""
    assert made.choose(header(), [made.all[0]]) is made.all[2]
    for each in made.all:
        each.note_problem("away", 0)
    with pytest.raises(InferError, match="grpc://0: away; grpc://1: away; grpc://2: away"):
        made.choose(header())
    made.all[1].note_ready(0)
    assert chosen(made, 2) == [1, 1]


def test_a_server_that_has_not_answered_gets_nothing() -> None:
    assert "grpc://0: it has not answered yet" in addresses(1, ready=0).problem


def test_a_sequence_stays_on_its_server() -> None:
    made = addresses(3)
    first = made.choose(header(7, start=True))
    other = made.choose(header(8, start=True))
    assert first is not other
    assert [made.choose(header(7)) for _ in range(4)] == [first] * 4
    assert made.choose(header(8, end=True)) is other
    with pytest.raises(InferError, match="no server has begun sequence 8"):
        made.choose(header(8))
    first.note_problem("away", 0)
    with pytest.raises(InferError, match="has sequence 7: away"):
        made.choose(header(7))
    assert made.choose(header(7, start=True)) is not first


def test_the_only_server_has_every_sequence() -> None:
    made = addresses(1)
    assert made.choose(header(3)) is made.all[0]
