import pytest

from naiad.wire.preface import ALPN, PREFACE, HttpVersion, version_of


def test_nothing_received_decides_nothing():
    assert version_of(b"") is None


@pytest.mark.parametrize("length", range(1, len(PREFACE)))
def test_partial_preface_waits_for_the_rest(length):
    assert version_of(PREFACE[:length]) is None


@pytest.mark.parametrize("more", [b"", b"\x00\x00\x00\x04", PREFACE])
def test_the_whole_preface_is_http_2(more):
    assert version_of(PREFACE + more) is HttpVersion.HTTP_2


@pytest.mark.parametrize("length", range(len(PREFACE)))
def test_the_first_other_byte_is_http_1(length):
    assert version_of(PREFACE[:length] + b"\x7f") is HttpVersion.HTTP_1


@pytest.mark.parametrize(
    "received",
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /v2/models/a/infer HTTP/1.1\r\n",
        b"PUT",
        b"\r\nGET",
        b"\x16\x03\x01",
        b"PRI * HTTP/2.0\r\n\r\nXX",
    ],
)
def test_other_bytes_go_to_http_1_parser(received):
    assert version_of(memoryview(received)) is HttpVersion.HTTP_1


def test_alpn_names_match_the_registry():
    assert ALPN == {"h2": HttpVersion.HTTP_2, "http/1.1": HttpVersion.HTTP_1}
