"""The value of `since`: the last successful run, or a point in time."""

from datetime import UTC, datetime

from naiad.core.errors import excerpt, invalid_argument

LAST = "last"
_SECOND_NS = 10**9


def since_ns(text: str) -> int:
    """Return a point in time, such as `2026-03-01T00:00:00Z`, in nanoseconds since 1970.

    Raises InferError(INVALID_ARG) for another text, and for a time without its zone: machines differ in theirs.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid_argument(
            f"since is '{excerpt(text)}'; expected last, or a date and time with its zone: 2026-03-01T00:00:00Z"
        ) from None
    if moment.tzinfo is None:
        example = moment.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
        raise invalid_argument(f"since is '{excerpt(text)}', without a zone; write {example} for UTC")
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * _SECOND_NS + moment.microsecond * 1000


def is_since(modified_ns: int, since: int, *, is_rounded: bool) -> bool:
    """Return whether a file was changed at a point in time or later; equal times count.

    `is_rounded`: the time of the file has no fraction of a second, so the whole second counts.
    """
    return modified_ns >= (since - since % _SECOND_NS if is_rounded else since)
