"""Bound functions behind a real server, with Triton's own clients."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from naiad.bind.decorators import batch, first_value
from naiad.bind.exceptions import (
    PyTritonInvalidOperationError,
    PyTritonRuntimeError,
    PyTritonUnrecoverableError,
)
from naiad.bind.model_config import DynamicBatcher, ModelConfig, ModelWarmup, Tensor, WarmupInput
from naiad.bind.triton import Triton, TritonConfig, TritonSecurityConfig
from naiad.bind.triton_config import server_options
from naiad.server.hosted import HostedServer
from support.model_repository import write_identity

VALUES = [Tensor(name="x", shape=(-1,), dtype=np.float32)]
RESULTS = [Tensor(name="y", shape=(-1,), dtype=np.float32)]
ANY_PORTS = {
    "http_port": 0,
    "grpc_port": 0,
    "metrics_port": 0,
    "http_address": "127.0.0.1",
    "grpc_address": "127.0.0.1",
}


def new_triton(**options: Any) -> Triton:
    return Triton(config=TritonConfig(**ANY_PORTS, **options))


@pytest.fixture
def triton() -> Iterator[Triton]:
    with new_triton() as made:
        yield made


@batch
def double(x):
    return {"y": x * 2}


def bind(triton: Triton, name: str, infer: Any, **options: Any) -> None:
    triton.bind(name, infer, VALUES, RESULTS, **options)


def infer_with(library: Any, triton: Triton, model: str, values: Any, **options: Any) -> np.ndarray:
    port = triton.port("grpc" if library is grpc else "http")
    array = np.asarray(values, np.float32)
    tensor = library.InferInput("x", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
        return client.infer(model, [tensor], **options).as_numpy("y")


LIBRARIES = pytest.mark.parametrize("library", [http, grpc], ids=["http", "grpc"])


@LIBRARIES
def test_function_answers_over_both_protocols(triton: Triton, library: Any):
    bind(triton, "double", double)
    triton.run()
    assert infer_with(library, triton, "double", [[1, 2], [3, 4]]).tolist() == [[2, 4], [6, 8]]


def test_models_can_be_bound_while_serving(triton: Triton):
    triton.run()
    bind(triton, "late", double)
    assert infer_with(http, triton, "late", [[1]]).tolist() == [[2]]
    with pytest.raises(PyTritonInvalidOperationError, match="bound already"):
        bind(triton, "late", double)


def test_versions_of_a_model_are_served(triton: Triton):
    bind(triton, "m", double)
    triton.run()
    bind(triton, "m", batch(lambda x: {"y": x * 3}), model_version=2)
    assert infer_with(http, triton, "m", [[1]], model_version="1").tolist() == [[2]]
    assert infer_with(http, triton, "m", [[1]]).tolist() == [[3]]


def test_list_of_functions_executes_at_the_same_time(triton: Triton):
    barrier = threading.Barrier(2, timeout=30)

    def meet(requests):
        barrier.wait()
        return [{"y": each["x"]} for each in requests]

    bind(triton, "pair", [meet, meet], config=ModelConfig(max_batch_size=1))
    triton.run()
    with http.InferenceServerClient(f"127.0.0.1:{triton.port()}", concurrency=2) as client:
        tensor = http.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
        pending = [client.async_infer("pair", [tensor]) for _ in range(2)]
        assert [each.get_result().as_numpy("y").tolist() for each in pending] == [[[1]], [[1]]]


def test_coroutine_functions_execute_concurrently(triton: Triton):
    import asyncio

    arrived: list[int] = []

    async def meet(requests):
        arrived.append(len(requests))
        while len(arrived) < 4:
            await asyncio.sleep(0.001)
        return [{"y": each["x"]} for each in requests]

    bind(triton, "meet", meet, config=ModelConfig(max_batch_size=1))
    triton.run()
    with http.InferenceServerClient(f"127.0.0.1:{triton.port()}", concurrency=4) as client:
        tensor = http.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
        for each in [client.async_infer("meet", [tensor]) for _ in range(4)]:
            each.get_result()


def test_waiting_requests_share_a_batch(triton: Triton):
    sizes: list[int] = []
    may_go = threading.Event()

    @batch
    def gather(x):
        may_go.wait(30)
        sizes.append(len(x))
        return {"y": x}

    bind(triton, "gather", gather, config=ModelConfig(max_batch_size=8, batcher=DynamicBatcher()))
    triton.run()
    with http.InferenceServerClient(f"127.0.0.1:{triton.port()}", concurrency=9) as client:
        tensor = http.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
        pending = [client.async_infer("gather", [tensor]) for _ in range(9)]
        _wait_for(lambda: _pending_count(triton, "gather") >= 8)
        may_go.set()
        for each in pending:
            each.get_result()
    assert sum(sizes) == 9
    assert max(sizes) > 1


def _pending_count(triton: Triton, model: str) -> int:
    import urllib.request

    text = urllib.request.urlopen(f"http://127.0.0.1:{triton.port('metrics')}/metrics").read().decode()
    lines = [
        each for each in text.splitlines() if each.startswith("nv_inference_pending_request_count{") and model in each
    ]
    return sum(int(float(each.rpartition(" ")[2])) for each in lines)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not become true"
        time.sleep(0.01)


def _stream(triton: Triton, model: str, count: int) -> list[Any]:
    received: queue.Queue[Any] = queue.Queue()
    with grpc.InferenceServerClient(f"127.0.0.1:{triton.port('grpc')}") as client:
        client.start_stream(lambda result, error: received.put(error or result))
        tensor = grpc.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
        client.async_stream_infer(model, [tensor])
        found = [received.get(timeout=30) for _ in range(count)]
        client.stop_stream()
    return found


@pytest.mark.parametrize("is_async", [False, True])
def test_generators_send_several_responses(triton: Triton, is_async: bool):
    @batch
    def count(x):
        for number in range(3):
            yield {"y": x + number}

    @batch
    async def count_async(x):
        for number in range(3):
            yield {"y": x + number}

    bind(triton, "count", count_async if is_async else count, config=ModelConfig(decoupled=True))
    triton.run()
    assert [each.as_numpy("y").tolist() for each in _stream(triton, "count", 3)] == [[[1]], [[2]], [[3]]]


def test_generators_of_two_clients_take_turns(triton: Triton):
    """A generator that waits for another one ends only if both run."""
    seen: set[float] = set()

    def meet(requests):
        seen.add(float(requests[0]["x"][0, 0]))
        while len(seen) < 2:
            yield [{"y": each["x"]} for each in requests]
            time.sleep(0.001)

    bind(triton, "meet", meet, config=ModelConfig(decoupled=True, max_batch_size=1))
    triton.run()
    ended: queue.Queue[Any] = queue.Queue()
    with grpc.InferenceServerClient(f"127.0.0.1:{triton.port('grpc')}") as client:
        client.start_stream(lambda result, error: ended.put(error or result.get_response().parameters))
        for value in (1, 2):
            tensor = grpc.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.full((1, 1), value, np.float32))
            client.async_stream_infer("meet", [tensor], enable_empty_final_response=True)
        final_count = 0
        while final_count < 2:
            final_count += ended.get(timeout=30)["triton_final_response"].bool_param
        client.stop_stream()


def test_failing_generator_ends_its_stream_with_error(triton: Triton):
    @batch
    def fail(x):
        yield {"y": x}
        raise ValueError("no more")

    bind(triton, "fail", fail, config=ModelConfig(decoupled=True))
    triton.run()
    first, second = _stream(triton, "fail", 2)
    assert first.as_numpy("y").tolist() == [[1]]
    assert "ValueError: no more" in second.message()


@LIBRARIES
def test_errors_of_functions_reach_clients(triton: Triton, library: Any, caplog: pytest.LogCaptureFixture):
    def fail(requests):
        raise ValueError("wrong input")

    bind(triton, "fail", fail)
    triton.run()
    with caplog.at_level(logging.INFO), pytest.raises(InferenceServerException, match="ValueError: wrong input"):
        infer_with(library, triton, "fail", [[1]], request_id="my-id")
    line = next(each for each in caplog.messages if "wrong input" in each)
    assert "my-id" in line
    assert "test_bind_serving.py:" in line


def test_unrecoverable_error_stops_server(triton: Triton):
    def fail(requests):
        raise PyTritonUnrecoverableError("the device is lost")

    bind(triton, "fail", fail)
    threading.Thread(target=lambda: _send_when_alive(triton), daemon=True).start()
    with pytest.raises(PyTritonRuntimeError, match="the device is lost"):
        triton.serve()
    assert not triton.is_alive()


def _send_when_alive(triton: Triton) -> None:
    _wait_for(triton.is_alive)
    with pytest.raises(InferenceServerException):
        infer_with(http, triton, "fail", [[1]])


def test_strict_models_refuse_wrong_outputs(triton: Triton):
    bind(triton, "strict", batch(lambda x: {"y": x.astype(np.float64)}), strict=True)
    triton.run()
    with pytest.raises(InferenceServerException, match="dtype float64"):
        infer_with(http, triton, "strict", [[1]])


def test_parameters_and_decorators_read_the_request(triton: Triton):
    def scale(requests):
        return [{"y": each["x"] * each.parameters.get("scale", 1)} for each in requests]

    bind(triton, "scale", scale)
    bind(triton, "first", batch(first_value("x")(lambda x: {"y": np.full((1, 1), x, np.float32)})))
    triton.run()
    assert infer_with(grpc, triton, "scale", [[2]], parameters={"scale": 5}).tolist() == [[10]]
    assert infer_with(grpc, triton, "first", [[2]]).tolist() == [[2]]


def test_warm_up_executes_before_model_is_ready(triton: Triton, tmp_path: Path):
    np.save(tmp_path / "x.npy", np.array([7, 8], np.float32))
    shapes: list[Any] = []

    @batch
    def record(x):
        shapes.append(x.tolist())
        return {"y": x}

    samples = [
        ModelWarmup("zeros", 2, {"x": WarmupInput(np.float32, (3,), zero_data=True)}, 2),
        ModelWarmup("file", 1, {"x": WarmupInput(np.float32, (2,), input_data_file=str(tmp_path / "x.npy"))}, 1),
    ]
    bind(triton, "warm", record, config=ModelConfig(model_warmup=samples))
    triton.run()
    assert shapes == [[[0, 0, 0]] * 2, [[0, 0, 0]] * 2, [[7, 8]]]


def test_failed_start_names_model_and_leaves_nothing(triton: Triton):
    @batch
    def fail(x):
        raise ValueError("cold")

    bind(
        triton,
        "m",
        fail,
        config=ModelConfig(
            model_warmup=[ModelWarmup("w", 1, {"x": WarmupInput(np.float32, (1,), zero_data=True)}, 1)]
        ),
    )
    with pytest.raises(PyTritonRuntimeError, match=r"m version 1: .*ValueError: cold"):
        triton.run()
    assert not triton.is_alive()


def test_failed_late_bind_can_be_repeated(triton: Triton):
    def fail(requests):
        raise ValueError("cold")

    triton.run()
    sample = ModelWarmup("w", 1, {"x": WarmupInput(np.float32, (1,), zero_data=True)}, 1)
    with pytest.raises(PyTritonRuntimeError, match="ValueError: cold"):
        bind(triton, "m", fail, config=ModelConfig(model_warmup=[sample]))
    bind(triton, "m", double)
    assert infer_with(http, triton, "m", [[1]]).tolist() == [[2]]


def test_taken_port_is_an_error(triton: Triton):
    triton.run()
    with Triton(config=TritonConfig(**{**ANY_PORTS, "http_port": triton.port()})) as other:
        with pytest.raises(PyTritonRuntimeError, match=str(triton.port())):
            other.run()
        assert not other.is_alive()


def test_stop_answers_requests_in_flight(triton: Triton):
    has_begun, may_go = threading.Event(), threading.Event()

    def wait(requests):
        has_begun.set()
        may_go.wait(30)
        return [{"y": each["x"]} for each in requests]

    bind(triton, "wait", wait)
    triton.run()
    results: list[Any] = []
    sender = threading.Thread(target=lambda: results.append(infer_with(http, triton, "wait", [[1]])))
    sender.start()
    assert has_begun.wait(30)
    stopper = threading.Thread(target=triton.stop)
    stopper.start()
    may_go.set()
    sender.join()
    stopper.join()
    assert results[0].tolist() == [[1]]
    assert not triton.is_alive()


def test_stopped_server_can_run_again(triton: Triton):
    bind(triton, "double", double)
    triton.run()
    assert triton.stop()
    assert not triton.stop()
    triton.run()
    assert infer_with(http, triton, "double", [[1]]).tolist() == [[2]]


def test_repository_models_are_served_too(tmp_path: Path):
    write_identity(tmp_path)
    with new_triton(model_repository=tmp_path) as triton:
        bind(triton, "double", double)
        triton.run()
        with http.InferenceServerClient(f"127.0.0.1:{triton.port()}") as client:
            assert client.is_model_ready("identity")
            assert client.is_model_ready("double")


def test_response_cache_answers_equal_requests():
    calls: list[int] = []

    @batch
    def count(x):
        calls.append(1)
        return {"y": x}

    with new_triton(cache_config=["local,size=1000000"]) as triton:
        bind(triton, "cached", count, config=ModelConfig(response_cache=True))
        triton.run()
        for _ in range(3):
            assert infer_with(http, triton, "cached", [[1]]).tolist() == [[1]]
    assert len(calls) == 1


def test_security_config_protects_model_control():
    security = TritonSecurityConfig()
    with Triton(config=TritonConfig(**ANY_PORTS), security_config=security) as triton:
        bind(triton, "double", double)
        triton.run()
        with http.InferenceServerClient(f"127.0.0.1:{triton.port()}") as client:
            with pytest.raises(InferenceServerException):
                client.unload_model("double")
            client.unload_model("double", headers={"triton-access-token": triton.get_access_token()})


def test_hosted_server_may_be_stopped_again(tmp_path: Path):
    write_identity(tmp_path)
    server = HostedServer(server_options(TritonConfig(**ANY_PORTS), None, tmp_path))
    server.start()
    assert [server.stop(), server.stop()] == [True, True]
    assert not server.is_alive
