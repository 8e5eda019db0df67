"""The timing of requests on a real server: where injected times appear, and that the parts fit into the whole."""

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from naiad.client import Client, InferResult
from naiad.tools.perf.statistics.timing import RequestParts, ServerTiming, parse_server_timing, waterfall
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_identity
from support.server_process import ServerProcess, serving

FIELD = "x-naiad-timing"
JSON = {"shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}

Answer = tuple[object, str | None]
"""Status, and the value of the timing."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    write_identity(root, "plain")
    write_identity(root, "held", extra="dynamic_batching { max_queue_delay_microseconds: 5000 }")
    write_identity(root, "slow", parameters={"execute_delay_ms": "30"})
    write_identity(root, "cached", parameters={"execute_delay_ms": "30"}, extra="response_cache { enable: true }")
    write_ensemble(
        root,
        "pair",
        [tensor("INPUT0", dims="-1")],
        [tensor("OUTPUT0", dims="-1")],
        [("plain", {"INPUT0": "INPUT0"}, {"OUTPUT0": "t"}), ("slow", {"INPUT0": "t"}, {"OUTPUT0": "OUTPUT0"})],
    )
    flags = [f"--model-repository={root}", "--cache-config=local,size=1000000"]
    with serving(tmp_path_factory.mktemp("server") / "log", *flags) as running:
        yield running


def ask_http(client: httpx.Client, model: str, timing: str | None = "1", name: str = "INPUT0") -> Answer:
    body = json.dumps({"inputs": [{"name": name, **JSON}]})
    headers = {} if timing is None else {FIELD: timing}
    response = client.post(f"/v2/models/{model}/infer", content=body, headers=headers)
    return response.status_code, response.headers.get("server-timing")


def ask_grpc(channel: grpc.Channel, model: str, timing: str | None = "1", name: str = "INPUT0") -> Answer:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name=name, datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(np.ones(4, np.float32).tobytes())
    call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
    try:
        _, ended = call.with_call(request, metadata=() if timing is None else ((FIELD, timing),))
    except grpc.RpcError as error:
        ended = error
    return ended.code(), dict(ended.trailing_metadata()).get("server-timing")


@pytest.fixture(params=["http1", "http2", "grpc"])
def ask(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Callable[..., Answer]]:
    if request.param == "grpc":
        with grpc.insecure_channel(server.grpc_url) as channel:
            yield partial(ask_grpc, channel)
        return
    is_http2 = request.param == "http2"
    with httpx.Client(
        base_url=f"http://{server.http_url}", http1=not is_http2, http2=is_http2, timeout=60, verify=False
    ) as client:
        yield partial(ask_http, client)


def timing_of(answer: Answer) -> ServerTiming:
    timing = parse_server_timing(answer[1] or "")
    assert timing is not None, answer
    return timing


def medians(ask: Callable[..., Answer], model: str, count: int = 30) -> RequestParts:
    """Return the medians of the parts that the server names."""
    rows = [timing_of(ask(model)).durations_ns for _ in range(count)]
    return RequestParts(0, 0, *(statistics.median(column) for column in zip(*rows, strict=True)), 0)


def test_parts_fit_into_the_whole(ask: Callable[..., Answer]) -> None:
    fitting = 0
    for _ in range(200):
        begin_ns = time.monotonic_ns()
        answer = ask("plain")
        end_ns = time.monotonic_ns()
        parts, is_one_clock = waterfall(begin_ns, begin_ns, end_ns, end_ns, timing_of(answer))
        fitting += is_one_clock and abs(sum(parts) - (end_ns - begin_ns)) <= 0.02 * (end_ns - begin_ns)
    assert fitting >= 198


def test_batching_delay_appears_only_in_hold(ask: Callable[..., Answer]) -> None:
    plain, held = medians(ask, "plain"), medians(ask, "held")
    gains = {name: after - before for name, before, after in zip(RequestParts._fields, plain, held, strict=True)}
    hold_ns = gains.pop("hold")
    assert hold_ns > 4_000_000
    assert max(gains.values()) < hold_ns / 4, gains


def test_busy_instance_appears_in_queue(ask: Callable[..., Answer]) -> None:
    with ThreadPoolExecutor(4) as pool:
        timings = [timing_of(answer) for answer in pool.map(ask, ["slow"] * 4)]
    last = max(timings, key=lambda timing: timing.arrival_ns + sum(timing.durations_ns))
    assert last.queue_ns > last.compute_ns > last.hold_ns


def test_steps_of_ensemble_are_within_compute(ask: Callable[..., Answer]) -> None:
    timing = timing_of(ask("pair"))
    (first, first_ns), (second, second_ns) = timing.steps
    assert (first, second) == ("plain", "slow")
    assert first_ns + second_ns <= timing.compute_ns < sum(timing.durations_ns)
    assert (timing.gather_ns, timing.scatter_ns) == (0, 0)


def test_cached_response_names_the_cache(ask: Callable[..., Answer]) -> None:
    ask("cached")
    hit = timing_of(ask("cached"))
    assert hit.cache_ns > 0
    assert (hit.queue_ns, hit.hold_ns, hit.gather_ns, hit.compute_ns, hit.scatter_ns) == (0,) * 5


def test_errors_have_their_timing(ask: Callable[..., Answer]) -> None:
    status, value = answer = ask("plain", name="WRONG")
    assert status in (400, grpc.StatusCode.INVALID_ARGUMENT)
    timing = timing_of(answer)
    assert timing.parse_ns > 0
    assert timing.compute_ns == 0
    assert value is not None
    assert "cache" not in value


@pytest.mark.parametrize("value", [None, "0", "yes"])
def test_only_requests_that_ask_are_timed(ask: Callable[..., Answer], value: str | None) -> None:
    status, timing = ask("plain", value)
    assert status in (200, grpc.StatusCode.OK)
    assert timing is None


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_client_reads_the_timing(server: ServerProcess, scheme: str) -> None:
    url = server.http_url if scheme == "http" else server.grpc_url

    async def infer() -> InferResult:
        async with Client(f"{scheme}://{url}", headers={FIELD: "1"}) as client:
            return await client.infer("plain", {"INPUT0": np.ones((1, 4), np.float32)})

    result = asyncio.run(infer())
    assert parse_server_timing(result.headers["server-timing"]) is not None
