"""The end of a listening socket, on real sockets: what waits in its queue is served, not reset."""

import asyncio
import socket
from pathlib import Path

import pytest

from naiad.server.ports.endpoint import ServiceEndpoint
from naiad.server.ports.listener import HANDSHAKES_S, Address, bind
from support.uvloop_run import run


class Echo(asyncio.Protocol):
    made: "list[asyncio.Transport]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.made.append(transport)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


class NoConnections:
    protocol = Echo
    connection_count = 0
    on_close = None

    def announce_drain(self) -> None: ...

    def drain(self) -> None: ...

    def finish(self) -> None: ...

    async def wait_closed(self) -> None: ...

    def abort(self) -> None: ...


def connected(where: "tuple[str, int] | str") -> socket.socket:
    client = socket.socket(socket.AF_INET if isinstance(where, tuple) else socket.AF_UNIX)
    client.settimeout(1)
    client.connect(where)
    return client


@pytest.mark.parametrize("is_unix", [False, True])
def test_connections_that_wait_in_the_queue_are_served(is_unix: bool, tmp_path: Path) -> None:
    host = f"unix:{tmp_path}/socket" if is_unix else "127.0.0.1"
    address = Address(("HTTPService",), "http", host, 0)
    Echo.made = []
    answers: list[bytes] = []

    async def main() -> None:
        endpoint = ServiceEndpoint(address, NoConnections())
        await endpoint.listen()
        where = endpoint._listener.socket.getsockname()
        # The loop does not run: none of these is accepted before the port is to be closed.
        clients = [connected(where) for _ in range(20)]
        for client in clients:
            client.send(b"hello")
        await endpoint.stop_listening()
        try:
            answers.extend(await asyncio.to_thread(lambda: [client.recv(10) for client in clients]))
            with pytest.raises(OSError):  # noqa: PT011 - refused, or no such file
                connected(where)
        finally:
            for transport in Echo.made:
                transport.abort()  # else the loop would wait for it

    run(main)
    assert answers == [b"hello"] * 20


def test_late_handshake_goes_to_another_server() -> None:
    address = Address(("HTTPService",), "http", "127.0.0.1", 0, reuse_port=True)
    old = bind(address)
    old.socket.listen(10)
    port = old.socket.getsockname()[1]
    new = bind(Address(("HTTPService",), "http", "127.0.0.1", port, reuse_port=True))
    new.socket.listen(1000)
    old.block_new_connections()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        clients = []
        for _ in range(40):
            client = socket.socket()
            client.setblocking(False)
            clients.append((client, asyncio.ensure_future(loop.sock_connect(client, ("127.0.0.1", port)))))
        await asyncio.sleep(HANDSHAKES_S)
        assert old.accept_waiting() == []
        old.close()
        await asyncio.wait_for(asyncio.gather(*(connecting for _, connecting in clients)), 10)
        return len(clients)

    assert asyncio.run(main()) == 40
    assert len(new.accept_waiting()) == 40
    new.close()
