"""Messages of NATS as fields."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.consume.queues.nats.nats_messages import fields_of, payload_and_headers, size_bytes

NAMES = st.from_regex(rb"[!-9;-~]{1,20}", fullmatch=True).filter(lambda name: not name.startswith(b"Nats-"))


def test_payload_is_data_and_headers_are_fields() -> None:
    headers = {"user": "7", "X.raw.b64": "AP8=", "Nats-Msg-Id": "1", "picture.b64": "no base64"}
    fields = fields_of(b"{}", headers)
    assert fields == {b"data": b"{}", b"user": b"7", b"X.raw": b"\x00\xff", b"picture.b64": b"no base64"}
    assert fields_of(b"", {"a": "1"}) == {b"a": b"1"}


@given(st.dictionaries(NAMES, st.binary(max_size=40), max_size=5), st.binary(max_size=40))
def test_fields_stay_as_they_are(fields: dict[bytes, bytes], payload: bytes) -> None:
    fields = fields | ({b"data": payload} if payload else {})
    if not payload:
        fields.pop(b"data", None)
    sent, headers = payload_and_headers(fields)
    assert all("\n" not in value and "\r" not in value for value in headers.values())
    assert fields_of(sent, headers) == fields
    assert size_bytes(fields) > sum(map(len, fields.values()))


def test_names_that_no_header_has_are_left_out() -> None:
    assert payload_and_headers({b"a b": b"1", b"c:d": b"2", b"e": b"3"}) == (b"", {"e": "3"})
