"""Addresses of queues: `redis://`, `nats://` and `kafka://[USER:PASSWORD@]HOST[:PORT]/NAME[?OPTION=VALUE]`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlsplit

from naiad.core.errors import InferError, excerpt, invalid_argument

REDIS, NATS, KAFKA = "redis", "nats", "kafka"
DATABASE, SUBJECT, MECHANISM = "db", "subject", "mechanism"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class _Scheme:
    broker: str
    port: int
    what: str
    """What the name in the address is the name of."""
    options: frozenset[str]
    dead_suffix: str
    """Behind the name of a queue, for its dead letters."""
    is_tls: bool = False


_PLAIN = {
    "redis": _Scheme(REDIS, 6379, "STREAM", frozenset({DATABASE}), ":dead"),
    "nats": _Scheme(NATS, 4222, "STREAM", frozenset({SUBJECT}), "-dead"),
    "kafka": _Scheme(KAFKA, 9092, "TOPIC", frozenset({MECHANISM}), "-dead"),
}
SCHEMES = {
    **_PLAIN,
    "rediss": replace(_PLAIN["redis"], is_tls=True),
    "nats+tls": replace(_PLAIN["nats"], is_tls=True),
    "kafka+tls": replace(_PLAIN["kafka"], is_tls=True),
}
_FORM = "expected redis://HOST[:PORT]/STREAM, nats://HOST[:PORT]/STREAM or kafka://HOST[:PORT]/TOPIC"


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """Where a queue is."""

    scheme: str
    host: str
    port: int
    name: str
    """Of the stream or the topic."""
    user: str = ""
    password: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the address without its password, for messages."""
        options = "&".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.scheme}://{self.server}/{self.name}{'?' if options else ''}{options}"

    @property
    def broker(self) -> str:
        """REDIS, NATS or KAFKA."""
        return SCHEMES[self.scheme].broker

    @property
    def is_tls(self) -> bool:
        """Whether the connection has TLS."""
        return SCHEMES[self.scheme].is_tls

    @property
    def server(self) -> str:
        """Host and port of the broker."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def database(self) -> int:
        """Of Redis."""
        return int(self.options.get(DATABASE, "0"))

    @property
    def place(self) -> tuple[object, ...]:
        """What distinguishes it from other queues."""
        return self.broker, self.host, self.port, self.database, self.name

    @property
    def dead_letters(self) -> "QueueAddress":
        """The queue beside it for messages without an answer."""
        options = {name: value for name, value in self.options.items() if name != SUBJECT}
        return replace(self, name=self.name + SCHEMES[self.scheme].dead_suffix, options=options)


def parse_queue_address(text: str) -> QueueAddress:
    """Return the address of a queue. Raises InferError(INVALID_ARG); the message has no password."""
    # Nothing before the last "@" is ever shown: a part of a password may stand where a host or a path is expected.
    begin, _, end = text.rpartition("@")
    scheme = text.partition("://")[0] if "://" in (begin or end) else ""
    is_word = scheme.replace("+", "").isalnum()
    shown = excerpt(f"{scheme}://{end.rpartition('://')[2]}" if is_word else end)
    try:
        parts = urlsplit(text)
        port = parts.port
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:  # whose text may have a part of the password
        raise _wrong(shown, "it cannot be read") from None
    kind = SCHEMES.get(parts.scheme)
    if kind is None:
        raise invalid_argument(
            f"'{shown}' has no known scheme; {_FORM}; with TLS rediss://, nats+tls:// or kafka+tls://"
        )
    if "@" in parts.path + parts.query + parts.fragment:
        raise _wrong(shown, "there is an @ after the host, or a / ? or # before it")
    name = unquote(parts.path.removeprefix("/"))
    if not parts.hostname or not name:
        raise invalid_argument(f"'{shown}' has no {kind.what.lower() if parts.hostname else 'host'}; {_FORM}")
    if parts.fragment or options.keys() - kind.options:
        raise _wrong(shown, f"it has a fragment, or an option other than {', '.join(kind.options)}")
    _check_options(shown, options)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    address = QueueAddress(parts.scheme, parts.hostname, port or kind.port, name, user, password, options)
    if address.broker != REDIS:
        _check_name(address)
    return address


def _check_options(shown: str, options: Mapping[str, str]) -> None:
    database = options.get(DATABASE, "0")
    if not (database.isascii() and database.isdigit()):
        raise _wrong(shown, f"{DATABASE} is '{excerpt(database)}', expected a number")
    mechanism = options.get(MECHANISM, "PLAIN")
    if mechanism not in _MECHANISMS:
        raise _wrong(shown, f"{MECHANISM} is '{excerpt(mechanism)}', expected {' or '.join(_MECHANISMS)}")


def _check_name(address: QueueAddress) -> None:
    """Raise InferError for a name that the broker does not take."""
    name = address.name
    if address.broker == KAFKA:
        is_right = name.isascii() and len(name) <= 244 and not set(name) - _TOPIC
        expected = "at most 244 letters, digits, '.', '_' and '-'"
    else:
        is_right = name.isprintable() and not set(name) & set(" .*>/\\")
        expected = "a name without spaces and . * > / \\"
    if not is_right:
        raise invalid_argument(
            f"'{excerpt(name)}' is no name of a {SCHEMES[address.scheme].what.lower()}; {expected}"
        )


_TOPIC = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def _wrong(shown: str, why: str) -> InferError:
    return invalid_argument(
        f"'{shown}' is not the address of a queue: {why}; {_FORM}, and / ? # @ : of a password or "
        "name as %2F %3F %23 %40 %3A"
    )
