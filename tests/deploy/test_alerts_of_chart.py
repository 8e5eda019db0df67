"""The alerts of the chart, on the series that Prometheus has with the chart's ServiceMonitor."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes_manifests import Manifest, read_manifests

GOLDEN = Path(__file__).parent / "golden" / "monitoring-ingress.yaml"
MANIFESTS = read_manifests(GOLDEN.read_text())


def one(kind: str) -> Manifest:
    (found,) = [each for each in MANIFESTS if each["kind"] == kind]
    return found


def scraped_labels() -> dict[str, str]:
    """The labels that the Prometheus operator gives the targets of the ServiceMonitor.

    The job is the value of the service's label `jobLabel`, or the name of the service without one.
    """
    monitor = one("ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    (service,) = [
        each for each in MANIFESTS if each["kind"] == "Service" and wanted <= each["metadata"]["labels"].items()
    ]
    name, labels = service["metadata"]["name"], service["metadata"]["labels"]
    return {"job": labels.get(monitor.get("jobLabel", ""), name), "namespace": "ml", "service": name, "instance": "a"}


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    text = ",".join(f'{key}="{value}"' for key, value in {**scraped_labels(), **labels}.items())
    return {"series": f"{name}{{{text}}}", "values": values}


SERIES = [
    series("up", "0x480", pod="a"),
    series("process_resident_memory_bytes", "100+1x480"),
    series("naiad_responses_total", "0+600x480", code="200"),
    series("naiad_responses_total", "0+60x480", code="503"),
    series("naiad_inference_request_duration_seconds_bucket", "0+300x480", model="m", le="0.1"),
    series("naiad_inference_request_duration_seconds_count", "0+600x480", model="m"),
    series("naiad_request_rejected_total", "0+600x480", model="m", reason="overload"),
    series("naiad_queue_oldest_age_seconds", "2x480", model="m"),
    series("nv_cpu_memory_used_bytes", "99x480"),
    series("nv_cpu_memory_total_bytes", "100x480"),
    series("naiad_model_load_failures_total", "0+1x480"),
    series("naiad_worker_restarts_total", "0+9x480", model="m", exported_instance="m_0"),
    series("naiad_worker_state", "2x480", model="m", exported_instance="m_0"),
    # Another release in the same Prometheus, with many requests and no error.
    series("naiad_responses_total", "0+6000000x480", code="200", service="other"),
]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in one("PrometheusRule")["spec"]["groups"] for rule in group["rules"] if "alert" in rule]


def test_every_alert_fires_on_scraped_series(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: run .ci/system")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": one("PrometheusRule")["spec"]["groups"]}))
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    expected = [{"labels": f'{{alertname="{alert["alert"]}"}}', "value": 1} for alert in alerts()]
    case = {
        "interval": "1m",
        "input_series": SERIES,
        "promql_expr_test": [{"expr": firing, "eval_time": "8h", "exp_samples": expected}],
    }
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    command = [promtool, "test", "rules", str(tmp_path / "test.yaml")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_rules_select_the_job_of_the_service_monitor() -> None:
    jobs = set(re.findall(r'job="([^"]*)"', str(one("PrometheusRule"))))
    assert jobs == {scraped_labels()["job"]}
