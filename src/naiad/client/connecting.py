"""Where a server is and how a connection to it is opened."""

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar
from urllib.parse import SplitResult, urlsplit

from naiad.core.errors import ErrorCode, InferError, excerpt, invalid_argument
from naiad.core.response import InferResponse

P = TypeVar("P", bound=asyncio.Protocol)
DecodedResponse: TypeAlias = tuple[str, InferResponse, Iterable[tuple[bytes, bytes]]]
"""Request id, response, and header fields with lower-case names; over gRPC also trailing metadata."""

_HTTP_PORT, _GRPC_PORT = 8000, 8001
_SCHEMES = ("http", "https", "grpc", "grpcs", "http+unix", "grpc+unix")


class ConnectionFailedError(InferError):
    """The server cannot be reached, or the connection broke before the response; the code is UNAVAILABLE."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message)


class NotConnectedError(ConnectionFailedError):
    """No connection could be opened: the request was not sent, so that sending it again cannot execute it twice."""

    has_begun = False


class ClientClosedError(ConnectionFailedError):
    """The client was closed while the request waited for a connection, or for its response (`has_begun`)."""

    def __init__(self, *, has_begun: bool = False) -> None:
        super().__init__("the client was closed")
        self.has_begun = has_begun


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's address, from a URL."""

    url: str
    is_grpc: bool
    uses_tls: bool
    host: str
    port: int
    unix_path: str
    """Of the Unix socket; empty for TCP."""
    number: str = ""
    """The one of the host's addresses to connect to; empty: any of them."""

    @property
    def authority(self) -> str:
        """The value of `Host` and `:authority`."""
        if self.unix_path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(url: str) -> ServerAddress:
    """Return the address of `http://host:port`, `grpc://host:port`, their TLS forms `https` and `grpcs`, or
    `http+unix:///path` and `grpc+unix:///path`. Without a port it is 8000 for HTTP and 8001 for gRPC.

    Raises InferError(INVALID_ARG).
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _wrong(url, str(error)) from None
    if parts.scheme not in _SCHEMES:
        raise _wrong(url, f"its scheme is none of {', '.join(_SCHEMES)}")
    if parts.query or parts.fragment or parts.username is not None:
        raise _wrong(url, "it has a query, a fragment or a user")
    is_grpc = parts.scheme.startswith("grpc")
    if parts.scheme.endswith("+unix"):
        return ServerAddress(url, is_grpc, uses_tls=False, host="", port=0, unix_path=_unix_path(url, parts))
    if not parts.hostname or parts.path not in ("", "/"):
        raise _wrong(url, "it has no host, or a path")
    try:
        host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
        host.encode("idna")  # as the look-up does: it has rules for the length of names and of their parts
    except UnicodeError:
        raise _wrong(url, "its host is no name that can be looked up") from None
    default = _GRPC_PORT if is_grpc else _HTTP_PORT
    return ServerAddress(url, is_grpc, parts.scheme in ("https", "grpcs"), host, port or default, unix_path="")


def _unix_path(url: str, parts: SplitResult) -> str:
    if parts.netloc or not parts.path.startswith("/"):
        raise _wrong(url, "it has no absolute path; three slashes precede it")
    return parts.path


def _wrong(url: str, why: str) -> InferError:
    return invalid_argument(
        f"'{excerpt(url)}' is not the address of a server: {why}; expected http://HOST:PORT or grpc://HOST:PORT"
    )


@dataclass(frozen=True, slots=True)
class Connector:
    """Opens connections to one server."""

    address: ServerAddress
    tls: ssl.SSLContext | None
    timeout_s: float
    """How long opening one may take."""

    async def open(self, factory: Callable[[], P]) -> P:
        """Return the protocol object of a new connection. Raises ConnectionFailedError."""
        address, loop = self.address, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeout_s):
                if address.unix_path:
                    _, protocol = await loop.create_unix_connection(factory, address.unix_path)
                else:
                    name = address.host if self.tls else None
                    _, protocol = await loop.create_connection(
                        factory, address.number or address.host, address.port, ssl=self.tls, server_hostname=name
                    )
        except TimeoutError:
            raise NotConnectedError(f"no connection to {address.url} within {self.timeout_s:g} s") from None
        except OSError as error:
            raise NotConnectedError(f"no connection to {address.url}: {_reason(error)}") from error
        return protocol


def _reason(error: OSError) -> str:
    """Return the words of the system: asyncio has others, and lists the addresses of a name that it tried."""
    numbers = dict.fromkeys(map(int, re.findall(r"\[Errno (\d+)\]", str(error))))
    return ", ".join(map(os.strerror, numbers)) or error.strerror or str(error)


def default_tls(address: ServerAddress, tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Return the TLS context for an address: `tls`, or one that trusts the system's certificates; None without TLS.

    gRPC negotiates HTTP/2 (RFC 9113 3.3). Raises InferError(INVALID_ARG) for a context that would not be used.
    """
    if not address.uses_tls:
        if tls is not None:
            raise invalid_argument(f"a TLS context is given, but '{excerpt(address.url)}' is an address without TLS")
        return None
    context = tls or ssl.create_default_context()
    context.set_alpn_protocols(["h2"] if address.is_grpc else ["http/1.1"])
    return context
