"""Messages of NATS as fields, and back: the payload is the field `data`, each header another one. Pure.

A header is text in one line. A field whose name or value is not gets the header `NAME.b64`, with its value in base64.
"""

import base64
import binascii
import re
from collections.abc import Mapping

DATA = b"data"
_B64 = ".b64"
_NAME = re.compile(rb"[!-9;-~]+")
"""Printable ASCII without a colon."""
_TEXT = re.compile(r"[^\x00-\x1f\x7f]*")
_OWN = "Nats-"
"""Headers of the server and of its clients begin with it."""


def fields_of(payload: bytes, headers: Mapping[str, str] | None) -> Mapping[bytes, bytes]:
    """Return the fields of a message. A header in base64 that cannot be decoded stays as it is."""
    fields = {}
    for name, value in (headers or {}).items():
        if name.startswith(_OWN):
            continue
        if name.endswith(_B64):
            try:
                fields[name.removesuffix(_B64).encode()] = base64.b64decode(value, validate=True)
                continue
            except (binascii.Error, ValueError):
                pass  # a header of the sender, which only has the same end
        fields[name.encode()] = value.encode()
    if payload:
        fields[DATA] = payload
    return fields


def payload_and_headers(fields: Mapping[bytes, bytes]) -> tuple[bytes, dict[str, str]]:
    """Return the payload and the headers of a message. A field whose name cannot be one of a header is left out."""
    headers = {}
    for name, value in fields.items():
        if name != DATA and _NAME.fullmatch(name):
            text = _text(value)
            if text is None or name.endswith(_B64.encode()):
                headers[name.decode() + _B64] = base64.b64encode(value).decode()
            else:
                headers[name.decode()] = text
    return fields.get(DATA, b""), headers


def _text(value: bytes) -> str | None:
    """Return a value as the text of a header; None if it would arrive as another one."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text and text == text.strip() and _TEXT.fullmatch(text) else None


def size_bytes(fields: Mapping[bytes, bytes]) -> int:
    """Return about the size of a message, not less than it is."""
    payload, headers = payload_and_headers(fields)
    return len(payload) + sum(len(name) + 4 * len(value) + 4 for name, value in headers.items()) + 256
