"""Access control: which clients may call which part of the API.

Each path and each gRPC method belongs to a category of the protocol extension (`inference`, `model-repository`, ...).
Restrictions and API keys refer to categories. HTTP checks each request to a restricted route; gRPC checks once per
header block, because blocks repeat. API keys come as `Authorization: Bearer <key>`, over HTTP and as gRPC metadata.

A Python model is code: a client that may load models with `file:` parameters runs code with the rights of the server.
Triton accepts such files from every client under explicit control; naiad accepts them only from restricted clients,
or with a flag.
"""

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from naiad.core.errors import permission_denied
from naiad.options.network.access import ApiKey, ApiKeys, RequiredHeader, digest_of
from naiad.wire.grpc import GrpcStatus
from naiad.wire.header_fields import Headers

_SERVICE = "/inference.GRPCInferenceService/"
_HEALTH_SERVICE = "/grpc.health.v1.Health/"
_BY_CALL = {
    "ServerLive": "health",
    "ServerReady": "health",
    "ModelReady": "health",
    "ServerMetadata": "metadata",
    "ModelMetadata": "metadata",
    "ModelInfer": "inference",
    "ModelStreamInfer": "inference",
    "ModelConfig": "model-config",
    "ModelStatistics": "statistics",
    "RepositoryIndex": "model-repository",
    "RepositoryModelLoad": "model-repository",
    "RepositoryModelUnload": "model-repository",
    "SystemSharedMemoryStatus": "shared-memory",
    "SystemSharedMemoryRegister": "shared-memory",
    "SystemSharedMemoryUnregister": "shared-memory",
    "CudaSharedMemoryStatus": "shared-memory",
    "CudaSharedMemoryRegister": "shared-memory",
    "CudaSharedMemoryUnregister": "shared-memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}
_MODEL = r"/v2/models/[^/]+(?:/versions/[A-Za-z0-9_.-]+)?"
# The first match counts. Triton: "stats" is never the name of a model.
_BY_PATH = tuple(
    # DOTALL: a decoded path may contain a newline, which "." does not match otherwise and which would evade a
    # restriction.
    (re.compile(pattern, re.DOTALL), category)
    for pattern, category in (
        (r"/v2/health/.*", "health"),
        (_MODEL + "/ready", "health"),
        (_MODEL + "/(?:infer|generate|generate_stream)", "inference"),
        (_MODEL + "/config", "model-config"),
        (r"/v2/models/stats|" + _MODEL + "/(?:stats|explain)", "statistics"),
        (r"/v2/trace/setting|" + _MODEL + "/trace/setting", "trace"),
        (r"/v2/logging", "logging"),
        (r"/v2/(?:system|cuda)sharedmemory/.*", "shared-memory"),
        # A rollout decides which code serves, as a load does: what restricts loads restricts it as well.
        (r"/v2/repository/.*|/v2/models|/v2/models/[^/]+/rollout", "model-repository"),
        (r"/v2|/docs|/openapi\.json|" + _MODEL + "(?:/openapi\\.json)?", "metadata"),
    )
)

OTHER = "other"
"""Category of all other paths: no restriction names it, and only a key with all categories opens it."""


def category_of_path(path: str) -> str:
    """Return the category of an HTTP path, percent-decoded and without its query."""
    for pattern, category in _BY_PATH:
        if pattern.fullmatch(path):
            return category
    return OTHER


def category_of_call(path: str) -> str:
    """Return the category of a gRPC method's path."""
    if path.startswith(_HEALTH_SERVICE):
        return "health"
    return _BY_CALL.get(path.removeprefix(_SERVICE), OTHER) if path.startswith(_SERVICE) else OTHER


FindField = Callable[[bytes], bytes | None]
"""Returns the value of a header field by its lower-case name."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """The response to a rejected request, for either protocol."""

    http_status: int
    grpc_status: GrpcStatus
    message: str
    headers: Headers = ()


class AccessRule(Protocol):
    """Accepts or rejects requests by their category and header fields."""

    def concerns(self, category: str) -> bool:
        """Return whether the rule may reject requests of a category; the result never changes."""

    def rejection(self, category: str, field: FindField) -> Rejection | None:
        """Return the rejection of a request, None if it is accepted."""


class Restrictions:
    """Triton's restricted APIs: requests of a category need a header with a certain value."""

    def __init__(self, required: Mapping[str, RequiredHeader], noun: str) -> None:
        """`noun` names the category in error messages: "API" or "protocol"."""
        self._required = {
            category: (
                header.name.lower().encode(),
                header.value.encode(),
                Rejection(
                    403,
                    GrpcStatus.UNAVAILABLE,  # Triton: not PERMISSION_DENIED
                    f"This {noun} is restricted, expecting header '{header.name}'",
                ),
            )
            for category, header in required.items()
        }

    def concerns(self, category: str) -> bool:
        """Return whether a category is restricted."""
        return category in self._required

    def rejection(self, category: str, field: FindField) -> Rejection | None:
        """Return the rejection of a request, None if it is accepted."""
        required = self._required.get(category)
        if required is None:
            return None
        name, value, rejection = required
        # In constant time: the duration must not show how much of a guessed value is right.
        return None if hmac.compare_digest(field(name) or b"", value) else rejection


class Closed:
    """Rejects every gRPC call, on a port without gRPC."""

    def __init__(self, reason: str) -> None:
        """`reason` is part of the error message."""
        self._rejection = Rejection(404, GrpcStatus.UNIMPLEMENTED, f"gRPC is not served on this port: {reason}")

    def concerns(self, category: str) -> bool:
        """Return True: the rule applies to every category."""
        return True

    def rejection(self, category: str, field: FindField) -> Rejection | None:
        """Return the rejection."""
        return self._rejection


class AllOf:
    """Combines rules; the first rejection counts."""

    def __init__(self, *rules: AccessRule) -> None:
        self._rules = rules

    def concerns(self, category: str) -> bool:
        """Return whether any rule applies to a category."""
        return any(rule.concerns(category) for rule in self._rules)

    def rejection(self, category: str, field: FindField) -> Rejection | None:
        """Return the first rejection."""
        for rule in self._rules:
            rejection = rule.rejection(category, field)
            if rejection is not None:
                return rejection
        return None


_CHALLENGE = b'Bearer realm="naiad"'
_MAX_KEY_BYTES = 512
_NO_KEY = Rejection(
    401,
    GrpcStatus.UNAUTHENTICATED,
    "missing API key: send it as 'Authorization: Bearer <key>'",
    ((b"WWW-Authenticate", _CHALLENGE),),
)
_WRONG_KEY = Rejection(
    401,
    GrpcStatus.UNAUTHENTICATED,
    "unknown API key",
    ((b"WWW-Authenticate", _CHALLENGE + b', error="invalid_token"'),),
)


class ApiKeyRule:
    """Accepts requests with a key for their category. `keys` may be replaced at any time."""

    def __init__(self, keys: ApiKeys) -> None:
        self.keys = keys

    def concerns(self, category: str) -> bool:
        """Return True: after the next change of the key file any category may need a key."""
        return True

    def is_open(self, category: str) -> bool:
        """Return whether requests of a category need no key."""
        return category in self.keys.open_categories

    def rejection(self, category: str, field: FindField) -> Rejection | None:
        """Return the rejection of a request, None if it is accepted."""
        if self.is_open(category):
            return None
        credentials = field(b"authorization")
        if credentials is None:
            return _NO_KEY
        scheme, _, token = credentials.partition(b" ")
        key = self._find(token.strip()) if scheme.lower() == b"bearer" else None
        if key is None:
            return _WRONG_KEY
        return None if key.opens(category) else _too_narrow(key, category)

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


def _too_narrow(key: ApiKey, category: str) -> Rejection:
    challenge = _CHALLENGE + b', error="insufficient_scope"'
    return Rejection(
        403,
        GrpcStatus.PERMISSION_DENIED,
        f"the API key '{key.name}' is not for '{category}'",
        ((b"WWW-Authenticate", challenge),),
    )


CATEGORY = "model-repository"
_PREFIX = "file:"

MayBringFiles = Callable[[], bool]
"""Returns whether clients with access to the load commands of a protocol may send model files; the result may change.
"""


def check_files(parameters: Iterable[str], may_bring_files: MayBringFiles) -> None:
    """Raise InferError(PERMISSION_DENIED) if the parameters of a load contain files although `may_bring_files`
    forbids it.
    """
    if any(name.startswith(_PREFIX) for name in parameters) and not may_bring_files():
        raise permission_denied(
            "model files ('file:' parameters of a load) are not accepted from clients, because they may be code: "
            f"give clients API keys with the category '{CATEGORY}' (--api-key-file), restrict that category "
            "(--http-restricted-api, --grpc-restricted-protocol), or start the server with "
            "--allow-client-model-files=true if all its clients may run code on it"
        )
