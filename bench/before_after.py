"""CPU per request of two checkouts of naiad under the same loads, in turn.

    git worktree add ../before COMMIT
    python -m bench.before_after ../before [--rounds 8] [--seconds 2] [--limit-percent 2]
    python -m bench.before_after . --flags=--record-traffic=/tmp/traffic     what a flag costs

Both checkouts run at the same time, in the same environment, and serve the same repository. Every round loads
one after the other, in alternating order, so that a slow phase of the machine meets both. For each load the
command prints the medians of CPU microseconds per request over the whole process tree and the median of the
ratios of the rounds. It exits with 1 when the geometric mean of the ratios exceeds the limit.
"""

import argparse
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import models, payloads
from bench.load import Shape, measure, missing_tools
from bench.payloads import GRPC, HTTP_BINARY, HTTP_JSON, Payload
from bench.peers import HERE, Naiad, Running

_LOADS = (
    ("add_sub", GRPC, Shape(1)),
    ("add_sub", GRPC, Shape(2, 4)),
    ("add_sub", GRPC, Shape(8, 4)),
    ("add_sub", HTTP_BINARY, Shape(1)),
    ("add_sub", HTTP_BINARY, Shape(8)),
    ("add_sub", HTTP_BINARY, Shape(32)),
    ("add_sub", HTTP_JSON, Shape(8)),
    ("add_sub_py", GRPC, Shape(2, 4)),
    ("add_sub_py", HTTP_BINARY, Shape(8)),
)
_WARM_UP_S = 0.5


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.before_after", description="Compare two checkouts.")
    parser.add_argument("before", type=Path, help="checkout of the earlier commit")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    parser.add_argument("--limit-percent", type=float, default=2.0, help="largest mean increase that passes")
    parser.add_argument("--flags", default="", help="flags of the later server, to measure what they cost")
    parser.add_argument("--only", default="", help="loads whose line contains this text")
    return parser.parse_args(argv)


def _pair_ratios(
    pair: Sequence[tuple[Running, Payload]], shape: Shape, rounds: int, seconds: float
) -> list[list[float]]:
    """Return the CPU microseconds per request of each round, one list for each of the two servers."""
    found: list[list[float]] = [[], []]
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for which in order:
            server, payload = pair[which]
            found[which].append(measure(server, payload, shape, seconds, _WARM_UP_S).cpu_us)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; return the exit status."""
    arguments = _arguments(argv)
    missing = missing_tools()
    if missing:
        print(f"{' and '.join(missing)} not found: apt-get install wrk nghttp2-client", file=sys.stderr)
        return 2
    (HERE / ".work").mkdir(exist_ok=True)
    ratios: list[float] = []
    with tempfile.TemporaryDirectory(dir=HERE / ".work") as scratch:
        work = Path(scratch)
        models.write_repository(work / "models", ("add_sub", "add_sub_py"))
        servers: list[Running] = []
        try:
            for name, checkout, flags in (
                ("before", arguments.before, ""),
                ("after", HERE.parent, arguments.flags),
            ):
                naiad = Naiad(*shlex.split(flags), checkout=checkout.resolve())
                servers.append(naiad.start(work / "models", work / name))
            for model, transport, shape in _LOADS:
                line = f"{model} {transport} {shape}"
                if arguments.only not in line:
                    continue
                payload = payloads.make(payloads.add_sub(model), transport, work / "payloads")
                pair = [(each, payloads.check(payload, each.http_port, each.grpc_port)) for each in servers]
                before, after = _pair_ratios(pair, shape, arguments.rounds, arguments.seconds)
                ratio = statistics.median(b / a for a, b in zip(before, after, strict=True))
                ratios.append(ratio)
                medians = f"{statistics.median(before):7.1f} -> {statistics.median(after):7.1f} us"
                print(f"{line:32} {medians}  ratio {ratio:.3f}", flush=True)
        finally:
            for server in servers:
                server.stop()
    mean = statistics.geometric_mean(ratios)
    print(f"geometric mean of the ratios: {mean:.3f}")
    return int(mean > 1 + arguments.limit_percent / 100)


if __name__ == "__main__":
    sys.exit(main())
