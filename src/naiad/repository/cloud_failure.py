"""What went wrong with an object store, from the exceptions of its library: those of three providers, told apart."""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


class Kind(enum.Enum):
    """What kind of failure it was, and so what to do about it."""

    MISSING = enum.auto()
    DENIED = enum.auto()
    NO_CREDENTIAL = enum.auto()
    PASSING = enum.auto()
    """Worth another attempt: the network, a busy server, an incomplete answer."""
    OTHER = enum.auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in words and of a kind."""

    kind: Kind
    text: str


_NO_CREDENTIAL = frozenset({"NoCredentialsError", "DefaultCredentialsError", "CredentialUnavailableError"})
_DENIED = frozenset(
    {"PermissionError", "ClientAuthenticationError", "CredentialRetrievalError", "ProfileNotFound", "RefreshError"}
)
_MISSING = frozenset({"FileNotFoundError", "ResourceNotFoundError"})
_PASSING = frozenset(
    {
        "BotoConnectionError",
        "ConnectionError",
        "TimeoutError",
        "HTTPClientError",
        "IncompleteReadError",
        "ResponseStreamingError",
        "ClientError",
        "ClientPayloadError",
        "ServiceRequestError",
        "ServiceResponseError",
        "TransportError",
        "ChecksumError",
        "FlexibleChecksumError",
    }
)
"""Names of exceptions and of what they derive from; the libraries themselves are not imported for this."""
_DENIED_CODES = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AllAccessDisabled"}
)


def classify(error: BaseException) -> Failure:
    """Return the kind of a failure, and its text with what it came from."""
    chain = list(_chain(error))
    kinds = [kind for each in chain if (kind := _kind_of(each)) is not None]
    # The cause knows more than what a library made of it.
    kind = kinds[-1] if kinds else Kind.PASSING if isinstance(error, OSError) else Kind.OTHER
    return Failure(kind, _text_of(chain))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes; a few are enough."""
    current: BaseException | None = error
    for _ in range(8):
        if current is None:
            return
        yield current
        current = current.__cause__


def _kind_of(error: BaseException) -> Kind | None:
    names = {base.__name__ for base in type(error).__mro__}
    code, status = _code_of(error)
    if code in _DENIED_CODES or status in (401, 403):
        return Kind.DENIED
    if names & _NO_CREDENTIAL:
        return Kind.NO_CREDENTIAL
    if names & _DENIED:
        return Kind.DENIED
    if status == 404 or names & _MISSING:
        return Kind.MISSING
    if status is not None:
        return Kind.PASSING if status in (408, 425, 429) or status >= 500 else Kind.OTHER
    return Kind.PASSING if names & _PASSING else None


def _code_of(error: BaseException) -> tuple[str, int | None]:
    """Return the provider's code and the status of HTTP, where the exception carries them."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return str(response.get("Error", {}).get("Code", "")), status if isinstance(status, int) else None
    for name in ("status_code", "status", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int):
            return "", status
    return "", None


def _text_of(chain: list[BaseException]) -> str:
    """Return the first line of the deepest exception that says anything."""
    for error in reversed(chain):
        text = str(error).strip()
        if text:
            return f"{type(error).__name__}: {text.splitlines()[0][:300]}"
    return type(chain[0]).__name__
