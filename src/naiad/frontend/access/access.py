"""Access control: which clients may call which part of the API.

Each operation declares its category of the protocol extension (`inference`, `statistics`, ...) in `naiad.operations`.
Restrictions and API keys refer to categories. HTTP checks each request to a restricted route; gRPC checks once per
header block, because blocks repeat. API keys come as `Authorization: Bearer <key>`, over HTTP and as gRPC metadata.
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from naiad.core.limits.bounded_cache import BoundedCache
from naiad.operations.table import BY_GRPC_PATH
from naiad.options.network.access_options import KEY_CATEGORIES, ApiKey, ApiKeys, Category, RequiredHeader, digest_of
from naiad.wire.grpc import GrpcStatus
from naiad.wire.header_fields import Headers

UNKNOWN: Final = "unknown"
"""Category of paths without a route and of unknown gRPC methods. A server with restrictions or keys answers only
clients that one of them lets in: for all other clients, what does not exist looks like what they may not use."""

FORWARDED: Final = "forwarded"
"""Category of routes that pass each request to the router of another path, which applies its rule."""

RouteCategory = Category | Literal["forwarded"]
CheckedCategory = Category | Literal["unknown", "metrics"]
"""What a rule decides about."""


def category_of_call(path: str) -> CheckedCategory:
    """Return the category of a gRPC method's path."""
    return _CATEGORIES.get(path, UNKNOWN)


_CATEGORIES: Mapping[str, Category] = {path: operation.category for path, operation in BY_GRPC_PATH.items()}

FindField = Callable[[bytes], bytes | None]
"""Returns the value of a header field by its lower-case name."""


@dataclass(frozen=True, slots=True)
class RejectionResponse:
    """The response to a rejected request, for either protocol."""

    http_status: int
    grpc_status: GrpcStatus
    message: str
    headers: Headers = ()
    key: str = ""
    """The name of the client's API key, for the log."""

    @property
    def asks_for_key(self) -> bool:
        """Whether an API key, or another one, may be accepted: the response has a challenge (RFC 9110, 11.6.1)."""
        return any(name == b"WWW-Authenticate" for name, _ in self.headers)


class AccessRule(Protocol):
    """Accepts or rejects requests by their category and header fields."""

    def concerns(self, category: CheckedCategory) -> bool:
        """Return whether the rule may reject requests of a category; the result never changes."""

    def rejection(self, category: CheckedCategory, field: FindField) -> RejectionResponse | None:
        """Return the rejection of a request, None if it is accepted."""


class Restrictions:
    """Triton's restricted APIs: requests of a category need a header with a certain value."""

    def __init__(self, required: Mapping[str, RequiredHeader], noun: str) -> None:
        """`noun` names the category in error messages: "API" or "protocol"."""
        self._required = {category: _Required(header, noun) for category, header in required.items()}
        # Triton's restrictions may name several headers: any of them shows what does not exist.
        self._any = tuple({(each.name, each.value): each for each in self._required.values()}.values())
        names = " or ".join(sorted({f"'{header.name}'" for header in required.values()}))
        self._unknown = _expecting(noun, f"header {names}; without it this server says nothing of unknown {noun}s")

    def concerns(self, category: CheckedCategory) -> bool:
        """Return whether a category is restricted."""
        return category in self._required or (category == UNKNOWN and bool(self._required))

    def rejection(self, category: CheckedCategory, field: FindField) -> RejectionResponse | None:
        """Return the rejection of a request, None if it is accepted."""
        if category == UNKNOWN:
            is_open = not self._any or True in [each.is_met(field) for each in self._any]
            return None if is_open else self._unknown
        required = self._required.get(category)
        return None if required is None or required.is_met(field) else required.rejection


class _Required:
    """The header that a category needs."""

    __slots__ = ("name", "rejection", "value")

    def __init__(self, header: RequiredHeader, noun: str) -> None:
        self.name = header.name.lower().encode()
        self.value = header.value.encode()
        self.rejection = _expecting(noun, f"header '{header.name}'")

    def is_met(self, field: FindField) -> bool:
        """Return whether a request has the header, in constant time: its duration shows nothing of the value."""
        return hmac.compare_digest(field(self.name) or b"", self.value)


def _expecting(noun: str, what: str) -> RejectionResponse:
    # Triton: gRPC gets UNAVAILABLE, not PERMISSION_DENIED.
    return RejectionResponse(403, GrpcStatus.UNAVAILABLE, f"This {noun} is restricted, expecting {what}")


class Closed:
    """Rejects every gRPC call, on a port without gRPC."""

    def __init__(self, reason: str) -> None:
        """`reason` is part of the error message."""
        self._rejection = RejectionResponse(
            404, GrpcStatus.UNIMPLEMENTED, f"gRPC is not served on this port: {reason}"
        )

    def concerns(self, category: CheckedCategory) -> bool:
        """Return True: the rule applies to every category."""
        return True

    def rejection(self, category: CheckedCategory, field: FindField) -> RejectionResponse | None:
        """Return the rejection."""
        return self._rejection


class AllOf:
    """Combines rules; the first rejection counts."""

    def __init__(self, *rules: AccessRule) -> None:
        self._rules = rules

    def concerns(self, category: CheckedCategory) -> bool:
        """Return whether any rule applies to a category."""
        return any(rule.concerns(category) for rule in self._rules)

    def rejection(self, category: CheckedCategory, field: FindField) -> RejectionResponse | None:
        """Return the first rejection."""
        for rule in self._rules:
            rejection = rule.rejection(category, field)
            if rejection is not None:
                return rejection
        return None


_CHALLENGE = b'Bearer realm="naiad"'
_MAX_KEY_BYTES = 512
_MAX_FOUND = 2048
_NO_KEY = RejectionResponse(
    401,
    GrpcStatus.UNAUTHENTICATED,
    "missing API key: send it as 'Authorization: Bearer <key>'",
    ((b"WWW-Authenticate", _CHALLENGE),),
)
_WRONG_KEY = RejectionResponse(
    401,
    GrpcStatus.UNAUTHENTICATED,
    "unknown API key",
    ((b"WWW-Authenticate", _CHALLENGE + b', error="invalid_token"'),),
)


class ApiKeyRule:
    """Accepts requests with a key for their category. `keys` may be replaced at any time."""

    def __init__(self, keys: ApiKeys) -> None:
        self.keys = keys
        self._found_in = keys
        self._found: BoundedCache[bytes, ApiKey] = BoundedCache(
            max_entries=_MAX_FOUND, max_bytes=_MAX_FOUND * _MAX_KEY_BYTES, max_entry_bytes=_MAX_KEY_BYTES
        )
        """Valid credentials only, to their keys: a guess is hashed and compared each time, so its duration reveals
        nothing."""

    def concerns(self, category: CheckedCategory) -> bool:
        """Return True: after the next change of the key file any category may need a key."""
        return True

    def is_open(self, category: CheckedCategory) -> bool:
        """Return whether requests of a category need no key."""
        opened = self.keys.open_categories
        return opened.issuperset(KEY_CATEGORIES) if category == UNKNOWN else category in opened

    def rejection(self, category: CheckedCategory, field: FindField) -> RejectionResponse | None:
        """Return the rejection of a request, None if it is accepted."""
        if self.is_open(category):
            return None
        credentials = field(b"authorization")
        if credentials is None:
            return _NO_KEY
        key = self.find(credentials)
        if key is None:
            return _WRONG_KEY
        return None if category == UNKNOWN or key.opens(category) else _too_narrow(key, category)

    def find(self, credentials: bytes) -> ApiKey | None:
        """Return the key in a field `authorization`; None if there is no known one."""
        keys = self.keys
        if keys is not self._found_in:
            self._found_in = keys
            self._found.clear()
        found = self._found.get(credentials)
        if found is not None:
            return found
        scheme, _, token = credentials.partition(b" ")
        key = self._find(token.strip()) if scheme.lower() == b"bearer" else None
        if key is not None:
            self._found.remember(credentials, key, len(credentials))
        return key

    def _find(self, token: bytes) -> ApiKey | None:
        if len(token) > _MAX_KEY_BYTES:
            return None
        digest = digest_of(token)
        found = None
        # Compare all keys, each in constant time: the duration then reveals nothing about them.
        for key in self.keys.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def _too_narrow(key: ApiKey, category: CheckedCategory) -> RejectionResponse:
    challenge = _CHALLENGE + b', error="insufficient_scope"'
    return RejectionResponse(
        403,
        GrpcStatus.PERMISSION_DENIED,
        f"the API key '{key.name}' is not for '{category}'",
        ((b"WWW-Authenticate", challenge),),
        key.name,
    )
