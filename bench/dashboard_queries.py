"""How long the panels of the Grafana dashboards take with many models, by their queries on a real Prometheus.

    python -m bench.dashboard_queries [--models 200] [--minutes 3]

A naiad serves identity models under light traffic for all of them, Prometheus scrapes it every second, and then each
panel's queries run as Grafana sends them: over the time that was recorded, in 240 steps.
"""

import argparse
import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.peers import HERE, Naiad
from naiad.client import Client

_DASHBOARDS = HERE.parent / "deploy" / "grafana" / "dashboards"

_CONFIG = """backend: "identity"
max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [4] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [4] }}
dynamic_batching {{}}
"""
_STEPS = 240
_PAUSE_S = 0.005


def write_models(repository: Path, count: int) -> list[str]:
    """Write identity models and return their names."""
    names = [f"model_{index:03d}" for index in range(count)]
    for name in names:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(_CONFIG.format())
    return names


async def traffic(url: str, names: list[str], seconds: float) -> int:
    """Send requests to the models in turn; return their number."""
    end_s, sent = time.monotonic() + seconds, 0
    data = {"INPUT0": np.zeros((1, 4), np.float32)}
    async with Client(url) as client:
        while time.monotonic() < end_s:
            await client.infer(names[sent % len(names)], data)
            sent += 1
            await asyncio.sleep(_PAUSE_S)
    return sent


def panels(dashboard: Path) -> dict[str, list[str]]:
    """Return the queries of each panel, for all values of the variables."""
    found: dict[str, list[str]] = {}
    for panel in json.loads(dashboard.read_text())["panels"]:
        texts = [each["expr"].replace("$__rate_interval", "20s") for each in panel.get("targets", ())]
        if texts:
            found[panel["title"]] = [re.sub(r"\$\w+", ".*", text) for text in texts]
    return found


@contextlib.contextmanager
def scraping(folder: Path, metrics_port: int) -> Iterator[str]:
    """Run a Prometheus that scrapes the server every second; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    scrape = {"job_name": "naiad", "static_configs": [{"targets": [f"127.0.0.1:{metrics_port}"]}]}
    file = folder / "prometheus.yml"
    file.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def run_query(url: str, query: str, begin_s: float, end_s: float) -> None:
    """Run a range query as Grafana does. Raises OSError."""
    step_s = max(1.0, (end_s - begin_s) / _STEPS)
    fields = urllib.parse.urlencode({"query": query, "start": begin_s, "end": end_s, "step": step_s})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{fields}", timeout=60) as response:
        response.read()


def seconds_of(url: str, queries: list[str], begin_s: float, end_s: float) -> float:
    """Run the queries of a panel, one after the other, and return the time."""
    began_s = time.perf_counter()
    for query in queries:
        run_query(url, query, begin_s, end_s)
    return time.perf_counter() - began_s


def main() -> int:
    """Print the slowest panels of each dashboard; return 1 if one takes over a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=3.0)
    options = parser.parse_args()
    slowest: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = write_models(root / "models", options.models)
        server = Naiad().start(root / "models", root / "server")
        try:
            begin_s = time.time()
            with scraping(root, server.metrics_port) as url:
                sent = asyncio.run(traffic(f"grpc://127.0.0.1:{server.grpc_port}", names, options.minutes * 60))
                end_s = time.time()
                for dashboard in sorted(_DASHBOARDS.glob("*.json")):
                    for title, queries in panels(dashboard).items():
                        slowest.append((seconds_of(url, queries, begin_s, end_s), f"{dashboard.stem}: {title}"))
        finally:
            server.stop()
    slowest.sort(reverse=True)
    print(f"{options.models} models, {sent} requests, {len(slowest)} panels")
    for seconds, title in slowest[:8]:
        print(f"{seconds * 1e3:8.0f} ms  {title}")
    return int(slowest[0][0] > 1.0)


if __name__ == "__main__":
    sys.exit(main())
