"""What custom metrics may be called and how large they may be."""

import math
import re
from collections.abc import Mapping, Sequence

from naiad.core.errors import invalid_argument

_MOST_LABELS = 32
_MOST_BUCKETS = 256
_LONGEST_NAME = 256
_LONGEST_TEXT_BYTES = 4096
_FAMILY_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_KINDS = ("counter", "gauge", "histogram")


def check_family(name: str, help_text: str, kind: str) -> None:
    """Raise InferError for a name, description or kind that a family cannot have."""
    _check_name("metric name", name, _FAMILY_NAME, "letters, digits, _ and :, no digit first")
    _check_text(f"the description of metric family '{name}'", help_text)
    if kind not in _KINDS:
        raise invalid_argument(f"metric family '{name}': kind '{kind}' is not one of {', '.join(_KINDS)}")


def check_metric(family: str, kind: str, labels: Mapping[str, str], bounds: Sequence[float]) -> None:
    """Raise InferError for labels and bucket bounds that a metric cannot have."""
    where = f"metric family '{family}'"
    if len(labels) > _MOST_LABELS:
        raise invalid_argument(f"{where}: {len(labels)} labels; {_MOST_LABELS} are the most")
    for label, value in labels.items():
        # Prometheus keeps names with two underscores in front for itself.
        _check_name("label name", label, _LABEL_NAME, "letters, digits and _, no digit first, not __ in front")
        _check_text(f"{where}: the value of label '{label}'", value)
    if kind == "histogram":
        if "le" in labels:
            raise invalid_argument(f"{where}: label 'le' is the one of the histogram's buckets; use another name")
        _check_bounds(where, bounds)
    elif bounds:
        raise invalid_argument(f"{where}: a {kind} has no buckets")


def _check_name(what: str, name: str, pattern: re.Pattern[str], allowed: str) -> None:
    if not pattern.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise invalid_argument(f"Invalid {what} {name[:80]!r}: use {allowed}, at most {_LONGEST_NAME} characters")


def _check_text(what: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise invalid_argument(f"{what} is not valid Unicode: {text[:80]!r}") from None
    if size > _LONGEST_TEXT_BYTES:
        raise invalid_argument(f"{what} has {size} bytes; {_LONGEST_TEXT_BYTES} are the most")


def _check_bounds(where: str, bounds: Sequence[float]) -> None:
    if len(bounds) > _MOST_BUCKETS:
        raise invalid_argument(f"{where}: {len(bounds)} buckets; {_MOST_BUCKETS} are the most")
    if any(math.isnan(bound) for bound in bounds) or list(bounds) != sorted(set(bounds)):
        raise invalid_argument(f"{where}: bucket bounds must ascend, each once, not {list(bounds)}")
    if bounds and math.isinf(bounds[-1]):
        raise invalid_argument(f"{where}: every histogram has a bucket +Inf; leave it out")
