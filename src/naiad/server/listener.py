"""Where a service listens: an IPv4 or IPv6 address and a port, or a Unix socket.

Where a server listens: one address for each port that is open.
"""

import contextlib
import ctypes
import errno
import logging
import os
import socket
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.core.errors import InferError, internal
from naiad.options.addresses import host_of, is_one_port, is_unix, owner_of_tls, unix_path
from naiad.options.options import ServerOptions

_log = logging.getLogger(__name__)

_PROBE_TIMEOUT_S = 1.0
HANDSHAKES_S = 0.01
"""How long a handshake that has begun may take to be finished, once no more begin."""
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
# Classic BPF over the TCP header: byte 13 has the flags; a packet with SYN (2) and without ACK (16) is dropped.
_INSTRUCTIONS = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
_PROGRAM = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in _INSTRUCTIONS))
_NO_SYN = struct.pack("@HP", len(_INSTRUCTIONS), ctypes.addressof(_PROGRAM))
"""A `struct sock_fprog` for SO_ATTACH_FILTER."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen, and how the operator says so."""

    services: Sequence[str]
    """Their names in the log, for example HTTPService; more than one on one port."""
    flag: str
    """The prefix of its flags: http, grpc, metrics."""
    host: str
    """A name or a number, IPv6 also in brackets; or `unix:/path`, which has no port."""
    port: int
    reuse_port: bool = False
    unix_mode: int = 0o600
    """Permissions of a Unix socket: who may write to it may connect."""


class Listener:
    """A bound socket. `close` also takes a Unix socket out of the file system."""

    def __init__(self, address: Address, bound: socket.socket) -> None:
        self.address = address
        self.socket = bound
        self._inode = _inode_of(unix_path(address.host)) if is_unix(address.host) else None

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket."""
        return self._inode is not None

    @property
    def name(self) -> str:
        """Where it listens, as a client writes it."""
        where = self.socket.getsockname()
        if self.is_unix:
            return f"unix:{where}"
        host, port = where[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def turn_away(self) -> None:
        """Let no new connection begin; those that have begun can still be accepted.

        A socket that is closed resets what waits in its queue and what has not finished its handshake. So no
        handshake begins from now on: a client sends its SYN again after a second, and by then another server that
        shares the port gets it.
        """
        if self._inode is not None:
            self._unlink()
        else:
            with contextlib.suppress(OSError):  # closed, or a system without such filters
                self.socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _NO_SYN)

    def accept_waiting(self) -> list[socket.socket]:
        """Accept what waits in the queue."""
        accepted = []
        try:
            while True:
                accepted.append(self.socket.accept()[0])
        except (BlockingIOError, OSError):  # none is left, or there are no descriptors for it
            return accepted

    def close(self) -> None:
        """Close the socket; harmless when it is closed."""
        if self._inode is not None:
            self._unlink()
        self.socket.close()

    def _unlink(self) -> None:
        path, inode, self._inode = unix_path(self.address.host), self._inode, None
        # Another server may have put its own there.
        if _inode_of(path) == inode:
            with contextlib.suppress(OSError):
                os.unlink(path)


def bind(address: Address) -> Listener:
    """Return a bound socket that does not listen yet.

    Binding comes before the models load, so that a port in use is told at once; listening comes after, so that nobody
    is connected to a server that cannot answer. Raises InferError that names the flag.
    """
    bound = _bind_unix(address) if is_unix(address.host) else _bind_internet(address)
    bound.setblocking(False)
    return Listener(address, bound)


def refused(address: Address, error: OSError) -> InferError:
    """Return why a service cannot listen where it should, and what would help."""
    flag = address.flag
    where = f"--{flag}-address {address.host}"
    advice = {errno.EACCES: "; the user of the server must be allowed to write there"}.get(error.errno or 0, "")
    if is_unix(address.host):
        if error.errno == errno.EADDRINUSE:
            advice = "; another process listens there, or the file is no socket: remove it or choose another path"
    else:
        where += f" --{flag}-port {address.port}"
        advice = _port_advice(address, error)
    return internal(f"failed to start {' and '.join(address.services)} at {where}: {error.strerror or error}{advice}")


def _port_advice(address: Address, error: OSError) -> str:
    flag = address.flag
    if error.errno == errno.EADDRINUSE:
        share = "" if flag == "metrics" else f", or give --reuse-{flag}-port=true to both"
        return f"; another process has the port: choose another{share}"
    if error.errno == errno.EACCES:
        return "; ports below 1024 need a privilege: choose a higher one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "; this machine does not have the address: give one of its own, 0.0.0.0 or ::"
    return ""


# --- internet -------------------------------------------------------------------------------------------------------


def _bind_internet(address: Address) -> socket.socket:
    host = host_of(address.host)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise internal(f"--{address.flag}-address {address.host} cannot be resolved: {error.strerror}") from error
    try:
        bound = socket.socket(family, kind, protocol)
    except OSError as error:  # no IPv6 here
        raise refused(address, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` means every address, those of IPv4 too, whatever the system's default is.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if address.reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(where)
    except OSError as error:
        bound.close()
        raise refused(address, error) from error
    return bound


# --- Unix sockets ---------------------------------------------------------------------------------------------------


def _bind_unix(address: Address) -> socket.socket:
    path = unix_path(address.host)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_left_over(path):
            _log.info("removing %s, on which no server listens any more", path)
            os.unlink(path)
        # Linux makes the file with the permissions of the socket, so it is at no moment open to more users. Elsewhere
        # this is refused, and the directory has to keep others out for the moment until chmod.
        with contextlib.suppress(OSError):
            os.fchmod(bound.fileno(), address.unix_mode)
        bound.bind(path)
        os.chmod(path, address.unix_mode)  # what the umask took away
    except OSError as error:
        bound.close()
        raise refused(address, error) from error
    return bound


def _is_left_over(path: str) -> bool:
    """Tell whether `path` is a socket on which nobody listens: its server ended without cleaning up."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _inode_of(path: str) -> tuple[int, int] | None:
    try:
        state = os.lstat(path)
    except OSError:
        return None
    return (state.st_dev, state.st_ino)


_GRPC = ("GRPCInferenceService",)
_HTTP = ("HTTPService",)
_METRICS = ("Metrics Service",)


def addresses(options: ServerOptions) -> Mapping[str, Address]:
    """Return the addresses by the prefix of their flags, in Triton's order of starting: grpc, http, metrics.

    Where HTTP and gRPC were given the same place it is that of http alone.
    """
    grpc, http, mode = options.grpc, options.http, options.unix_socket_mode
    found: list[Address] = []
    if is_one_port(options.http_place, options.grpc_place):
        reuse = http.reuse_port or grpc.reuse_port
        found.append(Address(_GRPC + _HTTP, "http", http.address, http.port, reuse, mode))
    else:
        if grpc.allow:
            found.append(Address(_GRPC, "grpc", grpc.address, grpc.port, grpc.reuse_port, mode))
        if http.allow:
            found.append(Address(_HTTP, "http", http.address, http.port, http.reuse_port, mode))
    if options.metrics.allow:
        address, port = options.metrics_place.address, options.metrics.port
        found.append(Address(_METRICS, "metrics", address, port, unix_mode=mode))
    return {address.flag: address for address in found}


def has_tls(options: ServerOptions, flag: str) -> bool:
    """Tell whether the port of that prefix speaks TLS."""
    places = {"grpc": options.grpc_place, "http": options.http_place, "metrics": options.metrics_place}
    place = places[flag]
    if flag == "http" and is_one_port(options.http_place, options.grpc_place):
        place = owner_of_tls(options.http_place, options.grpc_place)
    return place.tls.is_on
