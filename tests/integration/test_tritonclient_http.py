"""What only HTTP has, with stock tritonclient, sync and asyncio: JSON tensors, raw bodies, the form of statistics."""

import asyncio
import json
import re

import numpy as np
import pytest
import tritonclient.http as httpclient
import tritonclient.http.aio as aioclient
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

A = np.arange(32, dtype=np.float32).reshape(2, 16)
B = np.full((2, 16), 3, np.float32)

INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
STATISTICS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


@pytest.fixture
def client(server: ServerProcess):
    with httpclient.InferenceServerClient(server.http_url, concurrency=4) as opened:
        yield opened


def tensor(name, array, datatype="FP32", *, binary=True):
    made = httpclient.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def add_sub_inputs(a=A, b=B, *, binary=True):
    return [tensor("INPUT0", a, binary=binary), tensor("INPUT1", b, binary=binary)]


def outputs(*names, binary=True):
    return [httpclient.InferRequestedOutput(name, binary_data=binary) for name in names]


def sample(datatype):
    """Values at the ends of a datatype's range."""
    if datatype in INTEGERS:
        limits = np.iinfo(triton_to_np_dtype(datatype))
        return np.array([[limits.min, 0, 1, limits.max]], limits.dtype)
    return np.array([[1, 0, 0, 1]], triton_to_np_dtype(datatype))


def failure(call, *arguments, **keywords):
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **keywords)
    return caught.value.status(), caught.value.message()


class TestInfer:
    @pytest.mark.parametrize("binary_output", [True, False])
    @pytest.mark.parametrize("binary_input", [True, False])
    def test_json_and_binary_mix(self, client, binary_input, binary_output):
        inputs = [tensor("INPUT0", A, binary=binary_input), tensor("INPUT1", B)]
        result = client.infer("add_sub", inputs, outputs=outputs("OUTPUT0", "OUTPUT1", binary=binary_output))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
        assert ("data" in result.get_output("OUTPUT0")) is not binary_output

    def test_outputs_are_binary_one_by_one(self, client):
        wanted = [*outputs("OUTPUT1", binary=False), *outputs("OUTPUT0")]
        result = client.infer("add_sub", add_sub_inputs(), outputs=wanted)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
        assert result.get_output("OUTPUT1")["data"] == (A - B).ravel().tolist()
        assert result.get_output("OUTPUT0")["parameters"] == {"binary_data_size": 128}

    def test_query_is_accepted(self, client):
        result = client.infer("add_sub", add_sub_inputs(), query_params={"a": "b"})
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)

    def test_compressed_answers_may_be_asked_for(self, client):
        result = client.infer("add_sub", add_sub_inputs(), response_compression_algorithm="gzip")
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)

    def test_many_at_once_each_get_their_own_answer(self, client):
        pending = [
            client.async_infer(
                "add_sub", add_sub_inputs(np.full((1, 16), number, np.float32), B[:1]), request_id=str(number)
            )
            for number in range(100)
        ]
        for number, request in enumerate(pending):
            result = request.get_result(timeout=60)
            assert result.get_response()["id"] == str(number)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), np.full((1, 16), number + 3, np.float32))

    def test_bodies_made_and_parsed_offline(self, client, server):
        body, json_length = httpclient.InferenceServerClient.generate_request_body(add_sub_inputs())
        answer = server.request(
            "POST", "/v2/models/add_sub/infer", body, {"Inference-Header-Content-Length": str(json_length)}
        )
        assert answer.headers["Content-Type"] == "application/octet-stream"
        length = int(answer.headers["Inference-Header-Content-Length"])
        result = httpclient.InferenceServerClient.parse_response_body(answer.body, header_length=length)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


class TestDatatypes:
    @pytest.mark.parametrize("datatype", ["BOOL", *INTEGERS, "FP32", "FP64"])
    def test_json(self, client, datatype):
        array = sample(datatype)
        result = client.infer(
            f"identity_{datatype.lower()}",
            [tensor("INPUT0", array, datatype, binary=False)],
            outputs=outputs("OUTPUT0", binary=False),
        )
        assert result.get_output("OUTPUT0")["data"] == array.ravel().tolist()
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)

    @pytest.mark.parametrize("datatype", ["FP16", "BF16"])
    def test_json_cannot_carry_half_floats(self, client, server, datatype):
        body = {"inputs": [{"name": "INPUT0", "datatype": datatype, "shape": [1, 1], "data": [1.0]}]}
        answer = server.post(f"/v2/models/identity_{datatype.lower()}/infer", body)
        assert answer.status == 400
        assert f"receiving {datatype} data via JSON is not supported" in answer.json["error"]
        status, text = failure(
            client.infer,
            f"identity_{datatype.lower()}",
            [tensor("INPUT0", sample(datatype), datatype)],
            outputs=outputs("OUTPUT0", binary=False),
        )
        assert status == "400"
        assert f"sending {datatype} data via JSON is not supported" in text

    def test_strings(self, client):
        array = np.array([["", "a b", 'quote " and \\', "grüße", "\n\t"]], dtype=np.object_)
        inputs = [tensor("INPUT0", array, "BYTES", binary=False)]
        result = client.infer("identity_string", inputs, outputs=outputs("OUTPUT0", binary=False))
        assert result.as_numpy("OUTPUT0").tolist() == array.tolist()

    def test_strings_that_are_not_text_need_binary(self, client):
        array = np.array([[b"\xff\xfe\0"]], dtype=np.object_)
        status, text = failure(
            client.infer,
            "identity_string",
            [tensor("INPUT0", array, "BYTES")],
            outputs=outputs("OUTPUT0", binary=False),
        )
        assert status == "400"
        assert "output 'OUTPUT0' holds bytes that are not UTF-8" in text

    @pytest.mark.parametrize("datatype", ["FP32", "FP64"])
    def test_not_a_number_and_infinity(self, client, datatype):
        array = np.array([[np.nan, np.inf, -np.inf, -0.0]], triton_to_np_dtype(datatype))
        result = client.infer(
            f"identity_{datatype.lower()}",
            [tensor("INPUT0", array, datatype, binary=False)],
            outputs=outputs("OUTPUT0", binary=False),
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
        assert np.signbit(result.as_numpy("OUTPUT0")[0, 3])

    @pytest.mark.parametrize("shape", [(1, 0), (0, 4), (8, 0)])
    def test_empty_tensors(self, client, shape):
        inputs = [tensor("INPUT0", np.zeros(shape, np.float32), binary=False)]
        result = client.infer("identity", inputs, outputs=outputs("OUTPUT0", binary=False))
        assert result.get_output("OUTPUT0")["shape"] == list(shape)
        assert result.as_numpy("OUTPUT0").size == 0


class TestErrors:
    def test_message_has_generated_id(self, server):
        body = {"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}]}
        answer = server.post("/v2/models/add_sub/infer", body)
        request_id = answer.headers["triton-request-id"]
        assert answer.json["error"].startswith(f"[request id: {request_id}] expected 2 inputs")
        server.wait_log(re.escape(request_id), 10)

    def test_without_an_id_one_is_generated(self, client):
        _, message = failure(client.infer, "add_sub", add_sub_inputs()[:1])
        assert re.match(r"\[request id: [a-z0-9-]+\] expected 2 inputs", message)

    def test_failures_are_the_same_for_concurrent_requests(self, client):
        pending = [
            client.async_infer("add_sub", add_sub_inputs()[: 1 + number % 2], request_id=str(number))
            for number in range(40)
        ]
        for number, request in enumerate(pending):
            if number % 2:
                assert request.get_result(timeout=60).get_response()["id"] == str(number)
            else:
                status, text = failure(request.get_result, timeout=60)
                assert status == "400"
                assert text.startswith(f"[request id: {number}] expected 2 inputs")

    def test_client_that_gives_up_does_not_disturb_next(self, server):
        impatient = httpclient.InferenceServerClient(server.http_url, network_timeout=0.05, connection_timeout=10)
        with impatient, pytest.raises(Exception, match="timed out"):
            impatient.infer("slow_identity", [tensor("INPUT0", A[:1])])
        with httpclient.InferenceServerClient(server.http_url) as patient:
            result = patient.infer("slow_identity", [tensor("INPUT0", A[:1])])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A[:1])


class TestStatistics:
    @staticmethod
    def row(client):
        (row,) = client.get_inference_statistics("identity_uint16")["model_stats"]
        return row

    def test_shape(self, client):
        row = self.row(client)
        assert [name for name in row if name != "release_reasons"] == [
            "name",
            "version",
            "last_inference",
            "inference_count",
            "execution_count",
            "inference_stats",
            "response_stats",
            "batch_stats",
            "memory_usage",
        ]
        assert (row["name"], row["version"]) == ("identity_uint16", "1")
        assert list(row["inference_stats"]) == list(STATISTICS)
        for duration in row["inference_stats"].values():
            assert set(duration) == {"count", "ns"}
            assert all(type(number) is int for number in duration.values())

    def test_metrics_agree(self, client, server):
        client.infer("identity_uint16", [tensor("INPUT0", np.ones((2, 2), np.uint16), "UINT16")])
        row = self.row(client)
        text = server.get("/metrics", url=server.metrics_url).body.decode()
        labels = '{model="identity_uint16",version="1"}'
        assert f"nv_inference_count{labels} {row['inference_count']}\n" in text
        assert f"nv_inference_exec_count{labels} {row['execution_count']}\n" in text
        assert f"nv_inference_request_success{labels} {row['inference_stats']['success']['count']}\n" in text


class TestAsyncio:
    @staticmethod
    def run(server, talk):
        async def session():
            async with aioclient.InferenceServerClient(server.http_url) as client:
                return await talk(client)

        return asyncio.run(session())

    def test_many_at_once(self, server):
        async def talk(client):
            assert await client.is_server_ready()
            calls = [client.infer("add_sub", add_sub_inputs(A * k, B), request_id=str(k)) for k in range(50)]
            return await asyncio.gather(*calls)

        for number, result in enumerate(self.run(server, talk)):
            assert result.get_response()["id"] == str(number)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A * number + B)

    def test_json_tensors(self, server):
        async def talk(client):
            wanted = outputs("OUTPUT0", "OUTPUT1", binary=False)
            return await client.infer("add_sub", add_sub_inputs(binary=False), outputs=wanted)

        np.testing.assert_array_equal(self.run(server, talk).as_numpy("OUTPUT1"), A - B)

    def test_control(self, server, repository):
        async def talk(client):
            assert await client.is_server_live()
            assert await client.is_model_ready("add_sub")
            assert not await client.is_model_ready("nothing")
            assert (await client.get_server_metadata())["name"] == "triton"
            assert (await client.get_model_metadata("add_sub"))["name"] == "add_sub"
            assert (await client.get_model_config("add_sub"))["max_batch_size"] == 32
            assert (await client.get_inference_statistics("add_sub"))["model_stats"][0]["name"] == "add_sub"
            return await client.get_model_repository_index()

        assert len(self.run(server, talk)) == len(list(repository.iterdir()))

    def test_errors(self, server):
        async def talk(client):
            await client.infer("nothing", add_sub_inputs())

        with pytest.raises(InferenceServerException, match="Request for unknown model: 'nothing' is not found"):
            self.run(server, talk)

    def test_cancelled_request_does_not_disturb_the_next(self, server):
        async def talk(client):
            inputs = [tensor("INPUT0", A[:1])]
            first = asyncio.create_task(client.infer("slow_identity", inputs))
            await asyncio.sleep(0.05)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            return await client.infer("slow_identity", inputs)

        np.testing.assert_array_equal(self.run(server, talk).as_numpy("OUTPUT0"), A[:1])


class TestRawBinary:
    """Protocol notes 4: a header length of 0 makes the whole body the only input's data."""

    @staticmethod
    def post(server, model, body):
        answer = server.request("POST", f"/v2/models/{model}/infer", body, {"Inference-Header-Content-Length": "0"})
        if answer.status != 200:
            return answer.status, answer.json["error"]
        length = int(answer.headers["Inference-Header-Content-Length"])
        return json.loads(answer.body[:length]), answer.body[length:]

    def test_numbers(self, server):
        document, tail = self.post(server, "identity_int16", b"\1\0\2\0\3\0")
        assert document["outputs"][0]["shape"] == [1, 3]
        assert tail == b"\1\0\2\0\3\0"

    def test_string(self, server):
        _, tail = self.post(server, "identity_string", b"any bytes \xff")
        assert tail == b"\x0b\0\0\0any bytes \xff"

    def test_odd_size(self, server):
        status, text = self.post(server, "identity_int16", b"\1\0\2")
        assert status == 400
        assert "input byte size mismatch for input 'INPUT0' for model 'identity_int16'. Expected 2, got 3" in text

    def test_several_inputs(self, server):
        status, text = self.post(server, "add_sub", bytes(64))
        assert status == 400
        assert "] Raw request must only have 1 input (found 1) to be deduced but" in text
