"""Bound functions that raise what is no `Exception`: the request fails, and the model serves on."""

import asyncio
import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from naiad.bind.model_config import ModelConfig, Tensor
from naiad.bind.triton import Triton, TritonConfig

VALUES = [Tensor(name="x", shape=(-1,), dtype=np.float32)]
RESULTS = [Tensor(name="y", shape=(-1,), dtype=np.float32)]


class Unreadable(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise Unreadable


def _too_deep(depth: int = 0) -> int:
    return _too_deep(depth + 1) + 1


def _cancelled_loop() -> None:
    async def cancel() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    asyncio.run(cancel())


def _raising(error: Callable[[], BaseException]) -> Callable[[], object]:
    def fail() -> None:
        raise error()

    return fail


FAULTS: dict[str, Callable[[], object]] = {
    "KeyboardInterrupt": _raising(KeyboardInterrupt),
    "SystemExit": _raising(SystemExit),
    "GeneratorExit": _raising(GeneratorExit),
    "CancelledError": _raising(asyncio.CancelledError),
    "BaseExceptionGroup": _raising(lambda: BaseExceptionGroup("several", [KeyboardInterrupt()])),
    "MemoryError": _raising(MemoryError),
    "RecursionError": _too_deep,
    "Unreadable": _raising(Unreadable),
}
KINDS = list(FAULTS)


def _check(requests: Any) -> list[dict[str, Any]]:
    """Do what the first value says: 0 is well, other numbers are faults."""
    number = int(requests[0]["x"][0, 0])
    if number == -1:
        _cancelled_loop()
    elif number:
        FAULTS[KINDS[number - 1]]()
    return [{"y": each["x"]} for each in requests]


def plain(requests: Any) -> Any:
    return _check(requests)


async def coroutine(requests: Any) -> Any:
    await asyncio.sleep(0)
    return _check(requests)


def generator(requests: Any) -> Any:
    yield _check(requests)


async def async_generator(requests: Any) -> Any:
    await asyncio.sleep(0)
    yield _check(requests)


async def orphan(requests: Any) -> Any:
    """Leave a task that raises behind."""
    number = int(requests[0]["x"][0, 0])
    if number:
        asyncio.get_running_loop().call_soon(FAULTS[KINDS[number - 1]])
        await asyncio.sleep(0.01)
        raise ValueError("with an orphan")
    return [{"y": each["x"]} for each in requests]


WHOLE = (plain, coroutine, generator, async_generator, orphan)
STREAMED = (plain, coroutine, generator, async_generator)


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    ports = {f"{service}_port": 0 for service in ("http", "grpc", "metrics")}
    hosts = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1"}
    with Triton(config=TritonConfig(**ports, **hosts)) as made:
        for function in WHOLE:
            made.bind(function.__name__, function, VALUES, RESULTS, config=ModelConfig(max_batch_size=4))
        for function in STREAMED:
            config = ModelConfig(max_batch_size=4, decoupled=True)
            made.bind(f"stream_{function.__name__}", function, VALUES, RESULTS, config=config)
        made.run()
        yield made


def _tensor(library: Any, number: float) -> Any:
    return library.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.full((1, 1), number, np.float32))


def _infer(triton: Triton, model: str, number: float) -> str:
    """Return the error of a request, empty for success; within the client's limit of 60 s."""
    with http.InferenceServerClient(f"127.0.0.1:{triton.port()}") as client:
        try:
            client.infer(model, [_tensor(http, number)])
        except InferenceServerException as error:
            return str(error)
        assert client.is_server_ready()
        assert client.is_model_ready(model)
    return ""


@pytest.mark.parametrize("model", [function.__name__ for function in WHOLE])
def test_function_that_raises_anything_fails_one_request(triton: Triton, model: str) -> None:
    for number, kind in enumerate(KINDS, 1):
        expected = "with an orphan" if model == "orphan" else kind
        assert expected in _infer(triton, model, number)
        assert not _infer(triton, model, 0)


def test_cancelled_loop_of_a_function_fails_one_request(triton: Triton) -> None:
    assert "CancelledError" in _infer(triton, "plain", -1)
    assert not _infer(triton, "plain", 0)


@pytest.mark.parametrize("model", [f"stream_{function.__name__}" for function in STREAMED])
def test_stream_that_raises_anything_ends_with_its_error(triton: Triton, model: str) -> None:
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc.InferenceServerClient(f"127.0.0.1:{triton.port('grpc')}") as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        for number, kind in enumerate(KINDS, 1):
            client.async_stream_infer(model, [_tensor(grpc, number)])
            result, error = results.get(timeout=60)
            assert kind in str(error), (kind, result)
            client.async_stream_infer(model, [_tensor(grpc, 0)])
            result, error = results.get(timeout=60)
            assert error is None
            assert result.as_numpy("y").tolist() == [[0]]
        client.stop_stream()
