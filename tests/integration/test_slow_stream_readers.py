"""A client that does not read its responses keeps no other client of the same instance waiting."""

import http.client
import json
import queue
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from support.raw_http2 import DATA, END_STREAM, PREFACE, SETTINGS, Http2Peer, frame, grpc_head, grpc_message
from support.server_process import ServerProcess, serving
from support.slow_client import slow_post
from support.waiting import wait_until

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "PAGE" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
# Each way in which one thread serves several requests.
SENDS_IN_EXECUTE = """
    def execute(self, requests):
        for request in requests:
            self.answer(request)
"""
SENDS_IN_COROUTINES = """
    async def execute(self, requests):
        await asyncio.gather(*map(self.answer_slowly, requests))

    async def answer_slowly(self, request):
        sender = request.get_response_sender()
        for n in range(self.count(request)):
            self.send(sender, n)
            await asyncio.sleep(0)
            if sender.is_cancelled():
                break
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SENDS_IN_ONE_THREAD = """
    def initialize(self, args):
        self.requests = queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            self.requests.put(request)

    def work(self):
        while True:
            self.answer(self.requests.get())
"""
MODEL = """
import asyncio
import queue
import re
import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def count(self, request):
        return int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])

    def send(self, sender, n):
        page = np.array([str(n).ljust(65536)], object)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("PAGE", page)]))

    def answer(self, request):
        sender = request.get_response_sender()
        for n in range(self.count(request)):
            self.send(sender, n)
            if sender.is_cancelled():
                break
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MODELS = {
    "execute": MODEL + SENDS_IN_EXECUTE,
    "coroutines": MODEL + SENDS_IN_COROUTINES,
    "one_thread": MODEL + SENDS_IN_ONE_THREAD,
}
ENDLESS = 1_000_000
LIMIT_S = 240
"""Of a client, however busy the machine is."""
Fields = list[tuple[str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    for name, source in MODELS.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(f'name: "{name}"\n{CONFIG}')
        (root / name / "1" / "model.py").write_text(source)
    with serving(root.with_name("slow-readers.log"), f"--model-repository={root}") as running:
        yield running


def question(model: str, count: int, request_id: str) -> service_pb2.ModelInferRequest:
    """Return the request for a number of pages."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    message.inputs.add(name="COUNT", datatype="INT32", shape=[1])
    message.raw_input_contents.append(np.array([count], np.int32).tobytes())
    return message


class Stream:
    """A ModelStreamInfer call with one request, whose responses are read when a test asks for them."""

    def __init__(self, server: ServerProcess, model: str, count: int, request_id: str) -> None:
        self._channel = grpc.insecure_channel(server.grpc_url)
        self._requests: queue.Queue[service_pb2.ModelInferRequest | None] = queue.Queue()
        self._requests.put(question(model, count, request_id))
        self.responses = self._channel.stream_stream(
            METHOD,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )(iter(self._requests.get, None), timeout=LIMIT_S)

    def close(self) -> None:
        self._requests.put(None)
        self.responses.cancel()
        self._channel.close()


def pages(server: ServerProcess, model: str, count: int) -> list[int]:
    """Return the numbers of the pages that another client gets."""
    connection = http.client.HTTPConnection(server.http_url, timeout=LIMIT_S)
    connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps({"COUNT": count}))
    answer = connection.getresponse()
    assert answer.status == 200
    events = answer.read().split(b"\n\n")[:-1]
    connection.close()
    assert all(b'"PAGE"' in event for event in events), [event for event in events if b'"PAGE"' not in event]
    return [int(json.loads(event.removeprefix(b"data: "))["PAGE"]) for event in events]


def failed_responses(server: ServerProcess, model: str) -> int:
    """Return how many responses of a model the statistics count as failed."""
    (row,) = server.get(f"/v2/models/{model}/stats").json["model_stats"]
    return sum(int(position["fail"].get("count", 0)) for position in row.get("response_stats", {}).values())


def ask_until_it_fails(server: ServerProcess, model: str, slow_id: str) -> None:
    """Ask as another client, which is always answered, until the slow request has failed because of that."""
    failure = re.compile(rf"request id: {slow_id}.*takes the responses of instance .* too slowly")
    for _ in range(1000):
        assert pages(server, model, 5) == [0, 1, 2, 3, 4]
        if failure.search(server.log_text()):
            return
    raise AssertionError(server.log_text())


@pytest.mark.parametrize("model", MODELS)
def test_a_slow_grpc_reader_hurts_only_itself(server: ServerProcess, model: str) -> None:
    request_id = f"slow-grpc-{model}"
    slow = Stream(server, model, ENDLESS, request_id)
    assert next(slow.responses).infer_response.id == request_id
    ask_until_it_fails(server, model, request_id)
    # What was sent comes, and then the reason why there is no more.
    said = next(answer.error_message for answer in slow.responses if answer.error_message)
    assert "takes the responses of instance" in said
    slow.close()


@pytest.mark.parametrize("model", MODELS)
def test_a_slow_http_reader_hurts_only_itself(server: ServerProcess, model: str) -> None:
    request_id = f"slow-http-{model}"
    failed_before = failed_responses(server, model)
    path = f"/v2/models/{model}/generate_stream"
    with slow_post(server, path, {"COUNT": ENDLESS, "id": request_id}) as answer:
        ask_until_it_fails(server, model, request_id)
        assert failed_responses(server, model) == failed_before + 1
        # What was sent comes, and then the reason why there is no more, and the end.
        *responses, last = answer.read().split(b"\n\n")[:-1]
    assert [json.loads(event.removeprefix(b"data: "))["id"] for event in responses] == [request_id] * len(responses)
    assert "takes the responses of instance" in json.loads(last.removeprefix(b"data: "))["error"]


def test_many_slow_readers_hurt_only_themselves(server: ServerProcess) -> None:
    with ExitStack() as stack:
        for number in range(4):
            slow = Stream(server, "coroutines", ENDLESS, f"many-{number}")
            stack.callback(slow.close)
            next(slow.responses)
        assert pages(server, "coroutines", 5) == [0, 1, 2, 3, 4]


NO_WINDOW = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))  # SETTINGS_INITIAL_WINDOW_SIZE
GRPC, SSE = "grpc", "sse"


def request_without_window(server: ServerProcess, transport: str, request_id: str) -> tuple[Fields, bytes]:
    """Return head and body of a request for a stream over HTTP/2."""
    if transport == GRPC:
        return grpc_head(METHOD), grpc_message(question("execute", ENDLESS, request_id).SerializeToString())
    body = json.dumps({"COUNT": ENDLESS, "id": request_id}).encode()
    head = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": server.http_url,
        ":path": "/v2/models/execute/generate_stream",
        "content-length": str(len(body)),
    }
    return list(head.items()), body


def arrived(server: ServerProcess, ids: list[str]) -> int:
    """Return how many requests are in the model, or have been ended for those that wait."""
    found = server.get("/v2/models/execute/explain").json
    ended = [each for each in ids if re.search(rf"request id: {each}\].*too slowly", server.log_text())]
    return int(found["waiting"] + found["executing"]) + len(ended)


@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("transport", [GRPC, SSE])
@pytest.mark.parametrize("is_shared", [True, False], ids=["one-connection", "one-connection-each"])
def test_one_request_ends_readers_without_a_window(
    server: ServerProcess, transport: str, count: int, *, is_shared: bool
) -> None:
    ids = [f"{transport}-{count}-{is_shared}-{number}" for number in range(count)]
    url = server.grpc_url if transport == GRPC else server.http_url
    with ExitStack() as stack:
        peers = [stack.enter_context(Http2Peer(url, opening=NO_WINDOW)) for _ in range(1 if is_shared else count)]
        for number, request_id in enumerate(ids):
            peer, stream_id = (peers[0], 1 + 2 * number) if is_shared else (peers[number], 1)
            head, body = request_without_window(server, transport, request_id)
            peer.send(peer.headers(stream_id, head) + frame(DATA, END_STREAM, stream_id, body))
        for peer in peers:
            assert peer.goes_on(b"")
        wait_until(lambda: arrived(server, ids) == count, "a request did not reach the model")
        assert pages(server, "execute", 5) == [0, 1, 2, 3, 4]
        for request_id in ids:
            # The log is written a moment after the response.
            server.wait_log(rf"request id: {request_id}\].*too slowly")


def test_a_reader_that_is_alone_gets_everything(server: ServerProcess) -> None:
    """The model waits for it: nothing is lost while no other request waits."""
    slow = Stream(server, "execute", 800, "alone")
    threading.Event().wait(2)  # most of it waits in the model meanwhile
    answers = [next(slow.responses) for _ in range(800)]
    numbers = [int(answer.infer_response.raw_output_contents[0][4:16]) for answer in answers]
    assert numbers == list(range(800))
    slow.close()


def test_a_steady_reader_gets_everything_beside_others(server: ServerProcess) -> None:
    """The model is faster than its client, which is not slow: nothing fails although others wait."""
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            assert pages(server, "execute", 3) == [0, 1, 2]

    other = threading.Thread(target=ask)
    other.start()
    try:
        assert pages(server, "execute", 1500) == list(range(1500))
    finally:
        done.set()
        other.join()
