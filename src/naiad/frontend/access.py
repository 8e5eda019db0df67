"""Who may ask what: restricted categories, checked before a request is looked at.

HTTP asks once a request, and only on routes that are restricted; gRPC once per header block, since blocks repeat.
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from naiad.config.security import RequiredHeader
from naiad.wire.grpc import GrpcStatus
from naiad.wire.header_fields import Headers

FindField = Callable[[bytes], bytes | None]
"""Returns the value of a header field by its lower-case name."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a request that may not pass is answered, on either protocol."""

    http_status: int
    grpc_status: GrpcStatus
    message: str
    headers: Headers = ()


class AccessRule(Protocol):
    """Decides about requests by their category and header fields."""

    def concerns(self, category: str) -> bool:
        """Tell whether requests of a category are ever refused; the answer never changes."""

    def refusal(self, category: str, field: FindField) -> Refusal | None:
        """Return why a request is refused, None when it may pass."""


class Restrictions:
    """Triton's restricted APIs: a category asks for a header with a certain value."""

    def __init__(self, required: Mapping[str, RequiredHeader], noun: str) -> None:
        """`noun` is what the refusal calls the category: "API" or "protocol"."""
        self._required = {
            category: (
                header.name.lower().encode(),
                header.value.encode(),
                Refusal(
                    403,
                    GrpcStatus.UNAVAILABLE,  # Triton: not PERMISSION_DENIED
                    f"This {noun} is restricted, expecting header '{header.name}'",
                ),
            )
            for category, header in required.items()
        }

    def concerns(self, category: str) -> bool:
        """Tell whether a category is restricted."""
        return category in self._required

    def refusal(self, category: str, field: FindField) -> Refusal | None:
        """Return why a request is refused, None when it may pass."""
        required = self._required.get(category)
        if required is None:
            return None
        name, value, refusal = required
        # In constant time: how long it takes must not tell how much of a guess was right.
        return None if hmac.compare_digest(field(name) or b"", value) else refusal


class Closed:
    """Refuses every gRPC call: the port does not serve gRPC."""

    def __init__(self, reason: str) -> None:
        """`reason` goes to the peer."""
        self._refusal = Refusal(404, GrpcStatus.UNIMPLEMENTED, f"gRPC is not served on this port: {reason}")

    def concerns(self, category: str) -> bool:
        """Every category."""
        return True

    def refusal(self, category: str, field: FindField) -> Refusal | None:
        """Return the refusal."""
        return self._refusal


class AllOf:
    """Several rules; the first that refuses counts."""

    def __init__(self, *rules: AccessRule) -> None:
        self._rules = rules

    def concerns(self, category: str) -> bool:
        """Tell whether any rule concerns a category."""
        return any(rule.concerns(category) for rule in self._rules)

    def refusal(self, category: str, field: FindField) -> Refusal | None:
        """Return the first refusal."""
        for rule in self._rules:
            refusal = rule.refusal(category, field)
            if refusal is not None:
                return refusal
        return None
