"""Which faithful conversions the gate of `naiad optimize` accepts, and which sabotaged ones it rejects.

python -m bench.optimize_gate [--verbose]

Exit status 1 if a faithful conversion is rejected, or less than 95 % of the sabotaged ones that samples or a probe
can show; or if what cannot be shown is not named.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping

from bench.gate_cases import Case, faithful, sabotaged
from naiad.tools.optimize.candidate import Candidate
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner
from naiad.tools.optimize.verdict import Verdict

LEAST_REJECTED = 0.95
_FAITHFUL, _SABOTAGED, _NAMED = "faithful, accepted", "sabotaged, rejected", "sabotaged, not shown, named"


class BatchRunner(CallableRunner):
    """A function that takes the batches that are measured and served."""

    max_batch = 32


def verdict_on(case: Case) -> Verdict:
    """Judge a case."""
    candidate = Candidate("candidate", case.form, case.precision, "")
    model = case.model
    settings = Settings(has_batch=model.has_batch, compares_inputs=model.compares_inputs)
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
    table: dict[tuple[str, str], Counter[bool]] = {}
    for case in (*faithful(), *sabotaged()):
        found = verdict_on(case)
        right = is_right(case, found)
        row = (_SABOTAGED, case.kind)
        if case.is_faithful or case.gap:
            row = (_FAITHFUL if case.is_faithful else _NAMED, case.kind)
        table.setdefault(row, Counter())[right] += 1
        if flags.verbose or not right:
            text = found.summary or found.failures[0].message
            how = "right" if right else "WRONG"
            print(f"{how}: {case.kind}, {case.model.name}, {case.precision.value}, {case.name}: {text}")
    print("\n| conversions | kind | right | of |\n|---|---|---|---|")
    for (what, kind), counts in table.items():
        print(f"| {what} | {kind} | {counts[True]} | {counts.total()} |")
    return _status(table)


def _status(table: "Mapping[tuple[str, str], Counter[bool]]") -> int:
    sums = {what: Counter[bool]() for what in (_FAITHFUL, _SABOTAGED, _NAMED)}
    for (what, _), counts in table.items():
        sums[what].update(counts)
    print("\n" + "; ".join(f"{what}: {counts[True]} of {counts.total()}" for what, counts in sums.items()))
    are_few = sums[_SABOTAGED][True] < LEAST_REJECTED * sums[_SABOTAGED].total()
    return int(are_few or sums[_FAITHFUL][False] > 0 or sums[_NAMED][False] > 0)


if __name__ == "__main__":
    sys.exit(main())
