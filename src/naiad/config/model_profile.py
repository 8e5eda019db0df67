"""The profile of a model: what an analysis has learned about it, in a file beside config.pbtxt."""

import json
from dataclasses import asdict, dataclass
from typing import TypeGuard

from naiad.core.errors import invalid_argument

PROFILE_FILE = "naiad-profile.json"
MAX_PROFILE_BYTES = 1 << 16
_LARGEST = 1e12


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What a model costs with the configuration beside it, on the machine of the analysis."""

    fixed_us: float
    """Of a batch that executes alone, beside its rows."""
    row_us: float
    """Of each row of a batch."""
    largest_rows: int = 1
    """The largest mean batch that was measured."""
    memory_mb: float = 0.0
    """Of the whole server under load; 0 if it is not known."""
    warm_batch_sizes: tuple[int, ...] = ()
    """Batch sizes in rows that the load leads to: those to warm up."""

    def duration_ns(self, rows: float) -> float:
        """Return the expected time of a batch that executes alone."""
        return 1e3 * (self.fixed_us + self.row_us * rows)


def format_profile(profile: ModelProfile) -> str:
    """Return the text of the file."""
    return json.dumps(asdict(profile), indent=2) + "\n"


def parse_profile(text: str) -> ModelProfile:
    """Return the profile of a file's text; unknown names are left out. Raises InferError(INVALID_ARG)."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid_argument(f"{PROFILE_FILE} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise invalid_argument(f"{PROFILE_FILE} is not a JSON object")
    fixed_us, row_us = (_number(found, name) for name in ("fixed_us", "row_us"))
    if not fixed_us + row_us:
        raise invalid_argument(f"{PROFILE_FILE}: fixed_us and row_us are both 0; analyse the model again")
    sizes = found.get("warm_batch_sizes", [])
    if not isinstance(sizes, list) or not all(_is_number(size) for size in sizes):
        raise invalid_argument(f"{PROFILE_FILE}: warm_batch_sizes is not a list of batch sizes")
    return ModelProfile(
        fixed_us,
        row_us,
        max(1, int(_number(found, "largest_rows", 1))),
        _number(found, "memory_mb", 0.0),
        tuple(int(size) for size in sizes),
    )


def _number(found: dict[str, object], name: str, default: float | None = None) -> float:
    value = found.get(name, default)
    if not _is_number(value):
        raise invalid_argument(f"{PROFILE_FILE}: {name} is {str(value)[:50]!r}; use a number of 0 or more")
    return float(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST
