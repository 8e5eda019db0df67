"""ModelStreamInfer with stock tritonclient, sync and asyncio, and bare grpcio against a real server."""

import asyncio
import queue
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aioclient
from tritonclient.grpc import service_pb2

from support.model_repository import write_model
from support.process_resources import ProcessResources
from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
A = np.arange(32, dtype=np.float32).reshape(2, 16)
B = np.full((2, 16), 3, np.float32)


def tensor(name, array, datatype):
    made = grpcclient.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def add_sub_inputs(a=A, b=B):
    return [tensor("INPUT0", a, "FP32"), tensor("INPUT1", b, "FP32")]


def repeat_inputs(elements, delay_ms=0, wait_ms=0):
    return [
        tensor("IN", np.array(elements, np.int32), "INT32"),
        tensor("DELAY", np.full(len(elements), delay_ms, np.uint32), "UINT32"),
        tensor("WAIT", np.array([wait_ms], np.uint32), "UINT32"),
    ]


def repeat_message(elements, request_id="", delay_ms=0):
    message = service_pb2.ModelInferRequest(model_name="repeat", id=request_id)
    for made in repeat_inputs(elements, delay_ms):
        message.inputs.append(made._get_tensor())
        message.raw_input_contents.append(made._get_content())
    return message


def is_final(response):
    return response.parameters["triton_final_response"].bool_param


class Stream:
    """A stream of the sync client; answers arrive in a queue."""

    def __init__(self, client, **keywords):
        self.client = client
        self.answers = queue.Queue()
        client.start_stream(lambda result, error: self.answers.put((result, error)), **keywords)

    def send(self, model, inputs, **keywords):
        self.client.async_stream_infer(model, inputs, **keywords)

    def next(self):
        """Return the next response; fails when it is an error."""
        result, error = self.answers.get(timeout=60)
        assert error is None
        return result

    def next_error(self):
        _, error = self.answers.get(timeout=60)
        assert error is not None
        return error

    def is_quiet(self):
        return self.answers.empty()


@pytest.fixture
def client(server: ServerProcess):
    with grpcclient.InferenceServerClient(server.grpc_url) as opened:
        yield opened


@pytest.fixture
def stream(client):
    opened = Stream(client)
    yield opened
    client.stop_stream()
    assert opened.is_quiet()


@pytest.fixture
def call(server: ServerProcess):
    """A function that starts a bare grpcio stream of messages."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield channel.stream_stream(
            METHOD,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )


class TestOrdinaryModels:
    def test_answers_come_in_order_with_their_ids(self, stream):
        for number in range(100):
            model = ("add_sub", "python_add_sub")[number % 2]
            stream.send(model, add_sub_inputs(A * number), request_id=str(number))
        for number in range(100):
            result = stream.next()
            response = result.get_response()
            assert response.id == str(number)
            assert is_final(response)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * number + B)

    def test_a_slow_model_keeps_its_place(self, stream):
        stream.send("slow_identity", [tensor("INPUT0", A, "FP32")], request_id="slow")
        stream.send("add_sub", add_sub_inputs(), request_id="fast")
        assert [stream.next().get_response().id for _ in range(2)] == ["slow", "fast"]

    def test_errors_leave_the_stream_open(self, stream):
        stream.send("add_sub", add_sub_inputs(), request_id="1")
        stream.send("nothing", add_sub_inputs(), request_id="2")
        stream.send("add_sub", add_sub_inputs(A[:, :3], B[:, :3]), request_id="3")
        stream.send("add_sub", add_sub_inputs(), request_id="4")
        assert stream.next().get_response().id == "1"
        assert "unknown model: 'nothing' is not found" in stream.next_error().message()
        assert "unexpected shape for input 'INPUT0'" in stream.next_error().message()
        assert stream.next().get_response().id == "4"

    def test_large_tensors(self, stream):
        array = np.random.default_rng(1).random((1, 2_000_000), dtype=np.float32)
        for _ in range(3):
            stream.send("identity", [tensor("INPUT0", array, "FP32")])
        for _ in range(3):
            np.testing.assert_array_equal(stream.next().as_numpy("OUTPUT0"), array)

    def test_more_requests_than_a_stream_may_have_open(self, call):
        count = 3000
        inputs = [tensor("INPUT0", A[:1], "FP32")]
        message = service_pb2.ModelInferRequest(model_name="identity")
        message.inputs.append(inputs[0]._get_tensor())
        message.raw_input_contents.append(inputs[0]._get_content())
        messages = [service_pb2.ModelInferRequest.FromString(message.SerializeToString()) for _ in range(count)]
        for number, each in enumerate(messages):
            each.id = str(number)
        ids = [response.infer_response.id for response in call(iter(messages))]
        assert ids == [str(number) for number in range(count)]


class TestDecoupledModels:
    def test_responses_and_an_empty_final_one(self, stream):
        stream.send("repeat", repeat_inputs([4, 2, 0]), request_id="r", enable_empty_final_response=True)
        results = [stream.next() for _ in range(4)]
        values = [(int(r.as_numpy("OUT")[0]), int(r.as_numpy("IDX")[0])) for r in results[:3]]
        assert values == [(4, 0), (2, 1), (0, 2)]
        responses = [r.get_response() for r in results]
        assert {r.id for r in responses} == {"r"}
        assert [is_final(r) for r in responses] == [False, False, False, True]
        assert not responses[3].outputs

    def test_without_the_empty_final_one(self, stream):
        stream.send("repeat", repeat_inputs([4, 2]))
        stream.send("add_sub", add_sub_inputs(), request_id="after")
        kinds = [stream.next().get_response() for _ in range(3)]
        assert sorted(r.model_name for r in kinds) == ["add_sub", "repeat", "repeat"]

    def test_requests_interleave_after_execute_has_returned(self, stream):
        for name in ("a", "b"):
            stream.send("repeat", repeat_inputs(range(10), delay_ms=20), request_id=name)
        ids = [stream.next().get_response().id for _ in range(20)]
        assert ids.count("a") == ids.count("b") == 10
        assert "b" in ids[:10]

    def test_an_error_of_the_model(self, stream):
        inputs = repeat_inputs([1, 2])
        inputs[1] = tensor("DELAY", np.zeros(1, np.uint32), "UINT32")
        stream.send("repeat", inputs, request_id="bad")
        stream.send("repeat", repeat_inputs([7]), request_id="good")
        assert "expected IN and DELAY shape to match" in stream.next_error().message()
        assert stream.next().get_response().id == "good"

    def test_responses_are_counted_by_position(self, client, stream, server):
        def counts():
            (row,) = client.get_inference_statistics("repeat", as_json=True)["model_stats"]
            return {k: int(v["success"].get("count", 0)) for k, v in row.get("response_stats", {}).items()}

        before = counts()
        stream.send("repeat", repeat_inputs([1, 2]), enable_empty_final_response=True)
        for _ in range(3):
            stream.next()
        after = counts()
        assert [after[k] - before.get(k, 0) for k in ("0", "1", "2")] == [1, 1, 0]
        (row,) = server.get("/v2/models/repeat/stats").json["model_stats"]
        assert row["response_stats"]["1"]["success"]["count"] == after["1"]

    def test_unary_calls_are_refused(self, client):
        with pytest.raises(Exception, match="doesn't support models with decoupled transaction policy"):
            client.infer("repeat", repeat_inputs([1]))


def test_the_documented_client_works_as_it_is_printed(server, capsys):
    page = Path(__file__).parents[2] / "docs" / "streaming.md"
    code = page.read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code.replace("localhost:8001", server.grpc_url), str(page), "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["[4] [0]", "[2] [1]", "[0] [2]"]


class TestAsyncio:
    def test_stream_infer(self, server):
        async def run():
            async def requests():
                for number in range(5):
                    yield {
                        "model_name": "repeat",
                        "inputs": repeat_inputs([number] * 3),
                        "request_id": str(number),
                    }
                yield {"model_name": "add_sub", "inputs": add_sub_inputs(), "request_id": "add"}

            async with aioclient.InferenceServerClient(server.grpc_url) as client:
                return [(result, error) async for result, error in client.stream_infer(requests())]

        answers = asyncio.run(run())
        assert all(error is None for _, error in answers)
        responses = [result.get_response() for result, _ in answers]
        assert sorted(r.id for r in responses) == sorted([str(n) for n in range(5) for _ in range(3)] + ["add"])
        assert [r.id for r in responses if is_final(r)] == ["add"]

    def test_cancel(self, server):
        async def run():
            async def requests():
                yield {"model_name": "repeat", "inputs": repeat_inputs(range(1000), delay_ms=10), "request_id": "x"}

            async with aioclient.InferenceServerClient(server.grpc_url) as client:
                iterator = client.stream_infer(requests())
                async for result, error in iterator:
                    assert error is None
                    assert result.get_response().id == "x"
                    break
                iterator.cancel()
                assert await client.is_server_live()

        asyncio.run(run())


class TestBareGrpcio:
    def test_half_close_with_open_requests(self, call):
        responses = list(call(iter([repeat_message(range(20), "a", 5), repeat_message(range(20), "b", 5)])))
        assert len(responses) == 40

    def test_a_stream_without_requests(self, call):
        opened = call(iter(()))
        assert list(opened) == []
        assert opened.code() is grpc.StatusCode.OK

    def test_grpc_errors_end_the_call(self, call):
        bad = repeat_message([1, 2], "bad")
        bad.raw_input_contents[1] = b"\0" * 4
        bad.inputs[1].shape[0] = 1
        opened = call(iter([repeat_message(range(100), "open", 50), bad]), metadata=[("triton_grpc_error", "true")])
        with pytest.raises(grpc.RpcError) as caught:
            list(opened)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "expected IN and DELAY shape to match" in caught.value.details()

    def test_deadline(self, call):
        opened = call(iter([repeat_message(range(1000), "x", 10)]), timeout=0.3)
        with pytest.raises(grpc.RpcError) as caught:
            list(opened)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.fixture
def own_server(tmp_path, start_server):
    """A server that the test may burden."""
    write_model(tmp_path / "models", "repeat", 'backend: "repeat"\n')
    running = start_server(tmp_path / "models")
    running.wait_ready()
    return running


def repeat_calls(channel):
    return channel.stream_stream(
        METHOD,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )


class TestPeers:
    def test_cancelling_a_stream_cancels_its_requests(self, own_server):
        with grpc.insecure_channel(own_server.grpc_url) as channel:
            opened = repeat_calls(channel)(iter([repeat_message(range(100_000), str(n), 10) for n in range(20)]))
            next(opened)
            opened.cancel()
            # The model can only be unloaded in time when nothing of it is open.
            own_server.process.terminate()
            assert own_server.wait_exit() == 0

    def test_stopped_reader_costs_bounded_memory_without_loss(self, own_server):
        resources = ProcessResources(own_server.process.pid)
        before = resources.resident_bytes()
        count, length, filler = 1500, 100, "x" * 2000  # 300 MB of responses
        with grpc.insecure_channel(own_server.grpc_url, options=[("grpc.http2.bdp_probe", 0)]) as channel:
            opened = repeat_calls(channel)(repeat_message(range(length), f"{n} {filler}") for n in range(count))
            most = 0
            for _ in range(20):
                time.sleep(0.1)
                most = max(most, resources.resident_bytes() - before)
            assert most < 50 * 2**20
            # A client that goes on reading gets everything, each request's responses in order.
            positions = [0] * count
            for response, _ in zip(opened, range(20_000), strict=False):
                assert response.error_message == ""
                number = int(response.infer_response.id.split()[0])
                index = int.from_bytes(response.infer_response.raw_output_contents[1], "little")
                assert index == positions[number]
                positions[number] += 1
            assert resources.resident_bytes() - before < 50 * 2**20
            opened.cancel()
        assert own_server.get("/v2/health/ready").status == 200

    def test_exit_ends_idle_streams_and_finishes_open_requests(self, own_server):
        with grpc.insecure_channel(own_server.grpc_url) as channel:
            hold = threading.Event()

            def requests(*messages):
                yield from messages
                hold.wait(60)

            busy = repeat_calls(channel)(requests(repeat_message(range(50), "x", 10)))
            idle = repeat_calls(channel)(requests(repeat_message([1])))
            next(idle)
            next(busy)
            own_server.process.terminate()
            received = [1]
            with pytest.raises(grpc.RpcError) as caught:
                received.extend(1 for _ in busy)
            assert len(received) == 50
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.RpcError):
                next(idle)
            assert idle.code() is grpc.StatusCode.UNAVAILABLE
            assert own_server.wait_exit() == 0
            hold.set()
