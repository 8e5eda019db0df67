"""A restart from a warm cache of an S3 repository, beside a start from a local one: how much later it is ready.

python -m bench.cloud [MODELS] [MEBIBYTES EACH]

The store is moto's server, in this process. Exits with 1 when anything is downloaded, or when the start from the
cache takes more than 0.5 s longer.
"""

import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from bench import models
from bench.peers import Naiad
from bench.process_tree import CpuMeter

MODELS = 20
MEBIBYTES = 5
ROUNDS = 7
ALLOWED_S = 0.5
_KEY = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}


class _Quiet(WSGIRequestHandler):
    def log(self, *arguments: object) -> None:
        """Say nothing."""


class Store:
    """moto's S3 with one bucket; it counts what is downloaded."""

    def __init__(self) -> None:
        self.downloads = 0
        self._moto = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.downloads += environ["REQUEST_METHOD"] == "GET" and "list-type" not in environ["QUERY_STRING"]
        answer: Iterable[bytes] = self._moto(environ, start_response)
        return answer

    def upload(self, root: Path) -> str:
        """Put the models of a directory into a bucket; return the URL that naiad takes."""
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="bench",
            aws_secret_access_key="bench",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bench")
        for path in (path for path in root.rglob("*") if path.is_file()):
            client.put_object(Bucket="bench", Key=f"models/{path.relative_to(root)}", Body=path.read_bytes())
        return f"s3://{self.endpoint}/bench/models"


@contextmanager
def store() -> Iterator[Store]:
    """Run a store until the end of the block."""
    running = Store()
    thread = threading.Thread(target=running.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.server.shutdown()
        running.server.server_close()
        thread.join()


class FromCloud(Naiad):
    """naiad over a repository in the store, with a cache of its own."""

    def __init__(self, url: str, cache: Path) -> None:
        super().__init__(f"--cloud-cache-directory={cache}")
        self._url = url

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Start `naiad serve` with the URL in place of the repository."""
        command, environment = super().command(repository, work, ports)
        command[command.index(str(repository))] = self._url
        return command, {**environment, **_KEY, "AWS_EC2_METADATA_DISABLED": "true"}


def write_models(root: Path, count: int, mebibytes: int) -> Path:
    """Write `count` ONNX models, each with weights of its own of the given size."""
    for number in range(count):
        directory = root / f"model_{number:03d}" / "1"
        directory.mkdir(parents=True)
        (directory / "model.onnx").write_bytes(models.heavy_add_sub(mebibytes, number).SerializeToString())
    return root


def start(server: Naiad, root: Path, work: Path) -> tuple[float, float]:
    """Start a server and end it; return how long until it was ready, and its CPU time, in seconds."""
    running = server.start(root, work)
    cpu_s = CpuMeter(running.process.pid).seconds_before()
    running.stop()
    return running.startup_s, cpu_s


def main(count: int = MODELS, mebibytes: int = MEBIBYTES) -> int:
    """Measure and print; return the exit status."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # by way of every `finally`
    with tempfile.TemporaryDirectory() as folder, store() as bucket:
        work = Path(folder)
        root = write_models(work / "models", count, mebibytes)
        cloud, local = FromCloud(bucket.upload(root), work / "cache"), Naiad()
        cold_s, _ = start(cloud, root, work / "cloud")
        brought, bucket.downloads = bucket.downloads, 0
        rounds = [(start(local, root, work / "local"), start(cloud, root, work / "cloud")) for _ in range(ROUNDS)]
    local_s, local_cpu_s, warm_s, warm_cpu_s = (
        median(found[server][figure] for found in rounds) for server in (0, 1) for figure in (0, 1)
    )
    print(f"cold {cold_s:.2f} s, {brought} downloads; warm {warm_s:.2f} s ({warm_cpu_s:.2f} s CPU)", end=", ")
    print(f"{bucket.downloads} downloads; local {local_s:.2f} s ({local_cpu_s:.2f} s CPU)", end="; ")
    met = not bucket.downloads and warm_s - local_s <= ALLOWED_S
    print(f"warm - local {warm_s - local_s:.2f} s: {'met' if met else 'NOT met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
