"""The Prometheus text format: escaping, numbers, families."""

from collections.abc import Iterable, Mapping
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

_LAST_LABELS = frozenset(("le", "quantile"))


def escape_label(value: str) -> str:
    """Return a label value as it stands between quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def escape_help(text: str) -> str:
    """Return the text of a HELP line."""
    return text.replace("\\", r"\\").replace("\n", r"\n")


def format_labels(labels: Mapping[str, str]) -> str:
    """Return `{a="1",b="2"}`, or nothing without labels.

    Triton: sorted by name, with `le` of a bucket and `quantile` of a summary last.
    """
    if not labels:
        return ""
    ordered = sorted(labels.items(), key=lambda label: (label[0] in _LAST_LABELS, label[0]))
    return "{" + ",".join(f'{name}="{escape_label(value)}"' for name, value in ordered) + "}"


def format_value(value: float) -> str:
    """Return a sample's value; whole numbers without a fraction."""
    if value != value:  # NaN has no other name
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


def format_family(name: str, kind: str, help_text: str, samples: Iterable[str]) -> str:
    """Return a family: its HELP and TYPE lines and `samples`, each a line or several.

    Triton: a family without a sample is not announced; the result is empty then.
    """
    lines = list(samples)
    if not lines:
        return ""
    return "\n".join([*format_opening(name, kind, help_text), *lines])


def format_opening(name: str, kind: str, help_text: str) -> tuple[str, str]:
    """Return the HELP and TYPE lines of a family."""
    return f"# HELP {name} {escape_help(help_text)}", f"# TYPE {name} {kind}"
