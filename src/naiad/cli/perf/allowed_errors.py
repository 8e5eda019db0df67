"""How many errors a load may have before the run counts as failed."""

import math
from dataclasses import dataclass

from naiad.cli.perf.planning import FlagError
from naiad.tools.measure.result import Row, error_share
from naiad.tools.perf.perf_exchange import UNANSWERED, WRONG_ANSWER
from naiad.tools.perf.report.perf_text import row_title

_DEFAULT = "1%"
_NEVER_ALLOWED = {
    UNANSWERED: "had no answer",
    WRONG_ANSWER: "had a wrong answer",
    "validation": "had an answer that differs from the validation data",
}
"""Kinds of errors that fail a run unless --max-errors is given: a single one shows a server that is wrong."""


@dataclass(frozen=True, slots=True)
class AllowedErrors:
    """The errors that a load may have."""

    text: str
    count: float = math.inf
    share: float = math.inf
    is_default: bool = False

    def are_exceeded(self, errors: int, share: float) -> bool:
        """Whether a number of errors, or their share of the requests, is too large."""
        return errors > self.count or share > self.share


def allowed_errors(text: str | None, *, is_perf_analyzer: bool) -> AllowedErrors | None:
    """Read --max-errors; None for perf_analyzer's habit, which is to go on after errors. Raises FlagError."""
    if text is None and is_perf_analyzer:
        return None
    written = _DEFAULT if text is None else text.strip()
    try:
        value = float(written.removesuffix("%"))
    except ValueError:
        value = -1.0
    is_share = written.endswith("%")
    if not 0 <= value < math.inf or (is_share and value > 100) or (not is_share and value % 1):
        raise FlagError(
            f"--max-errors is '{text}'; use a count such as 5, or a percentage from 0% to 100% such as 1%"
        )
    if is_share:
        return AllowedErrors(written, share=value / 100, is_default=text is None)
    return AllowedErrors(written, count=value)


def fault_of(row: Row, allowed: AllowedErrors | None) -> str:
    """Return why a load fails the run; "" for one that does not."""
    errors = sum(each.count for each in row.errors)
    if not row.request_count:
        return f"{row_title(row)}: no request succeeded" + (f", {errors} failed" if errors else "")
    if allowed is None:
        return ""
    share = error_share(row.errors, row.request_count)
    if allowed.are_exceeded(errors, share):
        return f"{row_title(row)}: {errors} errors ({100 * share:.3g} %) are more than --max-errors {allowed.text}"
    never = [each for each in row.errors if each.kind in _NEVER_ALLOWED] if allowed.is_default else []
    return f"{row_title(row)}: {never[0].count} requests {_NEVER_ALLOWED[never[0].kind]}" if never else ""
