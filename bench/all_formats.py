"""All formats of one classifier in one server, under mixed load: every answer is compared, memory is watched.

    python -m bench.all_formats [--minutes 10] [--clients 4] [--repository DIR]

`naiad demo formats` writes the models; DIR may have them already. Half of the clients
speak HTTP, half gRPC; each asks any model for 1 to 8 pictures, one request after the other. The command prints
requests, errors and wrong answers of each model, and the resident memory of the server after every tenth of the time.
The exit status is 1 after an error or a wrong answer.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from naiad.tools.demo.clients import Array, DemoClient
from naiad.tools.demo.formats.catalog import FORMATS, DemoFormat, answers
from naiad.tools.demo.formats.classifier import Digits, train
from naiad.tools.demo.server import DemoSettings, Running, serving
from naiad.tools.process.usage import resident_mib

TOLERANCE = 1e-4
_MOST_ROWS = 8
_PARTS = 10


class Load:
    """The clients and what they have counted."""

    def __init__(self, running: Running, digits: Digits, formats: Sequence[DemoFormat]) -> None:
        self._digits = digits
        self._expected = answers(digits, formats)
        self._models = [each.model for each in formats]
        self._running = running
        self._lock = threading.Lock()
        self.has_ended = threading.Event()
        self.requests: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.first_error = ""

    def ask(self, number: int) -> None:
        """Ask until the end, as client `number`."""
        protocol, url = self._running.urls()[number % 2]
        client = DemoClient(protocol, url)
        generator = np.random.default_rng(number)
        names = {model: (client.inputs(model)[0], client.outputs(model)[0]) for model in self._models}
        while not self.has_ended.is_set():
            model = self._models[generator.integers(len(self._models))]
            chosen = generator.integers(len(self._digits.labels), size=generator.integers(1, _MOST_ROWS + 1))
            outcome, error = self._ask_once(client, model, names[model], chosen)
            with self._lock:
                self.requests[model] += 1
                self.errors[model] += outcome == "error"
                self.wrong[model] += outcome == "wrong"
                self.first_error = self.first_error or error
        client.close()

    def _ask_once(
        self, client: DemoClient, model: str, names: tuple[tuple[str, str], str], chosen: Array
    ) -> tuple[str, str]:
        (name, datatype), output = names
        rows = self._digits.pictures[chosen].astype(np.float64 if datatype == "FP64" else np.float32)
        try:
            get, _ = client.infer(model, {name: rows})
        except Exception as error:  # any error of the client counts
            return "error", f"{model}: {error}"
        answer: Any = get(output)
        expected = self._expected[model][chosen]
        is_right = answer.shape == expected.shape and np.abs(answer - expected).max() <= TOLERANCE
        return "right" if is_right else "wrong", ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load and print what was seen."""
    parser = argparse.ArgumentParser(prog="python -m bench.all_formats", description="All formats under mixed load.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--repository", type=Path, help="models that `naiad demo formats --repository` has written")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        root = options.repository or Path(folder)
        if options.repository is None:
            # The frameworks that write the files stay in a process of their own.
            subprocess.run([sys.executable, "-c", _BUILD, str(root)], check=True, stderr=subprocess.DEVNULL)
        formats = [each for each in FORMATS if (root / each.model).is_dir()]
        settings = DemoSettings(root, ready_within_s=300.0)
        with serving(root, settings, Console(stderr=True), formats[0].model) as running:
            return _watch(running, Load(running, train(), formats), options.minutes * 60, options.clients)


_BUILD = """
import pathlib, sys
from naiad.tools.demo.formats.catalog import build
from naiad.tools.demo.formats.classifier import train
build(pathlib.Path(sys.argv[1]), train())
"""


def _watch(running: Running, load: Load, duration_s: float, client_count: int) -> int:
    threads = [threading.Thread(target=load.ask, args=(number,)) for number in range(client_count)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    for part in range(1, _PARTS + 1):
        time.sleep(max(0.0, began + duration_s * part / _PARTS - time.monotonic()))
        memory = resident_mib(running.pid)
        print(
            f"{time.monotonic() - began:6.0f} s  {load.requests.total():9,} requests  {memory:8.1f} MiB", flush=True
        )
    load.has_ended.set()
    for thread in threads:
        thread.join()
    for model, count in sorted(load.requests.items()):
        print(f"{model:18} {count:9,} requests {load.errors[model]:4} errors {load.wrong[model]:4} wrong answers")
    if load.first_error:
        print(f"first error: {load.first_error}")
    return 1 if load.errors.total() or load.wrong.total() or not load.requests else 0


if __name__ == "__main__":
    sys.exit(main())
