"""The queries of the Prometheus adapter and of KEDA, evaluated by promtool on made-up series."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes_manifests import DEPLOY, read_manifests

POD = 'namespace="ml",pod="demo-naiad-{}"'
SERIES = [
    # Busy: two models, 12 waiting requests, 10 requests/s of which each waits 40 ms.
    {"series": f'nv_inference_pending_request_count{{model="x",{POD.format("a")}}}', "values": "8x20"},
    {"series": f'nv_inference_pending_request_count{{model="y",{POD.format("a")}}}', "values": "4x20"},
    {"series": f'nv_inference_queue_duration_us{{model="x",{POD.format("a")}}}', "values": "0+6000000x20"},
    {"series": f'nv_inference_request_success{{model="x",{POD.format("a")}}}', "values": "0+150x20"},
    # Idle.
    {"series": f'nv_inference_pending_request_count{{model="x",{POD.format("b")}}}', "values": "0x20"},
    {"series": f'nv_inference_queue_duration_us{{model="x",{POD.format("b")}}}', "values": "7000000x20"},
    {"series": f'nv_inference_request_success{{model="x",{POD.format("b")}}}', "values": "500x20"},
]


def check_queries(directory: Path, expected: list[tuple[str, dict[str, float]]]) -> None:
    """Check the values of queries, by labels, five minutes after the start of the series."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: run .ci/system")
    cases = [
        {"expr": query, "eval_time": "5m", "exp_samples": [{"labels": k, "value": v} for k, v in values.items()]}
        for query, values in expected
    ]
    test = {
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": SERIES, "promql_expr_test": cases}],
    }
    file = directory / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    finished = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def adapter_rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "helm" / "prometheus-adapter.yaml").read_text())["rules"][
        "custom"
    ]
    return rules


def adapter_query(rule: dict[str, Any]) -> str:
    """The query of a rule as the adapter asks it for the pods of a namespace."""
    query: str = rule["metricsQuery"]
    series = rule["seriesQuery"].partition("{")[0]
    matchers = 'namespace="ml",pod=~"demo-naiad-a|demo-naiad-b"'
    for name, text in {"Series": series, "LabelMatchers": matchers, "GroupBy": "pod"}.items():
        query = query.replace(f"<<.{name}>>", text)
    return query


def test_adapter_gives_values_of_each_pod(tmp_path: Path) -> None:
    pending, queue_ms = adapter_rules()
    a, b = '{pod="demo-naiad-a"}', '{pod="demo-naiad-b"}'
    check_queries(tmp_path, [(adapter_query(pending), {a: 12, b: 0}), (adapter_query(queue_ms), {a: 40, b: 0})])


def test_keda_asks_for_all_pods(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden" / "s3-gpu-keda.yaml"
    (scaled,) = [each for each in read_manifests(golden.read_text()) if each["kind"] == "ScaledObject"]
    pending, queue_ms = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    check_queries(tmp_path, [(pending, {"{}": 12}), (queue_ms, {"{}": 40})])


def test_hpa_uses_the_metrics_of_the_adapter() -> None:
    golden = Path(__file__).parent / "golden" / "tls-keys-hpa.yaml"
    (hpa,) = [each for each in read_manifests(golden.read_text()) if each["kind"] == "HorizontalPodAutoscaler"]
    used = [metric["pods"]["metric"]["name"] for metric in hpa["spec"]["metrics"]]
    assert used == [rule.get("name", {}).get("as", rule["seriesQuery"].partition("{")[0]) for rule in adapter_rules()]
