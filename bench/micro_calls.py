"""Python function calls on the event loop for one warm request of add/sub, by function.

    python -m bench.micro_calls [gRPC | "HTTP binary" | "HTTP JSON"]

One client sends one request at a time. Between two signals the server counts the calls of its main thread and divides
them by the calls of `Inference.submit`. Turns of busy polling do not count: the speed of the client determines how
many there are.
"""

import json
import os
import runpy
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench import models, payloads
from bench.load import Shape, measure
from bench.peers import HERE, Naiad

_RESULT = "BENCH_MICRO_CALLS"
"""Environment variable with the file for the result of the server."""
_SECONDS = 1.0


class CountingNaiad(Naiad):
    """A server that counts its calls between two signals SIGUSR1."""

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Start this module as a server."""
        (python, _, _, *arguments), environment = super().command(repository, work, ports)
        environment = {"PYTHONPATH": f"{self.source}:{HERE.parent}", _RESULT: str(work / "calls.json")}
        return [python, "-m", "bench.micro_calls", *arguments], environment


def serve() -> None:
    """Run `naiad` and write the calls for each request when counting ends."""
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_qualname != "BusyPolling._keep":
            calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    def switch(_signal: int, _frame: object) -> None:
        if sys.getprofile() is None:
            sys.setprofile(count)
            return
        sys.setprofile(None)
        requests = calls[next(key for key in calls if key[1] == "Inference.submit")]
        rows = [(number / requests, f"{Path(file).name} {name}") for (file, name), number in calls.most_common()]
        result = Path(os.environ[_RESULT])
        result.with_suffix(".part").write_text(json.dumps(rows))
        result.with_suffix(".part").rename(result)

    signal.signal(signal.SIGUSR1, switch)
    runpy.run_module("naiad", run_name="__main__", alter_sys=True)


def main() -> None:
    """Print the calls of the functions that most requests call, and the sum of all."""
    transport = sys.argv[1] if len(sys.argv) > 1 else payloads.GRPC
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        models.write_repository(work / "models", ("add_sub",))
        server = CountingNaiad().start(work / "models", work)
        try:
            payload = payloads.make(payloads.add_sub("add_sub"), transport, work / "payloads")
            payload = payloads.check(payload, server.http_port, server.grpc_port)
            measure(server, payload, Shape(1), _SECONDS, _SECONDS)
            server.process.send_signal(signal.SIGUSR1)
            measure(server, payload, Shape(1), _SECONDS, _SECONDS)
            server.process.send_signal(signal.SIGUSR1)
            result = work / "calls.json"
            while not result.exists():
                time.sleep(0.01)
            rows = json.loads(result.read_text())
        finally:
            server.stop()
    for number, name in rows:
        if number > 0.5:
            print(f"{number:6.2f}  {name}")
    print(f"{sum(number for number, _ in rows):6.2f}  calls for a {transport} request")


if __name__ == "__main__":
    if _RESULT in os.environ:
        serve()
    else:
        main()
