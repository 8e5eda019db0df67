"""Errors and warnings about a configuration or a repository: position, message, expected value, suggestion."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from naiad.core.errors import InferError, invalid_argument

Severity = Literal["error", "warning"]
MAX_DISTANCE = 2
"""Maximum number of edits between a typo and its suggestion."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a file; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error or warning. `message` states the failure, in Triton's words where Triton has them."""

    message: str
    path: str = ""
    """The field, for example `input[0].dims[1]`; empty if the problem is not about a field."""
    filename: str = ""
    line: int = 0
    """From 1; 0 if the position is not known."""
    column: int = 0
    text: str = ""
    """The invalid text as in the file."""
    expected: str = ""
    suggestion: str = ""
    """The nearest valid name."""
    severity: Severity = "error"
    """A server logs a warning and continues."""

    @property
    def is_error(self) -> bool:
        """True if a server would refuse to load the model."""
        return self.severity == "error"

    def __str__(self) -> str:
        """Return `file:line:column: message; expected ...; did you mean '...'?`, without unknown parts."""
        return self.location + self.description

    @property
    def location(self) -> str:
        """`file:line:column: `, as far as it is known."""
        where = self.filename
        if self.line:
            where = f"{where or '<config>'}:{self.line}:{self.column}"
        return f"{where}: " if where else ""

    @property
    def as_error(self) -> str:
        """The description with the position after it: a load error begins with Triton's words."""
        place = self.location.removesuffix(": ")
        return f"{self.description} (in {place})" if place else self.description

    @property
    def description(self) -> str:
        """The message with the expected value and the suggestion."""
        parts = ["warning: " if self.severity == "warning" else "", self.message]
        if self.expected:
            parts.append(f"; expected {self.expected}")
        if self.suggestion:
            parts.append(f"; did you mean '{self.suggestion}'?")
        return "".join(parts)

    def as_dict(self) -> Mapping[str, str | int]:
        """Return the fields for `--json`."""
        return {
            "severity": self.severity,
            "file": self.filename,
            "line": self.line,
            "column": self.column,
            "path": self.path,
            "text": self.text,
            "message": self.message,
            "expected": self.expected,
            "suggestion": self.suggestion,
        }


def errors_of(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that prevent loading."""
    return [problem for problem in problems if problem.is_error]


def problems_error(problems: Sequence[Problem]) -> InferError:
    """Return one INVALID_ARG error with every error in `problems`, one per line."""
    return invalid_argument("\n".join(problem.as_error for problem in errors_of(problems)))


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise InferError(INVALID_ARG) with all errors in `problems`; do nothing if there are none."""
    if errors_of(problems):
        raise problems_error(problems)


def edit_distance(a: str, b: str, limit: int = MAX_DISTANCE) -> int:
    """Return the number of insertions, deletions, substitutions and swaps of adjacent characters that turn `a` into
    `b`.

    Any value above `limit` only means "more than `limit`".
    """
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    before_last: list[int] = []
    last = list(range(len(b) + 1))
    for i, char in enumerate(a, start=1):
        row = [i]
        for j, other in enumerate(b, start=1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (char != other))
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before_last[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
        before_last, last = last, row
    return last[-1]


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return the candidate that `name` is probably a typo of, or "".

    Case is ignored. Short names need to be closer, otherwise all two-letter names would match each other.
    """
    limit = min(MAX_DISTANCE, len(name) // 2)
    best, best_distance = "", limit + 1
    for candidate in sorted(set(candidates)):
        distance = edit_distance(name.lower(), candidate.lower(), limit)
        if distance < best_distance and candidate != name:
            best, best_distance = candidate, distance
    return best


def one_of(names: Iterable[str], noun: str) -> str:
    """Return what was expected: one of the names, or that there is none, as in `no tensor, because there is none`."""
    listed = ", ".join(names)
    return f"one of {listed}" if listed else f"no {noun}, because there is none"
