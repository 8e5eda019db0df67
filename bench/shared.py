"""Requests whose tensors lie in shared memory, as a client makes them."""

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from typing import Self

import numpy as np
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2

from bench import transfer
from bench.payloads import GRPC, Workload
from bench.peers import Running
from bench.transfer import Transfer
from bench.transfer_grpc import GrpcConnection

_INPUT, _OUTPUT = "bench_in", "bench_out"
_Ask = Callable[[], Transfer]


class SharedTensors:
    """One region for a workload's only input and one for its only output."""

    def __init__(self, workload: Workload) -> None:
        ((self._input, self._values),) = workload.inputs.items()
        ((self._output, self._expected),) = workload.outputs.items()
        self._model = workload.model
        self._objects = {
            name: shared_memory.SharedMemory(f"{name}_{os.getpid()}", create=True, size=array.nbytes)
            for name, array in ((_INPUT, self._values), (_OUTPUT, self._expected))
        }
        self._copy = np.empty_like(self._expected)

    def __enter__(self) -> Self:
        """Use the regions."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove them."""
        for each in self._objects.values():
            each.close()
            each.unlink()

    def register(self, http_port: int) -> None:
        """Register the regions with a server."""
        with triton_http.InferenceServerClient(f"127.0.0.1:{http_port}") as client:
            for name, each in self._objects.items():
                client.register_system_shared_memory(name, each.name, self._values.nbytes)

    @contextlib.contextmanager
    def asker(self, transport: str, server: Running, *, is_copied: bool) -> Iterator[_Ask]:
        """Give a function that makes one request over a connection of its own.

        `is_copied`: the client's data is elsewhere, so it is copied into the region and out of the other each time,
        and both count. Otherwise the input stays where it is.
        """
        view = np.frombuffer(self._memory(_INPUT), self._values.dtype, self._values.size)
        view[:] = self._values.ravel()
        with contextlib.ExitStack() as stack:
            ask = self._over_grpc(stack, server) if transport == GRPC else self._over_http(stack, server)
            yield (lambda: self._copied(ask)) if is_copied else ask
        del view

    def _over_http(self, stack: contextlib.ExitStack, server: Running) -> _Ask:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port), timeout=60))
        # Head and body are sent apart, and both are small: without this the second would wait for an acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps(
            {"inputs": [self._described(self._input, _INPUT)], "outputs": [self._output_wish()]}
        ).encode()
        path, headers = f"/v2/models/{self._model}/infer", [("Content-Type", "application/json")]
        return lambda: transfer.round_trip(connection, path, headers, body)

    def _over_grpc(self, stack: contextlib.ExitStack, server: Running) -> _Ask:
        connection = stack.enter_context(contextlib.closing(GrpcConnection(server.grpc_port)))
        request = service_pb2.ModelInferRequest(model_name=self._model)
        tensors = [request.inputs.add(name=self._input, datatype="FP32", shape=self._values.shape)]
        tensors.append(request.outputs.add(name=self._output))
        for tensor, region in zip(tensors, (_INPUT, _OUTPUT), strict=True):
            tensor.parameters["shared_memory_region"].string_param = region
            tensor.parameters["shared_memory_byte_size"].int64_param = self._values.nbytes
        message = request.SerializeToString()
        body = b"\0" + struct.pack(">I", len(message)) + message
        response = service_pb2.ModelInferResponse(
            model_name=self._model, model_version="1", raw_output_contents=[b""]
        )
        response.outputs.add(name=self._output, datatype="FP32", shape=self._expected.shape)
        headers = [("content-type", "application/grpc"), ("te", "trailers")]
        path, answer_bytes = "/inference.GRPCInferenceService/ModelInfer", response.ByteSize() + 5
        return lambda: connection.call(path, headers, body, answer_bytes)

    def _memory(self, region: str) -> memoryview:
        memory = self._objects[region].buf
        assert memory is not None, "used after its end"
        return memory

    def _described(self, name: str, region: str) -> dict[str, object]:
        return {"name": name, "datatype": "FP32", "shape": self._values.shape, **self._parameters(region)}

    def _output_wish(self) -> dict[str, object]:
        return {"name": self._output, **self._parameters(_OUTPUT)}

    def _parameters(self, region: str) -> dict[str, object]:
        return {"parameters": {"shared_memory_region": region, "shared_memory_byte_size": self._values.nbytes}}

    def _copied(self, ask: _Ask) -> Transfer:
        began = time.perf_counter()
        np.copyto(np.frombuffer(self._memory(_INPUT), np.float32, self._values.size), self._values.ravel())
        copied = time.perf_counter()
        found = ask()
        done = time.perf_counter()
        np.copyto(self._copy, self._answer())
        return Transfer(copied - began + found.up_s, found.wait_s, found.down_s + time.perf_counter() - done)

    def _answer(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        flat = np.frombuffer(self._memory(_OUTPUT), np.float32, self._expected.size)
        return flat.reshape(self._expected.shape)

    def check(self) -> None:
        """Compare what lies in the output's region. Raises AssertionError; empties it for the next time."""
        np.testing.assert_array_equal(self._answer(), self._expected)
        self._answer()[:] = 0
