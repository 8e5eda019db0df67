"""Calls of the OpenAI API that are several requests: what their refusals say to proxies."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, rejected
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.frontend.reply_headers import REFUSED
from naiad.frontend.rest.openai.openai_routes import OpenAiRoutes
from naiad.frontend.rest.openai.text_call import MAX_REQUESTS
from naiad.operations.openai import CHAT_COMPLETIONS, COMPLETIONS, EMBEDDINGS
from naiad.operations.operation import AnyOperation
from naiad.wire.header_fields import Headers
from support.http_context import KeptResponse
from support.recording_engine import RecordingEngine

TEXTS = """
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_%s dims: [ 1 ] } ]
parameters { key: "openai" value { string_value: "%s,input=TEXT,output=OUT" } }
"""
FORMS = {
    "embed": ("FP32", "embedding"),
    "chat": ("STRING", "chat,template=chatml"),
    "complete": ("STRING", "completion"),
}
BATCHES = MAX_REQUESTS + 4


class Engine(RecordingEngine):
    """Three models; it accepts `room` requests, and refuses later ones."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def knows(self, name: str) -> bool:
        return name in FORMS

    def served(self, name: str, version: str = "") -> object:
        return SimpleNamespace(config=self.model_config(name))

    def model_config(self, name: str, version: str = "") -> Any:
        made = parse_pbtxt(TEXTS % FORMS[name]).config
        made.name = name
        return made

    def submit(self, request: InferRequest, served: object = None) -> None:
        if len(self.submitted) >= self.room:
            raise rejected("Exceeds maximum queue size")
        super().submit(request)
        request.model = SimpleNamespace(version="1", token_counter=None)

    def answer(self, request: InferRequest, error: InferError | None = None) -> None:
        header = ResponseHeader("embed", "1", [TensorSpec("OUT", DataType.FP32, (1, 1))])
        request.on_response(request, InferResponse(header, [b"1234"], error=error))


class Call:
    """A call that is submitted, and its context."""

    path = "/v1/any"
    headers: Mapping[bytes, bytes] = {}
    arrival_ns = 1
    on_disconnect = on_pause = None

    def __init__(self, operation: AnyOperation, room: int, **members: object) -> None:
        self.engine = Engine(room)
        self.body = json.dumps(members).encode()
        self._responses: list[KeptResponse] = []
        OpenAiRoutes(self.engine).actions()[operation](self, {})

    def respond(self, status: int, headers: Headers, parts: Sequence[bytes]) -> None:
        self._responses.append(KeptResponse(status, b"".join(parts), headers))

    def fail(self, position: int) -> None:
        self.engine.answer(self.engine.submitted[position], rejected("the server stops"))

    def ended(self) -> KeptResponse:
        (response,) = self._responses
        return response


PARTS: Mapping[str, tuple[AnyOperation, Mapping[str, object]]] = {
    "embeddings": (EMBEDDINGS, {"model": "embed", "input": ["a"] * BATCHES}),
    "choices of a chat": (
        CHAT_COMPLETIONS,
        {"model": "chat", "messages": [{"role": "user", "content": "a"}], "n": 4},
    ),
    "prompts": (COMPLETIONS, {"model": "complete", "prompt": ["a", "b", "c"]}),
}
ONE: Mapping[str, tuple[AnyOperation, Mapping[str, object]]] = {
    "embedding": (EMBEDDINGS, {"model": "embed", "input": "a"}),
    "chat": (CHAT_COMPLETIONS, {"model": "chat", "messages": [{"role": "user", "content": "a"}]}),
    "completion": (COMPLETIONS, {"model": "complete", "prompt": "a"}),
}
parts = pytest.mark.parametrize(("operation", "members"), PARTS.values(), ids=PARTS)
whole = pytest.mark.parametrize(("operation", "members"), ONE.values(), ids=ONE)
each = pytest.mark.parametrize(("operation", "members"), [*PARTS.values(), *ONE.values()], ids=[*PARTS, *ONE])


def is_marked(response: KeptResponse) -> bool:
    assert response.status == 503
    return REFUSED in response.headers


@each
def test_refused_first_part_leaves_nothing_begun(operation, members):
    call = Call(operation, 0, **members)
    assert is_marked(call.ended())
    assert call.engine.submitted == []


@parts
@pytest.mark.parametrize("room", [1, 2])
def test_refused_later_part_follows_others(operation, members, room):
    call = Call(operation, room, **members)
    assert not is_marked(call.ended())
    assert call.engine.cancelled == call.engine.submitted


def test_refused_part_after_executed_ones():
    operation, members = PARTS["embeddings"]
    call = Call(operation, MAX_REQUESTS, **members)
    call.engine.answer(call.engine.submitted[0])
    assert b"maximum queue size" in call.ended().body
    assert not is_marked(call.ended())


@parts
@pytest.mark.parametrize("position", [0, 1])
def test_dropped_part_says_nothing_of_others(operation, members, position):
    call = Call(operation, BATCHES, **members)
    call.fail(position)
    assert not is_marked(call.ended())


@whole
def test_dropped_only_part_was_not_begun(operation, members):
    call = Call(operation, 1, **members)
    call.fail(0)
    assert is_marked(call.ended())
