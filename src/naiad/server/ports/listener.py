"""The addresses that a server listens on: an IPv4 or IPv6 address and a port, or a Unix socket."""

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
from pathlib import Path

from naiad.core.errors import InferError, internal
from naiad.options.network.addresses import host_of, is_one_port, is_unix, owner_of_tls, unix_path
from naiad.options.options import ServerOptions

_log = logging.getLogger(__name__)

_PROBE_TIMEOUT_S = 1.0
HANDSHAKES_S = 0.01
"""Time for unfinished handshakes to complete after new ones are blocked."""
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
# Classic BPF over the TCP header: byte 13 has the flags; a packet with SYN (2) and without ACK (16) is dropped.
_INSTRUCTIONS = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
_PROGRAM = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in _INSTRUCTIONS))
_NO_SYN = struct.pack("@HP", len(_INSTRUCTIONS), ctypes.addressof(_PROGRAM))
"""A `struct sock_fprog` for SO_ATTACH_FILTER."""


@dataclass(frozen=True, slots=True)
class Address:
    """One address to listen on, and its name in flags and messages."""

    services: Sequence[str]
    """Names in the log, for example HTTPService; several if services share the port."""
    flag: str
    """The prefix of its flags: http, grpc, metrics."""
    host: str
    """A name or a number, IPv6 also in brackets; or `unix:/path`, which has no port."""
    port: int
    reuse_port: bool = False
    unix_mode: int = 0o600
    """Permissions of a Unix socket: write permission allows a client to connect."""


class Listener:
    """A bound socket. `close` also removes a Unix socket from the file system."""

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
        """The address as a client writes it."""
        where = self.socket.getsockname()
        if self.is_unix:
            return f"unix:{where}"
        host, port = where[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def port(self) -> int:
        """The bound port, also if the flag says 0; 0 for a Unix socket."""
        return 0 if self.is_unix else int(self.socket.getsockname()[1])

    def block_new_connections(self) -> None:
        """Block new connections; connections in progress can still be accepted.

        Closing a socket resets its queue and unfinished handshakes. A socket filter therefore drops new handshakes
        first: a client sends its SYN again after a second, and then reaches another server that shares the port.
        """
        if self._inode is not None:
            self._unlink()
        else:
            with contextlib.suppress(OSError):  # closed, or a system without such filters
                self.socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _NO_SYN)

    def accept_waiting(self) -> list[socket.socket]:
        """Accept the connections in the queue."""
        accepted = []
        try:
            while True:
                accepted.append(self.socket.accept()[0])
        except (BlockingIOError, OSError):  # the queue is empty, or no descriptors are left
            return accepted

    def close(self) -> None:
        """Close the socket; has no effect if it is closed."""
        if self._inode is not None:
            self._unlink()
        self.socket.close()

    def _unlink(self) -> None:
        path, inode, self._inode = unix_path(self.address.host), self._inode, None
        # Another server may have created its own socket at the path.
        if _inode_of(path) == inode:
            with contextlib.suppress(OSError):
                os.unlink(path)


def bind(address: Address) -> Listener:
    """Return a bound socket that does not listen yet.

    All ports are bound before the first one listens, so that a port in use is reported before any client connects.
    Raises InferError that names the flag.
    """
    bound = _bind_unix(address) if is_unix(address.host) else _bind_internet(address)
    bound.setblocking(False)
    return Listener(address, bound)


def refused(address: Address, error: OSError) -> InferError:
    """Return an error with the reason why a service cannot listen, and a fix."""
    flag = address.flag
    where = f"--{flag}-address {address.host}"
    advice = {errno.EACCES: "; the user of the server needs write permission there"}.get(error.errno or 0, "")
    if is_unix(address.host):
        if error.errno == errno.EADDRINUSE:
            advice = "; another process listens there, or the file is not a socket: remove it or choose another path"
    else:
        where += f" --{flag}-port {address.port}"
        advice = _port_advice(address, error)
    return internal(f"failed to start {' and '.join(address.services)} at {where}: {error.strerror or error}{advice}")


def _port_advice(address: Address, error: OSError) -> str:
    flag = address.flag
    if error.errno == errno.EADDRINUSE:
        share = "" if flag not in ("http", "grpc") else f", or give --reuse-{flag}-port=true to both"
        owner = port_owner(address.port) or "another process"
        return f"; {owner} has the port: choose another with --{flag}-port{share}"
    if error.errno == errno.EACCES:
        return "; ports below 1024 need a privilege: choose a higher one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "; this machine does not have the address: use one of its addresses, 0.0.0.0 or ::"
    return ""


# --- internet -------------------------------------------------------------------------------------------------------


def _bind_internet(address: Address) -> socket.socket:
    host = host_of(address.host)
    # As bytes: Python would import its tables of international names to encode a text.
    name = host.encode() if host.isascii() else host
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            name or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise internal(f"--{address.flag}-address {address.host} cannot be resolved: {error.strerror}") from error
    try:
        bound = socket.socket(family, kind, protocol)
    except OSError as error:  # no IPv6 on this machine
        raise refused(address, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` means every address, including IPv4, independent of the system's default.
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
        if _is_stale(path):
            _log.info("removing %s, a socket without a listening server", path)
            os.unlink(path)
        # Linux creates the file with the permissions of the socket, so no other user has access at any moment. Other
        # systems reject this; there the directory must protect the socket until chmod.
        with contextlib.suppress(OSError):
            os.fchmod(bound.fileno(), address.unix_mode)
        bound.bind(path)
        os.chmod(path, address.unix_mode)  # the umask may have removed permissions
    except OSError as error:
        bound.close()
        raise refused(address, error) from error
    return bound


def _is_stale(path: str) -> bool:
    """Return whether `path` is a socket without a listener: its server ended without cleaning up."""
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
_CLOUDS = {
    "sagemaker": ("Sagemaker HTTPService",),
    "vertex-ai": ("Vertex AI HTTPService",),
    "azure-ml": ("Azure ML HTTPService",),
}
"""Names in the log, as Triton's."""


def addresses(options: ServerOptions) -> Mapping[str, Address]:
    """Return the addresses by the prefix of their flags, in Triton's start order: grpc, http, clouds, metrics.

    If HTTP and gRPC share an address, only http is returned.
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
    for place in options.cloud_places:
        if place.allow:
            found.append(Address(_CLOUDS[place.name], place.name, place.address, place.port, unix_mode=mode))
    if options.metrics.allow:
        address, port = options.metrics_place.address, options.metrics.port
        found.append(Address(_METRICS, "metrics", address, port, unix_mode=mode))
    return {address.flag: address for address in found}


def has_tls(options: ServerOptions, flag: str) -> bool:
    """Return whether the port of that prefix uses TLS."""
    place = {"grpc": options.grpc_place, "http": options.http_place}.get(flag, options.metrics_place)
    if flag == "http" and is_one_port(options.http_place, options.grpc_place):
        place = owner_of_tls(options.http_place, options.grpc_place)
    return place.tls.is_on


_PROC = Path("/proc")
_LISTEN = "0A"


def port_owner(port: int) -> str:
    """Return `NAME (pid N)`; empty if it is not known, for example a process of another user."""
    with contextlib.suppress(OSError):
        links = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(table, port)}
        for process in _PROC.iterdir() if links else ():
            if process.name.isdigit() and _holds(process, links):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _listening(table: str, port: int) -> list[str]:
    """Return the inodes of the sockets that listen on a port."""
    rows = [line.split() for line in (_PROC / "net" / table).read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]


def _holds(process: Path, links: set[str]) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        return any(os.readlink(each) in links for each in (process / "fd").iterdir())
    return False
