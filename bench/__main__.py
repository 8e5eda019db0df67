"""The benchmark's command line.

python -m bench                         everything, about half an hour
python -m bench --quick                 everything once and briefly, to see that it works
python -m bench --cases onnx,python     some cases, the rest as the last run left it
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bench import report
from bench.cases import CASES
from bench.load import missing_tools
from bench.peers import ALL, HERE
from bench.session import Options, Session, facts, save

RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
_ROUNDS, _SECONDS = 3, 5.0


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is unknown, expected some of {', '.join(known)}")
        return names

    return read


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure naiad beside its peers.")
    parser.add_argument("--cases", type=_names(list(CASES)), help=f"some of {','.join(CASES)}; the rest is kept")
    parser.add_argument("--servers", type=_names(list(ALL)), default=list(ALL), help=f"some of {','.join(ALL)}")
    parser.add_argument("--rounds", type=int, help=f"default {_ROUNDS}; the tables show medians")
    parser.add_argument("--seconds", type=float, help=f"length of a measurement, default {_SECONDS:g}")
    parser.add_argument("--concurrency", default="1,8,32", help="requests in flight, default 1,8,32")
    parser.add_argument("--quick", action="store_true", help="one round of one second, into another directory")
    parser.add_argument("--out", type=Path, help="where results.json and results.md go, default bench/results")
    parser.add_argument("--docs", action="store_true", help="write a summary into docs/benchmarks.md as well")
    parser.add_argument(
        "--render", action="store_true", help="measure nothing, write the tables of the last run again"
    )
    return parser.parse_args(argv)


def _options(arguments: argparse.Namespace) -> Options:
    quick = arguments.quick
    return Options(
        servers=arguments.servers,
        rounds=arguments.rounds or (1 if quick else _ROUNDS),
        seconds=arguments.seconds or (1.0 if quick else _SECONDS),
        warm_up_s=0.3 if quick else 1.0,
        idle_s=2.0 if quick else 10.0,
        concurrencies=[int(text) for text in arguments.concurrency.split(",")],
    )


def _keep(session: Session, last: dict[str, Any], cases: Sequence[str]) -> None:
    """Take over what the last run measured of the cases that are not measured now."""
    session.rows = [row for row in last["rows"] if row["case"] not in cases]
    kept = sorted({row["case"] for row in session.rows})
    if kept:
        facts_then = last["facts"]
        commit, rounds = facts_then["commit"], last["options"]["rounds"]
        session.note(f"kept from {facts_then['date']}, commit {commit}, {rounds} rounds: {', '.join(kept)}")


def _run(arguments: argparse.Namespace, path: Path) -> int:
    """Measure, writing down what there is after every case; return the exit status."""
    options = _options(arguments)
    status = 0
    (HERE / ".work").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HERE / ".work", prefix="run-") as work:
        session = Session(options, Path(work))
        if arguments.cases and path.exists():
            _keep(session, json.loads(path.read_text()), arguments.cases)
        machine = facts(options.servers)
        for name in arguments.cases or CASES:
            session.look_for_others(name)
            try:
                with session.watch_host(name):
                    CASES[name](session)
            except Exception as error:  # a client, a server or a tool may raise anything
                # One case that fails must not cost the results of the rest.
                session.note(f"case {name} failed: {type(error).__name__}: {error}")
                status = 1
            save(session, path, machine)
    return status


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and write the tables."""
    signal.signal(signal.SIGTERM, _exit)  # by way of every `finally`, so that no server is left behind
    arguments = _arguments(argv)
    out = arguments.out or (HERE / ".work" / "quick" if arguments.quick else RESULTS)
    path, status = out / "results.json", 0
    if not arguments.render:
        missing = missing_tools()
        if missing:
            print(f"{' and '.join(missing)} not found: apt-get install wrk nghttp2-client", file=sys.stderr)
            return 2
        status = _run(arguments, path)
    text = report.markdown(json.loads(path.read_text()))
    path.with_suffix(".md").write_text(f"# Benchmark results\n\n{text}")
    print(f"\n{text}\nwritten to {path} and {path.with_suffix('.md')}")
    if arguments.docs:
        report.refresh(PAGE, report.summary(json.loads(path.read_text())))
    return status


if __name__ == "__main__":
    sys.exit(main())
