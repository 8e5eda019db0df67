"""A stream responds to each request in order, for any order of requests, responses, failures and a slow reader."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.errors import internal, invalid_argument
from naiad.core.limits.request_limits import unlimited
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.regions.regions import SharedMemory
from naiad.frontend.grpc import stream as grpc_stream
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.protocol import service_pb2 as pb
from support.one_engine import OneEngine

HEADER = ResponseHeader("m", "1", ())


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Log nothing: a flood of failures would also suppress the log lines of later tests."""
    logger = logging.getLogger("naiad.request")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


class Call:
    """A peer that sends `messages` within flow control, and reads on request."""

    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    client = None
    metadata = ()
    deadline_ns = arrival_ns = 0

    def __init__(self, messages):
        self.service = None
        self.messages = list(messages)
        self.on_cancel = self.context = self.status = None
        self.queued_bytes = 0
        self.is_held = False
        self.is_half_closed = False
        self.sent = []

    def pump(self):
        while self.messages and not self.is_held:
            self.service.stream_message(self, self.messages.pop(0))
        if not self.messages and not self.is_held and not self.is_half_closed:
            self.is_half_closed = True
            self.service.stream_half_closed(self)

    def send(self, parts):
        assert self.status is None
        data = b"".join(parts)
        self.queued_bytes += len(data)
        self.sent.append(pb.ModelStreamInferResponse.FromString(data))

    def read(self):
        self.queued_bytes = 0
        if self.is_held:
            self.service.stream_writable(self)

    def finish(self, status, message="", trailers=()):
        assert self.status is None
        self.status = status

    def pause(self):
        assert not self.is_held
        self.is_held = True

    def resume(self):
        assert self.is_held
        self.is_held = False
        self.pump()


class Engine(OneEngine):
    def __init__(self):
        self.open = []
        self.shared_memory = SharedMemory()

    def submit(self, request, served=None):
        if request.id.startswith("rejected"):
            raise invalid_argument("no")
        self.open.append(request)

    def request_limits(self, name, version=""):
        return unlimited(name, version)

    def served(self, name, version=""):
        return SimpleNamespace(is_decoupled=name == "d")


def message(kind, number):
    model = "d" if kind.startswith("decoupled") else "m"
    request = pb.ModelInferRequest(model_name=model, id=f"{kind} {number}")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request.SerializeToString()


KINDS = st.sampled_from(["ordinary", "decoupled", "rejected"])
ACTIONS = st.sampled_from(["final", "more", "empty", "error", "read"])


@given(st.lists(KINDS, max_size=12), st.lists(st.tuples(st.integers(0, 11), ACTIONS), max_size=60), st.data())
def test_every_request_is_answered_in_its_place(kinds, actions, data):
    ids = [f"{kind} {number}" for number, kind in enumerate(kinds)]
    call, engine = Call(message(kind, number) for number, kind in enumerate(kinds)), Engine()
    expected = dict.fromkeys(ids, 1)
    call.service = InferenceGrpcService(engine)
    limits = grpc_stream.MAX_OPEN_REQUESTS, grpc_stream.MAX_QUEUED_BYTES
    grpc_stream.MAX_OPEN_REQUESTS, grpc_stream.MAX_QUEUED_BYTES = 3, 200

    def answer(request, action):
        is_decoupled = request.id.startswith("decoupled")
        final = action != "more" or not is_decoupled
        error = internal("it broke") if action == "error" else None
        empty_final = action == "empty" and is_decoupled
        if final:
            engine.open.remove(request)
        else:
            expected[request.id] += 1
        request.on_response(request, InferResponse(HEADER, error=error, final=final, empty_final=empty_final))

    try:
        call.pump()
        for index, action in actions:
            if action == "read":
                call.read()
            elif engine.open:
                answer(engine.open[index % len(engine.open)], action)
            assert len(engine.open) <= 3
        while call.status is None:
            if engine.open:
                answer(engine.open[data.draw(st.integers(0, len(engine.open) - 1))], "final")
            call.read()
    finally:
        grpc_stream.MAX_OPEN_REQUESTS, grpc_stream.MAX_QUEUED_BYTES = limits

    assert call.status == 0
    assert not call.messages
    answered = [sent.infer_response.id for sent in call.sent]
    assert {name: answered.count(name) for name in ids} == expected
    in_order = [name for name in answered if not name.startswith("decoupled")]
    assert in_order == [name for name in ids if not name.startswith("decoupled")]
