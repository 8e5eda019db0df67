"""Tensors of 1 to 64 MiB to a model on the GPU and back: CUDA and system shared memory, binary HTTP and gRPC.

The client is this process and the server another one, so that CUDA's IPC handles are opened as in real use. One
request at a time; GB/s counts the bytes of the input and of the output.
"""

import asyncio
import http.client
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.room import NotRun, Room, Served
from bench.gpu.serving import config, write_model
from bench.process_tree import CpuMeter
from naiad.backend.cuda.cuda import CudaError, load_runtime
from naiad.client import Client
from naiad.core.tensor import Array

MIB = 1 << 20
_REGION = "bench_gpu_"
_TWICE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""
_SECONDS = 1.0
_LEAST = 3


def measure(room: Room) -> None:
    """Measure every way at every size; each that fails has a row."""
    tensors = ({"x": ("FP32", (-1,))}, {"OUTPUT__0": ("FP32", (-1,))})
    write_model(room.work / "models", "twice", config("pytorch", room.kind, *tensors), {"model.py": _TWICE})
    more = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 200000 }"
    text = config("pytorch", room.kind, *tensors, rows=4, more=more)
    write_model(room.work / "models", "batched", text, {"model.py": _TWICE})
    with room.serve(room.work / "models", "--http-max-input-size=268435456") as served:
        served.load("twice")
        for mib in room.size((1, 4, 16, 64), (1,)):
            values = np.random.default_rng(mib).standard_normal(mib * MIB // 4, np.float32)
            for name, way in _WAYS.items():
                with room.check(f"{name} {mib} MiB"):
                    way(room, served, f"{name} {mib} MiB", values)
        with room.check("answers in CUDA shared memory"):
            _answers(room, served)
        with room.check("copies of PyTorch"):
            _copies(room)
        with room.check("CUDA shared memory by tritonclient"):
            _by_tritonclient(room, served)
        with room.check("a region beyond its allocation"):
            _beyond(room, served)


def _timed(
    room: Room, served: Served, name: str, values: Array, call: Callable[[], Any], read: Callable[[], Array]
) -> None:
    """Call for some time and write the row; `read` returns the last output."""
    call()
    is_right = bool(np.array_equal(read(), values * 2))
    meter, own_s = CpuMeter(served.running.process.pid), time.process_time()
    began, count = time.perf_counter(), 0
    seconds = room.size(_SECONDS, 0.2)
    while count < _LEAST or time.perf_counter() - began < seconds:
        call()
        count += 1
    each_s = (time.perf_counter() - began) / count
    figures = {
        "gb_per_s": round(2 * values.nbytes / each_s / 1e9, 2),
        "ms": round(each_s * 1e3, 3),
        "server_cpu_ms": round(meter.seconds() / count * 1e3, 2),
        "client_cpu_ms": round((time.process_time() - own_s) / count * 1e3, 2),
        "requests": count,
    }
    room.judge(name, is_right, "" if is_right else "the values are wrong", **figures)


def _by_protocol(protocol: str) -> Callable[[Room, Served, str, Array], None]:
    def measured(room: Room, served: Served, name: str, values: Array) -> None:
        port = served.running.grpc_port if protocol == "grpc" else served.running.http_port
        client = Client(f"{protocol}://127.0.0.1:{port}", timeout_s=30)
        last: list[Array] = []

        def call() -> None:
            last[:] = [served.loop.run_until_complete(client.infer("twice", {"x": values}))["OUTPUT__0"]]

        try:
            _timed(room, served, name, values, call, lambda: last[0])
        finally:
            served.loop.run_until_complete(_close(client))

    return measured


async def _close(client: Client) -> None:
    client.close()
    await asyncio.sleep(0)


class _Connection:
    """Requests whose tensors are in regions: JSON over one connection."""

    def __init__(
        self, port: int, region: str, byte_size: int, *, start: int = 0, target: int = -1, model: str = "twice"
    ) -> None:
        """`start` and `target` are the places of input and output; the output follows the input by default."""
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._path = f"/v2/models/{model}/infer"
        place = {"shared_memory_region": region, "shared_memory_byte_size": byte_size}
        shape = [byte_size // 4] if model == "twice" else [1, byte_size // 4]
        at_start, at_target = (
            {"shared_memory_offset": start},
            {"shared_memory_offset": byte_size if target < 0 else target},
        )
        given = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": {**place, **at_start}}
        taken = {"name": "OUTPUT__0", "parameters": {**place, **at_target}}
        self._body = json.dumps({"inputs": [given], "outputs": [taken]})

    def infer(self) -> None:
        """Execute a request. Raises RuntimeError with the server's text."""
        self._connection.request("POST", self._path, self._body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(content.decode(errors="replace")[:500])


def _by_cuda(room: Room, served: Served, name: str, values: Array) -> None:
    runtime, address = _allocated(room, 2 * values.nbytes)
    region = _REGION + "cuda"
    try:
        runtime.write(address, values.data.cast("B"), 0)
        served.call(served.client.register_cuda_shared_memory(region, runtime.export(address), 0, 2 * values.nbytes))
        try:
            connection = _Connection(served.running.http_port, region, values.nbytes)
            read = lambda: np.frombuffer(runtime.read(address + values.nbytes, values.nbytes, 0), np.float32)  # noqa: E731
            _timed(room, served, name, values, connection.infer, read)
        finally:
            served.call(served.client.unregister_cuda_shared_memory(region))
    finally:
        runtime.free(address)


def _allocated(room: Room, byte_size: int) -> tuple[Any, int]:
    try:
        runtime = load_runtime()
    except CudaError as error:
        if room.has_gpu:
            raise
        raise NotRun(f"no GPU: {error}") from error
    runtime.set_device(0)
    return runtime, runtime.allocate(byte_size)


def _by_system(room: Room, served: Served, name: str, values: Array) -> None:
    path = Path(f"/dev/shm/{_REGION}{os.getpid()}")
    path.write_bytes(bytes(2 * values.nbytes))
    try:
        memory = np.memmap(path, np.float32, "r+")
        memory[: values.size] = values
        served.call(served.client.register_system_shared_memory(path.name, f"/{path.name}", 2 * values.nbytes))
        try:
            connection = _Connection(served.running.http_port, path.name, values.nbytes)
            _timed(room, served, name, values, connection.infer, lambda: np.array(memory[values.size :]))
        finally:
            served.call(served.client.unregister_system_shared_memory(path.name))
    finally:
        path.unlink()


_WAYS = {"cuda": _by_cuda, "system": _by_system, "http": _by_protocol("http"), "grpc": _by_protocol("grpc")}


def _answers(room: Room, served: Served) -> None:
    """Inputs at any place, read where they are or copied, alone and in a batch: the values are right each time."""
    size, step = 4096, 65536
    runtime, address = _allocated(room, 8 * step)
    region, port = _REGION + "answers", served.running.http_port
    served.load("batched")
    values = np.random.default_rng(3).standard_normal((4, size // 4), np.float32)

    def put(row: int, offset: int) -> None:
        runtime.write(address + offset, values[row].tobytes(), 0)

    def is_right(row: int, offset: int) -> bool:
        found = np.frombuffer(runtime.read(address + offset, size, 0), np.float32)
        return bool(np.array_equal(found, 2 * values[row]))

    try:
        served.call(served.client.register_cuda_shared_memory(region, runtime.export(address), 0, 8 * step))
        ways = {"aligned": (0, 4 * step), "not aligned": (4, 4 * step + 4), "in place": (step, step)}
        for name, (start, target) in ways.items():
            right = 0
            for row in range(2):
                put(row, start)
                _Connection(port, region, size, start=start, target=target).infer()
                right += is_right(row, target)
            room.judge(f"answers in CUDA shared memory, {name}", right == 2, right=right)
        places = [(row * step, (4 + row) * step) for row in range(4)]
        for row, (start, _) in enumerate(places):
            put(row, start)
        calls = [_Connection(port, region, size, start=s, target=t, model="batched") for s, t in places]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(_Connection.infer, calls))
        are_right = [is_right(row, target) for row, (_, target) in enumerate(places)]
        room.judge("answers in CUDA shared memory, a batch of 4", all(are_right), right=sum(are_right))
        served.call(served.client.unregister_cuda_shared_memory(region))
    finally:
        runtime.free(address)


def _copies(room: Room) -> None:
    """PyTorch's own copies between host and GPU, with ordinary and with page-locked memory: what a request costs."""
    if not room.has_gpu:
        raise NotRun("no GPU")
    import torch

    for mib in (1, 16, 64):
        host = torch.ones(mib * MIB // 4)
        on_gpu = host.to("cuda")
        ways: dict[str, Callable[[], Any]] = {
            "in": partial(host.to, "cuda"),
            "in_staged": partial(_copy_staged, host),
            "out": on_gpu.cpu,
            "out_pinned": partial(_copy_to_pinned, on_gpu),
            "out_reused": partial(host.copy_, on_gpu),
        }
        figures: dict[str, Any] = {name: _each_ms(call) for name, call in ways.items()}
        room.row(f"copies of PyTorch, {mib} MiB, in ms", "ok", **figures)


def _copy_staged(host: Any) -> Any:
    import torch

    return torch.empty_like(host, pin_memory=True).copy_(host).to("cuda", non_blocking=True)


def _copy_to_pinned(on_gpu: Any) -> Any:
    import torch

    return torch.empty_like(on_gpu, device="cpu", pin_memory=True).copy_(on_gpu)


def _each_ms(call: Callable[[], Any]) -> float:
    import torch

    call()
    torch.cuda.synchronize()
    began, count = time.perf_counter(), 0
    while count < _LEAST or time.perf_counter() - began < 0.15:
        call()
        torch.cuda.synchronize()
        count += 1
    return round((time.perf_counter() - began) / count * 1e3, 3)


def _by_tritonclient(room: Room, served: Served) -> None:
    """The official client's module makes, registers and reads the regions."""
    if not room.has_gpu:
        raise NotRun("no GPU")
    try:
        import tritonclient.grpc as triton
        import tritonclient.utils.cuda_shared_memory as regions
    except RuntimeError as error:
        raise NotRun(str(error)) from error
    values = np.arange(1000, dtype=np.float32)
    client = triton.InferenceServerClient(f"127.0.0.1:{served.running.grpc_port}")
    handle = regions.create_shared_memory_region("official", 2 * values.nbytes, 0)
    regions.set_shared_memory_region(handle, [values])
    client.register_cuda_shared_memory("official", regions.get_raw_handle(handle), 0, 2 * values.nbytes)
    given, taken = triton.InferInput("x", list(values.shape), "FP32"), triton.InferRequestedOutput("OUTPUT__0")
    given.set_shared_memory("official", values.nbytes)
    taken.set_shared_memory("official", values.nbytes, values.nbytes)
    client.infer("twice", [given], outputs=[taken])
    found = regions.get_contents_as_numpy(handle, np.float32, [2 * values.size])[values.size :]
    client.unregister_cuda_shared_memory("official")
    regions.destroy_shared_memory_region(handle)
    room.judge("CUDA shared memory by tritonclient", bool(np.array_equal(found, values * 2)))


def _beyond(room: Room, served: Served) -> None:
    """A region that is longer than its allocation is refused, and the server goes on."""
    runtime, address = _allocated(room, 4 * MIB)
    try:
        served.call(served.client.register_cuda_shared_memory("beyond", runtime.export(address), 0, 1 << 40))
        text = ""
    except Exception as error:  # the client's own class, or the connection's
        text = str(error)
    finally:
        runtime.free(address)
    found = served.infer("twice", {"x": np.ones(4, np.float32)})["OUTPUT__0"]
    room.judge("a region beyond its allocation", "beyond" in text and bool((found == 2).all()), text)
