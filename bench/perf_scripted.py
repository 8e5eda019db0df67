"""How often `naiad perf` says the right number and verdict of servers that stall, hang, die, lie, drift or fail.

    python -m bench.perf_scripted [--times 20] [--only WORD] [--record FILE]

Each case is a test of tests/integration/test_perf_scripted*.py: a scripted server over HTTP or gRPC, and what the
report must say of it. All cases run `--times` times, with a line for each round; the table counts right runs by case.
With `--record` finished rounds are kept, and the same command continues. Exit status 1 if a run was wrong.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

_TESTS = ("tests/integration/test_perf_scripted.py", "tests/integration/test_perf_scripted_grpc.py")


def one_round(only: str) -> dict[str, bool]:
    """Run all cases once; return by case whether it was right."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={file}", *_TESTS]
        done = subprocess.run(
            [*command, *(["-k", only] if only else [])], capture_output=True, text=True, check=False
        )
        if not file.exists():
            raise RuntimeError(done.stdout + done.stderr)
        cases = ElementTree.parse(file).iter("testcase")
        found = {_name(case): not (case.findall("failure") or case.findall("error")) for case in cases}
    if not found:
        raise RuntimeError(done.stdout + done.stderr)
    return found


def _name(case: ElementTree.Element) -> str:
    file = case.get("classname", "").rpartition(".")[2].removeprefix("test_perf_")
    return f"{file}: {case.get('name', '').removeprefix('test_')}"


def main() -> int:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--only", default="", help="expression of pytest's -k")
    parser.add_argument("--record", type=Path)
    flags = parser.parse_args()
    lines = flags.record.read_text().splitlines() if flags.record and flags.record.exists() else []
    rounds: list[dict[str, bool]] = [json.loads(line) for line in lines]
    while len(rounds) < flags.times:
        rounds.append(one_round(flags.only))
        if flags.record:
            with flags.record.open("a") as record:
                record.write(json.dumps(rounds[-1]) + "\n")
        wrong = [name for name, is_right in rounds[-1].items() if not is_right]
        print(
            f"round {len(rounds)} of {flags.times}: {len(wrong)} of {len(rounds[-1])} wrong {wrong or ''}", flush=True
        )
    right = Counter(name for each in rounds for name, is_right in each.items() if is_right)
    runs = Counter(name for each in rounds for name in each)
    print("\n| case | right | of |\n|---|---|---|")
    for name, count in runs.items():
        print(f"| {name} | {right[name]} | {count} |")
    return int(right != runs)


if __name__ == "__main__":
    sys.exit(main())
