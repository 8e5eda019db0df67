"""What only gRPC has, with stock tritonclient and bare grpcio: typed contents, trailers, deadlines."""

import asyncio
import queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aioclient
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor, triton_to_np_dtype

from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

A = np.arange(32, dtype=np.float32).reshape(2, 16)
B = np.full((2, 16), 3, np.float32)


@pytest.fixture
def client(server: ServerProcess):
    with grpcclient.InferenceServerClient(server.grpc_url) as opened:
        yield opened


@pytest.fixture
def channel(server: ServerProcess):
    with grpc.insecure_channel(server.grpc_url) as opened:
        yield opened


def tensor(name, array, datatype="FP32"):
    made = grpcclient.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def add_sub_inputs(a=A, b=B):
    return [tensor("INPUT0", a), tensor("INPUT1", b)]


def failure(call, *arguments, **keywords):
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **keywords)
    return caught.value.status(), caught.value.message()


class TestInfer:
    def test_many_at_once_each_get_their_own_answer(self, client):
        answers = queue.Queue()
        for number in range(200):
            client.async_infer(
                "add_sub",
                add_sub_inputs(np.full((1, 16), number, np.float32), B[:1]),
                lambda result, error: answers.put((result, error)),
                request_id=str(number),
            )
        seen = set()
        for _ in range(200):
            result, error = answers.get(timeout=60)
            assert error is None
            number = int(result.get_response().id)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), np.full((1, 16), number + 3, np.float32))
            seen.add(number)
        assert seen == set(range(200))


class TestTypedContents:
    def infer(self, channel, model, datatype, field, values):
        request = service_pb2.ModelInferRequest(model_name=model)
        made = request.inputs.add(name="INPUT0", datatype=datatype, shape=[1, len(values)])
        getattr(made.contents, field).extend(values)
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        return call(request, timeout=60).raw_output_contents[0]

    @pytest.mark.parametrize(
        ("datatype", "field", "values"),
        [
            ("INT8", "int_contents", [-1, 2]),
            ("UINT16", "uint_contents", [1, 65535]),
            ("INT64", "int64_contents", [-(2**40)]),
            ("FP32", "fp32_contents", [1.5, -2.5]),
            ("BOOL", "bool_contents", [True, False, True]),
        ],
    )
    def test_numbers(self, channel, datatype, field, values):
        model = "identity" if datatype == "FP32" else f"identity_{datatype.lower()}"
        raw = self.infer(channel, model, datatype, field, values)
        assert np.frombuffer(raw, triton_to_np_dtype(datatype)).tolist() == values

    def test_strings(self, channel):
        raw = self.infer(channel, "identity_string", "BYTES", "bytes_contents", [b"one", b""])
        assert deserialize_bytes_tensor(raw).tolist() == [b"one", b""]

    def test_wrong_field(self, channel):
        with pytest.raises(grpc.RpcError) as caught:
            self.infer(channel, "identity", "FP32", "int_contents", [1])
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "unexpected explicit tensor data for input tensor 'INPUT0'" in caught.value.details()


class TestErrors:
    def test_trailer_carries_id_of_log_line(self, channel, server):
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for request_id in ("client-id-17", ""):
            message = service_pb2.ModelInferRequest(model_name="nothing", id=request_id).SerializeToString()
            with pytest.raises(grpc.RpcError) as caught:
                call(message, timeout=60)
            trailers = dict(caught.value.trailing_metadata())
            answered_id = trailers["triton-request-id"]
            assert answered_id == request_id or not request_id
            server.wait_log(rf"\[request id: {answered_id}\] .*'nothing'")

    def test_unparsable_message(self, channel, client):
        with pytest.raises(grpc.RpcError, match="Unable to parse request"):
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff\xff", timeout=60)
        assert client.is_server_live()

    def test_unknown_method(self, channel):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/Nonsense")(b"", timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    def test_deadline(self, client):
        inputs = [tensor("INPUT0", A[:1])]
        status, _ = failure(client.infer, "slow_identity", inputs, client_timeout=0.05)
        assert status == "StatusCode.DEADLINE_EXCEEDED"
        result = client.infer("slow_identity", inputs, client_timeout=60)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A[:1])


class TestControl:
    def test_version_that_is_no_number(self, client):
        assert failure(client.is_model_ready, "add_sub", "x")[0] == "StatusCode.INVALID_ARGUMENT"

    def test_standard_health_check(self, channel):
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60) == b"\x08\x01"


class TestAsyncio:
    def test_many_at_once(self, server):
        async def run():
            async with aioclient.InferenceServerClient(server.grpc_url) as client:
                assert await client.is_server_ready()
                calls = [client.infer("add_sub", add_sub_inputs(A * k, B), request_id=str(k)) for k in range(50)]
                return await asyncio.gather(*calls)

        for number, result in enumerate(asyncio.run(run())):
            assert result.get_response().id == str(number)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * number + B)

    def test_cancelled_call_does_not_disturb_the_next(self, server):
        async def run():
            async with aioclient.InferenceServerClient(server.grpc_url) as client:
                inputs = [tensor("INPUT0", A[:1])]
                first = asyncio.create_task(client.infer("slow_identity", inputs))
                await asyncio.sleep(0.05)
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                return await client.infer("slow_identity", inputs)

        np.testing.assert_array_equal(asyncio.run(run()).as_numpy("OUTPUT0"), A[:1])

    def test_unknown_model(self, server):
        async def run():
            async with aioclient.InferenceServerClient(server.grpc_url) as client:
                await client.infer("nothing", add_sub_inputs())

        with pytest.raises(InferenceServerException, match="Request for unknown model: 'nothing' is not found"):
            asyncio.run(run())
