"""A Prometheus server over the configuration in `deploy/prometheus`, for tests."""

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.waiting import wait_until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
REASON = "Prometheus is not installed: apt install prometheus"
IS_INSTALLED = shutil.which("prometheus") is not None and shutil.which("promtool") is not None


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=60) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error

    def values(self, expression: str) -> Mapping[str, float]:
        """Return the current values of an expression by labels, without those that are no number."""
        rows = self.get("query", query=expression)["result"]
        found = {json.dumps(row["metric"]): float(row["value"][1]) for row in rows}
        return {labels: value for labels, value in found.items() if value == value}

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:
            return False


def write_configuration(directory: Path, target: str) -> Path:
    """Write the configuration of `deploy/prometheus` with another target and every second; return its path."""
    configuration = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in configuration["rule_files"]]
    configuration["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(configuration))
    return path


@contextmanager
def scraping(directory: Path, target: str) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes `target` (`host:port`) every second."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        "prometheus",
        f"--config.file={write_configuration(directory, target)}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        wait_until(prometheus.is_ready, "Prometheus did not start")
        yield prometheus
    finally:
        process.terminate()
        process.wait(60)
