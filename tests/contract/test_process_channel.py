"""What passes between the supervisor and a member: messages over one socket pair, connections over another."""

import asyncio
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from naiad.cluster.connection_passing import Acceptor, ConnectionReceiver, ConnectionSender, socket_pair
from naiad.cluster.member.process import Member as MemberServer
from naiad.cluster.messages import Welcome
from naiad.cluster.process_channel import ClusterChannel, ClusterChannelError, receive_first, send_first
from naiad.options.options import ServerOptions
from naiad.server.ports.listener import Address, Listener
from support.uvloop_run import run
from support.waiting import until


class Peer:
    """Answers a number with the next one, fails for text, and never answers None."""

    def __init__(self) -> None:
        self.messages: list[object] = []
        self.is_lost = asyncio.Event()

    def on_message(self, message: object) -> None:
        self.messages.append(message)

    async def on_query(self, query: object) -> object:
        if query is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(query, str):
            raise ClusterChannelError(query)
        return query + 1 if isinstance(query, int) else query

    def on_lost(self) -> None:
        self.is_lost.set()


@asynccontextmanager
async def channels() -> AsyncIterator[tuple[ClusterChannel, Peer, ClusterChannel, Peer]]:
    one, other = socket.socketpair()
    peers = Peer(), Peer()
    ends = ClusterChannel(peers[0]), ClusterChannel(peers[1])
    for end, connected in zip(ends, (one, other), strict=True):
        await end.connect(connected)
    try:
        yield ends[0], peers[0], ends[1], peers[1]
    finally:
        for end in ends:
            end.close()
        await asyncio.sleep(0)


def test_both_sides_query_and_notify() -> None:
    async def main() -> None:
        async with channels() as (one, one_peer, other, other_peer):
            one.send("a")
            one.send(["b"])
            assert await one.ask(1) == 2
            assert await other.ask(10) == 11
            assert other_peer.messages == ["a", ["b"]]
            assert one_peer.messages == []

    run(main)


def test_answers_find_their_questions() -> None:
    async def main() -> None:
        async with channels() as (one, _, _, _):
            assert await asyncio.gather(*[one.ask(number) for number in range(500)]) == list(range(1, 501))

    run(main)


def test_large_messages_arrive_whole() -> None:
    async def main() -> None:
        async with channels() as (one, _, _, _):
            large = bytes(range(256)) * 50_000
            assert await asyncio.gather(one.ask((large,)), one.ask(1), one.ask((large,))) == [(large,), 2, (large,)]

    run(main)


def test_failures_and_silence_are_errors() -> None:
    async def main() -> None:
        async with channels() as (one, _, _, _):
            with pytest.raises(ClusterChannelError, match="it is so"):
                await one.ask("it is so")
            with pytest.raises(ClusterChannelError, match="no answer within"):
                await one.ask(None, timeout_s=0.01)
            assert await one.ask(1) == 2

    run(main)


def test_end_of_one_side_fails_open_queries() -> None:
    async def main() -> None:
        async with channels() as (one, one_peer, other, other_peer):
            open_question = asyncio.ensure_future(one.ask(None))
            await asyncio.sleep(0)
            other.close()
            with pytest.raises(ClusterChannelError, match="exited"):
                await open_question
            await one_peer.is_lost.wait()
            with pytest.raises(ClusterChannelError, match="exited"):
                await one.ask(1)
            one.send("there is no reader")
            assert not other_peer.is_lost.is_set()

    run(main)


def test_a_first_message_comes_before_the_channel() -> None:
    one, other = socket.socketpair()
    with one, other:
        send_first(one, {"a": 1})
        assert receive_first(other) == {"a": 1}
        one.close()
        with pytest.raises(EOFError):
            receive_first(other)


# --- connections ----------------------------------------------------------------------------------------------------


class Member:
    """Both ends towards one member; nothing moves unless a test says so."""

    def __init__(self) -> None:
        end, self.end = socket_pair()
        self.giver = ConnectionSender(end)
        self.events: list[object] = []
        self.connections: list[socket.socket] = []
        self.receiver = ConnectionReceiver(self.end, 4, self._adopt)

    def _adopt(self, port: int, connection: socket.socket) -> None:
        self.events.append(("adopt", port))
        self.connections.append(connection)

    def on_notice(self, closed: Sequence[int]) -> None:
        self.events.append(("closed", *closed))

    def close(self) -> None:
        for _, connection in self.giver.close():
            connection.close()
        for connection in self.connections:
            connection.close()
        self.end.close()


def test_connections_are_confirmed_before_they_are_used() -> None:
    async def main() -> None:
        member = Member()
        member.giver.start(member.on_notice)
        client, served = socket.socketpair()
        assert member.giver.pass_connection(3, served)
        member.receiver.catch_up()
        assert member.events == [("adopt", 3)]
        await until(lambda: served.fileno() == -1)  # it is the member's alone
        client.sendall(b"x")
        assert member.connections[0].recv(1) == b"x"
        assert not member.connections[0].get_inheritable()
        client.close()
        member.close()

    run(main)


def test_unconfirmed_connections_come_back() -> None:
    async def main() -> None:
        dead, heir = Member(), Member()
        pairs = [socket.socketpair() for _ in range(3)]
        for port, (client, served) in enumerate(pairs):
            client.sendall(bytes((port,)))
            assert dead.giver.pass_connection(port, served)
        dead.end.close()
        client, served = socket.socketpair()
        assert not dead.giver.pass_connection(0, served)
        for port, connection in dead.giver.close():
            assert heir.giver.pass_connection(port, connection)
        heir.receiver.catch_up()
        assert [connection.recv(1) for connection in heir.connections] == [b"\0", b"\1", b"\2"]
        for one in (client, served, *(client for client, _ in pairs)):
            one.close()
        dead.close()
        heir.close()

    run(main)


def test_connections_confirmed_at_exit_stay_away() -> None:
    async def main() -> None:
        dead = Member()
        pairs = [socket.socketpair() for _ in range(4)]
        for port, (_, served) in enumerate(pairs[:2]):
            assert dead.giver.pass_connection(port, served)
        dead.receiver.catch_up()
        for port, (_, served) in enumerate(pairs[2:], start=2):
            assert dead.giver.pass_connection(port, served)
        # It has read from two, has not taken the other ones, and the supervisor has not heard of anything yet.
        dead.end.close()
        left = dead.giver.close()
        assert [port for port, _ in left] == [2, 3]
        for one in (*pairs[0], *pairs[1], *pairs[2], *pairs[3], *dead.connections):
            one.close()

    run(main)


def test_nothing_is_used_that_could_not_be_confirmed() -> None:
    async def main() -> None:
        member = Member()
        while member.receiver.report_closed([0, 0, 0, 1]):  # until the supervisor has more to read than fits
            pass
        client, served = socket.socketpair()
        assert member.giver.pass_connection(1, served)
        member.receiver.start()
        member.receiver.catch_up()
        await asyncio.sleep(0.05)
        assert member.events == []
        member.giver.start(lambda closed: None)
        await until(lambda: member.events == [("adopt", 1)])
        await until(lambda: served.fileno() == -1)
        client.close()
        member.close()

    run(main)


def test_closed_connections_are_reported_by_port() -> None:
    async def main() -> None:
        member = Member()
        member.giver.start(member.on_notice)
        assert member.receiver.report_closed([1, 0, 100_000, 0])
        await until(lambda: member.events == [("closed", 1, 0, 100_000, 0)])
        member.close()

    run(main)


def test_closed_connections_are_reported_once_there_is_room() -> None:
    async def main() -> None:
        supervisor, end = socket_pair()
        welcome = Welcome(ServerOptions(), 0, 1, {"http": 8000}, "", is_successor=False, quiet_below=0)
        control, other = socket.socketpair()
        member = MemberServer(welcome, control, end)
        connections = SimpleNamespace(protocol=None, connection_count=0, on_close=None)
        service = member._service("http", connections, None)  # type: ignore[arg-type]
        while member._receiver.report_closed([0]):  # until the supervisor has more to read than fits
            pass
        service._left_count = 3  # type: ignore[attr-defined]  # connections that were open
        connections.on_close()  # type: ignore[misc]  # the last ones: no further one closes
        await asyncio.sleep(0.01)
        notices: list[tuple[int, int]] = []

        def read() -> bool:
            try:
                while True:
                    notices.append(struct.unpack("!2I", supervisor.recv(1024)))
            except BlockingIOError:
                return (0, 3) in notices

        await until(read)
        for each in (supervisor, end, control, other):
            each.close()

    run(main)


def test_connections_that_are_lost_count_as_closed() -> None:
    async def main() -> None:
        member = Member()
        member.giver.start(member.on_notice)
        client, served = socket.socketpair()
        assert member.giver.pass_connection(2, served)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            member.receiver.catch_up()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: served.fileno() == -1)
        assert member.events == [("closed", 0, 0, 1, 0)]
        assert client.recv(1) == b""
        client.close()
        member.close()

    run(main)


def test_late_member_gets_no_connections_until_caught_up() -> None:
    async def main() -> None:
        member = Member()
        clients, given = [], 0
        while True:
            client, served = socket.socketpair()
            clients.append(client)
            if not member.giver.pass_connection(0, served):
                served.close()
                break
            given += 1
        assert given == 128
        member.giver.start(member.on_notice)
        member.receiver.catch_up()
        await until(lambda: len(member.events) > given)
        client, served = socket.socketpair()
        clients.append(client)
        assert member.giver.pass_connection(0, served)
        for client in clients:
            client.close()
        member.close()

    run(main)


def test_connections_wait_until_they_are_taken() -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        address = listener.getsockname()
        takes = False
        taken: list[socket.socket] = []
        all_taken = asyncio.Event()

        def pass_on(port: int, connection: socket.socket) -> bool:
            assert port == 7
            if takes:
                taken.append(connection)
                if len(taken) == 4:
                    all_taken.set()
            return takes

        acceptor = Acceptor(Listener(Address((), "http", "", 0), listener), 7, pass_on)
        acceptor.start()
        clients = [socket.create_connection(address) for _ in range(3)]
        one, other = socket.socketpair()
        acceptor.take_back(one)
        await asyncio.sleep(0.05)
        assert taken == []
        takes = True
        acceptor.resume()
        await all_taken.wait()
        acceptor.stop()
        acceptor.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        for each in (*clients, *taken, other):
            each.close()

    run(main)


def test_closed_port_closes_returned_connections() -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        acceptor = Acceptor(Listener(Address((), "http", "", 0), listener), 0, lambda port, connection: False)
        acceptor.start()
        acceptor.stop()
        one, other = socket.socketpair()
        acceptor.take_back(one)
        assert other.recv(1) == b""
        other.close()

    run(main)
