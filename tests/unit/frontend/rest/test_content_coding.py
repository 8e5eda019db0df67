import gzip
import logging
import random
import zlib
from types import SimpleNamespace

import orjson
import pytest

from naiad.core.errors import not_found
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend.context import CancelReason
from naiad.frontend.rest.compression import ContentCodings
from naiad.wire.compression import plain_limit
from naiad.wire.header_fields import HeaderFields, written_fields
from support.side_work import Aside

LARGE = random.Random(1).randbytes(200_000)
PLACE = {"model": "m", "version": ""}


class Models:
    def served(self, name, version=""):
        if name != "m":
            raise not_found(f"unknown model {name}")
        return SimpleNamespace(is_decoupled=False)


class Exchange:
    method, path, query, arrival_ns = "POST", "/v2/models/m/infer", "", 5
    on_disconnect = on_pause = None
    has_room, reserved_bytes = True, 0

    def __init__(self, body=b"", **headers):
        self.body = body
        self.headers = HeaderFields()
        for name, value in headers.items():
            self.headers[name.replace("_", "-").encode()] = value
            self.headers.written.append((name.encode(), value))
        self.answers = []
        self.streamed = []

    def respond(self, status, headers, parts):
        self.on_disconnect = None
        self.answers.append((status, dict(headers), b"".join(parts)))

    def reserve_bytes(self, size):
        if not self.has_room:
            return False
        self.reserved_bytes += size
        return True

    def release_bytes(self, size):
        self.reserved_bytes -= size

    def start_stream(self, status, headers):
        self.streamed.append((status, dict(headers)))

    def send(self, parts):
        self.streamed.append(b"".join(parts))

    def end(self):
        self.streamed.append("end")


class Route:
    def __init__(self, *answer):
        self.answer = answer or (200, (), (b"answer",))
        self.seen = []

    def __call__(self, context, arguments):
        self.seen.append(context)
        assert arguments is PLACE or arguments["model"] == "nothing"
        context.respond(*self.answer)


@pytest.fixture
def aside():
    return Aside()


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.WARNING, "naiad")
    return caplog


def handle(context, route, aside, limit=10**6, place=PLACE):
    ContentCodings(aside, Models(), limit).wrap(route)(context, place)
    return context


@pytest.mark.parametrize("coding", [b"identity", b"br", b"", b"gzip, gzip"])
def test_other_codings_are_the_routes_business(aside, coding):
    context, route = Exchange(b"body", content_encoding=coding), Route()
    handle(context, route, aside)
    assert route.seen == [context]


@pytest.mark.parametrize(("coding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_small_body_is_plain_at_once(aside, coding, pack):
    route = Route()
    context = handle(Exchange(pack(b"body"), content_encoding=coding, x_more=b"1"), route, aside)
    (seen,) = route.seen
    assert seen.body == b"body"
    assert (seen.method, seen.path, seen.arrival_ns) == ("POST", "/v2/models/m/infer", 5)
    assert seen.headers == {b"x-more": b"1"}
    assert (b"x_more", b"1") in written_fields(seen.headers)
    assert context.answers == [(200, {}, b"answer")]
    assert aside.waiting == []


@pytest.mark.parametrize("plain", [LARGE, bytes(100_000)])
def test_large_body_is_decompressed_aside(aside, plain):
    route = Route()
    context = handle(Exchange(gzip.compress(plain), content_encoding=b"GZip"), route, aside)
    assert route.seen == []
    aside.go()
    assert [seen.body for seen in route.seen] == [plain]
    assert context.answers[0][2] == b"answer"


class HeldOnce:
    """Holds requests until the test says that their model is loaded."""

    def __init__(self):
        self.resume = []

    def hold(self, cold, size_bytes, resume, refuse, **times):
        self.resume.append(resume)


def test_body_waits_for_a_model_evicted_meanwhile(aside):
    held, seen = HeldOnce(), []

    def route(context, arguments):
        seen.append(context.body)
        if len(seen) < 3:
            raise ColdModelError(held, "m")
        context.respond(200, (), (b"answer",))

    context = handle(Exchange(gzip.compress(LARGE), content_encoding=b"gzip"), route, aside)
    aside.go()
    for turn in range(2):
        assert context.answers == []
        held.resume[turn]()
    assert seen == [LARGE] * 3
    assert context.answers == [(200, {}, b"answer")]


@pytest.mark.parametrize("limit", [1000, 150_000])
def test_body_that_becomes_too_large_is_rejected(aside, logged, limit):
    route = Route()
    context = handle(Exchange(gzip.compress(LARGE), content_encoding=b"gzip"), route, aside, limit)
    aside.go()
    ((status, headers, body),) = context.answers
    assert status == 400
    assert f"exceeds the maximum allowed value of {limit} bytes" in orjson.loads(body)["error"]
    assert headers[b"triton-request-id"].decode() in logged.text
    assert route.seen == []


@pytest.mark.parametrize("body", [b"no gzip", gzip.compress(LARGE, mtime=0)[:-1]])
def test_damaged_body_is_rejected(aside, logged, body):
    context = handle(Exchange(body, content_encoding=b"gzip"), Route(), aside)
    for _ in aside.waiting:
        aside.go()
    ((status, _, answer),) = context.answers
    assert status == 400
    assert "does not match its Content-Encoding 'gzip': " in orjson.loads(answer)["error"]


def test_body_for_an_unknown_model_is_not_decompressed(aside):
    context, route = Exchange(gzip.compress(LARGE), content_encoding=b"gzip"), Route()
    handle(context, route, aside, place={"model": "nothing", "version": ""})
    assert route.seen == [context]
    assert aside.waiting == []


def test_disconnected_client_costs_no_decompression(aside):
    route = Route()
    context = handle(Exchange(gzip.compress(LARGE), content_encoding=b"gzip"), route, aside)
    context.on_disconnect(CancelReason.DISCONNECTED)
    aside.go()
    assert route.seen == []


def test_disconnect_during_decompression_prevents_submission(aside):
    route = Route()
    context = handle(Exchange(gzip.compress(LARGE), content_encoding=b"gzip"), route, aside)
    work, done, _ = aside.waiting.pop()
    plain = work()
    context.on_disconnect(CancelReason.DISCONNECTED)
    done(plain)
    assert route.seen == []


def test_defect_of_the_route_costs_one_response(aside, logged):
    def broken(context, arguments):
        raise ZeroDivisionError

    context = handle(Exchange(gzip.compress(LARGE), content_encoding=b"gzip"), broken, aside)
    aside.go()
    assert context.answers[0][0] == 500
    assert "ZeroDivisionError" in logged.text


ANSWER = b'{"data":[1.0]}' * 100


@pytest.mark.parametrize(
    ("accept", "coding", "unpack"), [(b"gzip", b"gzip", gzip.decompress), (b"deflate", b"deflate", zlib.decompress)]
)
def test_response_is_compressed_when_asked(aside, accept, coding, unpack):
    route = Route(200, ((b"X", b"1"),), (ANSWER[:5], memoryview(ANSWER[5:])))
    context = handle(Exchange(accept_encoding=accept), route, aside)
    ((status, headers, body),) = context.answers
    assert (status, headers) == (200, {b"X": b"1", b"Content-Encoding": coding, b"Vary": b"Accept-Encoding"})
    assert len(body) < len(ANSWER)
    assert unpack(body) == ANSWER


def test_large_response_is_compressed_on_thread_without_cancellation(aside):
    context = Exchange(accept_encoding=b"gzip")
    context.on_disconnect = pytest.fail
    handle(context, Route(200, (), (LARGE,)), aside)
    assert context.answers == []
    assert context.on_disconnect is None
    aside.go()
    assert gzip.decompress(context.answers[0][2]) == LARGE


@pytest.mark.parametrize("answer", [(200, (), (b"small",)), (400, (), (ANSWER,))])
def test_small_responses_and_failures_stay_as_they_are(aside, answer):
    context = handle(Exchange(accept_encoding=b"gzip"), Route(*answer), aside)
    # A larger response of the same URL is compressed, so caches must know that it depends on the field.
    fields = {b"Vary": b"Accept-Encoding"} if answer[0] == 200 else {}
    assert context.answers == [(answer[0], fields, answer[2][0])]


@pytest.mark.parametrize("fields", [{}, {"accept_encoding": b"identity"}])
def test_uncompressed_metrics_vary_by_coding(aside, fields):
    context = Exchange(**fields)
    ContentCodings(aside, Models()).wrap_responses(lambda got: got.respond(200, (), (ANSWER,)))(context)
    assert context.answers == [(200, {b"Vary": b"Accept-Encoding"}, ANSWER)]


@pytest.mark.parametrize("accept", [b"br", b"identity", b"gzip;q=0"])
def test_response_stays_as_it_is_when_nothing_fits(aside, accept):
    context, route = Exchange(accept_encoding=accept), Route(200, (), (ANSWER,))
    handle(context, route, aside)
    assert route.seen == [context]


def test_streamed_response_stays_as_it_is(aside):
    def stream(context, arguments):
        context.on_pause = print
        context.start_stream(200, ())
        context.send((ANSWER,))
        context.end()

    context = handle(Exchange(accept_encoding=b"gzip"), stream, aside)
    assert context.streamed == [(200, {}), ANSWER, "end"]
    assert context.on_pause is print


def test_what_fails_aside_is_answered(aside, logged):
    context = handle(Exchange(accept_encoding=b"gzip"), Route(200, (), (LARGE, None)[:1]), aside)
    _, _, failed = aside.waiting.pop()
    failed(MemoryError("no memory"))
    assert context.answers[0][0] == 500
    assert "no memory" in logged.text


@pytest.mark.parametrize(("accept", "coding"), [(None, None), (b"identity", None), (b"gzip", b"gzip")])
def test_responses_of_metrics_port_are_compressed_if_accepted(aside, accept, coding):
    context = Exchange() if accept is None else Exchange(accept_encoding=accept)
    answer = ContentCodings(aside, Models()).wrap_responses(lambda found: found.respond(200, (), (ANSWER,)))
    answer(context)
    ((status, headers, body),) = context.answers
    assert (status, headers.get(b"Content-Encoding")) == (200, coding)
    assert (gzip.decompress(body) if coding else body) == ANSWER


def test_accept_fields_are_cached_within_bounds(aside):
    codings = ContentCodings(aside, Models())
    handle = codings.wrap(Route())
    for number in range(1000):
        handle(Exchange(accept_encoding=b"gzip;q=0.%d" % number), PLACE)
    assert len(codings._accepted) <= 256


def test_body_without_budget_is_rejected_before_decompression(aside):
    context = Exchange(zlib.compress(bytes(1_000_000)), content_encoding=b"deflate")
    context.has_room = False
    route = Route()
    ContentCodings(aside, Models()).wrap(route)(context, PLACE)
    assert context.answers[0][0] == 503
    assert not route.seen


@pytest.mark.parametrize(("coding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_the_budget_counts_the_bytes_that_came_out(aside, coding, pack):
    # The decompressed size of deflate is not known in advance: more is reserved, and released.
    context = Exchange(pack(bytes(1_000_000)), content_encoding=coding)
    ContentCodings(aside, Models()).wrap(lambda *_: None)(context, PLACE)
    aside.go()
    assert context.reserved_bytes == 1_000_000


def test_any_ratio_is_allowed_up_to_the_floor():
    assert plain_limit(1000, 1 << 30, 200, 64 << 20) == 64 << 20
    assert plain_limit(1 << 20, 1 << 30, 200, 64 << 20) == 200 << 20
    assert plain_limit(1 << 20, 100 << 20, 200, 64 << 20) == 100 << 20


def test_a_lying_gzip_trailer_is_an_error(aside):
    body = gzip.compress(bytes(1_000_000))
    context = Exchange(body[:-4] + (70_000).to_bytes(4, "little"), content_encoding=b"gzip")
    ContentCodings(aside, Models()).wrap(Route())(context, PLACE)
    aside.go()
    assert context.answers[0][0] == 400
