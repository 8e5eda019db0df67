"""Good requests of every kind, and one in ten that is hostile: every answer is compared, and memory must not grow.

Good requests go to ONNX and Python models, an ensemble and a decoupled model, as JSON and as binary tensors over
HTTP, in single gRPC calls and on gRPC streams; `bench.soak sequences` has sequences. Hostile ones are broken
documents, wrong shapes and names, bodies that stop, connections that are reset, slow bodies and compressed bombs;
each has answers that are right for it. Hostile heads and frames are in `attack` and `fuzz`.

Memory is measured twice, after a tenth of the requests (20,000 at least) and at the end, each time after some
thousand good requests and a pause, so that no garbage of the last hostile ones counts. Short runs do not judge it.
"""

import asyncio
import contextlib
import gzip
import itertools
import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2

from bench import models
from bench.process_tree import MIB, memory
from bench.soak.runner import ANSWER_S, Soak, side_by_side
from naiad.wire.http1_client import Http1ClientConnection, Response, ResponseError

WORKERS = 24
HOSTILE_SHARE = 0.1
MAX_DRIFT_MIB = 20.0
MAX_DRIFT_SHARE = 0.03
_WARM_UP_SHARE, _WARM_UP_COUNT = 0.1, 20_000
"""The requests before memory is first looked at: everything hostile has happened often by then."""
_BOMB_SHARE = 0.005
"""Of the hostile requests: each costs as much as hundreds of others, and most of it here, where it is sent."""
_CALM_COUNT = 5_000
_JUDGED_COUNT = 100_000
"""Runs that are shorter say nothing about memory."""
_QUIET_S = 5.0
"""Time without requests before memory is measured."""
_ROW = 16
_READ_BYTES = 1 << 16
_MOST_ERROR_BYTES = 4096
"""An answer to a hostile request is no longer than this, even if it quotes the request."""
_SERVICE = "/inference.GRPCInferenceService/"
_ADD_SUB_MODELS = ("add_sub", "add_sub", "add_sub_py", "chain")
_BOMB = gzip.compress(bytes(200 << 20), 9)
_LIST_BOMB = gzip.compress(b'{"inputs":[' + b"{}," * 300_000 + b"{}]}", 9)
_ids = itertools.count(1)

Act = Callable[[random.Random], Coroutine[Any, Any, None]]
"""Sends a request, looks at what comes back, and raises _WrongError for what is wrong."""


def write_repository(root: Path) -> Sequence[str]:
    """Write the models and return their names."""
    names = ["add_sub", "add_sub_py", "chain", "count_py"]
    models.write_repository(root, names)
    return names


async def run(soak: Soak) -> None:
    """Send `count` requests, and look at the memory after the first and after the last of them."""
    total = soak.count
    if total >= _JUDGED_COUNT:
        soak.max_drift_mib, soak.max_drift_share = MAX_DRIFT_MIB, MAX_DRIFT_SHARE
    clients = [_Client(soak, number) for number in range(WORKERS)]

    async def send(count: int, hostile_share: float) -> None:
        async def work(soak: Soak, generator: random.Random, number: int) -> None:
            await clients[number].one(generator, hostile_share)

        soak.count = soak.done + count
        await side_by_side(soak, WORKERS, work)

    async def calm() -> float:
        await send(min(_CALM_COUNT, total // 10), 0.0)
        await asyncio.sleep(_QUIET_S)
        return memory(soak.server.process.pid).own / MIB

    try:
        await send(max(int(total * _WARM_UP_SHARE), min(_WARM_UP_COUNT, total // 2)), HOSTILE_SHARE)
        soak.settled_mib = await calm()
        await send(max(0, total - soak.done), HOSTILE_SHARE)
        await calm()
    finally:
        for client in clients:
            await client.close()


class _Connection:
    """One HTTP/1.1 connection, kept alive."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the connection's streams, opened when needed."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        return self._streams

    async def send(self, *pieces: bytes) -> None:
        """Write pieces and let the loop send them."""
        _, writer = await self.streams()
        for piece in pieces:
            writer.write(piece)
        await writer.drain()

    async def answer(self) -> Response:
        """Read one response. Raises EOFError when the server closes before its end."""
        reader, _ = await self.streams()
        http = Http1ClientConnection()
        http.expect()
        response = None
        while response is None:
            data = await reader.read(_READ_BYTES)
            try:
                response = http.receive_data(data) if data else http.receive_eof()
            except ResponseError as error:
                raise EOFError(str(error)) from None
        if not http.can_send:
            self.close()
        return response

    def close(self, *, reset: bool = False) -> None:
        """Close, with a RST when asked for."""
        if self._streams is None:
            return
        _, writer = self._streams
        self._streams = None
        if reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        else:
            writer.close()


class _Client:
    """One of the clients: connections of its own, one request at a time."""

    def __init__(self, soak: Soak, number: int) -> None:
        self._soak = soak
        self._number = number
        self._http = _Connection(soak.server.http_port)
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{soak.server.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._infer = self._channel.unary_unary(_SERVICE + "ModelInfer")
        self._stream: _Stream | None = None
        self._good: Sequence[tuple[str, Act]] = (
            ("HTTP JSON", self._json),
            ("HTTP binary", self._binary),
            ("gRPC", self._unary),
            ("gRPC stream", self._on_stream),
            ("decoupled", self._decoupled),
        )
        self._hostile: Sequence[tuple[str, Act]] = (
            ("broken JSON", self._broken_json),
            ("wrong tensors", self._wrong_tensors),
            ("wrong names", self._wrong_names),
            ("body that stops", self._stopped_body),
            ("reset", self._reset),
            ("slow body", self._slow_body),
            ("gRPC garbage", self._grpc_garbage),
            ("gRPC wrong tensors", self._grpc_wrong),
            ("gRPC cancelled", self._grpc_cancelled),
        )

    async def one(self, generator: random.Random, hostile_share: float) -> None:
        """Send one request, good or hostile."""
        is_hostile = generator.random() < hostile_share
        name, act = generator.choice(self._hostile if is_hostile else self._good)
        if is_hostile and generator.random() < _BOMB_SHARE:
            name, act = "bomb", self._bomb
        try:
            await asyncio.wait_for(act(generator), ANSWER_S)
            self._soak.note(f"hostile {name}" if is_hostile else name)
        except TimeoutError:
            self._soak.hung += 1
            self._soak.mistake(f"{name}: no answer")
        except _WrongError as wrong:
            self._soak.mistake(f"{name}: {wrong}")
        except (OSError, EOFError, grpc.RpcError) as error:
            self._http.close()
            self._soak.mistake(f"{name}: {type(error).__name__}: {error}")
        self._soak.advance()

    async def close(self) -> None:
        """Leave."""
        self._http.close()
        if self._stream is not None:
            await self._stream.close()
        await self._channel.close()

    # --- good requests ----------------------------------------------------------------------------------------------

    async def _json(self, generator: random.Random) -> None:
        model, (a, b) = generator.choice(_ADD_SUB_MODELS), _values(generator)
        request_id = _new_id()
        body = json.dumps({"id": request_id, "inputs": _json_inputs(a, b)}).encode()
        encoding = ""
        if generator.random() < 0.1:
            body, encoding = gzip.compress(body, 1), "Content-Encoding: gzip\r\n"
        await self._http.send(_head(model, len(body), encoding), body)
        answer = await self._http.answer()
        _expect(answer.status == 200, f"{model}: {answer.status} {bytes(answer.body[:200])!r}")
        document = json.loads(bytes(answer.body))
        _expect(document["id"] == request_id, f"the id is {document['id']}, not {request_id}")
        found = {each["name"]: np.array(each["data"], np.float32) for each in document["outputs"]}
        _compare(model, a, b, found)

    async def _binary(self, generator: random.Random) -> None:
        model, (a, b) = generator.choice(_ADD_SUB_MODELS), _values(generator)
        await self._http.send(*_binary_request(model, a, b))
        _check_binary(model, a, b, await self._http.answer())

    async def _unary(self, generator: random.Random) -> None:
        model, (a, b) = generator.choice(_ADD_SUB_MODELS), _values(generator)
        request = _message(model, a, b)
        answer = service_pb2.ModelInferResponse.FromString(await self._infer(request.SerializeToString()))
        _expect(answer.id == request.id, f"the id is {answer.id}, not {request.id}")
        _compare(model, a, b, _outputs(answer))

    async def _on_stream(self, generator: random.Random) -> None:
        model, (a, b) = generator.choice(_ADD_SUB_MODELS), _values(generator)
        request = _message(model, a, b)
        (answer,) = [each async for each in self._streaming().ask(request, 1)]
        _expect(answer.id == request.id, f"the id is {answer.id}, not {request.id}")
        _compare(model, a, b, _outputs(answer))

    async def _decoupled(self, generator: random.Random) -> None:
        count = generator.randrange(1, 6)
        request = service_pb2.ModelInferRequest(model_name="count_py", id=_new_id())
        request.inputs.add(name="COUNT", datatype="INT32", shape=[1])
        request.raw_input_contents.append(np.array([count], np.int32).tobytes())
        answers = [each async for each in self._streaming().ask(request, count)]
        _expect(all(each.id == request.id for each in answers), "a response of another request")
        found = [int(np.frombuffer(each.raw_output_contents[0], np.int32)[0]) for each in answers]
        _expect(found == list(range(count)), f"{found} of {count}")

    def _streaming(self) -> "_Stream":
        if self._stream is None or self._stream.is_over:
            self._stream = _Stream(self._channel)
        return self._stream

    # --- hostile requests -------------------------------------------------------------------------------------------

    async def _refused(self, what: str, *pieces: bytes, statuses: Sequence[int] = (400, 404, 413, 500, 501)) -> None:
        await self._http.send(*pieces)
        answer = await self._http.answer()
        _expect(answer.status in statuses, f"{what}: {answer.status} {bytes(answer.body[:200])!r}")
        _expect(len(answer.body) < _MOST_ERROR_BYTES, f"{what}: an answer of {len(answer.body)} bytes")

    async def _broken_json(self, generator: random.Random) -> None:
        document = bytearray(json.dumps({"inputs": _json_inputs(*_values(generator))}).encode())
        cut = generator.randrange(1, len(document) - 1)
        broken = bytes(document[:cut]) + generator.choice((b"", b"\xff\xfe", b'{"', b"]]]]", b"\0", b"[" * 600))
        await self._refused("broken JSON", _head("add_sub", len(broken)), broken)

    async def _wrong_tensors(self, generator: random.Random) -> None:
        inputs = _json_inputs(*_values(generator))
        change: Mapping[str, Any] = generator.choice(
            (
                {"shape": [1, 17]},
                {"shape": [2, _ROW]},
                {"shape": [1 << 40, 1 << 40]},
                {"datatype": "FP64"},
                {"datatype": "X" * 3000},
                {"data": [[[1]]] * 20},
                {"name": "INPUT\x01\n" + "N" * 5000},
                {"name": None},
                {"parameters": {"shared_memory_region": "none", "shared_memory_byte_size": 64}},
            )
        )
        inputs[0] = {**inputs[0], **change}
        body = json.dumps({"inputs": inputs}).encode()
        await self._refused("wrong tensors", _head("add_sub", len(body)), body)

    async def _wrong_names(self, generator: random.Random) -> None:
        body = json.dumps({"inputs": _json_inputs(*_values(generator))}).encode()
        name = generator.choice(
            ("nothing", "n" * 3000, "..%2f..%2fetc", "%00", "%F0%9F%92%A5", "add_sub/versions/99")
        )
        await self._refused("wrong names", _head(name, len(body)), body, statuses=(400, 404, 414))

    async def _stopped_body(self, generator: random.Random) -> None:
        connection, pieces = await self._fresh(), _binary_request("add_sub_py", *_values(generator))
        content = b"".join(pieces)
        await connection.send(content[: generator.randrange(1, len(content) - 1)])
        if generator.random() < 0.5:
            await asyncio.sleep(generator.uniform(0, 0.05))
        connection.close(reset=generator.random() < 0.5)

    async def _reset(self, generator: random.Random) -> None:
        connection = await self._fresh()
        await connection.send(*_binary_request(generator.choice(_ADD_SUB_MODELS), *_values(generator)))
        if generator.random() < 0.5:
            await asyncio.sleep(generator.uniform(0, 0.01))
        connection.close(reset=True)

    async def _slow_body(self, generator: random.Random) -> None:
        model, (a, b) = "add_sub", _values(generator)
        connection, content = await self._fresh(), b"".join(_binary_request(model, a, b))
        edges = sorted(generator.randrange(1, len(content)) for _ in range(5))
        for start, end in itertools.pairwise([0, *edges, len(content)]):
            await connection.send(content[start:end])
            await asyncio.sleep(generator.uniform(0, 0.1))
        _check_binary(model, a, b, await connection.answer())
        connection.close()

    async def _bomb(self, generator: random.Random) -> None:
        bomb = generator.choice((_BOMB, _LIST_BOMB, _BOMB[: len(_BOMB) // 2]))
        connection = await self._fresh()
        with contextlib.suppress(OSError):  # the server may answer and close before it has everything
            await connection.send(_head("add_sub", len(bomb), "Content-Encoding: gzip\r\n"), bomb)
        try:
            answer = await connection.answer()
        except (OSError, EOFError):
            return
        finally:
            connection.close()
        _expect(answer.status in (400, 413, 500, 503), f"a bomb: {answer.status} {bytes(answer.body[:200])!r}")

    async def _grpc_garbage(self, generator: random.Random) -> None:
        content = bytes(generator.getrandbits(8) for _ in range(generator.randrange(1, 300)))
        await self._grpc_refused("garbage", content)

    async def _grpc_wrong(self, generator: random.Random) -> None:
        request = _message("add_sub", *_values(generator))
        kind = generator.randrange(6)
        if kind == 0:
            request.inputs[0].shape[1] = 17
        elif kind == 1:
            request.inputs[0].name = "N" * 5000
        elif kind == 2:
            request.model_name = "m\n" * 2000
        elif kind == 3:
            request.raw_input_contents.pop()
        elif kind == 4:
            request.inputs[0].contents.fp32_contents.append(1)
        else:
            request.parameters["timeout"].string_param = "t" * 5000
        await self._grpc_refused("wrong tensors", request.SerializeToString())

    async def _grpc_refused(self, what: str, content: bytes) -> None:
        try:
            answer = await self._infer(content)
        except grpc.RpcError as error:
            _expect(error.code() is not grpc.StatusCode.UNAVAILABLE, f"{what}: {error.details()}")
            _expect(len(error.details() or "") < _MOST_ERROR_BYTES, f"{what}: {len(error.details())} characters")
            return
        raise _WrongError(f"{what}: an answer of {len(answer)} bytes")

    async def _grpc_cancelled(self, generator: random.Random) -> None:
        model, (a, b) = generator.choice(_ADD_SUB_MODELS), _values(generator)
        call = self._infer(_message(model, a, b).SerializeToString())
        await asyncio.sleep(generator.uniform(0, 0.003))
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            _compare(model, a, b, _outputs(service_pb2.ModelInferResponse.FromString(await call)))

    async def _fresh(self) -> _Connection:
        connection = _Connection(self._soak.server.http_port)
        await connection.streams()
        return connection


class _Stream:
    """A gRPC stream on which one request after the other is asked."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.stream_stream(_SERVICE + "ModelStreamInfer")()
        self.is_over = False

    async def ask(self, request: Any, count: int) -> AsyncIterator[Any]:
        """Yield a number of responses of a request."""
        try:
            await self._call.write(request.SerializeToString())
            for _ in range(count):
                content = await self._call.read()
                _expect(content is not grpc.aio.EOF, "the stream ended")
                response = service_pb2.ModelStreamInferResponse.FromString(content)
                _expect(not response.error_message, response.error_message)
                yield response.infer_response
        except BaseException:
            self.is_over = True
            raise

    async def close(self) -> None:
        """End the stream."""
        self._call.cancel()


class _WrongError(Exception):
    """What an answer has that it should not have."""


def _expect(is_right: bool, what: str) -> None:
    if not is_right:
        raise _WrongError(what)


Values = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]


def _values(generator: random.Random) -> Values:
    numbers = np.frombuffer(generator.randbytes(4 * _ROW), np.uint16).astype(np.float32)
    return numbers[:_ROW], numbers[_ROW:]


def _compare(model: str, a: Any, b: Any, found: Mapping[str, Any]) -> None:
    total, difference = a + b, a - b
    if model == "chain":
        # Three steps of sum and difference one after the other.
        total, difference = 2 * total, 2 * difference
    for name, expected in (("OUTPUT0", total), ("OUTPUT1", difference)):
        _expect(np.array_equal(found[name].ravel(), expected), f"{model}: {name} is {found[name]}, not {expected}")


def _new_id() -> str:
    return f"soak-{next(_ids)}"


def _json_inputs(a: Any, b: Any) -> list[dict[str, Any]]:
    return [
        {"name": name, "datatype": "FP32", "shape": [1, _ROW], "data": values.tolist()}
        for name, values in (("INPUT0", a), ("INPUT1", b))
    ]


def _head(model: str, length: int, fields: str = "") -> bytes:
    return (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: [::1]\r\n{fields}Content-Length: {length}\r\n\r\n".encode()
    )


def _binary_request(model: str, a: Any, b: Any) -> tuple[bytes, bytes]:
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [1, _ROW], "parameters": {"binary_data_size": 4 * _ROW}}
        for name in ("INPUT0", "INPUT1")
    ]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = header + a.tobytes() + b.tobytes()
    return _head(model, len(body), f"Inference-Header-Content-Length: {len(header)}\r\n"), body


def _check_binary(model: str, a: Any, b: Any, answer: Response) -> None:
    _expect(answer.status == 200, f"{model}: {answer.status} {bytes(answer.body[:200])!r}")
    length = int(answer.headers[b"inference-header-content-length"])
    found, start = {}, length
    for output in json.loads(bytes(answer.body[:length]))["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]] = np.frombuffer(answer.body[start : start + size], np.float32)
        start += size
    _compare(model, a, b, found)


def _message(model: str, a: Any, b: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=_new_id())
    for name, values in (("INPUT0", a), ("INPUT1", b)):
        request.inputs.add(name=name, datatype="FP32", shape=[1, _ROW])
        request.raw_input_contents.append(values.tobytes())
    return request


def _outputs(answer: Any) -> Mapping[str, Any]:
    return {
        output.name: np.frombuffer(content, np.float32)
        for output, content in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
