"""Which server of a client gets a call."""

import pytest

from naiad.client.connecting import parse_address
from naiad.client.replicas.replica_set import Replica, ReplicaSet
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import RequestHeader


def replicas(count: int) -> ReplicaSet[None]:
    return ReplicaSet([Replica(parse_address(f"grpc://{index}"), None) for index in range(count)])


def header(sequence_id: int | str, *, end: bool = False) -> RequestHeader:
    return RequestHeader(model_name="m", sequence_id=sequence_id, sequence_end=end)


def test_each_gets_its_turn() -> None:
    found = replicas(3)
    assert len({found.choose(0) for _ in range(3)}) == 3


def test_a_server_that_refuses_is_left_out_shortly() -> None:
    found = replicas(2)
    found.all[0].aside_s = 5.0
    assert {found.choose(4.9) for _ in range(4)} == {found.all[1]}
    assert {found.choose(5.0) for _ in range(4)} == set(found.all)
    found.all[1].aside_s = 6.0
    assert {found.choose(4.0) for _ in range(4)} == set(found.all), "both refuse"
    assert found.choose(4.0, [found.all[1]]) is found.all[0]


def test_servers_that_are_away_get_nothing() -> None:
    found = replicas(3)
    found.all[0].problem, found.all[0].since_s = "away", 7.0
    found.all[1].problem, found.all[1].since_s = "away", 5.0
    assert {found.choose(9) for _ in range(6)} == {found.all[2]}
    assert found.choose(9, [found.all[2]]) is found.all[1], "the one that has been away for the longest time"
    assert found.choose(9, found.all) is None


def test_a_sequence_stays_on_its_server() -> None:
    found = replicas(3)
    found.keep(header("s"), found.all[1])
    assert found.holding(header("s")) is found.all[1]
    found.keep(header("s", end=True), found.all[1])
    with pytest.raises(InferError, match="sequence s: no server has begun it") as raised:
        found.holding(header("s"))
    assert raised.value.code is ErrorCode.UNAVAILABLE


def test_a_sequence_ends_with_its_server() -> None:
    found = replicas(2)
    found.keep(header(7), found.all[0])
    found.all[0].is_removed = True
    with pytest.raises(InferError, match="sequence 7: grpc://0, which has it, is none of the servers any more"):
        found.holding(header(7))
