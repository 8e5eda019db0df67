"""The addresses of a name, each of which is a server of its own: a headless service of Kubernetes, for example."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace

from naiad.client.connecting import NotConnectedError, ServerAddress
from naiad.core.errors import excerpt, invalid_argument

MAX_ADDRESSES = 64
"""Of one client; more addresses of a name are not used."""


def check_name(addresses: Sequence[ServerAddress]) -> ServerAddress:
    """Return the address whose name is to be resolved. Raises InferError(INVALID_ARG) for any other."""
    if len(addresses) != 1 or addresses[0].unix_path:
        shown = ", ".join(each.url for each in addresses)
        raise invalid_argument(
            f"resolve needs one address with a name, such as grpc://naiad:8001, not {excerpt(shown)}"
        )
    return addresses[0]


async def resolve_name(address: ServerAddress, timeout_s: float) -> Sequence[ServerAddress]:
    """Return an address for each number that the name has now. Raises NotConnectedError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise NotConnectedError(f"no address of '{address.host}' within {timeout_s:g} s") from None
    except OSError as error:
        raise NotConnectedError(f"no address of '{address.host}': {error.strerror or error}") from None
    numbers = list(dict.fromkeys(str(row[4][0]) for row in found))[:MAX_ADDRESSES]
    return [replace(address, url=f"{address.url} ({number})", number=number) for number in numbers]
