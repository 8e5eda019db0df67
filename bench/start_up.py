"""How long a server takes from its start to ready, and the memory of its process tree then.

    python -m bench.start_up [--models 1 1000] [--processes 1 2] [--rounds 7] [--before ../before]

Each start serves small ONNX models without configurations; it ends when `/v2/health/ready` answers 200. The command
prints medians: seconds to ready, CPU seconds until then, and the resident and proportional memory of all processes
(`smaps_rollup`). With `--before`, a checkout of an earlier commit starts in turn with this one, in alternating order.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import models
from bench.peers import HERE, Naiad
from bench.process_tree import MIB, CpuMeter, memory

_FORMAT = "{:8} {:>6} {:>9} {:>9} {:>9} {:>8} {:>8}"


def write_repository(root: Path, count: int) -> Path:
    """Write `count` models that add and subtract, without configurations."""
    content = models.add_sub().SerializeToString()
    for number in range(count):
        (root / f"model_{number:04d}" / "1").mkdir(parents=True)
        (root / f"model_{number:04d}" / "1" / "model.onnx").write_bytes(content)
    return root


def start_once(checkout: Path, repository: Path, work: Path, process_count: int) -> tuple[float, float, float, float]:
    """Start a server and stop it; return seconds to ready, CPU seconds, RSS and PSS in MiB."""
    flags = ("--processes", str(process_count)) if process_count > 1 else ()
    server = Naiad(*flags, checkout=checkout).start(repository, work)
    try:
        held = memory(server.process.pid)
        cpu_s = CpuMeter(server.process.pid).seconds_before()
        return server.startup_s, cpu_s, held.rss / MIB, held.pss / MIB
    finally:
        server.stop()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print one line for each checkout, number of models and number of processes."""
    parser = argparse.ArgumentParser(prog="python -m bench.start_up", description="Time to ready and memory.")
    parser.add_argument("--models", type=int, nargs="+", default=[1], help="numbers of models")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="numbers of server processes")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", type=Path, help="checkout of an earlier commit")
    arguments = parser.parse_args(argv)
    checkouts = {"this": HERE.parent}
    if arguments.before is not None:
        checkouts = {"before": arguments.before.resolve(), **checkouts}
    # Installed packages come with their bytecode: the first start of a checkout, which is not counted, writes it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(_FORMAT.format("checkout", "models", "processes", "ready s", "CPU s", "RSS MiB", "PSS MiB"))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for model_count in arguments.models:
            repository = write_repository(work / f"models-{model_count}", model_count)
            for process_count in arguments.processes:
                for name, checkout in checkouts.items():
                    start_once(checkout, repository, work / name, process_count)
                found: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in checkouts}
                for number in range(arguments.rounds):
                    names = list(checkouts) if number % 2 == 0 else list(reversed(checkouts))
                    for name in names:
                        found[name].append(start_once(checkouts[name], repository, work / name, process_count))
                for name, starts in found.items():
                    ready_s, cpu_s, rss, pss = (statistics.median(values) for values in zip(*starts, strict=True))
                    figures = (f"{ready_s:.3f}", f"{cpu_s:.2f}", f"{rss:.1f}", f"{pss:.1f}")
                    print(_FORMAT.format(name, model_count, process_count, *figures), flush=True)


if __name__ == "__main__":
    main()
