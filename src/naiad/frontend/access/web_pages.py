"""Requests that a browser makes for a web page: foreign pages are refused, not only kept from reading responses.

CORS keeps a page from reading responses; the request itself is executed. So any page that a user of this machine
opens could unload models of a server on `localhost`. Browsers mark what pages send: with `Sec-Fetch-Site`, or with
`Origin`. A page whose own host name changes to this server's address (DNS rebinding) looks like one of its own pages;
it is found by the name in `Host`, which a server on a loopback address therefore checks. Such a name is one of the
public DNS, which has a dot. Numbers cannot change their address, and names without a dot, which tests, containers and
proxies use, are none that an attacker can register.

The rule looks only at the head of a request. Transports apply it where they parse a head, before they remember it, so
requests with a known head pay nothing.
"""

import ipaddress
import logging
from collections.abc import Callable, Collection

from naiad.core.errors import excerpt
from naiad.frontend.access.access import CheckedCategory, FindField, RouteCategory
from naiad.operations.dashboard import LIVE
from naiad.options.network.addresses import host_of, is_loopback
from naiad.wire.http1 import HttpError

_log = logging.getLogger(__name__)

ANY = "*"
_LIVE = LIVE.path()
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing. With exceptions: a GET may execute a model, for EventSource, or open a live stream."""
_OWN_SITES = frozenset((b"same-origin", b"none"))
"""`none`: the user has typed the address."""
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
PRIVATE = "numbers and names without a dot"
"""In the hosts of a rule: all that no name of the public DNS is."""
_BROWSER = b"Mozilla/"
"""Every browser's User-Agent begins with it, and no page can change that of a request without a preflight."""

CategoryOf = Callable[[str], RouteCategory | CheckedCategory]
"""Returns the category of a path."""


class WebPageRule:
    """Refuses requests of pages of foreign origins, and requests for foreign hosts."""

    def __init__(self, category_of: CategoryOf, origins: Collection[str], hosts: Collection[str] | None) -> None:
        """`origins` are allowed as --http-cors-origin names them; `hosts` names the server, None for any host."""
        self._category_of = category_of
        self._origins = frozenset(origin.encode() for origin in origins if origin != ANY)
        self._allows_any = ANY in origins
        self._hosts = None if hosts is None else frozenset(hosts)

    def check(self, method: str, path: str, field: FindField) -> None:
        """Check the head of an HTTP request. Raises HttpError(403)."""
        self._check_host(field(b"host") or b"")
        site, origin = field(b"sec-fetch-site"), field(b"origin")
        if site is None and origin is None and method != "GET":
            return
        category = self._category_of(path)
        is_inference = category == "inference"
        # A live stream changes nothing, but it lasts: the pages of any site could take all streams of a server.
        is_marked_stream = path == _LIVE and not (site is None and origin is None)
        if method in _SAFE and not is_inference and not is_marked_stream:
            return
        if not self._is_own(method, site, origin, field) and not self._is_allowed(origin, is_inference=is_inference):
            raise _refused(origin, is_any_allowed=self._allows_any)

    def check_call(self, path: str, authority: str, field: FindField) -> None:
        """Check the head of a gRPC call, which no browser can send, but which may look like one. Raises HttpError."""
        if field(b"origin") is not None or field(b"sec-fetch-site") is not None:
            self.check("POST", path, lambda name: authority.encode("latin-1") if name == b"host" else field(name))

    def _check_host(self, host: bytes) -> None:
        if self._hosts is None or not host or self._is_listed(_name_of(host)):
            return
        shown = excerpt(host.decode("latin-1"))
        _log.debug("HTTP request for the host '%s' refused", shown)
        raise HttpError(
            403,
            f"this server is not '{shown}': its address is for this machine only, so it answers for "
            f"{', '.join(sorted(self._hosts))}; add names with --http-allowed-hosts",
        )

    def _is_listed(self, name: str) -> bool:
        hosts = self._hosts or ()
        return name in hosts or (PRIVATE in hosts and not _is_public(name))

    def _is_own(self, method: str, site: bytes | None, origin: bytes | None, field: FindField) -> bool:
        """Return whether no page has sent the request, or one of this server."""
        if site is not None:
            return site.lower() in _OWN_SITES
        if origin is not None:
            return _authority_of(origin) == _without_port(field(b"host") or b"", origin)
        # Browsers do not mark every GET over plain HTTP to another machine.
        return method not in _SAFE or not (field(b"user-agent") or b"").startswith(_BROWSER)

    def _is_allowed(self, origin: bytes | None, *, is_inference: bool) -> bool:
        return origin in self._origins or (self._allows_any and is_inference)


def allowed_hosts(address: str, names: Collection[str]) -> Collection[str] | None:
    """Return the hosts of a server that listens at `address`; None for any. The flag adds `names`."""
    if ANY in names or not (names or is_loopback(address)):
        return None
    own = (*_LOOPBACK_HOSTS, _bracketed(host_of(address))) if is_loopback(address) else ()
    if not names:
        return {*own, PRIVATE}
    return {*own, *(_bracketed(host_of(name)) for name in names)}


def _bracketed(host: str) -> str:
    return f"[{host}]".lower() if ":" in host else host.lower().removesuffix(".")


def _name_of(authority: bytes) -> str:
    """Return the name or number of `host:port`, IPv6 in brackets."""
    text = authority.decode("latin-1").lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0].removesuffix(".")


def _is_public(name: str) -> bool:
    """Return whether a name may be one of the public DNS, whose owner chooses the address."""
    if name.startswith("[") or "." not in name or name.endswith(".localhost"):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def _authority_of(origin: bytes) -> bytes:
    """Return `host:port` of an origin, without the port that its scheme has anyway; empty for `null`."""
    return _without_port(origin.partition(b"://")[2], origin)


def _without_port(authority: bytes, origin: bytes) -> bytes:
    port = _DEFAULT_PORTS.get(origin.partition(b"://")[0].lower(), b"")
    return authority.lower().removesuffix(port)


def _refused(origin: bytes | None, *, is_any_allowed: bool) -> HttpError:
    shown = "unknown" if origin is None else f"'{excerpt(origin.decode('latin-1'))}'"
    _log.debug("HTTP request of a web page of the origin %s refused", shown)
    if is_any_allowed:
        way = "--http-cors-origin=* allows inference; name the origin there to let its pages change this server"
    elif origin is None:
        way = "use POST, or https, where browsers name the origin"
    else:
        way = f"allow it with --http-cors-origin={shown[1:-1]}"
    return HttpError(403, f"requests of web pages of other origins are refused, and the origin is {shown}; {way}")
