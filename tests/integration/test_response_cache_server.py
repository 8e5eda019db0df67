"""Cached responses through a real server: in its own memory, and in a real Redis that comes and goes."""

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from redis import Redis as RedisClient

from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_identity
from support.redis_server import Redis
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_CACHED = "response_cache { enable: true }"


def write_models(root: Path) -> Path:
    write_identity(root, "cached", parameters={"execute_delay_ms": "50"}, extra=_CACHED)
    write_identity(root, "plain")
    write_ensemble(
        root,
        "pair",
        [tensor("A", dims="-1")],
        [tensor("B", dims="-1")],
        [("plain", {"INPUT0": "A"}, {"OUTPUT0": "t"}), ("plain", {"INPUT0": "t"}, {"OUTPUT0": "B"})],
        extra=_CACHED,
    )
    return root


def infer(client, model="cached", value=1.0, name="INPUT0"):
    given = grpcclient.InferInput(name, [1, 4], "FP32")
    given.set_data_from_numpy(np.full((1, 4), value, np.float32))
    return client.infer(model, [given])


def origins(client, http, value) -> list[str]:
    found = [infer(client, value=value).get_response().parameters["cache"].string_param for _ in range(2)]
    given = httpclient.InferInput("INPUT0", [1, 4], "FP32")
    given.set_data_from_numpy(np.full((1, 4), value, np.float32))
    return [*found, http.infer("cached", [given]).get_response()["parameters"]["cache"]]


def counts(client, model="cached"):
    found = client.get_inference_statistics(model).model_stats[0]
    stats = found.inference_stats
    return stats.cache_hit.count, stats.cache_miss.count, found.execution_count, stats.success.count


def metric(server, name: str) -> float:
    text = urllib.request.urlopen(f"http://{server.metrics_url}/metrics", timeout=60).read().decode()
    (line,) = [line for line in text.splitlines() if line.startswith(name) and 'model="plain"' not in line][:1]
    return float(line.split()[-1])


def test_local(tmp_path: Path, start_server) -> None:
    server = start_server(write_models(tmp_path / "models"), "--cache-config=local,size=100000")
    server.wait_ready()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for _ in range(3):
            assert (infer(client).as_numpy("OUTPUT0") == 1).all()
        assert (infer(client, value=2.0).as_numpy("OUTPUT0") == 2).all()
        assert counts(client) == (2, 2, 2, 4)
        for _ in range(2):
            assert (infer(client, "pair", name="A").as_numpy("B") == 1).all()
        assert counts(client, "pair") == (1, 1, 1, 2)
        assert metric(server, "naiad_cache_entries") == 3
        assert metric(server, 'nv_cache_num_hits_per_model{model="cached"') == 2


def test_responses_say_whether_they_come_from_the_cache(tmp_path: Path, start_server) -> None:
    server = start_server(write_models(tmp_path / "models"), "--cache-config=local,size=100000")
    server.wait_ready()
    with (
        grpcclient.InferenceServerClient(server.grpc_url) as client,
        httpclient.InferenceServerClient(server.http_url) as http,
    ):
        assert origins(client, http, 1.0) == ["miss", "hit", "hit"]
        assert "cache" not in infer(client, "plain").get_response().parameters


def test_a_model_takes_no_more_than_its_share(tmp_path: Path, start_server) -> None:
    root = tmp_path / "models"
    limit = {"response_cache_max_bytes": "1200"}
    write_identity(root, "greedy", parameters=limit, extra=_CACHED)
    write_identity(root, "modest", extra=_CACHED)
    server = start_server(root, "--cache-config=local,size=100000")
    server.wait_ready()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        infer(client, "modest")
        for value in range(10):
            infer(client, "greedy", value=value)
        assert metric(server, "naiad_cache_entries") == 3
        assert metric(server, "naiad_cache_evictions_total") == 8
        infer(client, "modest")
        assert counts(client, "modest")[:2] == (1, 1)


def test_model_without_configured_cache_is_reported(tmp_path: Path, start_server) -> None:
    server = start_server(write_models(tmp_path / "models"))
    server.wait_ready()
    assert "the server has no cache: start it with --cache-config" in server.log_text()


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("local,size=many", "size is 'many'"),
        ("local,sise=1", "unknown setting 'sise'"),
        ("memcached,port=1", "unknown cache 'memcached'"),
        ("redis,port=1", "needs 'host' and 'port'"),
    ],
)
def test_settings_that_cannot_be_taken(tmp_path: Path, start_server, flag, said) -> None:
    server = start_server(write_models(tmp_path / "models"), f"--cache-config={flag}")
    server.wait_log(said)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    made = Redis(tmp_path)
    made.start()
    yield made
    made.stop()


def test_redis_that_was_never_there(tmp_path: Path, start_server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    models = write_models(tmp_path / "models")
    server = start_server(models, "--cache-config=redis,host=127.0.0.1", f"--cache-config=redis,port={port}")
    server.wait_ready()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for value in (3, 3, 4):
            assert (infer(client, value=value).as_numpy("OUTPUT0") == value).all()
        assert counts(client)[:3] == (0, 3, 3)
    assert server.log_text().count("cannot be reached, responses are not cached") == 1
    assert metric(server, "naiad_cache_failures_total") >= 3


def test_redis_is_shared_and_may_go_away(tmp_path: Path, start_server, redis: Redis) -> None:
    # K8
    models = write_models(tmp_path / "models")
    flag = f"--cache-config=redis,host=127.0.0.1 --cache-config=redis,port={redis.port}".split()
    first, second = start_server(models, *flag), start_server(models, *flag)
    first.wait_ready()
    second.wait_ready()
    with (
        grpcclient.InferenceServerClient(first.grpc_url) as one,
        grpcclient.InferenceServerClient(second.grpc_url) as two,
    ):
        infer(one)
        # What is kept is written after the answer has left.
        redis.wait_count(1)
        infer(two)
        assert counts(two)[:2] == (1, 0)
        redis.stop()
        for value in range(10, 14):
            assert (infer(one, value=value).as_numpy("OUTPUT0") == value).all()
        assert first.log_text().count("cannot be reached, responses are not cached") == 1
        assert metric(first, "naiad_cache_failures_total") >= 4
        redis.start()
        before = counts(one)[0]

        def is_answered_from_the_cache() -> bool:
            infer(one, value=50)
            return bool(counts(one)[0] > before)

        wait_until(is_answered_from_the_cache)
        first.wait_log("answers again")


def test_redis_that_is_full_gives_what_it_has(tmp_path: Path, start_server, redis: Redis) -> None:
    # K8
    models = write_models(tmp_path / "models")
    flag = f"--cache-config=redis,host=127.0.0.1 --cache-config=redis,port={redis.port}".split()
    server = start_server(models, *flag)
    server.wait_ready()
    with (
        grpcclient.InferenceServerClient(server.grpc_url) as client,
        RedisClient("127.0.0.1", redis.port) as there,
    ):
        infer(client, value=1)
        redis.wait_count(1)
        there.config_set("maxmemory", 1)
        for value in (20, 21, 1, 22, 1):
            assert (infer(client, value=value).as_numpy("OUTPUT0") == value).all()
        assert counts(client)[:2] == (2, 4)
        wait_until(lambda: metric(server, "naiad_cache_failures_total") == 3)
    assert server.log_text().count("rejects commands of the response cache") == 1
    assert "cannot be reached" not in server.log_text()
