"""Stock tritonclient, sync and asyncio, against a real server over HTTP."""

import asyncio
import json
import time

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
NUMBERS = [*INTEGERS, "FP16", "FP32", "FP64", "BF16"]
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


def identity_model(datatype):
    return "identity_string" if datatype == "BYTES" else f"identity_{datatype.lower()}"


def sample(datatype):
    """Values at the ends of a datatype's range."""
    if datatype == "BOOL":
        return np.array([[True, False, False, True]])
    if datatype in INTEGERS:
        limits = np.iinfo(triton_to_np_dtype(datatype))
        return np.array([[limits.min, 0, 1, limits.max]], limits.dtype)
    return np.array([[-2.5, 0.0, 1.0, 1024.0]], triton_to_np_dtype(datatype))


def failure(call, *arguments, **keywords):
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **keywords)
    return caught.value.status(), caught.value.message()


class TestInfer:
    @pytest.mark.parametrize("request_id", ["", "1", "ü 17", 'quote"\\', "x" * 300])
    def test_values_and_id(self, client, request_id):
        result = client.infer("add_sub", add_sub_inputs(), request_id=request_id)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
        response = result.get_response()
        assert response.get("id", "") == request_id
        assert (response["model_name"], response["model_version"]) == ("add_sub", "1")
        assert ("id" in response) == bool(request_id)

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

    def test_requested_outputs_only(self, client):
        result = client.infer("add_sub", add_sub_inputs(), outputs=outputs("OUTPUT1"))
        assert [output["name"] for output in result.get_response()["outputs"]] == ["OUTPUT1"]
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
        assert result.as_numpy("OUTPUT0") is None

    def test_version_priority_timeout_parameters_headers_and_query_are_accepted(self, client):
        result = client.infer(
            "add_sub",
            add_sub_inputs(),
            model_version="1",
            priority=1,
            timeout=1_000_000,
            parameters={"mine": 0.5, "on": True, "text": "x", "number": -3},
            headers={"x-mine": "1"},
            query_params={"a": "b"},
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)

    def test_compressed_answers_may_be_asked_for(self, client):
        result = client.infer("add_sub", add_sub_inputs(), response_compression_algorithm="gzip")
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)

    def test_python_model(self, client):
        result = client.infer("python_add_sub", add_sub_inputs())
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)

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

    def test_a_large_tensor(self, client):
        array = np.random.default_rng(1).random((1, 4_000_000), dtype=np.float32)
        result = client.infer("identity", [tensor("INPUT0", array)])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)

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
    @pytest.mark.parametrize("datatype", ["BOOL", *NUMBERS])
    def test_binary(self, client, datatype):
        array = sample(datatype)
        result = client.infer(identity_model(datatype), [tensor("INPUT0", array, datatype)])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
        assert result.get_output("OUTPUT0")["datatype"] == datatype

    @pytest.mark.parametrize("datatype", ["BOOL", *INTEGERS, "FP32", "FP64"])
    def test_json(self, client, datatype):
        array = sample(datatype)
        result = client.infer(
            identity_model(datatype),
            [tensor("INPUT0", array, datatype, binary=False)],
            outputs=outputs("OUTPUT0", binary=False),
        )
        assert result.get_output("OUTPUT0")["data"] == array.ravel().tolist()
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)

    @pytest.mark.parametrize("datatype", ["FP16", "BF16"])
    def test_json_cannot_carry_half_floats(self, client, server, datatype):
        body = {"inputs": [{"name": "INPUT0", "datatype": datatype, "shape": [1, 1], "data": [1.0]}]}
        answer = server.post(f"/v2/models/{identity_model(datatype)}/infer", body)
        assert answer.status == 400
        assert f"receiving {datatype} data via JSON is not supported" in answer.json["error"]
        status, text = failure(
            client.infer,
            identity_model(datatype),
            [tensor("INPUT0", sample(datatype), datatype)],
            outputs=outputs("OUTPUT0", binary=False),
        )
        assert status == "400"
        assert f"sending {datatype} data via JSON is not supported" in text

    @pytest.mark.parametrize("binary", [True, False])
    def test_strings(self, client, binary):
        array = np.array([["", "a b", 'quote " and \\', "grüße", "\n\t"]], dtype=np.object_)
        result = client.infer(
            "identity_string",
            [tensor("INPUT0", array, "BYTES", binary=binary)],
            outputs=outputs("OUTPUT0", binary=binary),
        )
        expected = [[text.encode() for text in array[0]]] if binary else array.tolist()
        assert result.as_numpy("OUTPUT0").tolist() == expected

    def test_strings_that_are_not_text_need_binary(self, client):
        array = np.array([[b"\xff\xfe\0"]], dtype=np.object_)
        result = client.infer("identity_string", [tensor("INPUT0", array, "BYTES")])
        assert result.as_numpy("OUTPUT0").tolist() == [[b"\xff\xfe\0"]]
        status, text = failure(
            client.infer,
            "identity_string",
            [tensor("INPUT0", array, "BYTES")],
            outputs=outputs("OUTPUT0", binary=False),
        )
        assert status == "500"
        assert "output 'OUTPUT0' holds bytes that are not UTF-8" in text

    @pytest.mark.parametrize("datatype", ["FP32", "FP64"])
    @pytest.mark.parametrize("binary", [True, False])
    def test_not_a_number_and_infinity(self, client, datatype, binary):
        array = np.array([[np.nan, np.inf, -np.inf, -0.0]], triton_to_np_dtype(datatype))
        result = client.infer(
            identity_model(datatype),
            [tensor("INPUT0", array, datatype, binary=binary)],
            outputs=outputs("OUTPUT0", binary=binary),
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
        assert np.signbit(result.as_numpy("OUTPUT0")[0, 3])

    @pytest.mark.parametrize("shape", [(1, 0), (0, 4), (8, 0)])
    @pytest.mark.parametrize("binary", [True, False])
    def test_nothing_in_a_tensor(self, client, shape, binary):
        result = client.infer(
            "identity",
            [tensor("INPUT0", np.zeros(shape, np.float32), binary=binary)],
            outputs=outputs("OUTPUT0", binary=binary),
        )
        assert result.get_output("OUTPUT0")["shape"] == list(shape)
        # The client makes no array of an empty binary output; the shape is all there is.
        array = result.as_numpy("OUTPUT0")
        assert array is None or array.size == 0

    def test_no_strings(self, client):
        result = client.infer("identity_string", [tensor("INPUT0", np.zeros((1, 0), np.object_), "BYTES")])
        assert result.get_output("OUTPUT0")["shape"] == [1, 0]


class TestErrors:
    def test_unknown_model(self, client):
        assert failure(client.infer, "nothing", add_sub_inputs()) == (
            "404",
            "Request for unknown model: 'nothing' is not found",
        )

    def test_unknown_version(self, client):
        assert failure(client.infer, "add_sub", add_sub_inputs(), model_version="7") == (
            "404",
            "Request for unknown model: 'add_sub' version 7 is not found",
        )

    @pytest.mark.parametrize(
        ("inputs", "text"),
        [
            (
                add_sub_inputs()[:1],
                "expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing "
                "required input(s) ['INPUT1']. Please provide all required input(s).",
            ),
            ([*add_sub_inputs(), tensor("INPUT2", A)], "expected 2 inputs but got 3 inputs for model 'add_sub'."),
            ([tensor("INPUT0", A), tensor("OTHER", B)], "unexpected inference input 'OTHER' for model 'add_sub'"),
            ([tensor("INPUT0", A), tensor("INPUT0", B)], "input 'INPUT0' already exists in request"),
            (
                [tensor("INPUT0", A), tensor("INPUT1", B[:1])],
                "input 'INPUT1' batch size does not match other inputs for 'add_sub'",
            ),
            (
                add_sub_inputs(np.zeros((33, 16), np.float32), np.zeros((33, 16), np.float32)),
                "inference request batch-size must be <= 32 for 'add_sub'",
            ),
            (
                [tensor("INPUT0", A.astype(np.int32), "INT32"), tensor("INPUT1", B)],
                "inference input 'INPUT0' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
            ),
            (
                add_sub_inputs(A[:, :15], B[:, :15]),
                "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [-1,16], got [2,15]. NOTE:",
            ),
            (
                add_sub_inputs(A.ravel(), B.ravel()),
                "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [-1,16], got [32].",
            ),
        ],
    )
    def test_inputs_that_do_not_fit_the_model(self, client, inputs, text):
        status, message = failure(client.infer, "add_sub", inputs, request_id="e1")
        assert status == "400"
        # Triton: a name that the model does not have is refused without the request's id.
        opening = "" if text.startswith("unexpected inference input") else "[request id: e1] "
        assert message.startswith(f"{opening}{text}")

    def test_without_an_id_the_message_says_so(self, client):
        _, message = failure(client.infer, "add_sub", add_sub_inputs()[:1])
        assert message.startswith("[request id: <id_unknown>] expected 2 inputs")

    @pytest.mark.parametrize(
        ("wanted", "text"),
        [
            (("OUTPUT9",), "unexpected inference output 'OUTPUT9' for model 'add_sub'"),
            (("OUTPUT0", "OUTPUT0"), "output 'OUTPUT0' already exists in request"),
        ],
    )
    def test_outputs_that_the_model_does_not_have(self, client, wanted, text):
        status, message = failure(client.infer, "add_sub", add_sub_inputs(), outputs=outputs(*wanted))
        assert status == "400"
        assert text in message

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed_requests_fail_in_the_same_words(self, client, algorithm):
        status, message = failure(client.infer, "nowhere", add_sub_inputs(), request_compression_algorithm=algorithm)
        assert (status, message) == ("404", "Request for unknown model: 'nowhere' is not found")

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

    def test_client_that_gives_up_does_not_disturb_the_next(self, server):
        impatient = httpclient.InferenceServerClient(server.http_url, network_timeout=0.05, connection_timeout=10)
        with impatient, pytest.raises(Exception, match="timed out"):
            impatient.infer("slow_identity", [tensor("INPUT0", A[:1])])
        with httpclient.InferenceServerClient(server.http_url) as patient:
            result = patient.infer("slow_identity", [tensor("INPUT0", A[:1])])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A[:1])


class TestControl:
    def test_health(self, client, server):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("add_sub")
        assert client.is_model_ready("add_sub", "1")
        assert not client.is_model_ready("add_sub", "2")
        assert not client.is_model_ready("nothing")
        assert server.get("/v2/models/nothing/ready").status == 400

    def test_server_metadata(self, client):
        metadata = client.get_server_metadata()
        assert metadata["name"] == "triton"
        assert {"statistics", "binary_tensor_data", "model_configuration", "sequence"} <= set(metadata["extensions"])

    def test_model_metadata(self, client):
        metadata = client.get_model_metadata("add_sub")
        assert metadata["name"] == "add_sub"
        assert metadata["versions"] == ["1"]
        expected = [{"name": f"INPUT{i}", "datatype": "FP32", "shape": [-1, 16]} for i in (0, 1)]
        assert sorted(metadata["inputs"], key=lambda spec: spec["name"]) == expected
        assert failure(client.get_model_metadata, "nothing")[0] == "404"
        assert failure(client.get_model_metadata, "add_sub", "9")[0] == "404"

    def test_config(self, client):
        config = client.get_model_config("identity_int8")
        assert (config["name"], config["backend"], config["max_batch_size"]) == ("identity_int8", "identity", 8)
        assert config["input"][0]["data_type"] == "TYPE_INT8"
        assert config["input"][0]["dims"] == [-1]
        assert config["version_policy"] == {"latest": {"num_versions": 1}}
        assert config["instance_group"][0]["kind"] == "KIND_CPU"
        assert failure(client.get_model_config, "nothing")[0] == "404"

    def test_index(self, client, repository):
        rows = client.get_model_repository_index()
        assert {row["name"] for row in rows} == {path.name for path in repository.iterdir()}
        assert all((row["version"], row["state"]) == ("1", "READY") for row in rows)

    def test_load_and_unload_are_refused_without_explicit_mode(self, client):
        text = "explicit model load / unload is not allowed if polling is enabled"
        for call in (client.load_model, client.unload_model):
            assert failure(call, "add_sub") == ("503", text)


class TestStatistics:
    """Protocol notes 8: what is counted, and in which unit."""

    @staticmethod
    def row(client, model="identity_uint16"):
        (row,) = client.get_inference_statistics(model)["model_stats"]
        return row

    @staticmethod
    def gained(before, after):
        return {
            name: after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"]
            for name in STATISTICS
        }

    @staticmethod
    def executions(row):
        return {batch["batch_size"]: batch["compute_infer"]["count"] for batch in row["batch_stats"]}

    def infer(self, client, rows, model="identity_uint16"):
        array = np.ones((rows, 2), np.uint16)
        return client.infer(model, [tensor("INPUT0", array, "UINT16")])

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

    def test_successes_are_counted_exactly(self, client):
        before = self.row(client)
        started_ms = time.time() * 1000
        for rows in (1, 3, 3, 8):
            self.infer(client, rows)
        after = self.row(client)
        counts = dict.fromkeys(STATISTICS, 4) | {"fail": 0, "cache_hit": 0, "cache_miss": 0}
        assert self.gained(before, after) == counts
        assert after["inference_count"] - before["inference_count"] == 1 + 3 + 3 + 8
        assert after["execution_count"] - before["execution_count"] == 4
        assert started_ms - 1000 <= after["last_inference"] <= time.time() * 1000 + 1000
        past, now = self.executions(before), self.executions(after)
        assert {size: now[size] - past.get(size, 0) for size in now if now[size] != past.get(size, 0)} == {
            1: 1,
            3: 2,
            8: 1,
        }
        assert list(now) == sorted(now)

    def test_durations_add_up(self, client):
        before = self.row(client)["inference_stats"]
        self.infer(client, 2)
        after = self.row(client)["inference_stats"]
        gained_ns = {name: after[name]["ns"] - before[name]["ns"] for name in STATISTICS}
        parts = sum(gained_ns[name] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
        assert 0 < parts <= gained_ns["success"]
        assert all(ns >= 0 for ns in gained_ns.values())

    def test_slow_execution_shows_in_compute_infer(self, client):
        before = self.row(client, "slow_identity")
        client.infer("slow_identity", [tensor("INPUT0", A[:1])])
        after = self.row(client, "slow_identity")
        spent_ns = after["inference_stats"]["compute_infer"]["ns"] - before["inference_stats"]["compute_infer"]["ns"]
        assert spent_ns >= 200_000_000

    def test_requests_refused_at_the_door_are_counted_nowhere(self, client):
        before = self.row(client)
        for _ in range(3):
            assert failure(client.infer, "identity_uint16", [tensor("INPUT0", A)])[0] == "400"
        assert self.row(client) == before

    def test_errors(self, client):
        assert failure(client.get_inference_statistics, "nothing") == (
            "400",
            "requested model 'nothing' is not available",
        )
        assert failure(client.get_inference_statistics, "add_sub", "9") == (
            "400",
            "requested model version is not available for model 'add_sub'",
        )

    def test_all_models(self, client, repository):
        rows = client.get_inference_statistics()["model_stats"]
        assert [row["name"] for row in rows] == sorted(path.name for path in repository.iterdir())

    def test_metrics_agree(self, client, server):
        self.infer(client, 2)
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

    @pytest.mark.parametrize("datatype", ["BOOL", *NUMBERS])
    def test_datatypes(self, server, datatype):
        array = sample(datatype)

        async def talk(client):
            return await client.infer(identity_model(datatype), [tensor("INPUT0", array, datatype)])

        np.testing.assert_array_equal(self.run(server, talk).as_numpy("OUTPUT0"), array)

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
        assert text.startswith(
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but"
        )
