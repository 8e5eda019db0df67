"""The declaration of a rollout: `rollout.toml` in a model's directory, or the same fields as JSON over the API.

    stable = 1            # version that serves requests without a version
    canary = 2
    weight = 10           # percent of requests without a version that go to the canary

Requests without a version go to `stable` or to `canary`. Names of versions (`stable`, `canary`, `latest` and the
`aliases`) are accepted where a client gives a version.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from naiad.config.problem import Problem, nearest

FILE_NAME = "rollout.toml"
STABLE, CANARY, LATEST = "stable", "canary", "latest"
NAMES = (STABLE, CANARY, LATEST)
"""Names of versions that every model has."""
MAX_BYTES = 1 << 16
"""Limit of a declaration."""
FULL_PERCENT = 100.0
DEFAULT_ATOL = 1e-5

_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_MAX_ALIASES = 32
_MAX_STEPS = 64
_MAX_ALLOWED = 64
_MAX_VERSION = (1 << 63) - 1
_MAX_KEY_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Steps:
    """Weights that the canary gets one after the other, each for `every_s` seconds."""

    weights: Sequence[float]
    every_s: float


@dataclass(frozen=True, slots=True)
class Guard:
    """Limits of the canary; a violation rolls back. None: no limit."""

    min_requests: int = 100
    """Requests of the canary, and comparisons of shadow copies, that a verdict needs."""
    max_error_rate: float | None = None
    max_p99_ms: float | None = None
    max_p99_ratio: float | None = None
    """p99 of the canary / p99 of stable."""
    max_different_share: float | None = None
    """Shadow copies with a different or a failed response / all compared ones."""

    @property
    def needs_shadow(self) -> bool:
        """Whether a limit is about shadow copies."""
        return self.max_different_share is not None


@dataclass(frozen=True, slots=True)
class Rollout:
    """A checked declaration."""

    stable: int
    canary: int | None = None
    weight: float = 0.0
    """Percent of the requests without a version that go to the canary."""
    sticky: str = ""
    """Name of the request parameter, or `request_id`, whose value decides; "": each request is split on its own."""
    shadow: float = 0.0
    """Percent of the requests of stable that are copied to the canary."""
    rtol: float = 1e-3
    atol: float = DEFAULT_ATOL
    """Tolerances of the comparison: equal if |a - b| <= atol + rtol * |b|, see `ResponseComparison`."""
    aliases: Mapping[str, int] = field(default_factory=dict)
    steps: Steps | None = None
    guard: Guard | None = None
    allow: Sequence[int] = ()
    """Versions that were refused, and may get requests again from this declaration on."""

    @property
    def versions(self) -> frozenset[int]:
        """Every version that the declaration names."""
        return frozenset([self.stable, *self.aliases.values(), *([] if self.canary is None else [self.canary])])

    def as_tree(self) -> dict[str, Any]:
        """Return the fields as `parse_tree` reads them, without those that are not set."""
        tree: dict[str, Any] = {"stable": self.stable}
        if self.canary is not None:
            tree["canary"] = self.canary
        tree |= {"weight": self.weight, "sticky": self.sticky, "shadow": self.shadow}
        tree |= {"rtol": self.rtol, "atol": self.atol, "aliases": dict(self.aliases)}
        if self.steps is not None:
            tree["steps"] = {"weights": list(self.steps.weights), "every_s": self.steps.every_s}
        if self.guard is not None:
            limits = {each.name: getattr(self.guard, each.name) for each in fields(Guard)}
            tree["guard"] = {name: value for name, value in limits.items() if value is not None}
        return tree


@dataclass(frozen=True, slots=True)
class DeclaredRollout:
    """What a `rollout.toml` declares, and a digest of the file."""

    rollout: Rollout
    digest: str


# --- reading --------------------------------------------------------------------------------------------------------


def parse_toml(text: str, filename: str = FILE_NAME) -> tuple[Rollout | None, list[Problem]]:
    """Return the declaration of a file and the problems in it; None if there are any."""
    if len(text) > MAX_BYTES:
        return None, [Problem(message=f"{len(text)} characters; the most is {MAX_BYTES}", filename=filename)]
    import tomllib  # most servers read none

    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        end = (len(text.rstrip().splitlines()), 1) if "at end of document" in str(error) else (0, 0)
        line, column = (int(found[1]), int(found[2])) if found else end
        message = str(error).partition(" (at ")[0]
        return None, [Problem(message=f"not TOML: {message}", filename=filename, line=line, column=column)]
    rollout, problems = parse_tree(tree)
    if "weight" in tree and "steps" in tree:
        message = "weight is given besides steps"
        problems.append(Problem(message=message, path="weight", expected="one of them: steps set the weight"))
    rollout = None if problems else rollout
    return rollout, [locate(problem, text, filename) for problem in problems]


def locate(problem: Problem, text: str, filename: str) -> Problem:
    """Return a problem with the position of its field: that of the key, which TOML has once in a table."""
    table, _, key = problem.path.rpartition(".")
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([A-Za-z0-9_]+)\s*\]", line)
        if header:
            current = header[1]
        match = re.match(rf"\s*(\[\s*)?[\"']?{re.escape(key)}[\"']?\s*[=\]]", line)
        if match and (current == table or (header and header[1] == key)):
            return replace(problem, filename=filename, line=number, column=len(line) - len(line.lstrip()) + 1)
    return replace(problem, filename=filename)


def parse_tree(tree: Mapping[str, Any]) -> tuple[Rollout | None, list[Problem]]:
    """Return the declaration of a tree of TOML or JSON and the problems in it; None if there are any."""
    reader = _Reader()
    rollout = _read(reader, tree)
    if rollout is not None and not reader.problems:
        reader.problems += _contradictions(rollout)
    return (None if reader.problems else rollout), reader.problems


_FIELDS = tuple(each.name for each in fields(Rollout))


def _read(reader: "_Reader", tree: Mapping[str, Any]) -> Rollout | None:
    reader.check_names("", tree, _FIELDS)
    stable = reader.version("stable", tree.get("stable"))
    if tree.get("stable") is None:
        reader.add("stable", "stable is missing", "the number of the version that serves requests without a version")
    canary = reader.version("canary", tree["canary"]) if tree.get("canary") is not None else None
    values: dict[str, Any] = {
        name: reader.number(name, tree[name], most) for name, most in _PERCENTAGES.items() if name in tree
    }
    if "sticky" in tree:
        values["sticky"] = reader.text("sticky", tree["sticky"])
    if "aliases" in tree:
        values["aliases"] = reader.aliases(tree["aliases"])
    if tree.get("steps") is not None:
        values["steps"] = reader.steps(tree["steps"])
    if tree.get("guard") is not None:
        values["guard"] = reader.guard(tree["guard"])
    if tree.get("allow") is not None:
        values["allow"] = reader.versions("allow", tree["allow"])
    return None if stable is None or reader.problems else Rollout(stable, canary, **values)


_PERCENTAGES = {"weight": FULL_PERCENT, "shadow": FULL_PERCENT, "rtol": math.inf, "atol": math.inf}
"""Fields with numbers from 0, and the largest."""


class _Reader:
    """Reads values and collects the problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, path: str, message: str, expected: str, suggestion: str = "", text: object = "") -> None:
        self.problems.append(
            Problem(message=message, path=path, expected=expected, suggestion=suggestion, text=str(text)[:64])
        )

    def check_names(self, table: str, tree: Mapping[str, Any], known: Sequence[str]) -> None:
        for name in tree:
            if name not in known:
                path = f"{table}.{name}" if table else str(name)
                shown = str(name)[:64]
                self.add(path, f"unknown field '{shown}'", "one of " + ", ".join(known), nearest(shown, known), shown)

    def table(self, path: str, value: Any, known: Sequence[str] = ()) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            self.add(path, f"{path} is {_shown(value)}", "a table", text=value)
            return {}
        if known:
            self.check_names(path, value, known)
        return value

    def version(self, path: str, value: Any) -> int | None:
        if _is_version(value):
            return int(value)
        if value is not None:
            self.add(path, f"{path} is {_shown(value)}", "the number of a version, from 1", text=value)
        return None

    def versions(self, path: str, value: Any) -> Sequence[int]:
        if isinstance(value, list) and len(value) <= _MAX_ALLOWED and all(_is_version(each) for each in value):
            return tuple(value)
        self.add(
            path, f"{path} is {_shown(value)}", f"a list of at most {_MAX_ALLOWED} versions, such as [2]", text=value
        )
        return ()

    def number(self, path: str, value: Any, most: float, *, above: float | None = None) -> float:
        is_number = type(value) in (int, float) and math.isfinite(value)
        if is_number and 0 <= value <= most and (above is None or value > above):
            return float(value)
        limits = f"a number {'above' if above is not None else 'from'} 0"
        upper = f" to {most:g}" if math.isfinite(most) else ""
        self.add(path, f"{path} is {_shown(value)}", limits + upper, text=value)
        return 0.0

    def text(self, path: str, value: Any) -> str:
        if isinstance(value, str) and len(value) <= _MAX_KEY_CHARACTERS and value.isprintable():
            return value
        self.add(path, f"{path} is {_shown(value)}", "the name of a request parameter, or request_id", text=value)
        return ""

    def aliases(self, value: Any) -> Mapping[str, int]:
        tree = self.table("aliases", value)
        if len(tree) > _MAX_ALIASES:
            self.add("aliases", f"{len(tree)} aliases", f"at most {_MAX_ALIASES}")
            return {}
        found: dict[str, int] = {}
        for name, version in tree.items():
            path = f"aliases.{name}"
            if name in NAMES:
                self.add(path, f"alias '{name}' is reserved", f"another name than {', '.join(NAMES)}", text=name)
            elif not _ALIAS.fullmatch(name):
                expected = "a letter and up to 63 letters, digits, '_', '.' or '-'"
                self.add(path, f"alias '{name[:64]}' is no name", expected, text=name)
            elif (number := self.version(path, version)) is not None:
                found[name] = number
            elif version is None:
                self.add(path, f"{path} is not set", "the number of a version, from 1")
        return found

    def steps(self, value: Any) -> Steps | None:
        tree = self.table("steps", value, ("weights", "every_s"))
        weights = tree.get("weights")
        if not isinstance(weights, list) or not 0 < len(weights) <= _MAX_STEPS or not _is_ascending(weights):
            expected = f"1 to {_MAX_STEPS} ascending numbers above 0 to 100, such as [5, 25, 50, 100]"
            self.add("steps.weights", f"steps.weights is {_shown(weights)}", expected, text=weights)
            return None
        every_s = self.number("steps.every_s", tree.get("every_s"), math.inf, above=0.0)
        return Steps(tuple(map(float, weights)), every_s)

    def guard(self, value: Any) -> Guard | None:
        tree = self.table("guard", value, tuple(each.name for each in fields(Guard)))
        values: dict[str, Any] = {
            name: self.number(f"guard.{name}", tree[name], most, above=above)
            for name, (most, above) in _LIMITS.items()
            if tree.get(name) is not None
        }
        if "min_requests" in tree:
            minimum = tree["min_requests"]
            if type(minimum) is int and 0 < minimum <= _MAX_VERSION:
                values["min_requests"] = minimum
            else:
                path = "guard.min_requests"
                self.add(path, f"{path} is {_shown(minimum)}", "a number of requests, from 1", text=minimum)
        if not values.keys() & _LIMITS.keys() and not self.problems:
            self.add("guard", "guard has no limit", "at least one of " + ", ".join(_LIMITS))
        return Guard(**values)


_LIMITS: Mapping[str, tuple[float, float | None]] = {
    "max_error_rate": (1.0, None),
    "max_p99_ms": (math.inf, 0.0),
    "max_p99_ratio": (math.inf, 0.0),
    "max_different_share": (1.0, None),
}
"""Limits of a guard: the largest value, and the one that it must exceed."""


def _is_version(value: object) -> bool:
    return type(value) is int and 0 < value <= _MAX_VERSION


def _is_ascending(weights: Sequence[Any]) -> bool:
    if any(type(weight) not in (int, float) or not 0 < weight <= FULL_PERCENT for weight in weights):
        return False
    return all(before < after for before, after in itertools.pairwise(weights))


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 64 else f"{text[:61]}..."


def _contradictions(rollout: Rollout) -> Iterator[Problem]:
    """Yield the problems of fields that do not fit together."""
    rules: Sequence[tuple[str, Callable[[], bool], str, str]] = (
        (
            "canary",
            lambda: rollout.canary == rollout.stable,
            f"canary is {rollout.canary}, as stable",
            "another version, or no canary",
        ),
        ("weight", lambda: rollout.canary is None and rollout.weight > 0, "weight has no canary", _CANARY_FIRST),
        ("shadow", lambda: rollout.canary is None and rollout.shadow > 0, "shadow has no canary", _CANARY_FIRST),
        ("steps", lambda: rollout.canary is None and rollout.steps is not None, "steps has no canary", _CANARY_FIRST),
        (
            "guard.max_different_share",
            lambda: rollout.guard is not None and rollout.guard.needs_shadow and rollout.shadow == 0,
            "guard.max_different_share has nothing to compare",
            "shadow, the percentage of requests that are copied to the canary",
        ),
    )
    for path, is_broken, message, expected in rules:
        if is_broken():
            yield Problem(message=message, path=path, expected=expected)


_CANARY_FIRST = "canary, the number of the new version"
