"""The queries of the dashboards and the rules return data from a Prometheus that scrapes a server under load."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.monitored_models import CACHE_FLAG, traffic, write_monitored
from support.prometheus import DEPLOY, IS_INSTALLED, REASON, Prometheus, scraping
from support.server_process import ServerProcess

FAKE_NVML = Path(__file__).resolve().parents[1] / "support" / "fake_nvml.c"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
needs_prometheus = pytest.mark.skipif(not IS_INSTALLED, reason=REASON)
TRITON_DASHBOARD = (
    "count(count(nv_inference_count) by (instance))",
    "sum by (pod) (rate(nv_inference_count[1m])) / ignoring(pod) group_left sum (rate(nv_inference_count[1m]))",
    "sum(nv_inference_request_success) by (pod)",
    "sum(nv_inference_request_failure) by (pod)",
    "sum(rate(nv_inference_compute_infer_duration_us[30s])) by (model) / 1000",
    "avg(rate(nv_inference_queue_duration_us[30s])/(1+rate(nv_inference_request_success[30s]))) by (pod)",
)
"""Queries of the dashboard in Triton's chart for Kubernetes."""


def queries(dashboard: Path) -> dict[str, str]:
    """Return the queries by panel and letter, with all values of the variables."""
    found = {}
    for panel in json.loads(dashboard.read_text())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "20s")
            found[f"{panel['title']} {target['refId']}"] = re.sub(r"\$\w+", ".*", text)
    return found


def rules() -> list[dict[str, Any]]:
    import yaml

    files = [yaml.safe_load((DEPLOY / "prometheus" / f"{name}.yml").read_text()) for name in ("recording", "alerts")]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def gpu_library(directory: Path) -> dict[str, str]:
    """Return the environment of a server that finds two GPUs, or none without a C compiler or nvidia-ml-py."""
    compiler = shutil.which("cc")
    if compiler is None or find_spec("pynvml") is None:
        return {}
    directory.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-o", directory / "libnvidia-ml.so.1", FAKE_NVML], check=True)
    return {"LD_LIBRARY_PATH": str(directory)}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes a server with traffic for all its models."""
    root = tmp_path_factory.mktemp("monitored")
    write_monitored(root / "models")
    flags = (f"--model-repository={root / 'models'}", "--exit-on-error=false", CACHE_FLAG)
    server = ServerProcess(root / "server.log", *flags, environment=gpu_library(root / "gpus"))
    try:
        server.wait_started()
        with scraping(root, server.metrics_url) as scraped, traffic(server):
            yield scraped
    finally:
        server.stop()


def wait_values(prometheus: Prometheus, expressions: dict[str, str]) -> None:
    """Wait until every expression has a value."""
    deadline = time.monotonic() + 60
    left = dict(expressions)
    while left:
        left = {title: expression for title, expression in left.items() if not prometheus.values(expression)}
        assert time.monotonic() < deadline, f"no data: {json.dumps(left, indent=1)}"
        time.sleep(0.5 if left else 0)


@needs_prometheus
@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_returns_data(prometheus: Prometheus, dashboard: Path) -> None:
    wanted = queries(dashboard)
    if shutil.which("cc") is None:
        wanted = {title: text for title, text in wanted.items() if "gpu" not in text and "energy" not in text}
    assert len(wanted) > 10
    wait_values(prometheus, wanted)


@needs_prometheus
def test_queries_of_triton_dashboards_return_data(prometheus: Prometheus) -> None:
    wait_values(prometheus, {text: text for text in TRITON_DASHBOARD})


@needs_prometheus
def test_recording_rules_return_data(prometheus: Prometheus) -> None:
    names = [rule["record"] for rule in rules() if "record" in rule]
    wait_values(prometheus, {name: name for name in names})


@needs_prometheus
def test_failed_load_raises_an_alert(prometheus: Prometheus) -> None:
    wait_values(prometheus, {"": 'ALERTS{alertname="NaiadLoadFailed",alertstate="firing"}'})
    health = {rule["name"]: rule["health"] for group in prometheus.get("rules")["groups"] for rule in group["rules"]}
    assert set(health.values()) == {"ok"}


@needs_prometheus
def test_metrics_of_the_rules_exist(prometheus: Prometheus) -> None:
    used = {name for rule in rules() for name in re.findall(r"\b(?:naiad|nv|process)_\w+", rule["expr"])}
    known = set(prometheus.get("label/__name__/values"))
    assert used
    assert used <= known


@needs_prometheus
def test_rules_pass_their_unit_tests() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", DEPLOY / "prometheus" / "tests" / "alerts.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_unit_test() -> None:
    text = (DEPLOY / "prometheus" / "tests" / "alerts.yml").read_text()
    fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", text))
    assert fired == {rule["alert"] for rule in rules() if "alert" in rule}


def test_dashboards_are_the_output_of_their_script(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "grafana", tmp_path / "grafana", ignore=shutil.ignore_patterns("dashboards"))
    subprocess.run([sys.executable, tmp_path / "grafana" / "generate.py"], check=True, capture_output=True)
    written = {path.name: path.read_text() for path in (tmp_path / "grafana" / "dashboards").iterdir()}
    assert written == {path.name: path.read_text() for path in DASHBOARDS}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap(dashboard: Path) -> None:
    taken: set[tuple[int, int]] = set()
    content = json.loads(dashboard.read_text())
    for panel in content["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
    numbers = [panel["id"] for panel in content["panels"]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_has_the_keys_of_grafana(dashboard: Path) -> None:
    models = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard", reason="pip install grafana-foundation-sdk"
    )
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder").JSONEncoder
    content = json.loads(dashboard.read_text())
    known = json.loads(json.dumps(models.Dashboard.from_json(content), cls=encoder))
    assert not list(lost(content, known))


def lost(content: Any, known: Any, place: str = "") -> Iterator[str]:
    """Return the keys that Grafana's types did not take over."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key not in known:
                yield f"{place}.{key}"
            else:
                yield from lost(value, known[key], f"{place}.{key}")
    elif isinstance(content, list):
        for index, (value, each) in enumerate(zip(content, known, strict=True)):
            yield from lost(value, each, f"{place}[{index}]")


def test_migration_uses_metrics_of_triton_only() -> None:
    text = (DEPLOY / "grafana" / "dashboards" / "migration.json").read_text()
    assert not re.findall(r"\b(?:naiad|process)_\w+", text)
