"""Addresses to listen on as flags write them: a host or number, IPv6 with or without brackets, `unix:/path`."""

import ipaddress

_UNIX = "unix:"
_MAX_UNIX_PATH_BYTES = 107
"""What the kernel takes, without the closing zero."""
_ANY = ("0.0.0.0", "::", "")


def is_unix(address: str) -> bool:
    """Tell whether an address is a Unix socket."""
    return address.startswith(_UNIX)


def unix_path(address: str) -> str:
    """Return the path of a Unix socket. gRPC: `unix:///path` is the same as `unix:/path`."""
    path = address.removeprefix(_UNIX)
    return path[2:] if path.startswith("///") else path


def host_of(address: str) -> str:
    """Return the host of an internet address without the brackets of IPv6."""
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address


def covers(wide: str, narrow: str) -> bool:
    """Tell whether everybody who reaches `narrow` reaches `wide` too: it is the same, or any address of this host."""
    if wide == narrow:
        return True
    if is_unix(wide):
        return is_unix(narrow) and unix_path(wide) == unix_path(narrow)
    wide, narrow = host_of(wide), host_of(narrow)
    # A Unix socket is behind the permissions of a file: narrower than any address.
    return wide in _ANY or wide == narrow


def check_address(address: str) -> str:
    """Return the address of a flag as it is. Raises ValueError when nothing can listen there."""
    if is_unix(address):
        path = unix_path(address)
        if not path.startswith("/"):
            raise ValueError("is not an absolute path; write unix:/path/of/the.sock")
        if len(path.encode()) > _MAX_UNIX_PATH_BYTES:
            raise ValueError(f"is too long for a Unix socket; the most is {_MAX_UNIX_PATH_BYTES} bytes")
        return address
    host = host_of(address)
    if "[" in host or "]" in host or "/" in host:
        raise ValueError("is not an address; write a name, an IPv4 or IPv6 address, or unix:/path; the port is apart")
    if ":" in host:
        _check_ipv6(host)
    return address


def _check_ipv6(host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise ValueError("is not an IPv6 address; the port has a flag of its own") from None
