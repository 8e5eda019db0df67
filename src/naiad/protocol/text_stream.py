"""Framing of streamed answers: texts of one line each, told apart by line ends or as server-sent events."""


def as_line(text: bytes) -> bytes:
    """Return a JSON text as a line (application/x-ndjson)."""
    return text + b"\n"


def as_event(text: bytes) -> bytes:
    """Return a JSON text as the data of a server-sent event (text/event-stream)."""
    return b"data: %s\n\n" % text
