"""Clients of bound functions, with PyTriton's interface."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from naiad.bind.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from naiad.bind.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientQueueFullError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from naiad.bind.decorators import batch, sample
from naiad.bind.model_config import ModelConfig, Tensor
from naiad.bind.triton import Triton, TritonConfig, TritonSecurityConfig
from support.ports import free_port

FLOATS = np.array([1, 2], np.float32)
may_answer = threading.Event()


@batch
def scale(x, factor):
    return [x * factor]


@sample
def lengths(text):
    return {"length": np.array([len(each) for each in text], np.int64)}


@batch
def count(x):
    for number in range(3):
        yield {"y": x + number}


def describe(requests):
    return [{"y": np.array([[str(sorted(each.parameters.items())).encode()]])} for each in requests]


def wait(requests):
    may_answer.wait(30)
    return [{"y": each["x"]} for each in requests]


def fail(requests):
    raise ValueError("refused")


def endless(requests):
    while True:
        yield [{"y": each["x"]} for each in requests]


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "http_address": "127.0.0.1"}
    config = TritonConfig(
        **ports,
        grpc_address="127.0.0.1",
        http_header_forward_pattern="my-.*",
        grpc_header_forward_pattern="my-.*",
    )
    x, y = Tensor(name="x", shape=(-1,), dtype=np.float32), Tensor(name="y", shape=(-1,), dtype=np.float32)
    text = Tensor(name="y", shape=(1,), dtype=bytes)
    with Triton(config=config) as made:
        made.bind("scale", scale, [x, Tensor(name="factor", shape=(1,), dtype=np.float32)], [y])
        lengths_out = Tensor(name="length", shape=(-1,), dtype=np.int64)
        unbatched = ModelConfig(batching=False)
        made.bind(
            "lengths", lengths, [Tensor(name="text", shape=(-1,), dtype=bytes)], [lengths_out], config=unbatched
        )
        made.bind("count", count, [x], [y], config=ModelConfig(decoupled=True))
        made.bind("endless", endless, [x], [y], config=ModelConfig(decoupled=True))
        made.bind("describe", describe, [x], [text])
        made.bind("wait", wait, [x], [y], config=ModelConfig(max_batch_size=1))
        made.bind("fail", fail, [x], [y])
        made.run()
        yield made


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, triton: Triton) -> str:
    return f"{request.param}://127.0.0.1:{triton.port(request.param)}"


@pytest.fixture
def grpc_url(triton: Triton) -> str:
    return f"grpc://127.0.0.1:{triton.port('grpc')}"


def test_samples_and_batches_by_position_and_name(url: str):
    factor = np.array([3], np.float32)
    with ModelClient(url, "scale") as client:
        assert client.infer_sample(FLOATS, factor)["y"].tolist() == [3, 6]
        assert client.infer_sample(factor=factor, x=FLOATS)["y"].tolist() == [3, 6]
        assert client.infer_batch(np.stack([FLOATS, FLOATS]), np.array([[1], [2]], np.float32))["y"].tolist() == [
            [1, 2],
            [2, 4],
        ]


def test_text_of_models_without_batching(url: str):
    with ModelClient(url, "lengths") as client:
        assert not client.is_batching_supported
        assert client.infer_sample(np.array([b"a", b"bc\0"], object))["length"].tolist() == [1, 3]
        assert client.infer_sample(np.array(["é"]))["length"].tolist() == [2]
        with pytest.raises(PyTritonClientModelDoesntSupportBatchingError):
            client.infer_batch(np.array([[b"a"]]))


def test_parameters_and_headers_reach_function(url: str):
    with ModelClient(url, "describe") as client:
        (text,) = client.infer_sample(FLOATS, parameters={"n": 1}, headers={"my-header": "v"})["y"]
        assert text == b"[('my-header', 'v'), ('n', 1)]"


def test_configuration_of_model(url: str):
    with ModelClient(url, "scale") as client:
        config = client.model_config
        assert [spec.name for spec in config.inputs] == ["x", "factor"]
        assert config.inputs[0].dtype is np.float32
        other = ModelClient.from_existing_client(client)
        assert other._session._config is config
        other.close()


@pytest.mark.parametrize(
    ("inputs", "named", "message"),
    [
        ((), {}, "Provide input data"),
        ((FLOATS,), {"x": FLOATS}, "positional either keyword"),
        (([1.0],), {}, "expected a numpy array"),
        ((FLOATS, FLOATS, FLOATS), {}, "expected at most 2: x, factor"),
        ((np.array([object()]),), {}, "objects of type object"),
    ],
)
def test_wrong_arguments_are_refused(url: str, inputs: Any, named: Any, message: str):
    with ModelClient(url, "scale") as client, pytest.raises(PyTritonClientValueError, match=message):
        client.infer_sample(*inputs, **named)


def test_wrong_parameters_are_refused(url: str):
    with ModelClient(url, "describe") as client, pytest.raises(PyTritonClientValueError, match="'a' is None"):
        client.infer_sample(FLOATS, parameters={"a": None})


def test_errors_of_functions_have_their_text(url: str):
    with (
        ModelClient(url, "fail") as client,
        pytest.raises(PyTritonClientInferenceServerError, match="ValueError: refused"),
    ):
        client.infer_sample(FLOATS)


def test_slow_responses_time_out(url: str):
    may_answer.clear()
    with ModelClient(url, "wait", inference_timeout_s=0.2) as client:
        client.wait_for_model(30)
        with pytest.raises(PyTritonClientTimeoutError, match=r"0\.2 s"):
            client.infer_sample(FLOATS)
    may_answer.set()


def test_absent_model_and_server_time_out(url: str):
    with pytest.raises(PyTritonClientTimeoutError, match="model nothing/<latest>"):
        ModelClient(url, "nothing", lazy_init=False, init_timeout_s=0.2)
    with (
        ModelClient(f"localhost:{free_port()}", "scale", init_timeout_s=0.2) as client,
        pytest.raises(PyTritonClientTimeoutError, match="server http://localhost"),
    ):
        client.infer_sample(FLOATS)


@pytest.mark.parametrize("wrong", ["", "ftp://localhost", "http://localhost:port", None])
def test_wrong_urls_are_refused(wrong: Any):
    with pytest.raises(PyTritonClientInvalidUrlError, match="Invalid url"):
        ModelClient(wrong, "m")


def test_closed_clients_refuse_calls(url: str):
    client = ModelClient(url, "scale")
    client.close()
    client.close()
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample(FLOATS)


def test_models_can_be_unloaded_and_loaded(url: str):
    with ModelClient(url, "describe") as client:
        client.wait_for_model(30)
        client.unload_model()
        with pytest.raises(PyTritonClientTimeoutError):
            client.wait_for_model(0.1)
        client.load_model()
        client.wait_for_model(30)


def test_decoupled_client_iterates_responses(grpc_url: str):
    with DecoupledModelClient(grpc_url, "count") as client:
        assert [each["y"].tolist() for each in client.infer_sample(FLOATS)] == [[1, 2], [2, 3], [3, 4]]
        assert len(list(client.infer_batch(FLOATS[np.newaxis]))) == 3


def test_decoupled_client_left_early_is_free_again(grpc_url: str):
    with DecoupledModelClient(grpc_url, "endless") as client:
        responses = client.infer_sample(FLOATS)
        next(iter(responses))
        with pytest.raises(PyTritonClientInferenceServerError, match="already in progress"):
            next(iter(client.infer_sample(FLOATS)))
        responses.close()
        next(iter(client.infer_sample(FLOATS)))


def test_unused_iterator_does_not_block_the_client(grpc_url: str):
    with DecoupledModelClient(grpc_url, "count") as client:
        client.infer_sample(FLOATS)
        assert len(list(client.infer_sample(FLOATS))) == 3


def test_clients_for_other_transaction_policy_are_refused(url: str, grpc_url: str):
    with ModelClient(url, "count") as client, pytest.raises(PyTritonClientInferenceServerError, match="decoupled"):
        client.infer_sample(FLOATS)
    with (
        DecoupledModelClient(grpc_url, "scale") as decoupled,
        pytest.raises(PyTritonClientInferenceServerError, match="coupled"),
    ):
        next(iter(decoupled.infer_sample(FLOATS)))
    with pytest.raises(PyTritonClientValueError, match="grpc"):
        DecoupledModelClient("http://localhost", "count")


def test_asyncio_clients(url: str, grpc_url: str):
    async def use() -> None:
        async with AsyncioModelClient(url, "scale", lazy_init=False) as client:
            assert (await client.model_config).model_name == "scale"
            factors = [np.array([factor], np.float32) for factor in range(8)]
            results = await asyncio.gather(*[client.infer_sample(FLOATS, factor) for factor in factors])
            assert [each["y"].tolist() for each in results] == [[factor, 2 * factor] for factor in range(8)]
            assert (await client.infer_batch(FLOATS[np.newaxis], factors[1][np.newaxis]))["y"].shape == (1, 2)
        async with AsyncioDecoupledModelClient(grpc_url, "count") as streaming:
            assert [each["y"].tolist() async for each in streaming.infer_sample(FLOATS)] == [[1, 2], [2, 3], [3, 4]]
            assert len([each async for each in streaming.infer_batch(FLOATS[np.newaxis])]) == 3

    asyncio.run(use())


def test_futures_are_answered(url: str):
    with FuturesModelClient(url, "scale", max_workers=4) as client:
        client.wait_for_model(30).result()
        assert client.model_config().result().model_name == "scale"
        futures = [client.infer_sample(FLOATS, np.array([factor], np.float32)) for factor in range(50)]
        assert [future.result()["y"].tolist() for future in futures] == [[n, 2 * n] for n in range(50)]


def test_full_queue_of_futures_is_an_error(url: str):
    may_answer.clear()
    with FuturesModelClient(url, "wait", max_workers=1, max_queue_size=1, non_blocking=True) as client:
        client.model_config().result()
        futures = [client.infer_sample(FLOATS) for _ in range(2)]
        with pytest.raises(PyTritonClientQueueFullError):
            client.infer_sample(FLOATS)
        may_answer.set()
        assert all(future.result()["y"].tolist() == [1, 2] for future in futures)
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample(FLOATS)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_access_token_opens_model_control(protocol: str):
    config = TritonConfig(http_port=0, grpc_port=0, metrics_port=0)
    with Triton(config=config, security_config=TritonSecurityConfig("secret")) as triton:
        triton.bind("fail", fail, [Tensor((1,), np.float32, "x")], [Tensor((1,), np.float32, "y")])
        triton.run()
        url = f"{protocol}://localhost:{triton.port(protocol)}"
        with ModelClient(url, "fail", access_token="secret") as allowed:
            allowed.unload_model()
        with ModelClient(url, "fail") as refused, pytest.raises(PyTritonClientInferenceServerError):
            refused.load_model()
