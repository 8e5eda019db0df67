"""Requests that are refused before a route or a model sees them: their lines in the log."""

from collections.abc import Callable
from http import HTTPStatus

from naiad.frontend.access.peer import address_of
from naiad.frontend.context import HttpContext
from naiad.telemetry.logs.access_log import AccessEntry, audit


def note_refused(context: HttpContext, status: int, message: str, key: str = "") -> None:
    """Log a request that may not be made here; `key` is the name of the client's API key."""
    audit.refused(
        AccessEntry(
            protocol="HTTP",
            method=context.method,
            path=context.path,
            status=status,
            client=address_of(context.client),
            key=key or getattr(context, "key_name", ""),
            error=message,
        )
    )


def note_invalid(method: str, path: str, status: int, message: str, client: object) -> AccessEntry:
    """Log a request that a transport refuses, because it is not valid, too slow or too large; return its entry."""
    entry = AccessEntry(
        protocol="HTTP", method=method, path=path, status=status, client=address_of(client), error=message
    )
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:  # otherwise the server is at fault, not the request
        audit.refused(entry)
    return entry


NoteInvalid = Callable[[str, str, int, str, object], object]
"""Takes method, path, status, message and connection of a request that a transport refuses."""


def note_refused_call(path: str, status: str, message: str, client: object, key: str = "") -> AccessEntry:
    """Log a gRPC call that may not be made here; return its entry. `status` is the name of its gRPC status."""
    entry = AccessEntry(protocol="gRPC", path=path, status=status, client=address_of(client), key=key, error=message)
    audit.refused(entry)
    return entry
