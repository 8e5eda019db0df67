"""Framing of streamed answers: texts of one line each, told apart by line ends or as server-sent events."""

from collections.abc import Sequence

from naiad.core.tensor import Buffer


def as_line(text: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return a JSON text as a line (application/x-ndjson)."""
    return (b"%s\n" % text[0],) if len(text) == 1 else (*text, b"\n")


def as_event(text: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return a JSON text as the data of a server-sent event (text/event-stream)."""
    return (b"data: %s\n\n" % text[0],) if len(text) == 1 else (b"data: ", *text, b"\n\n")
