"""Which faithful conversions the gate of `naiad optimize` accepts, and which sabotaged ones it rejects.

python -m bench.optimize_gate [--verbose]

Exit status 1 if a faithful conversion is rejected, or less than 95 % of the sabotaged ones that samples or a probe can
show; or if what cannot be shown is not named.
"""

import argparse
import sys
from collections import Counter

from bench.gate_cases import Case, faithful, sabotaged
from naiad.optimizer.candidate import Candidate
from naiad.optimizer.correctness.gate import judge
from naiad.optimizer.correctness.runner import CallableRunner
from naiad.optimizer.correctness.settings import Settings
from naiad.optimizer.verdict import Verdict

LEAST_REJECTED = 0.95


class BatchRunner(CallableRunner):
    """A function that takes the batches that are measured and served."""

    max_batch = 32


def verdict_on(case: Case) -> Verdict:
    """Judge a case."""
    candidate = Candidate("candidate", case.form, case.precision, "")
    model = case.model
    settings = Settings(has_batch=model.has_batch)
    return judge(CallableRunner(model.function), BatchRunner(case.function), model.samples, candidate, settings)


def is_right(case: Case, found: Verdict) -> bool:
    """Return whether the verdict is the one that a user expects."""
    if case.gap:
        return not found.is_accepted or any(case.gap in each for each in found.not_shown)
    return found.is_accepted == case.is_faithful


def main() -> int:
    """Print a table by kind of conversion, and what was judged wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="show each verdict")
    flags = parser.parse_args()
    counts: Counter[tuple[bool, str, bool]] = Counter()
    for case in (*faithful(), *sabotaged()):
        found = verdict_on(case)
        right = is_right(case, found)
        counts[case.is_faithful, "not shown" if case.gap else case.kind, right] += 1
        if flags.verbose or not right:
            text = found.summary or found.failures[0].message
            print(f"{'right' if right else 'WRONG'}: {case.kind}, {case.model.name}, {case.precision.value}, {case.name}: {text}")
    print("\n| conversions | kind | right | of |\n|---|---|---|---|")
    for is_faithful, kind in dict.fromkeys((is_faithful, kind) for is_faithful, kind, _ in counts):
        right, wrong = counts[is_faithful, kind, True], counts[is_faithful, kind, False]
        what = "faithful, accepted" if is_faithful else "sabotaged, named" if kind == "not shown" else "sabotaged, rejected"
        print(f"| {what} | {kind} | {right} | {right + wrong} |")
    return _status(counts)


def _status(counts: "Counter[tuple[bool, str, bool]]") -> int:
    kept = sum(count for (is_faithful, _, right), count in counts.items() if is_faithful and not right)
    shown = {right: sum(count for (is_faithful, kind, found), count in counts.items() if not is_faithful and kind != "not shown" and found == right) for right in (True, False)}
    unnamed = counts[False, "not shown", False]
    faithful_count = sum(count for (is_faithful, _, _), count in counts.items() if is_faithful)
    print(f"\n{faithful_count - kept} of {faithful_count} faithful accepted, {shown[True]} of {sum(shown.values())} sabotaged rejected, {unnamed} not named")
    return int(kept > 0 or unnamed > 0 or shown[True] < LEAST_REJECTED * sum(shown.values()))


if __name__ == "__main__":
    sys.exit(main())
