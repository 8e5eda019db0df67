"""The command line of the fuzzer.

python -m fuzz                            every target, a minute each
python -m fuzz http2 pbtxt --seconds 600  some of them, for longer
python -m fuzz http2 --guided             with atheris, which must be installed
python -m fuzz http2 --input FILE         one input again, with its traceback

Each target runs in a process of its own, so that a crash of the interpreter is a finding too. Findings are written to
.fuzz/findings; once mended they are kept in fuzz/corpus, which every run and the tests begin with.
"""

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from fuzz import campaign, last_input
from fuzz.campaign import Failure
from fuzz.last_input import LastInput
from fuzz.targets import TARGETS
from fuzz.watch import MemoryGrowthError, alarmed, checked

WORK = Path(".fuzz")
FINDINGS = WORK / "findings"
_GRACE_S = 60.0
"""So much longer than asked for a process may run: it starts, and its last input may take its time."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="target", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each target, default 60")
    parser.add_argument("--seed", type=int, default=int(time.time()) & 0xFFFF, help="default: the time")
    parser.add_argument("--guided", action="store_true", help="use atheris")
    parser.add_argument("--input", type=Path, help="check this file only, with the one target that is named")
    parser.add_argument("--here", action="store_true", help="run in this process")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and return 1 when something was found."""
    arguments = _arguments(argv)
    names = arguments.targets or list(TARGETS)
    if arguments.input:
        with alarmed():
            print(checked(TARGETS[names[0]], arguments.input.read_bytes()))
        return 0
    if arguments.here:
        return max(_run_here(name, arguments.seconds, arguments.seed) for name in names)
    failed = [name for name in names if _run_apart(name, arguments)]
    if failed:
        print(f"findings in {', '.join(failed)}: see {FINDINGS}", file=sys.stderr)
    return int(bool(failed))


def _last_input_of(name: str) -> Path:
    return WORK / f"last-{name}"


def _save(name: str, data: bytes) -> Path:
    FINDINGS.mkdir(parents=True, exist_ok=True)
    path = FINDINGS / f"{name}-{time.time_ns() // 1_000_000}"
    path.write_bytes(data)
    return path


def _run_here(name: str, seconds: float, seed: int) -> int:
    try:
        last = LastInput(_last_input_of(name), max(TARGETS[name].max_bytes, *map(len, TARGETS[name].corpus())))
        report = campaign.run(TARGETS[name], seconds, seed, keep=last.keep)
    except Failure as failure:
        path = _save(name, failure.data)
        traceback.print_exception(failure.__cause__)
        print(f"{name}: FAILED, seed {seed}; again with: python -m fuzz {name} --input {path}", flush=True)
        return 1
    except MemoryGrowthError as error:
        print(f"{name}: FAILED, seed {seed}: {error}", flush=True)
        return 1
    rate = report.checks / report.seconds
    print(
        f"{name}: {report.checks} inputs, {rate:.0f}/s, {report.outcomes} outcomes, "
        f"memory {report.grown_mib:+d} MiB, seed {seed}",
        flush=True,
    )
    return 0


def _run_apart(name: str, arguments: argparse.Namespace) -> int:
    seconds, seed = f"{arguments.seconds:g}", str(arguments.seed)
    if arguments.guided:
        command = [
            "-m",
            "fuzz.guided",
            name,
            f"{max(1, round(arguments.seconds))}",
            seed,
            str(WORK / name),
            str(FINDINGS),
        ]
    else:
        command = ["-m", "fuzz", name, "--here", "--seconds", seconds, "--seed", seed]
    try:
        done = subprocess.run([sys.executable, *command], timeout=arguments.seconds + _GRACE_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"{name}: FAILED, seed {seed}: hangs outside Python, see {_save_last(name)}", flush=True)
        return 1
    if done.returncode < 0:
        number = -done.returncode
        print(f"{name}: FAILED, seed {seed}: ended by signal {number}, see {_save_last(name)}", flush=True)
    return int(done.returncode != 0)


def _save_last(name: str) -> Path:
    kept = _last_input_of(name)  # atheris keeps its inputs itself
    return _save(name, last_input.read(kept)) if kept.exists() else FINDINGS


if __name__ == "__main__":
    sys.exit(main())
