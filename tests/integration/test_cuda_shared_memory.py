"""CUDA shared memory with stock clients, over a CUDA runtime of our own whose device memory is that of the host.

It has the interface of libcudart, so all but the GPU is real: finding and loading the library, the calls as C sees
them, handles, copies, refusals.
"""

import asyncio
import base64
import ctypes
import json
import os
import shutil
import subprocess
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from naiad.backend.cuda.cuda import CudaError, CudaRuntime
from naiad.client import Client
from naiad.tools.perf.inputs import memory_blocks
from naiad.tools.perf.inputs.shared_memory import in_shared_memory
from naiad.tools.perf.inputs.templates import prepare_inputs
from naiad.tools.perf.perf_plan import InputSettings, ModelLoad
from naiad.tools.values.tensor import InputError
from support.model_repository import write_identity, write_python_add_sub
from support.server_process import serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SOURCE = Path(__file__).resolve().parents[1] / "support" / "fake_cudart.c"
ROW = np.arange(16, dtype=np.float32).reshape(1, 16)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("cuda") / "libcudart.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


@pytest.fixture(scope="module")
def gpu_server(library, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_identity(root)
    write_python_add_sub(root)
    with serving(
        tmp_path_factory.mktemp("server") / "log",
        f"--model-repository={root}",
        "--allow-client-shm=true",
        environment={"LD_LIBRARY_PATH": str(library.parent)},
    ) as running:
        yield running


class Device:
    """Memory of the device with the handle that a client would pass."""

    def __init__(self, byte_size):
        self.memory = shared_memory.SharedMemory(create=True, size=byte_size)
        self.handle = self.memory._name.encode().ljust(64, b"\0")

    @property
    def raw(self):
        return base64.b64encode(self.handle)

    def close(self):
        self.memory.close()
        self.memory.unlink()


@pytest.fixture
def device():
    made = Device(8192)
    yield made
    made.close()


@pytest.fixture(params=["http", "grpc"])
def peer(request, gpu_server):
    module = httpclient if request.param == "http" else grpcclient
    client = module.InferenceServerClient(gpu_server.http_url if request.param == "http" else gpu_server.grpc_url)
    client.module = module
    yield client
    client.unregister_cuda_shared_memory()
    client.close()


def tensor(peer, name, region, byte_size, offset=0, shape=(1, 16)):
    made = peer.module.InferInput(name, list(shape), "FP32")
    made.set_shared_memory(region, byte_size, offset)
    return made


def wanted(peer, name, region, byte_size, offset=0):
    made = peer.module.InferRequestedOutput(name)
    made.set_shared_memory(region, byte_size, offset)
    return made


@pytest.mark.parametrize("model", ["identity", "python_add_sub"])
def test_tensors_both_ways(peer, device, model):
    device.memory.buf[:128] = ROW.tobytes() * 2
    peer.register_cuda_shared_memory("r", device.raw, 0, 8192)
    inputs = [tensor(peer, "INPUT0", "r", 64), tensor(peer, "INPUT1", "r", 64, 64)]
    peer.infer(model, inputs[: 1 if model == "identity" else 2], outputs=[wanted(peer, "OUTPUT0", "r", 64, 4096)])
    expected = ROW if model == "identity" else 2 * ROW
    assert bytes(device.memory.buf[4096:4160]) == expected.tobytes()
    with pytest.raises(InferenceServerException, match=r"\(63 bytes\) should be at least 64 bytes"):
        peer.infer(model, inputs[: 1 if model == "identity" else 2], outputs=[wanted(peer, "OUTPUT0", "r", 63)])
    with pytest.raises(InferenceServerException, match="Invalid offset"):
        peer.infer("identity", [tensor(peer, "INPUT0", "r", 64, 8192)])


def test_status(peer, device, gpu_server):
    peer.register_cuda_shared_memory("r", device.raw, 0, 4096)
    row = {"name": "r", "device_id": 0, "byte_size": 4096}
    assert gpu_server.get("/v2/cudasharedmemory/status").json == [row]
    assert gpu_server.get("/v2/cudasharedmemory/region/r/status").json == [row]
    found = peer.get_cuda_shared_memory_status("r")
    rows = found if isinstance(found, list) else [found.regions["r"]]
    assert len(rows) == 1
    with pytest.raises(InferenceServerException, match="is registered as CUDA shared memory, not system"):
        peer.get_system_shared_memory_status("r")
    peer.unregister_cuda_shared_memory("r")
    assert gpu_server.get("/v2/cudasharedmemory/status").json == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"byte_size": 8193}, "byte_size 8193 is beyond the allocation"),
        ({"device_id": 1}, "device_id is 1, but there are 1 GPUs"),
        ({"raw": base64.b64encode(b"/naiad_nothing".ljust(64, b"\0"))}, "cudaIpcOpenMemHandle failed with error 1"),
    ],
)
def test_refusals(peer, device, changes, words):
    wishes = {"raw": device.raw, "device_id": 0, "byte_size": 64} | changes
    with pytest.raises(InferenceServerException, match=words):
        peer.register_cuda_shared_memory("r", wishes["raw"], wishes["device_id"], wishes["byte_size"])


def test_nothing_stays_mapped(peer, device, gpu_server):
    def mapped():
        return Path(f"/proc/{gpu_server.process.pid}/maps").read_text().count(device.memory._name)

    for _ in range(50):  # more often than the device has room for mappings
        peer.register_cuda_shared_memory("r", device.raw, 0, 8192)
        peer.infer("identity", [tensor(peer, "INPUT0", "r", 64)])
        assert mapped() == 1
        peer.unregister_cuda_shared_memory("r")
    assert mapped() == 0
    assert os.path.exists(f"/proc/{gpu_server.process.pid}")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_load_generator_uses_cuda_memory(gpu_server, library, protocol, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_EXPORTS", "1")
    runtime = CudaRuntime(ctypes.CDLL(library))
    monkeypatch.setattr(memory_blocks, "load_runtime", lambda: runtime)
    values = ROW.ravel().tolist()
    path = tmp_path / "data.json"
    data = [{"INPUT0": values}]
    outputs = [{"OUTPUT0": values}]
    path.write_text(json.dumps({"data": data, "validation_data": outputs}))
    plan = ModelLoad("identity", inputs=InputSettings((str(path),), output_bytes=128))
    url = f"http://{gpu_server.http_url}" if protocol == "http" else f"grpc://{gpu_server.grpc_url}"

    async def body():
        async with Client(url) as client:
            plain = prepare_inputs(
                plan, await client.model_metadata("identity"), await client.model_config("identity")
            )
            async with in_shared_memory(client, "cuda", plain, slots=2) as templates:
                for slot in range(2):
                    template = templates.variant(0, slot)
                    response = (await client._calls.infer(template.header, "", template.data, None, {}))[1]
                    assert templates.validate(0, slot, [(response.header.outputs, response.data)]) == ""

    asyncio.run(body())
    assert not ctypes.CDLL(library).fakeAllocationCount()


def test_missing_cuda_runtime_is_explained(monkeypatch):
    def missing():
        raise CudaError("libcudart was not found")

    monkeypatch.setattr(memory_blocks, "load_runtime", missing)
    with pytest.raises(InputError, match="--shared-memory cuda: 8 bytes of GPU 0: libcudart was not found"):
        memory_blocks.CudaBlock("name", 8)
