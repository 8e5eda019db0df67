"""Decoupled Python models through a real server and gRPC streams: the example, clients that leave or do not read."""

import os
import queue
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

EXAMPLE = Path(__file__).parents[2] / "examples" / "python" / "tokens"
METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
CONFIG = """
name: "flood" backend: "python" model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "PAGE" data_type: TYPE_UINT8 dims: [ -1 ] } ]
"""
FLOOD = """
import os
import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,), daemon=True).start()

    def answer(self, request):
        sender = request.get_response_sender()
        count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
        with open(os.path.join(os.path.dirname(__file__), request.request_id()), "ab", buffering=0) as log:
            for n in range(count):
                if sender.is_cancelled():
                    log.write(b"left")
                    break
                page = np.frombuffer(np.full(16384, n, np.int32).tobytes(), np.uint8)
                tensor = pb_utils.Tensor("PAGE", page)
                sender.send(pb_utils.InferenceResponse([tensor], parameters={"pid": os.getpid()}))
                log.write(b".")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    (repository / "tokens").symlink_to(EXAMPLE)
    (repository / "flood" / "1").mkdir(parents=True)
    (repository / "flood" / "config.pbtxt").write_text(CONFIG)
    (repository / "flood" / "1" / "model.py").write_text(FLOOD)
    process = ServerProcess(repository.with_name("log"), "--model-repository", str(repository))
    process.notes = repository / "flood" / "1"  # type: ignore[attr-defined]
    process.wait_started()
    yield process
    process.stop()


def stream(client) -> "queue.Queue[tuple[grpcclient.InferResult, InferenceServerException | None]]":
    answers: queue.Queue[tuple[grpcclient.InferResult, InferenceServerException | None]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    return answers


def ask_tokens(client, text: str, **parameters) -> None:
    made = grpcclient.InferInput("text_input", [1], "BYTES")
    made.set_data_from_numpy(np.array([text.encode()], object))
    client.async_stream_infer("tokens", [made], parameters=parameters, enable_empty_final_response=True)


def take_tokens(answers) -> str:
    text = ""
    while True:
        result, error = answers.get(timeout=60)
        if error is not None:
            raise error
        if result.get_response().parameters["triton_final_response"].bool_param:
            return text
        text += result.as_numpy("text_output")[0].decode()


def test_the_example_streams_tokens(server):
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        answers = stream(client)
        ask_tokens(client, "once there was a ship", max_tokens=6)
        said = take_tokens(answers)
        assert len(said.split()) == 6
        assert said.startswith(" had a ")
        ask_tokens(client, "once there was a ship", max_tokens=6)
        assert take_tokens(answers) == said
        ask_tokens(client, "the captain", max_tokens=300, seed=7)
        assert len(take_tokens(answers).split()) == 300
        ask_tokens(client, "")
        with pytest.raises(InferenceServerException, match="text_input has no words"):
            take_tokens(answers)
        ask_tokens(client, "the", max_tokens=1)
        assert len(take_tokens(answers).split()) == 1
        client.stop_stream()


class Reader:
    """A call whose responses are read one by one: what is not asked for stays in the server."""

    def __init__(self, server: ServerProcess, name: str, count: int) -> None:
        # Without its probes of bandwidth the client keeps the window of RFC 9113, 6.9.2. With them the window grows
        # to 16 MiB, as the machine allows, and the client itself buffers as much.
        self._channel = grpc.insecure_channel(server.grpc_url, [("grpc.http2.bdp_probe", 0)])
        self._requests: queue.Queue[service_pb2.ModelInferRequest | None] = queue.Queue()
        self._log = server.notes / name  # type: ignore[attr-defined]
        message = service_pb2.ModelInferRequest(model_name="flood", id=name)
        message.inputs.add(name="COUNT", datatype="INT32", shape=[1])
        message.raw_input_contents.append(np.array([count], np.int32).tobytes())
        self._requests.put(message)
        self.call = self._channel.stream_stream(
            METHOD,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )(iter(self._requests.get, None))

    @property
    def noted(self) -> bytes:
        return self._log.read_bytes()

    def steady_count(self) -> int:
        """Wait until the model has sent nothing for a second; return how many responses it has sent."""
        before = -1
        while before != len(self.noted):
            before = len(self.noted)
            time.sleep(1)
        return before

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()
        self._channel.close()


def page_number(answer) -> int:
    assert not answer.error_message
    (page,) = answer.infer_response.raw_output_contents
    assert len(page) == 65536
    return int.from_bytes(page[:4], "little")


def test_client_that_pauses_reading_still_gets_everything(server):
    reader = Reader(server, "slow", 800)
    first = next(reader.call)
    assert page_number(first) == 0
    sent = reader.steady_count()
    assert 0 < sent < 400
    # Others are served meanwhile, by the same worker.
    other = Reader(server, "other", 3)
    assert [page_number(next(other.call)) for _ in range(3)] == [0, 1, 2]
    other.close()
    assert [page_number(next(reader.call)) for _ in range(799)] == list(range(1, 800))
    reader.close()


def test_client_that_leaves_paused_model_ends_request(server):
    reader = Reader(server, "leaving", 100_000)
    next(reader.call)
    assert reader.steady_count() < 400
    reader.close()
    deadline = time.monotonic() + 60
    while not reader.noted.endswith(b"left"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_death_of_worker_ends_responses_but_not_stream(server):
    readers = [Reader(server, f"dying-{n}", 100_000) for n in range(2)]
    pids = {next(reader.call).infer_response.parameters["pid"].int64_param for reader in readers}
    os.kill(pids.pop(), signal.SIGKILL)
    for reader in readers:
        said = next(answer.error_message for answer in reader.call if answer.error_message)
        assert said == "the worker of instance 'flood_0' was killed by SIGKILL while it executed this request"
        reader.close()
