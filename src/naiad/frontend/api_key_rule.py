"""API keys: who asks is told by `Authorization: Bearer <key>`, over HTTP and as gRPC metadata."""

import hmac

from naiad.config.api_keys import ApiKey, ApiKeys, digest_of
from naiad.frontend.access import FindField, Refusal
from naiad.wire.grpc import GrpcStatus

_CHALLENGE = b'Bearer realm="naiad"'
_MAX_KEY_BYTES = 512
_NO_KEY = Refusal(
    401,
    GrpcStatus.UNAUTHENTICATED,
    "an API key is needed: send it as 'Authorization: Bearer <key>'",
    ((b"WWW-Authenticate", _CHALLENGE),),
)
_WRONG_KEY = Refusal(
    401,
    GrpcStatus.UNAUTHENTICATED,
    "the API key is not known",
    ((b"WWW-Authenticate", _CHALLENGE + b', error="invalid_token"'),),
)


class ApiKeyRule:
    """Lets requests pass that carry a key for their category. `keys` may be exchanged at any time."""

    def __init__(self, keys: ApiKeys) -> None:
        self.keys = keys

    def concerns(self, category: str) -> bool:
        """Tell whether a category may need a key: each may, after the next change of the file."""
        return True

    def is_open(self, category: str) -> bool:
        """Tell whether requests of a category need no key."""
        return category in self.keys.open_categories

    def refusal(self, category: str, field: FindField) -> Refusal | None:
        """Return why a request is refused, None when it may pass."""
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
        # All are compared, each in constant time, so that the time tells nothing.
        for key in self.keys.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def _too_narrow(key: ApiKey, category: str) -> Refusal:
    challenge = _CHALLENGE + b', error="insufficient_scope"'
    return Refusal(
        403,
        GrpcStatus.PERMISSION_DENIED,
        f"the API key '{key.name}' is not for '{category}'",
        ((b"WWW-Authenticate", challenge),),
    )
