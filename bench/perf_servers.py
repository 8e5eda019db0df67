"""`naiad perf` against other servers of KServe v2: the real Triton and MLServer.

    python -m bench.perf_servers [--servers naiad,triton,mlserver] [--concurrency 8]

Each server, installed from PyPI as for `python -m bench`, serves a Python model that adds and subtracts, over HTTP
and gRPC. The command prints the figures and the verdict of `naiad perf`, and ends with 1 after an error of a request.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import models
from bench.peers import MLServer, Naiad, Peer, Running, Triton

_PEERS: dict[str, type[Peer]] = {"naiad": Naiad, "triton": Triton, "mlserver": MLServer}
_MODEL = "add_sub_py"


def _command(peer: Peer, server: Running, protocol: str, concurrency: int) -> list[str]:
    port = server.grpc_port if protocol == "grpc" else server.http_port
    command = [
        "-m",
        _MODEL,
        "-u",
        f"127.0.0.1:{port}",
        "-i",
        protocol,
        "--concurrency-range",
        str(concurrency),
        "-p",
        "2000",
    ]
    if isinstance(peer, MLServer):
        # Its HTTP has no binary tensors.
        command += ["--input-tensor-format", "json", "--output-tensor-format", "json"]
    return command


def _measured(arguments: Sequence[str], work: Path) -> dict[str, Any]:
    result = work / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "naiad", "perf", *arguments, "--quiet", "--json", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not result.exists():
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    (row,) = json.loads(result.read_text())["rows"]
    return dict(row)


def main() -> int:
    """Measure each server over both protocols."""
    parser = argparse.ArgumentParser(prog="python -m bench.perf_servers", description=__doc__.partition("\n")[0])
    parser.add_argument("--servers", default=",".join(_PEERS))
    parser.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args()
    errors = 0
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        models.write_add_sub_py(work / "models")
        for name in options.servers.split(","):
            peer = _PEERS[name]()
            peer.install()
            server = peer.start(work / "models", work)
            try:
                for protocol in ("http", "grpc"):
                    row = _measured(_command(peer, server, protocol, options.concurrency), work)
                    latency = row["latency"]["percentiles"]
                    failed = sum(error["count"] for error in row["errors"])
                    errors += failed
                    print(
                        f"{name} {peer.version()}, {protocol}: {row['throughput']['value']:.0f} requests/s, "
                        f"p50 {latency['50']['value']:.0f} us, p99 {latency['99']['value']:.0f} us, {failed} errors, "
                        f"statistics of the server: {'yes' if row['server'] else 'no'}, {row['verdict']}",
                        flush=True,
                    )
            finally:
                server.stop()
    return min(errors, 1)


if __name__ == "__main__":
    sys.exit(main())
