"""The command line of mutation testing.

python -m mutants                      every mutant
python -m mutants window_charge        some of them
python -m mutants --list               names, files, and what each would harm

Each mutant is one defect in a temporary copy of the repository; the tests that it names run there and should fail.
The exit status is 1 when too many survive, when a mutant is stale, or when the tests fail without any defect.
"""

import argparse
import queue
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from mutants.catalogue import MUTANTS
from mutants.mutant import Mutant, StaleMutantError
from mutants.trial import Outcome, TestedCopy, Verdict, tail

ROOT = Path(__file__).parent.parent
_MOST_SURVIVORS = 3
_TRIAL_TIMEOUT_S = 180.0
_BASELINE_TIMEOUT_S = 600.0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [mutant.name for mutant in MUTANTS]
    parser = argparse.ArgumentParser(
        prog="python -m mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="mutant", help=", ".join(names))
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time, default 2")
    parser.add_argument("--list", action="store_true", help="list the mutants and end")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Try the chosen mutants; 1 when tests do not notice enough of them."""
    arguments = _arguments(argv)
    chosen = [mutant for mutant in MUTANTS if mutant.name in (arguments.names or [each.name for each in MUTANTS])]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.name:28} {mutant.file:48} {mutant.harm}")
        return 0
    stale = [mutant for mutant in chosen if _is_stale(mutant)]
    if stale:
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [TestedCopy(ROOT, Path(folder) / str(number)) for number in range(arguments.jobs)]
        if not _passes_intact(copies[0], chosen):
            return 1
        outcomes = list(_outcomes(copies, chosen))
    return _report(outcomes)


def _is_stale(mutant: Mutant) -> bool:
    try:
        mutant.check(ROOT)
    except (StaleMutantError, SyntaxError) as error:
        print(f"stale: {error}", file=sys.stderr)
        return True
    return False


def _passes_intact(copy: TestedCopy, chosen: Sequence[Mutant]) -> bool:
    """Run all named tests without a defect: a test that fails anyway would kill every mutant."""
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    begin = time.monotonic()
    status, output = copy.run_tests(tests, _BASELINE_TIMEOUT_S)
    if status:
        print(f"the tests fail without a defect:\n{tail(output)}", file=sys.stderr)
        return False
    print(f"{len(tests)} test paths pass without a defect, {time.monotonic() - begin:.0f} s", flush=True)
    return True


def _outcomes(copies: Sequence[TestedCopy], chosen: Sequence[Mutant]) -> Iterator[Outcome]:
    """Try mutants, one at a time in each copy; print a line as each is done."""
    free: queue.SimpleQueue[TestedCopy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def run_trial(mutant: Mutant) -> Outcome:
        copy = free.get()
        try:
            return copy.run_trial(mutant, _TRIAL_TIMEOUT_S)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        trials = [pool.submit(run_trial, mutant) for mutant in chosen]
        for number, trial in enumerate(as_completed(trials), 1):
            outcome = trial.result()
            evidence = outcome.evidence if outcome.verdict is Verdict.KILLED else ""
            print(
                f"[{number:2}/{len(chosen)}] {outcome.mutant.name:28} {outcome.verdict.value:8} "
                f"{outcome.seconds:5.1f} s  {evidence}",
                flush=True,
            )
            yield outcome


def _report(outcomes: Sequence[Outcome]) -> int:
    """Print the survivors and the count; 1 when more survive than may, or when a trial failed."""
    alive = [outcome for outcome in outcomes if outcome.verdict is not Verdict.KILLED]
    if alive:
        print(f"\n{'mutant':28} {'verdict':8} {'file':48} harm")
    for outcome in alive:
        mutant = outcome.mutant
        print(f"{mutant.name:28} {outcome.verdict.value:8} {mutant.file:48} {mutant.harm}")
        if outcome.evidence:
            print(outcome.evidence)
    print(f"\n{len(outcomes) - len(alive)} of {len(outcomes)} mutants killed")
    has_errors = any(outcome.verdict is Verdict.ERROR for outcome in alive)
    return int(has_errors or len(alive) > _MOST_SURVIVORS)


if __name__ == "__main__":
    sys.exit(main())
