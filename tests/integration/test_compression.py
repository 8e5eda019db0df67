"""Compressed requests and answers with stock clients, and bombs."""

import asyncio
import gzip
import json
import queue
import shutil
import subprocess
import urllib.request
import zlib

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.http.aio as aioclient
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2, service_pb2_grpc

from support.server_process import serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SMALL = np.arange(16, dtype=np.float32).reshape(1, 16)
LARGE = np.arange(300_000, dtype=np.float32).reshape(1, -1) % 100
SHAPES = pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
ALGORITHMS = pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
LIMIT = 4_000_000


@pytest.fixture(scope="module")
def compressing(repository, tmp_path_factory):
    with serving(
        tmp_path_factory.mktemp("compressing") / "log",
        f"--model-repository={repository}",
        "--grpc-infer-response-compression-level=medium",
        f"--http-max-decompressed-size={LIMIT}",
        f"--grpc-max-decompressed-size={LIMIT}",
    ) as server:
        yield server


def tensor(client, data, **more):
    made = client.InferInput("INPUT0", list(data.shape), "FP32")
    made.set_data_from_numpy(data, **more)
    return made


@SHAPES
@ALGORITHMS
@pytest.mark.parametrize("binary", [True, False])
def test_http(compressing, data, algorithm, binary):
    with httpclient.InferenceServerClient(compressing.http_url) as client:
        result = client.infer(
            "identity_fp32",
            [tensor(httpclient, data, binary_data=binary)],
            outputs=[httpclient.InferRequestedOutput("OUTPUT0", binary_data=binary)],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), data)


async def check_aio(url, algorithm):
    async with aioclient.InferenceServerClient(url) as client:
        result = await client.infer(
            "identity_fp32",
            [tensor(httpclient, LARGE)],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), LARGE)


@ALGORITHMS
def test_http_aio(compressing, algorithm):
    asyncio.run(check_aio(compressing.http_url, algorithm))


def http_infer(server, data, **headers):
    body, json_length = httpclient.InferenceServerClient.generate_request_body([tensor(httpclient, data)])
    fields = {"Inference-Header-Content-Length": str(json_length), **headers}
    return body, fields


def test_length_header_is_about_the_plain_body(compressing):
    body, fields = http_infer(compressing, LARGE)
    fields |= {"Content-Encoding": "deflate", "Accept-Encoding": "gzip;q=0.5, deflate"}
    answer = compressing.request("POST", "/v2/models/identity_fp32/infer", zlib.compress(body), fields)
    assert answer.status == 200
    assert answer.headers["Content-Encoding"] == "deflate"
    assert int(answer.headers["Content-Length"]) == len(answer.body) < LARGE.nbytes
    plain = zlib.decompress(answer.body)
    json_length = int(answer.headers["Inference-Header-Content-Length"])
    assert json.loads(plain[:json_length])["outputs"][0]["shape"] == list(LARGE.shape)
    assert plain[json_length:] == LARGE.tobytes()


@pytest.mark.parametrize(
    ("body", "coding", "status", "text"),
    [
        (
            gzip.compress(bytes(LIMIT + 1), mtime=0),
            "gzip",
            400,
            f"allowed value of {LIMIT} bytes",
        ),
        (zlib.compress(bytes(50 * LIMIT), 1), "deflate", 400, f"allowed value of {LIMIT} bytes"),
        (gzip.compress(bytes(100_000), mtime=0)[:-9], "gzip", 400, "the data is incomplete"),
        (b"{}", "gzip", 400, "does not match its Content-Encoding 'gzip'"),
        (b"{}", "br", 501, "Unsupported compression type 'br'"),
    ],
)
def test_bad_http_bodies_are_refused(compressing, body, coding, status, text):
    answer = compressing.request("POST", "/v2/models/identity/infer", body, {"Content-Encoding": coding})
    assert answer.status == status
    assert text in answer.json["error"]
    assert compressing.get("/v2/health/ready").status == 200


@SHAPES
@ALGORITHMS
def test_grpc(compressing, data, algorithm):
    with grpcclient.InferenceServerClient(compressing.grpc_url) as client:
        result = client.infer("identity_fp32", [tensor(grpcclient, data)], compression_algorithm=algorithm)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), data)


@ALGORITHMS
def test_grpc_stream(compressing, algorithm):
    answers = queue.SimpleQueue()
    with grpcclient.InferenceServerClient(compressing.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm=algorithm)
        for number in range(6):
            data = LARGE + np.float32(number) if number % 2 else SMALL
            client.async_stream_infer("identity_fp32", [tensor(grpcclient, data)], request_id=str(number))
        for number in range(6):
            result, error = answers.get(timeout=60)
            assert error is None
            assert result.get_response().id == str(number)
            expected = LARGE + np.float32(number) if number % 2 else SMALL
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), expected)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_answers_of_grpc_stream_are_compressed_on_wire(compressing):
    """As curl sees it: the encoding is named once, each message says whether it is compressed."""
    body = b""
    for data in (SMALL, LARGE, LARGE[:, :1000]):
        request = service_pb2.ModelInferRequest(model_name="identity_fp32", id="x" * 300)
        request.inputs.add(name="INPUT0", datatype="FP32", shape=data.shape)
        request.raw_input_contents.append(data.tobytes())
        message = request.SerializeToString()
        body += b"\0" + len(message).to_bytes(4, "big") + message
    fields = ("content-type: application/grpc", "te: trailers", "grpc-accept-encoding: identity, deflate, gzip")
    done = subprocess.run(
        [
            *(
                "curl",
                "-sS",
                "--max-time",
                "30",
                "--http2-prior-knowledge",
                "-D",
                "/dev/stderr",
                "--data-binary",
                "@-",
            ),
            *(word for field in fields for word in ("-H", field)),
            f"http://{compressing.grpc_url}/inference.GRPCInferenceService/ModelStreamInfer",
        ],
        input=body,
        capture_output=True,
        check=True,
    )
    assert b"grpc-encoding: gzip\r\n" in done.stderr
    body = done.stdout
    sizes = []
    while body:
        assert body[0] == 1
        end = 5 + int.from_bytes(body[1:5], "big")
        answer = service_pb2.ModelStreamInferResponse.FromString(gzip.decompress(body[5:end]))
        sizes.append(len(answer.infer_response.raw_output_contents[0]))
        body = body[end:]
    assert sizes == [SMALL.nbytes, LARGE.nbytes, 4000]


def test_metrics(compressing):
    answers = []
    for coding in ("identity", "gzip"):
        request = urllib.request.Request(
            f"http://{compressing.metrics_url}/metrics", headers={"Accept-Encoding": coding}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            answers.append((answer.headers["Content-Encoding"], answer.headers["Content-Type"], answer.read()))
    (plain_coding, plain_type, plain), (coding, content_type, packed) = answers
    assert (plain_coding, coding, content_type) == (None, "gzip", plain_type)
    assert len(packed) < len(plain) / 5
    text = gzip.decompress(packed).decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"nv_inference_request_success", "naiad_build_info"} <= names


@pytest.mark.parametrize("size", [LIMIT + 100, 30 * LIMIT])
def test_grpc_bomb_is_refused(compressing, size):
    with grpc.insecure_channel(compressing.grpc_url, [("grpc.max_receive_message_length", -1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(size)])
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request, compression=grpc.Compression.Gzip)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "when it is decompressed" in caught.value.details()
    assert compressing.get("/v2/health/ready").status == 200
