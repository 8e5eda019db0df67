"""Small requests beside clients with large JSON documents: how much longer the small ones take.

    python -m bench.large_documents [--clients 20] [--megabytes 2] [--seconds 8] [--binary] [--flags FLAG]

A client sends small requests one after the other, first alone, then beside clients that each send JSON documents
without a pause, all with `naiad perf`. At most twice as long for the median and five times as long for the 99th
percentile is asked for. The clients with documents have the lowest priority: they would run on other machines. With
`--binary` the responses to the documents are binary tensors.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.overload import perf
from bench.peers import Naiad, Running

_CONFIG = """backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
"""
_ELEMENT_BYTES = 20
"""Of the text of a random element, with its comma."""
_JSON = ("--input-tensor-format=json", "--output-tensor-format=json")


def small_requests(name: str, server: Running, work: Path, seconds: float) -> tuple[float, float]:
    """Send small requests; print and return the median and the 99th percentile in ms."""
    flags = ("--shape=INPUT0:4", *_JSON, f"--measurement-interval={seconds * 1e3:g}", "--max-trials=1")
    row = perf(server, "identity", "http", work, *flags)
    p50, p99 = (row["latency"]["percentiles"][key]["value"] / 1e3 for key in ("50", "99"))
    print(f"{name}: {row['request_count']} requests, p50 {p50:.2f} ms, p99 {p99:.2f} ms", flush=True)
    return p50, p99


def send_documents(server: Running, options: argparse.Namespace) -> "subprocess.Popen[bytes]":
    """Start clients that send documents until they are stopped."""
    elements = int(options.megabytes * 1e6 / _ELEMENT_BYTES)
    command = ["nice", "-n", "19", sys.executable, "-m", "naiad", "perf", "-q", "-m", "identity"]
    command += ["-u", f"127.0.0.1:{server.http_port}"]
    command += [f"--shape=INPUT0:{elements}", f"--concurrency-range={options.clients}", "--input-tensor-format=json"]
    command += [f"--output-tensor-format={'binary' if options.binary else 'json'}", "--max-errors=100%"]
    command += [f"--duration={10 * options.seconds:g}", f"--measurement-interval={1e4 * options.seconds:g}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--binary", action="store_true")
    parser.add_argument("--flags", action="append", default=[], help="of the server; repeatable")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "models" / "identity" / "1").mkdir(parents=True)
        (work / "models" / "identity" / "config.pbtxt").write_text(_CONFIG)
        server = Naiad(*options.flags).start(work / "models", work)
        try:
            alone = small_requests("alone", server, work, options.seconds)
            clients = send_documents(server, options)
            try:
                small_requests("warm-up beside", server, work, 2.0)
                beside = small_requests("beside", server, work, options.seconds)
            finally:
                clients.terminate()
                clients.wait(60)
        finally:
            server.stop()
    print(f"ratio: p50 {beside[0] / alone[0]:.2f}, p99 {beside[1] / alone[1]:.2f}")


if __name__ == "__main__":
    main()
