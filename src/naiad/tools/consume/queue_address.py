"""Addresses of queues: `redis://[USER:PASSWORD@]HOST[:PORT]/STREAM[?db=N]`, `rediss://` for TLS."""

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from naiad.core.errors import InferError, excerpt, invalid_argument

SCHEMES = ("redis", "rediss")
_REDIS_PORT = 6379
_FORM = "expected redis://HOST[:PORT]/STREAM"


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """Where a queue is."""

    scheme: str
    host: str
    port: int
    name: str
    """Of the stream."""
    database: int = 0
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        """Return the address without its password, for messages."""
        database = f"?db={self.database}" if self.database else ""
        return f"{self.scheme}://{self.server}/{self.name}{database}"

    @property
    def server(self) -> str:
        """Host and port of the broker."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def place(self) -> tuple[str, int, int, str]:
        """What distinguishes it from other queues."""
        return self.host, self.port, self.database, self.name


def parse_queue_address(text: str) -> QueueAddress:
    """Return the address of a queue. Raises InferError(INVALID_ARG); the message has no password."""
    # Nothing before the last "@" is ever shown: a part of a password may stand where a host or a path is expected.
    begin, _, end = text.rpartition("@")
    scheme = text.partition("://")[0] if "://" in (begin or end) else ""
    shown = excerpt(f"{scheme}://{end.rpartition('://')[2]}" if scheme.isalnum() else end)
    try:
        parts = urlsplit(text)
        port = parts.port
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:  # whose text may have a part of the password
        raise _wrong(shown, "it cannot be read") from None
    if parts.scheme not in SCHEMES:
        raise invalid_argument(f"'{shown}' has no known scheme; {_FORM}, or rediss:// for TLS")
    if "@" in parts.path + parts.query + parts.fragment:
        raise _wrong(shown, "there is an @ after the host, or a / ? or # before it")
    name = unquote(parts.path.removeprefix("/"))
    if not parts.hostname or not name:
        raise invalid_argument(f"'{shown}' has no {'stream' if parts.hostname else 'host'}; {_FORM}")
    if parts.fragment or options.keys() - {"db"}:
        raise _wrong(shown, "it has a fragment, or an option other than db")
    database = options.get("db", "0")
    if not (database.isascii() and database.isdigit()):
        raise _wrong(shown, f"db is '{excerpt(database)}', expected a number")
    return QueueAddress(
        parts.scheme,
        parts.hostname,
        port or _REDIS_PORT,
        name,
        int(database),
        unquote(parts.username or ""),
        unquote(parts.password or ""),
    )


def _wrong(shown: str, why: str) -> InferError:
    return invalid_argument(
        f"'{shown}' is not the address of a queue: {why}; {_FORM}, and / ? # @ : of a password or "
        "name as %2F %3F %23 %40 %3A"
    )
