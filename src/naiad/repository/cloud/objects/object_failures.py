"""Failures of requests to a cloud: their kind (away, denied, missing, transient) and their reason.

The library has classes for few failures and puts the rest into one; its text has what the server answered.
"""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass


class ObjectFailure(enum.Enum):
    """What kind of failure it was, and so what to do about it."""

    MISSING = enum.auto()
    DENIED = enum.auto()
    NO_CREDENTIAL = enum.auto()
    PASSING = enum.auto()
    """Worth another attempt: the network, a busy server, an incomplete answer."""
    BAD_KEY = enum.auto()
    """An object whose name is no path."""
    OTHER = enum.auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in words and of a kind."""

    kind: ObjectFailure
    text: str
    is_answer: bool = False
    """Whether the store has answered, with a status."""


_STATUS = re.compile(r"status code: (\d{3})(?: ([A-Za-z ]+))?")
_CODE = re.compile(r"<Code>([\w.]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})")
_NO_ANSWER = re.compile(r"HTTP error: ([^\n]{1,200})")
_IN_DETAIL = re.compile(r'(?:message: |ConnectError\(|error: )"([^"\n]{1,200})"')
# Addresses of the identity service of a machine, a container and Google's machines.
_IDENTITY_SERVICE = re.compile(
    r"169\.254\.(169\.254|170\.)|/latest/(api/token|meta-data)|metadata\.google\.internal|/metadata/identity"
)
_DENIED_CODES = frozenset(
    {
        "AccessDenied",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "AllAccessDisabled",
    }
)
_CLASSES = {
    "NotFoundError": ObjectFailure.MISSING,
    "FileNotFoundError": ObjectFailure.MISSING,
    "PermissionDeniedError": ObjectFailure.DENIED,
    "UnauthenticatedError": ObjectFailure.DENIED,
    "InvalidPathError": ObjectFailure.BAD_KEY,
}
"""By the name of the class, so that the library is not needed here."""


def classify(error: Exception) -> Failure:
    """Return the kind of a failure and its reason: what the server said, or what kept it from answering."""
    text = str(error)
    if type(error).__name__ == "InvalidPathError":
        return Failure(ObjectFailure.BAD_KEY, text.partition("\n\n")[0])  # the name in it may have line breaks
    status = _STATUS.search(text)
    code = _CODE.search(text)
    reason = " ".join(_reason(text, status, code))
    if _IDENTITY_SERVICE.search(text):
        return Failure(ObjectFailure.NO_CREDENTIAL, reason)
    return Failure(
        _kind(type(error).__name__, int(status[1]) if status else 0, code[1] if code else "", text),
        reason,
        is_answer=status is not None,
    )


def _kind(name: str, status: int, code: str, text: str) -> ObjectFailure:
    if code in _DENIED_CODES or status in (401, 403):
        return ObjectFailure.DENIED
    if name in _CLASSES:
        return _CLASSES[name]
    if status:
        if status == 404:
            return ObjectFailure.MISSING
        return ObjectFailure.PASSING if status in (408, 425, 429) or status >= 500 else ObjectFailure.OTHER
    if name in ("ConnectionError", "TimeoutError") or _NO_ANSWER.search(text):
        return ObjectFailure.PASSING
    return ObjectFailure.OTHER


def _reason(text: str, status: re.Match[str] | None, code: re.Match[str] | None) -> Iterator[str]:
    if status is not None:
        message = _MESSAGE.search(text)
        yield f"HTTP {status[1]} {code[1] if code else (status[2] or '').strip()}".rstrip()
        if message is not None:
            yield message[1].strip()
    elif found := _NO_ANSWER.search(text):
        yield found[1].strip()
        detail = _IN_DETAIL.findall(text)
        if detail:
            yield f"({detail[-1]})"
    else:
        yield text.strip().partition("\n")[0][:300] or "no reason was given"
