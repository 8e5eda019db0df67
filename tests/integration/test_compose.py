"""The Compose file: valid, complete, and naiad starts with its command beside a real store, Redis and collector."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from naiad.options.sources.command_line import parse_options
from support.model_repository import write_identity
from support.object_stores import S3Server
from support.otlp_collector import Collector
from support.redis_server import Redis
from support.server_process import serving
from support.waiting import wait_until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yml"
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}


def text() -> str:
    """Return the file with the defaults of its variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text())


def services() -> dict[str, Any]:
    return dict(yaml.safe_load(text())["services"])


def test_file_follows_the_specification() -> None:
    compose = pytest.importorskip("compose_spec", reason="pip install compose-spec")
    assert set(compose.PyCompose.from_yaml(text()).to_spec().services) == set(services())
    with pytest.raises(ValueError, match="read_onyl"):
        compose.PyCompose.from_yaml(text().replace("read_only", "read_onyl"))


def test_mounted_files_exist() -> None:
    volumes = [volume for service in services().values() for volume in service.get("volumes", ())]
    sources = [volume.partition(":")[0] for volume in volumes]
    relative = [COMPOSE.parent / source for source in sources if source.startswith(".") and source != "./models"]
    assert len(relative) == 5
    assert all(path.exists() for path in relative)


def test_prometheus_scrapes_the_metrics_port() -> None:
    configuration = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = configuration["scrape_configs"]
    options = parse_options(services()["naiad"]["command"][2:])
    assert job["static_configs"] == [{"targets": [f"naiad:{options.metrics_place.port}"]}]


def test_grafana_reads_the_prometheus_of_the_file() -> None:
    (source,) = yaml.safe_load((DEPLOY / "compose" / "grafana" / "datasources.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((DEPLOY / "compose" / "grafana" / "dashboards.yml").read_text())["providers"]
    assert f"../grafana/dashboards:{provider['options']['path']}:ro" in services()["grafana"]["volumes"]


def test_grace_period_exceeds_drain_and_exit() -> None:
    naiad = services()["naiad"]
    options = parse_options(naiad["command"][2:])
    assert int(naiad["stop_grace_period"].removesuffix("s")) > options.drain_s + options.exit_timeout_s


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    made = Redis(tmp_path)
    made.start()
    yield made
    made.stop()


def test_command_serves_beside_real_services(tmp_path: Path, redis: Redis) -> None:
    naiad = services()["naiad"]
    write_identity(tmp_path / "models", "small", extra="response_cache { enable: true }")
    store, collector = S3Server(), Collector()
    try:
        store.upload("models", tmp_path / "models", "repository")
        places = {
            "store:9000": store.endpoint.removeprefix("http://"),
            "collector:4318/v1/traces": collector.address,
            "host=redis": "host=127.0.0.1",
            "port=6379": f"port={redis.port}",
        }
        flags = [_replaced(flag, places) for flag in naiad["command"][2:]]
        with serving(tmp_path / "log", *flags, environment=naiad["environment"]) as server:
            for _ in range(101):  # one of a hundred is traced
                assert server.post("/v2/models/small/infer", BODY).json["outputs"][0]["data"] == [1]
            redis.wait_count(1)
            metrics = server.get("/metrics", url=server.metrics_url).body.decode()
            assert 'nv_cache_num_hits_per_model{model="small",version="1"} 100' in metrics
        wait_until(lambda: collector.spans, "no span was received")
    finally:
        store.stop()
        collector.close()


def _replaced(flag: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        flag = flag.replace(name, place)
    return flag
