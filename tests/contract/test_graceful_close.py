"""What the end of a connection is judged by, on real sockets: what its peer has not taken yet."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from naiad.frontend.connections.linger import ReadRateCheck, acknowledged_bytes, undelivered_bytes
from naiad.server.ports.tls import SHUTDOWN_TIMEOUT_S
from support.certificates import Certificates
from support.uvloop_run import run

ANSWER = bytes(8 << 20)


class Answering(asyncio.Protocol):
    """Answers at once, and closes."""

    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(ANSWER)  # type: ignore[attr-defined]
        transport.close()
        self.made.set_result(transport)  # type: ignore[arg-type]


@pytest.mark.parametrize("speaks_tls", [False, True])
def test_unread_bytes_of_slow_peer_are_known(speaks_tls: bool, tmp_path: Path) -> None:
    server_tls = client_tls = None
    if speaks_tls:
        certificates = Certificates(tmp_path)
        server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server_tls.load_cert_chain(certificates.server_cert, certificates.server_key)
        client_tls = certificates.client_context()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        protocol = Answering()
        timeout = {"ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S} if speaks_tls else {}
        server = await loop.create_server(lambda: protocol, "127.0.0.1", 0, ssl=server_tls, **timeout)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        name = "localhost" if speaks_tls else None
        reader, writer = await asyncio.open_connection(sock=client, ssl=client_tls, server_hostname=name)
        transport = await protocol.made
        try:
            first = await reader.readexactly(1)
            # TLS has handed all of it on, and counts nothing any more.
            assert undelivered_bytes(transport) > 0
            assert first + await reader.read() == ANSWER
        finally:
            writer.transport.abort()  # else the loop would wait for it
            server.close()

    run(main)


def test_kernel_reports_bytes_taken_by_the_peer() -> None:
    """Written and taken at the same pace, the size of the buffer alone would look like a peer that takes nothing."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        protocol = Answering()
        server = await loop.create_server(lambda: protocol, "127.0.0.1", 0)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        client.setblocking(False)
        await loop.sock_connect(client, server.sockets[0].getsockname())
        transport = await protocol.made
        try:
            taken, counts = 0, []
            while taken < 2 << 20:
                taken += len(await loop.sock_recv(client, 65536))
                counts.append(acknowledged_bytes(transport))
            assert counts == sorted(counts)
            assert taken <= counts[-1] <= len(ANSWER)
            response_queue = ReadRateCheck(10.0)
            for second in range(1, 12):
                is_slow = response_queue.is_too_slow(transport, undelivered_bytes(transport), second * 10**9)
                assert is_slow is (second == 11)  # nothing was taken meanwhile
        finally:
            client.close()
            transport.abort()
            server.close()

    run(main)
