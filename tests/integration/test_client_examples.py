"""What Triton's Python client examples do, done with the stock clients against the models that they ask for."""

import asyncio
import queue
import uuid
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcclient_aio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpclient_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    serialize_byte_tensor,
    serialized_byte_size,
)

from support.example_models import IMAGE_MODEL, write_examples, write_sequence_examples
from support.server_process import ServerProcess, serving

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

COUNT_UP = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)
VALUES = [11, 7, 5, 3, 2, 0, 1]
HEADERS = {"test": "1", "dummy": "2"}  # handed out as copies: the HTTP client adds its own


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the models of the examples."""
    repository = tmp_path_factory.mktemp("examples")
    write_examples(repository)
    write_sequence_examples(repository)
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, f"--model-repository={repository}", "--allow-client-shm=true") as running:
        yield running


class Protocol:
    """One of the two clients, which are used in the same way."""

    def __init__(self, name, examples):
        self.name = name
        self.module = httpclient if name == "http" else grpcclient
        self.url = examples.http_url if name == "http" else examples.grpc_url

    def connect(self, **keywords):
        return self.module.InferenceServerClient(self.url, **keywords)

    def tensor(self, name, array, datatype, **keywords):
        return tensor(self.module, name, array, datatype, **keywords)

    def outputs(self, *names):
        return [self.module.InferRequestedOutput(name) for name in names]

    def plain(self, message):
        """Return a control answer as HTTP gives it, or the fields of a message."""
        if self.name == "http":
            return message
        return {field.name: value for field, value in message.ListFields()}


def tensor(module, name, array, datatype, **keywords):
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, **keywords)
    return made


@pytest.fixture(params=["http", "grpc"])
def protocol(request, examples):
    return Protocol(request.param, examples)


@pytest.fixture
def client(protocol):
    with protocol.connect() as connected:
        yield connected


@pytest.fixture
def stub(examples):
    with grpc.insecure_channel(examples.grpc_url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def simple_inputs(module, first=COUNT_UP, second=ONES, **keywords):
    return [
        tensor(module, "INPUT0", first, "INT32", **keywords),
        tensor(module, "INPUT1", second, "INT32", **keywords),
    ]


def assert_simple(result, first=COUNT_UP, second=ONES):
    assert np.array_equal(result.as_numpy("OUTPUT0"), first + second)
    assert np.array_equal(result.as_numpy("OUTPUT1"), first - second)


# --- simple: every way of calling ---------------------------------------------------------------------------------


@pytest.mark.parametrize("with_outputs", [True, False])
def test_infer(protocol, client, with_outputs):
    outputs = protocol.outputs("OUTPUT0", "OUTPUT1") if with_outputs else None
    result = client.infer("simple", simple_inputs(protocol.module), outputs=outputs, headers={"test": "1"})
    assert_simple(result)
    statistics = protocol.plain(client.get_inference_statistics("simple"))
    assert len(statistics["model_stats"]) == 1


@pytest.mark.parametrize("answer_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("request_coding", [None, "gzip", "deflate"])
def test_http_infer_with_json_and_binary_mixed(examples, request_coding, answer_coding):
    minus = np.full((1, 16), -1, np.int32)
    inputs = [
        tensor(httpclient, "INPUT0", COUNT_UP, "INT32", binary_data=False),
        tensor(httpclient, "INPUT1", minus, "INT32", binary_data=True),
    ]
    outputs = [
        httpclient.InferRequestedOutput("OUTPUT0", binary_data=True),
        httpclient.InferRequestedOutput("OUTPUT1", binary_data=False),
    ]
    with httpclient.InferenceServerClient(examples.http_url) as client:
        result = client.infer(
            "simple",
            inputs,
            outputs=outputs,
            query_params={"test_1": 1, "test_2": 2},
            request_compression_algorithm=request_coding,
            response_compression_algorithm=answer_coding,
        )
    assert_simple(result, second=minus)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_grpc_infer_compressed(examples, coding):
    with grpcclient.InferenceServerClient(examples.grpc_url) as client:
        assert_simple(client.infer("simple", simple_inputs(grpcclient), compression_algorithm=coding))


def test_unknown_model(protocol, client):
    with pytest.raises(InferenceServerException) as raised:
        client.infer("wrong_model_name", simple_inputs(protocol.module))
    assert raised.value.message().startswith("Request for unknown model")


def test_http_infer_at_the_same_time(examples):
    with httpclient.InferenceServerClient(examples.http_url, concurrency=2) as client:
        waiting = [client.async_infer("simple", simple_inputs(httpclient, COUNT_UP + n)) for n in range(2)]
        for number, request in enumerate(waiting):
            assert_simple(request.get_result(), COUNT_UP + number)


def test_grpc_infer_with_a_callback(examples):
    answers = queue.Queue()
    with grpcclient.InferenceServerClient(examples.grpc_url) as client:
        client.async_infer(
            "simple",
            simple_inputs(grpcclient),
            callback=lambda result, error: answers.put((result, error)),
            client_timeout=30,
        )
        result, error = answers.get(timeout=60)
    assert error is None
    assert_simple(result)


def run(client_class, url, talk):
    async def session():
        async with client_class(url) as client:
            return await talk(client)

    return asyncio.run(session())


@pytest.mark.parametrize("module", [httpclient_aio, grpcclient_aio], ids=["http", "grpc"])
def test_asyncio_infer(examples, module):
    async def talk(client):
        answers = [
            client.infer("simple", simple_inputs(module, COUNT_UP + n), headers=dict(HEADERS)) for n in range(2)
        ]
        for number, result in enumerate(await asyncio.gather(*answers)):
            assert_simple(result, COUNT_UP + number)
        with pytest.raises(InferenceServerException, match="Request for unknown model"):
            await client.infer("wrong_model_name", simple_inputs(module))

    run(module.InferenceServerClient, examples.http_url if module is httpclient_aio else examples.grpc_url, talk)


@pytest.mark.parametrize(
    "keywords",
    [
        {
            "channel_args": [
                ("grpc.max_send_message_length", 1024 * 1024),
                ("grpc.max_receive_message_length", 1024 * 1024),
                ("grpc.keepalive_time_ms", 2**31 - 1),
                ("grpc.keepalive_timeout_ms", 20000),
                ("grpc.keepalive_permit_without_calls", False),
                ("grpc.http2.max_pings_without_data", 2),
                ("grpc.dns_enable_srv_queries", 1),
            ]
        },
        {"keepalive_options": grpcclient.KeepAliveOptions()},
        {
            "keepalive_options": grpcclient.KeepAliveOptions(
                keepalive_time_ms=10_000,
                keepalive_timeout_ms=5_000,
                keepalive_permit_without_calls=True,
                http2_max_pings_without_data=0,
            )
        },
    ],
    ids=["channel arguments", "keepalive defaults", "keepalive"],
)
def test_grpc_channel_settings(examples, keywords):
    with grpcclient.InferenceServerClient(examples.grpc_url, **keywords) as client:
        assert_simple(client.infer("simple", simple_inputs(grpcclient), headers={"test": "1"}))


def test_objects_of_a_request_are_used_again(protocol, client):
    inputs = simple_inputs(protocol.module)
    outputs = protocol.outputs("OUTPUT0", "OUTPUT1")
    for factor in (1, 2, 3):
        inputs[1].set_data_from_numpy(ONES * factor)
        assert_simple(client.infer("simple", inputs, outputs=outputs), second=ONES * factor)


def test_many_clients_one_after_the_other(protocol):
    for number in range(20):
        with protocol.connect() as client:
            given = COUNT_UP + number
            inputs = [protocol.tensor("INPUT0", given, "INT32")]
            result = client.infer("custom_identity_int32", inputs, outputs=protocol.outputs("OUTPUT0"))
            assert np.array_equal(result.as_numpy("OUTPUT0"), given)


# --- what there is to know ----------------------------------------------------------------------------------------


def test_health_and_metadata(protocol, client):
    assert client.is_server_live(headers=dict(HEADERS))
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    # The examples, and code copied from them, hold the name against this.
    assert protocol.plain(client.get_server_metadata())["name"] == "triton"
    assert protocol.plain(client.get_model_metadata("simple", headers=dict(HEADERS)))["name"] == "simple"
    config = protocol.plain(client.get_model_config("simple"))
    assert (config if protocol.name == "http" else protocol.plain(config["config"]))["name"] == "simple"
    with pytest.raises(InferenceServerException) as raised:
        client.get_model_metadata("wrong_model_name")
    assert "Request for unknown model" in raised.value.message()


def test_query_parameters_are_accepted(examples):
    query = {"test_1": 1, "test_2": 2}
    with httpclient.InferenceServerClient(examples.http_url) as client:
        assert client.is_server_live(query_params=query)
        assert client.get_model_metadata("simple", query_params=query)["name"] == "simple"


# --- strings ------------------------------------------------------------------------------------------------------


def as_strings(numbers):
    return np.array([str(number).encode() for number in numbers.ravel()], np.object_).reshape(numbers.shape)


def test_strings_that_spell_numbers(protocol, client):
    inputs = [
        protocol.tensor("INPUT0", as_strings(COUNT_UP), "BYTES"),
        protocol.tensor(
            "INPUT1", as_strings(ONES), "BYTES", **({"binary_data": False} if protocol.name == "http" else {})
        ),
    ]
    result = client.infer("simple_string", inputs, outputs=protocol.outputs("OUTPUT0", "OUTPUT1"))
    assert np.array_equal(result.as_numpy("OUTPUT0").astype(np.int32), COUNT_UP + ONES)
    assert np.array_equal(result.as_numpy("OUTPUT1").astype(np.int32), COUNT_UP - ONES)


WITH_NULS = np.array([b"he\x00llo"] * 16, np.object_).reshape(1, 16)
BLOBS = np.array([b"\x00\x01\x02\x03"] * 16, np.bytes_).reshape(1, 16)


@pytest.mark.parametrize("given", [WITH_NULS, BLOBS], ids=["text with nul", "blobs"])
def test_strings_come_back(protocol, client, given):
    result = client.infer(
        "simple_identity", [protocol.tensor("INPUT0", given, "BYTES")], outputs=protocol.outputs("OUTPUT0")
    )
    assert result.as_numpy("OUTPUT0").tolist() == given.astype(np.object_).tolist()


@pytest.mark.parametrize("given", [WITH_NULS, BLOBS], ids=["text with nul", "blobs"])
def test_strings_come_back_as_json(examples, given):
    with httpclient.InferenceServerClient(examples.http_url) as client:
        result = client.infer(
            "simple_identity",
            [tensor(httpclient, "INPUT0", given, "BYTES", binary_data=False)],
            outputs=[httpclient.InferRequestedOutput("OUTPUT0", binary_data=False)],
        )
    assert [text.encode() for text in result.as_numpy("OUTPUT0").ravel()] == given.astype(np.object_).ravel().tolist()


# --- shared memory ------------------------------------------------------------------------------------------------


class Regions:
    """Shared-memory regions, registered with a server."""

    def __init__(self, client):
        self._client = client
        self._handles = {}

    def add(self, name, byte_size, content=None):
        handle = self._handles[name] = shm.create_shared_memory_region(name, f"/{name}_{uuid.uuid4().hex}", byte_size)
        if content is not None:
            shm.set_shared_memory_region(handle, [content])
        self._client.register_system_shared_memory(name, handle._shm_key, byte_size)

    def read(self, name, dtype):
        return shm.get_contents_as_numpy(self._handles[name], dtype, [1, 16])

    def close(self):
        self._client.unregister_system_shared_memory()
        for handle in self._handles.values():
            shm.destroy_shared_memory_region(handle)


@pytest.fixture
def regions(client):
    client.unregister_system_shared_memory()
    made = Regions(client)
    yield made
    made.close()


def shared_inputs(protocol, datatype, sizes):
    inputs = [protocol.module.InferInput(f"INPUT{number}", [1, 16], datatype) for number in (0, 1)]
    for number, size in enumerate(sizes):
        inputs[number].set_shared_memory(f"input{number}_data", size)
    return inputs


def shared_outputs(protocol, size):
    outputs = protocol.outputs("OUTPUT0", "OUTPUT1")
    for number, output in enumerate(outputs):
        output.set_shared_memory(f"output{number}_data", size)
    return outputs


def test_tensors_alternate_between_shared_memory_and_body(protocol, client, regions):
    for name, content in (("input0", COUNT_UP), ("input1", ONES), ("output0", None), ("output1", None)):
        regions.add(f"{name}_data", COUNT_UP.nbytes, content)
    inputs = shared_inputs(protocol, "INT32", [COUNT_UP.nbytes] * 2)
    outputs = shared_outputs(protocol, COUNT_UP.nbytes)
    for is_shared in (True, False, True):
        second = ONES if is_shared else ONES * 2
        if is_shared:
            for number in (0, 1):
                inputs[number].set_shared_memory(f"input{number}_data", COUNT_UP.nbytes)
                outputs[number].set_shared_memory(f"output{number}_data", COUNT_UP.nbytes)
        else:
            inputs[0].set_data_from_numpy(COUNT_UP)
            inputs[1].set_data_from_numpy(second)
            for output in outputs:
                output.unset_shared_memory()
        result = client.infer("simple", inputs, outputs=outputs)
        for number, wanted in enumerate((COUNT_UP + second, COUNT_UP - second)):
            name = f"OUTPUT{number}"
            got = regions.read(f"output{number}_data", np.int32) if is_shared else result.as_numpy(name)
            assert result.get_output(name) is not None
            assert np.array_equal(got, wanted)
    status = protocol.plain(client.get_system_shared_memory_status())
    assert len(status if protocol.name == "http" else status["regions"]) == 4


def test_strings_in_shared_memory(protocol, client, regions):
    contents = [serialize_byte_tensor(as_strings(numbers)) for numbers in (COUNT_UP, ONES)]
    sizes = [serialized_byte_size(content) for content in contents]
    for number, (content, size) in enumerate(zip(contents, sizes, strict=True)):
        regions.add(f"input{number}_data", size, content)
        regions.add(f"output{number}_data", 512)
    client.infer("simple_string", shared_inputs(protocol, "BYTES", sizes), outputs=shared_outputs(protocol, 512))
    assert np.array_equal(regions.read("output0_data", np.object_).astype(np.int32), COUNT_UP + ONES)
    assert np.array_equal(regions.read("output1_data", np.object_).astype(np.int32), COUNT_UP - ONES)


# --- images -------------------------------------------------------------------------------------------------------

IMAGE = np.full((3, 224, 224), 0.5, np.float32)


def classes(text):
    """The value, number and label of each class, as the image clients split them."""
    made = [entry.decode().split(":") for entry in text.ravel()]
    return [(float(score), int(number), label) for score, number, label in made]


BEST = [(0.5 * k, k, f"LABEL {k}") for k in (999, 998, 997)]


def image_request(protocol):
    outputs = [protocol.module.InferRequestedOutput("fc6_1", class_count=3)]
    return {"inputs": [protocol.tensor("data_0", IMAGE, "FP32")], "outputs": outputs}


def test_image_is_classified(protocol, client):
    assert classes(client.infer(IMAGE_MODEL, **image_request(protocol)).as_numpy("fc6_1")) == BEST


def test_images_are_classified_over_a_stream(examples):
    protocol = Protocol("grpc", examples)
    answers = queue.Queue()
    with protocol.connect() as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(3):
            client.async_stream_infer(IMAGE_MODEL, request_id=str(number), **image_request(protocol))
        found = [answers.get(timeout=60) for _ in range(3)]
    assert [error for _, error in found] == [None] * 3
    assert [classes(result.as_numpy("fc6_1")) for result, _ in found] == [BEST] * 3


def image_file(red, green, blue):
    return b"P6\n4 4\n255\n" + bytes([red, green, blue] * 16)


def test_image_files_are_classified_by_an_ensemble(protocol, client):
    files = np.array([[image_file(200, 10, 10)], [image_file(10, 10, 200)]], np.object_)
    outputs = [protocol.module.InferRequestedOutput("CLASSES", class_count=1)]
    inputs = [protocol.tensor("INPUT", files, "BYTES")]
    result = client.infer("preprocess_inception_ensemble", inputs, outputs=outputs)
    assert [(number, label) for _, number, label in classes(result.as_numpy("CLASSES"))] == [(0, "red"), (2, "blue")]


# --- bare stubs ---------------------------------------------------------------------------------------------------


def stub_request(model, datatype, field, first, second):
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, values in (("INPUT0", first), ("INPUT1", second)):
        entry = request.inputs.add(name=name, datatype=datatype, shape=[1, 16])
        getattr(entry.contents, field).extend(values)
    for name in ("OUTPUT0", "OUTPUT1"):
        request.outputs.add(name=name)
    return request


@pytest.mark.parametrize(
    ("model", "datatype", "dtype"), [("simple", "INT32", np.int32), ("simple_int8", "INT8", np.int8)]
)
def test_contents_of_integers(stub, model, datatype, dtype):
    response = stub.ModelInfer(stub_request(model, datatype, "int_contents", range(16), [1] * 16))
    total, difference = (np.frombuffer(raw, dtype) for raw in response.raw_output_contents)
    assert total.tolist() == [n + 1 for n in range(16)]
    assert difference.tolist() == [n - 1 for n in range(16)]


def test_contents_of_strings(stub):
    numbers = [str(n).encode() for n in range(16)]
    response = stub.ModelInfer(stub_request("simple_string", "BYTES", "bytes_contents", numbers, [b"1"] * 16))
    total, difference = (deserialize_bytes_tensor(raw) for raw in response.raw_output_contents)
    assert [int(text) for text in total] == [n + 1 for n in range(16)]
    assert [int(text) for text in difference] == [n - 1 for n in range(16)]


def test_contents_twice_are_refused(stub):
    request = stub_request("simple", "INT32", "int_contents", range(8, 16), [1] * 16)
    request.raw_input_contents.append(np.arange(8, dtype=np.int32).tobytes())
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request)
    expected = "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'simple'"
    assert expected in raised.value.details()


def test_version_that_is_no_number_is_refused(stub):
    request = stub_request("simple_int8", "INT8", "int_contents", range(16), [1] * 16)
    request.model_version = "wrong_specification"
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(request)
    expected = "failed to get model version from specified version string 'wrong_specification'"
    assert expected in raised.value.details()


def test_everything_by_stub(stub):
    assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
    assert stub.ServerReady(service_pb2.ServerReadyRequest()).ready
    assert stub.ModelReady(service_pb2.ModelReadyRequest(name=IMAGE_MODEL)).ready
    assert "statistics" in stub.ServerMetadata(service_pb2.ServerMetadataRequest()).extensions
    metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=IMAGE_MODEL))
    assert list(metadata.inputs[0].shape) == [3, 224, 224]
    config = stub.ModelConfig(service_pb2.ModelConfigRequest(name=IMAGE_MODEL)).config
    assert list(config.input[0].reshape.shape) == [1, 3, 224, 224]
    request = service_pb2.ModelInferRequest(model_name=IMAGE_MODEL, id="my request id")
    request.inputs.add(name="data_0", datatype="FP32", shape=[3, 224, 224])
    request.outputs.add(name="fc6_1")
    request.raw_input_contents.append(np.full((3, 224, 224), 0.5, np.float32).tobytes())
    response = stub.ModelInfer(request)
    assert (response.id, list(response.outputs[0].shape)) == ("my request id", [1000])
    scores = np.frombuffer(response.raw_output_contents[0], np.float32)
    assert np.allclose(scores, np.arange(1000) * 0.5)


# --- decoupled ----------------------------------------------------------------------------------------------------


def test_repeat(examples):
    answers = queue.Queue()
    numbers = np.arange(100, 110, dtype=np.int32)
    inputs = [
        tensor(grpcclient, "IN", numbers, "INT32"),
        tensor(grpcclient, "DELAY", np.full(10, 10, np.uint32), "UINT32"),
        tensor(grpcclient, "WAIT", np.array([10], np.uint32), "UINT32"),
    ]
    with grpcclient.InferenceServerClient(examples.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("repeat_int32", inputs, outputs=[grpcclient.InferRequestedOutput("OUT")])
        found = [answers.get(timeout=60) for _ in numbers]
    assert [error for _, error in found] == [None] * 10
    assert [result.as_numpy("OUT").tolist() for result, _ in found] == [[number] for number in numbers]


# --- sequences ----------------------------------------------------------------------------------------------------

DOWN = [100, *(-value for value in VALUES)]
UP = [0, *VALUES]


def expected(values, sequence_id, *, dyna):
    """What the models answer to a sequence: see `write_sequence_examples`."""
    if dyna and isinstance(sequence_id, str):
        sums = np.cumsum(values).tolist()
        return [*sums[:-1], sums[-1] + int(sequence_id)]
    answers = [values[0] + 1, *values[1:]]
    return [*answers[:-1], answers[-1] + sequence_id] if dyna else answers


def sequences(dyna):
    """The three sequences of the examples: model, id, values."""
    model = "simple_dyna_sequence" if dyna else "simple_sequence"
    text_model, text_id = ("simple_string_dyna_sequence", "1002") if dyna else (model, str(uuid.uuid4()))
    return [(model, 1000, UP), (model, 1001, DOWN), (text_model, text_id, [20, *DOWN[1:]])]


def steps(module, sequence_id, values):
    """The arguments of each request of a sequence."""
    for position, value in enumerate(values):
        yield {
            "inputs": [tensor(module, "INPUT", np.full((1, 1), value, np.int32), "INT32")],
            "outputs": [module.InferRequestedOutput("OUTPUT")],
            "request_id": f"{sequence_id}_{position}",
            "sequence_id": sequence_id,
            "sequence_start": position == 0,
            "sequence_end": position == len(values) - 1,
        }


@pytest.mark.parametrize("dyna", [False, True])
def test_sequences_request_by_request(protocol, client, dyna):
    for model, sequence_id, values in sequences(dyna):
        results = [client.infer(model, **step) for step in steps(protocol.module, sequence_id, values)]
        assert [result.as_numpy("OUTPUT").item() for result in results] == expected(values, sequence_id, dyna=dyna)


@pytest.mark.parametrize("dyna", [False, True])
def test_sequences_over_a_stream(examples, dyna):
    answers = queue.Queue()
    asked = sequences(dyna)
    with grpcclient.InferenceServerClient(examples.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for model, sequence_id, values in asked:
            for step in steps(grpcclient, sequence_id, values):
                client.async_stream_infer(model, **step)
        found = [answers.get(timeout=60) for _ in range(3 * len(UP))]
    assert {error for _, error in found} == {None}
    by_id = {result.get_response().id: result.as_numpy("OUTPUT").item() for result, _ in found}
    for _, sequence_id, values in asked:
        got = [by_id[f"{sequence_id}_{position}"] for position in range(len(values))]
        assert got == expected(values, sequence_id, dyna=dyna)


@pytest.mark.parametrize("dyna", [False, True])
def test_sequences_over_an_asyncio_stream(examples, dyna):
    asked = sequences(dyna)

    async def requests():
        for model, sequence_id, values in asked:
            for step in steps(grpcclient_aio, sequence_id, values):
                yield {"model_name": model, **step}

    async def talk(client):
        by_id = {}
        async for result, error in client.stream_infer(requests()):
            assert error is None
            by_id[result.get_response().id] = result.as_numpy("OUTPUT").item()
        return by_id

    by_id = run(grpcclient_aio.InferenceServerClient, examples.grpc_url, talk)
    for _, sequence_id, values in asked:
        got = [by_id[f"{sequence_id}_{position}"] for position in range(len(values))]
        assert got == expected(values, sequence_id, dyna=dyna)
