"""System shared memory with stock tritonclients: tensors in place over both protocols, misuse, hostile truncation."""

import itertools
import os
import queue
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

from support import onnx_models
from support.model_repository import add_sub_config, write_identity, write_model, write_python_add_sub
from support.process_resources import ProcessResources
from support.server_process import SOURCE, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ELEMENTS = 1 << 20
ROW = np.arange(16, dtype=np.float32).reshape(1, 16)
_MODULES = {"http": httpclient, "grpc": grpcclient}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    vector = "input [ { name: '%s' data_type: TYPE_FP32 dims: [ -1 ] } ]".replace("'", '"')
    config = f'backend: "onnxruntime"\n{vector % "INPUT0"}\n{(vector % "OUTPUT0").replace("input", "output")}\n'
    write_model(root, "onnx_identity", config, {"1/model.onnx": onnx_models.identity(dims=("N",))})
    batching = add_sub_config("onnxruntime", max_batch_size=32, extra="dynamic_batching { }")
    write_model(root, "add_sub", batching, {"1/model.onnx": onnx_models.add_sub()})
    write_python_add_sub(root)
    write_identity(root)
    write_identity(root, "strings", datatype="STRING")
    write_identity(root, "slow", parameters={"execute_delay_ms": "1000"})
    return root


@pytest.fixture(scope="module")
def shm_server(models, tmp_path_factory):
    flags = [f"--model-repository={models}", "--allow-client-shm=true", "--max-shared-memory-regions=16"]
    with serving(tmp_path_factory.mktemp("server") / "log", *flags) as running:
        yield running


class Peer:
    """A client of one protocol with shared-memory objects of its own."""

    def __init__(self, server, protocol):
        self.module = _MODULES[protocol]
        self.url = server.http_url if protocol == "http" else server.grpc_url
        self.client = self.module.InferenceServerClient(self.url)
        self._handles = {}

    def region(self, name, byte_size, *, arrays=(), offset=0):
        """Create and register an object; return the handle."""
        key = f"/naiad_test_{os.getpid()}_{next(_numbers)}"
        handle = shared_memory.create_shared_memory_region(name, key, offset + byte_size)
        self._handles[name] = handle
        shared_memory.set_shared_memory_region(handle, list(arrays), offset=offset)
        self.client.register_system_shared_memory(name, key, byte_size, offset=offset)
        return handle

    def path(self, name):
        return "/dev/shm" + self._handles[name]._shm_key

    def input(self, name, shape, region, byte_size, offset=0, datatype="FP32"):
        tensor = self.module.InferInput(name, list(shape), datatype)
        tensor.set_shared_memory(region, byte_size, offset)
        return tensor

    def sent(self, name, array):
        tensor = self.module.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        return tensor

    def output(self, name, region=None, byte_size=0, offset=0):
        tensor = self.module.InferRequestedOutput(name)
        if region is not None:
            tensor.set_shared_memory(region, byte_size, offset)
        return tensor

    def names(self):
        rows = self.client.get_system_shared_memory_status()
        return sorted(row["name"] for row in rows) if isinstance(rows, list) else sorted(rows.regions)

    def spec(self, result, name):
        found = result.get_output(name)
        return (found["datatype"], found["shape"]) if isinstance(found, dict) else (found.datatype, list(found.shape))

    def fails(self, *arguments, **named):
        with pytest.raises(InferenceServerException) as caught:
            self.client.infer(*arguments, **named)
        return caught.value.status(), caught.value.message()

    def close(self):
        self.client.unregister_system_shared_memory()
        for handle in self._handles.values():
            shared_memory.destroy_shared_memory_region(handle)
        self.client.close()


@pytest.fixture(params=["http", "grpc"])
def peer(request, shm_server):
    opened = Peer(shm_server, request.param)
    yield opened
    opened.close()


def contents(handle, shape, offset=0, dtype=np.float32):
    return shared_memory.get_contents_as_numpy(handle, dtype, shape, offset)


class TestTensors:
    def test_large_tensors_both_ways(self, peer):
        values = np.arange(ELEMENTS, dtype=np.float32)
        size = values.nbytes
        peer.region("in", size, arrays=[values])
        handle = peer.region("out", size)
        result = peer.client.infer(
            "onnx_identity",
            [peer.input("INPUT0", [ELEMENTS], "in", size)],
            outputs=[peer.output("OUTPUT0", "out", size)],
        )
        np.testing.assert_array_equal(contents(handle, [ELEMENTS]), values)
        assert peer.spec(result, "OUTPUT0") == ("FP32", [ELEMENTS])
        response = result.get_response()
        if isinstance(response, dict):
            assert response["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [ELEMENTS]}]
        else:
            # Triton: an empty entry keeps the positions of the next entries.
            assert list(response.raw_output_contents) == [b""]

    @pytest.mark.parametrize("model", ["add_sub", "python_add_sub"])
    def test_parts_of_one_region(self, peer, model):
        handle = peer.region("all", 4096, arrays=[ROW, ROW + 1], offset=8192)
        peer.client.infer(
            model,
            [peer.input("INPUT0", (1, 16), "all", 64), peer.input("INPUT1", (1, 16), "all", 64, 64)],
            outputs=[peer.output("OUTPUT0", "all", 64, 1000), peer.output("OUTPUT1", "all", 100, 2003)],
        )
        np.testing.assert_array_equal(contents(handle, (1, 16), 8192 + 1000), 2 * ROW + 1)
        unaligned = bytes(handle._mpsm_handle.buf[8192 + 2003 : 8192 + 2103])
        assert unaligned == np.full(16, -1, np.float32).tobytes() + bytes(36)

    @pytest.mark.parametrize("model", ["add_sub", "python_add_sub"])
    def test_shared_and_sent_tensors_together(self, peer, model):
        handle = peer.region("r", 4096, arrays=[ROW])
        for number in range(3):
            result = peer.client.infer(
                model,
                [peer.sent("INPUT0", ROW + number), peer.input("INPUT1", (1, 16), "r", 64)],
                outputs=[peer.output("OUTPUT0"), peer.output("OUTPUT1", "r", 64, 128)],
            )
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * ROW + number)
            np.testing.assert_array_equal(contents(handle, (1, 16), 128), np.full((1, 16), number, np.float32))

    @pytest.mark.parametrize("model", ["add_sub", "python_add_sub", "identity"])
    def test_an_output_in_place_of_the_input(self, peer, model):
        handle = peer.region("r", 4096, arrays=[ROW, ROW])
        inputs = [peer.input("INPUT0", (1, 16), "r", 64), peer.input("INPUT1", (1, 16), "r", 64, 64)]
        inputs = inputs[:1] if model == "identity" else inputs
        peer.client.infer(model, inputs, outputs=[peer.output("OUTPUT0", "r", 64, 32)])
        expected = ROW if model == "identity" else 2 * ROW
        np.testing.assert_array_equal(contents(handle, (1, 16), 32), expected)

    def test_an_echoed_input_that_is_sent(self, peer):
        peer.region("r", 4096, arrays=[ROW])
        result = peer.client.infer("identity", [peer.input("INPUT0", (1, 16), "r", 64)])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ROW)

    def test_strings(self, peer):
        texts = np.array([["", "naiad", "Ωμέγα" * 50]], dtype=np.object_)
        raw = serialize_byte_tensor(texts)
        size = len(raw.item())
        peer.region("in", size, arrays=[raw])
        handle = peer.region("out", size + 100)
        inputs = [peer.input("INPUT0", (1, 3), "in", size, datatype="BYTES")]
        peer.client.infer("strings", inputs, outputs=[peer.output("OUTPUT0", "out", size + 100)])
        read = contents(handle, (1, 3), dtype=np.object_)
        assert [text.decode() for text in read.ravel()] == texts.ravel().tolist()
        status, message = peer.fails("strings", inputs, outputs=[peer.output("OUTPUT0", "out", size - 1)])
        assert status in ("400", "StatusCode.INVALID_ARGUMENT")
        assert f"should be at least {size} bytes to hold the results" in message

    def test_requests_that_share_a_batch(self, peer):
        handles = [peer.region(f"r{number}", 4096, arrays=[ROW + number, ROW]) for number in range(8)]
        failures = queue.Queue()

        def ask(number):
            name = f"r{number}"
            inputs = [peer.input("INPUT0", (1, 16), name, 64), peer.input("INPUT1", (1, 16), name, 64, 64)]
            try:
                with peer.module.InferenceServerClient(peer.url) as client:
                    for _ in range(20):
                        client.infer("add_sub", inputs, outputs=[peer.output("OUTPUT0", name, 64, 128)])
                        np.testing.assert_array_equal(contents(handles[number], (1, 16), 128), 2 * ROW + number)
            except BaseException as error:
                failures.put(error)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures.empty(), failures.get()

    def test_requests_of_a_stream(self, peer):
        if peer.module is not grpcclient:
            pytest.skip("HTTP has no stream")
        handle = peer.region("r", 4096, arrays=[ROW])
        answers = queue.Queue()
        peer.client.start_stream(lambda result, error: answers.put((result, error)))
        inputs = [peer.input("INPUT0", (1, 16), "r", 64)]
        peer.client.async_stream_infer("identity", inputs, outputs=[peer.output("OUTPUT0", "r", 64, 256)])
        peer.client.async_stream_infer("identity", inputs, outputs=[peer.output("OUTPUT0", "r", 63, 256)])
        (first, first_error), (_, second_error) = answers.get(timeout=60), answers.get(timeout=60)
        peer.client.stop_stream()
        assert first_error is None
        assert peer.spec(first, "OUTPUT0") == ("FP32", [1, 16])
        np.testing.assert_array_equal(contents(handle, (1, 16), 256), ROW)
        assert "should be at least 64 bytes" in str(second_error)


class TestRegions:
    def test_status_is_what_was_registered(self, peer, shm_server):
        peer.region("b", 100, offset=4096)
        peer.region("a", 4096)
        rows = shm_server.get("/v2/systemsharedmemory/status").json
        assert [row["name"] for row in rows] == ["a", "b"]
        assert rows[1] == {"name": "b", "key": peer.path("b")[8:], "offset": 4096, "byte_size": 100}
        assert shm_server.get("/v2/systemsharedmemory/region/b/status").json == rows[1:]
        one = peer.client.get_system_shared_memory_status("b")
        if isinstance(one, list):
            assert one == rows[1:]
        else:
            found = one.regions["b"]
            assert (found.name, found.key, found.offset, found.byte_size) == tuple(rows[1].values())

    def test_registered_twice(self, peer):
        peer.region("r", 4096)
        with pytest.raises(InferenceServerException, match="shared memory region 'r' already in manager") as caught:
            peer.client.register_system_shared_memory("r", peer.path("r")[8:], 4096)
        assert caught.value.status() in ("400", "StatusCode.ALREADY_EXISTS")

    @pytest.mark.parametrize(
        ("key", "offset", "byte_size", "words"),
        [
            ("/naiad_nothing", 0, 10, "Unable to open shared memory region: '/naiad_nothing'"),
            ("/../../etc/hostname", 0, 1, "Unable to open shared memory region"),
            ("../etc/passwd", 0, 1, "Unable to open shared memory region"),
            ("", 0, 1, "Unable to open shared memory region: ''"),
            ("/triton_python_backend_shm_region_1", 0, 1, "reserved prefix"),
        ],
    )
    def test_keys_that_cannot_be_opened(self, peer, key, offset, byte_size, words):
        with pytest.raises(InferenceServerException) as caught:
            peer.client.register_system_shared_memory("r", key, byte_size, offset=offset)
        assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
        assert words in caught.value.message()
        assert peer.names() == []

    def test_limit(self, peer):
        for number in range(16):
            peer.region(f"r{number}", 100)
        with pytest.raises(InferenceServerException, match="16 regions are registered, which is the limit"):
            peer.client.register_system_shared_memory("more", peer.path("r0")[8:], 100)

    def test_status_of_what_is_not_there(self, peer):
        with pytest.raises(InferenceServerException, match="Unable to find system shared memory region: 'x'"):
            peer.client.get_system_shared_memory_status("x")
        peer.client.unregister_system_shared_memory("x")

    def test_unregistered_while_a_request_uses_it(self, peer, shm_server):
        handle = peer.region("r", 4096, arrays=[ROW])
        answers = queue.Queue()

        def ask():
            inputs = [peer.input("INPUT0", (1, 16), "r", 64)]
            with peer.module.InferenceServerClient(peer.url) as client:
                answers.put(client.infer("slow", inputs, outputs=[peer.output("OUTPUT0", "r", 64, 64)]))

        thread = threading.Thread(target=ask)
        thread.start()
        shm_server.wait_requests("slow", executing=1)
        peer.client.unregister_system_shared_memory("r")
        assert peer.names() == ["r"]
        assert peer.fails("identity", [peer.input("INPUT0", (1, 16), "r", 64)])[1].startswith("Unable to find shared")
        thread.join()
        assert answers.get(timeout=60).get_response() is not None
        np.testing.assert_array_equal(contents(handle, (1, 16), 64), ROW)
        assert peer.names() == []


class TestMisuse:
    @pytest.fixture
    def region(self, peer):
        return peer.region("r", 4096, arrays=[ROW])

    @pytest.mark.parametrize(
        ("where", "status", "words"),
        [
            (("nothing", 64), "404", "Unable to find shared memory region: 'nothing'"),
            (("r", 64, 4096), "400", "Invalid offset for shared memory region: 'r'"),
            (("r", 64, 4095), "400", "Invalid offset + byte size for shared memory region: 'r'"),
            (("r", 5000), "400", "Invalid offset + byte size for shared memory region: 'r'"),
            (
                ("r", 60),
                "400",
                "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 64, got 60",
            ),
            (
                ("r", 68),
                "400",
                "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 64, got 68",
            ),
        ],
    )
    def test_inputs(self, peer, region, where, status, words):
        names = {"400": "StatusCode.INVALID_ARGUMENT", "404": "StatusCode.NOT_FOUND"}
        found, message = peer.fails("identity", [peer.input("INPUT0", (1, 16), *where)])
        assert found in (status, names[status])
        assert words in message

    @pytest.mark.parametrize(
        ("where", "words"),
        [
            (("nothing", 64), "Unable to find shared memory region: 'nothing'"),
            (("r", 64, 4096), "Invalid offset for shared memory region: 'r'"),
            (("r", 64, 4033), "Invalid offset + byte size for shared memory region: 'r'"),
            (
                ("r", 63),
                "shared memory size specified with the request for output 'OUTPUT0' (63 bytes) should be at least "
                "64 bytes to hold the results",
            ),
        ],
    )
    @pytest.mark.parametrize("model", ["identity", "add_sub", "python_add_sub"])
    def test_outputs(self, peer, region, model, where, words):
        inputs = [peer.sent("INPUT0", ROW), peer.sent("INPUT1", ROW)][: 1 if model == "identity" else 2]
        _, message = peer.fails(model, inputs, outputs=[peer.output("OUTPUT0", *where)])
        assert words in message
        np.testing.assert_array_equal(contents(region, (1, 16)), ROW)

    def test_refused_requests_hold_nothing(self, peer, region):
        for _ in range(5):
            peer.fails("identity", [peer.input("INPUT0", (1, 17), "r", 64)])
            peer.fails(
                "identity", [peer.input("INPUT0", (1, 16), "r", 64)], outputs=[peer.output("OUTPUT0", "x", 64)]
            )
        peer.client.unregister_system_shared_memory("r")
        assert peer.names() == []

    def test_unlinked_objects_stay_usable(self, peer, region):
        os.unlink(peer.path("r"))
        result = peer.client.infer("identity", [peer.input("INPUT0", (1, 16), "r", 64)])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ROW)
        with open(peer.path("r"), "wb"):  # for the clean-up
            pass


class TestTruncation:
    """What a client does to its own memory is its own affair, never the server's end."""

    def test_between_requests(self, peer):
        peer.region("r", 8192, arrays=[ROW])
        os.truncate(peer.path("r"), 4096)
        status, message = peer.fails("identity", [peer.input("INPUT0", (1, 16), "r", 64)])
        assert status in ("400", "StatusCode.INVALID_ARGUMENT")
        assert "has become smaller" in message

    @pytest.mark.parametrize("is_output", [False, True])
    def test_while_a_request_is_executed(self, peer, shm_server, is_output):
        peer.region("r", 4096, arrays=[ROW])
        size = 64
        inputs = [peer.sent("INPUT0", ROW) if is_output else peer.input("INPUT0", (1, 16), "r", size)]
        outputs = [peer.output("OUTPUT0", "r", size) if is_output else peer.output("OUTPUT0")]
        path = peer.path("r")

        def truncate() -> None:
            shm_server.wait_requests("slow", executing=1)
            os.truncate(path, 0)

        truncating = threading.Thread(target=truncate)
        truncating.start()
        status, message = peer.fails("slow", inputs, outputs=outputs)
        truncating.join()
        assert status in ("400", "StatusCode.INVALID_ARGUMENT")
        assert "was truncated while a request used it" in message
        assert shm_server.get("/v2/health/ready").status == 200

    def test_again_and_again(self, peer, shm_server):
        """The framework's own threads read and write memory that goes and comes."""
        values = np.ones(ELEMENTS, np.float32)
        size = values.nbytes
        peer.region("in", size, arrays=[values])
        peer.region("out", size)
        inputs = [peer.input("INPUT0", [ELEMENTS], "in", size)]
        outputs = [peer.output("OUTPUT0", "out", size)]
        stop = threading.Event()

        def spoil():
            while not stop.is_set():
                for name in ("in", "out"):
                    os.truncate(peer.path(name), 4096)
                    os.truncate(peer.path(name), size)

        thread = threading.Thread(target=spoil)
        outcomes = set()
        thread.start()
        for _ in range(40):
            try:
                peer.client.infer("onnx_identity", inputs, outputs=outputs)
                outcomes.add("answered")
            except InferenceServerException as error:
                outcomes.add("truncated" if "truncated" in error.message() else "smaller")
                for name in ("in", "out"):
                    peer.client.unregister_system_shared_memory(name)
                    try:
                        peer.client.register_system_shared_memory(name, peer.path(name)[8:], size)
                    except InferenceServerException:
                        outcomes.add("refused")
        stop.set()
        thread.join()
        assert outcomes - {"answered"}
        assert shm_server.get("/v2/health/ready").status == 200


class TestDisabled:
    """Triton: clients may not register unless a flag allows it."""

    @pytest.mark.parametrize("kind", ["system", "cuda"])
    @pytest.mark.parametrize("verb", ["register", "unregister"])
    def test_control_is_refused(self, server, kind, verb):
        body = {"key": "k", "byte_size": 1, "raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0}
        answer = server.post(f"/v2/{kind}sharedmemory/region/r/{verb}", body)
        assert answer.status == 501
        assert answer.json["error"].startswith("Client shared memory is disabled")

    def test_status_is_answered(self, server):
        assert server.get("/v2/systemsharedmemory/status").json == []
        assert server.get("/v2/cudasharedmemory/status").json == []

    def test_extensions(self, server):
        assert {"classification", "system_shared_memory", "cuda_shared_memory"} <= set(
            server.get("/v2").json["extensions"]
        )


def test_nothing_stays_behind(models, tmp_path):
    """Regions come and go, requests use them well and badly; descriptors, mappings and memory stay level."""
    flags = [f"--model-repository={models}", "--allow-client-shm=true"]
    with serving(tmp_path / "log", *flags) as server:
        peers = [Peer(server, "http"), Peer(server, "grpc")]
        values = np.arange(ELEMENTS // 4, dtype=np.float32)
        size = values.nbytes

        def turn(peer):
            peer.region("in", size, arrays=[values])
            handle = peer.region("out", size)
            inputs = [peer.input("INPUT0", values.shape, "in", size)]
            for _ in range(3):
                peer.client.infer("onnx_identity", inputs, outputs=[peer.output("OUTPUT0", "out", size)])
            np.testing.assert_array_equal(contents(handle, values.shape), values)
            peer.fails("onnx_identity", inputs, outputs=[peer.output("OUTPUT0", "out", size - 1)])
            peer.fails("onnx_identity", inputs, outputs=[peer.output("OUTPUT0", "none", size)])
            peer.client.unregister_system_shared_memory("in")
            peer.client.unregister_system_shared_memory()
            for one in peer._handles.values():
                shared_memory.destroy_shared_memory_region(one)
            peer._handles.clear()

        for peer in peers * 20:
            turn(peer)
        resources = ProcessResources(server.process.pid)
        resident, mapped = resources.resident_bytes(), _shared_mappings(server)
        for peer in peers * 100:
            turn(peer)
        resources.assert_back()
        assert _shared_mappings(server) == mapped == 0
        assert resources.resident_bytes() < resident + 20 * 1024 * 1024
        for peer in peers:
            peer.close()


def _shared_mappings(server):
    with open(f"/proc/{server.process.pid}/maps") as maps:
        return sum("/dev/shm/naiad_test" in line for line in maps)


_FOREIGN = """
import mmap, os, sys
from naiad.engine.regions.bus_error import guard

guard()
with open(sys.argv[1], "w+b") as file:
    file.truncate(8192)
    mapping = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    mapping[0]
"""


def test_other_bus_errors_end_process_as_they_did(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", _FOREIGN, str(tmp_path / "file")]
    done = subprocess.run(command, env=environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGBUS
