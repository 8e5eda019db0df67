import pytest

from naiad.wire.http1 import HeadCache, Http1Limits, HttpError


def parse(text, **limits):
    return HeadCache(Http1Limits(**limits)).parse(text)


def get(*fields, line=b"GET /v2 HTTP/1.1"):
    return b"\r\n".join([line, b"Host: x", *fields, b"", b""])


def test_fields_are_lower_case_and_repeated_ones_joined():
    head = parse(get(b"Content-TYPE: a", b"X-A: 1", b"x-a: 2"))
    assert (head.method, head.path) == ("GET", "/v2")
    assert head.headers == {b"host": b"x", b"content-type": b"a", b"x-a": b"1, 2"}


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v2?a=b", "/v2"),
        (b"/v2/models/a%20b", "/v2/models/a b"),
        (b"/v2/models/a%2Fb", "/v2/models/a%2Fb"),
        (b"/v2%2fhealth%2Flive", "/v2%2fhealth%2Flive"),
        (b"/v2/models/a%252Fb", "/v2/models/a%2Fb"),
        (b"/%C3%A9", "/é"),
        (b"http://host:1/p/q?x", "/p/q"),
        (b"http://host", "/"),
    ],
)
def test_path_is_decoded_and_without_query(target, path):
    assert parse(get(line=b"GET %s HTTP/1.1" % target)).path == path


@pytest.mark.parametrize(
    ("line", "field", "keep_alive"),
    [
        (b"GET / HTTP/1.1", b"A: b", True),
        (b"GET / HTTP/1.1", b"Connection: Close", False),
        (b"GET / HTTP/1.1", b"Connection: x, close", False),
        (b"GET / HTTP/1.0", b"A: b", False),
        (b"GET / HTTP/1.0", b"Connection: Keep-Alive", True),
    ],
)
def test_keep_alive(line, field, keep_alive):
    assert parse(get(field, line=line)).keep_alive is keep_alive


def test_framing_fields():
    head = parse(get(b"Content-Length: 12", b"Inference-Header-Content-Length: 7", b"Expect: 100-Continue"))
    assert (head.content_length, head.binary_offset, head.is_chunked, head.expects_continue) == (12, 7, False, True)
    assert parse(get(b"Transfer-Encoding: Chunked")).is_chunked


def test_data_after_http09_request_is_rejected_at_once():
    with pytest.raises(HttpError, match="goes on after its end") as caught:
        parse(b"CONNECT \n\r\nHost: y\r\n\r\n")
    assert caught.value.status == 400


def test_upgrade_is_ignored():
    head = parse(get(b"Upgrade: h2c", b"Connection: Upgrade", b"Content-Length: 3"))
    assert (head.method, head.content_length, head.keep_alive) == ("GET", 3, True)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\n", 400),
        (get(b"Content-Length: 1", b"Content-Length: 1"), 400),
        (get(b"Content-Length: -1"), 400),
        (get(b"Content-Length: 1", b"Transfer-Encoding: chunked"), 400),
        (get(b"Transfer-Encoding: gzip, chunked"), 501),
        (get(b"Transfer-Encoding: gzip"), 400),
        (get(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0"), 400),
        (get(b"Content-Length: 11"), 413),
        (get(b"Expect: something"), 417),
        (get(b"A : b"), 400),
        (get(b"A: b\r\n c"), 400),
        (get(b"A: \x00"), 400),
        (get(line=b"GET /%FF HTTP/1.1"), 400),
        (get(line=b"GET /" + b"a" * 100 + b" HTTP/1.1"), 414),
        (get(*[b"A: b"] * 20), 431),
    ],
)
def test_rejected_heads(text, status):
    with pytest.raises(HttpError) as caught:
        parse(text, body_bytes=10, target_bytes=64, header_count=16)
    assert caught.value.status == status


def test_known_headers_are_parsed_once_within_bounds():
    cache = HeadCache(Http1Limits(), size=2)
    texts = [get(b"A: %d" % i) for i in range(3)]
    heads = [cache.parse(text) for text in texts]
    assert cache.get(texts[2]) is heads[2]
    assert cache.get(texts[0]) is None
    large = get(b"A: " + b"x" * 5000)
    cache.parse(large)
    assert cache.get(large) is None
