"""The Prometheus text format: escaping, numbers, families."""

from collections.abc import Iterable, Mapping
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


def escape_label(value: str) -> str:
    """Return a label value as it stands between quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def escape_help(text: str) -> str:
    """Return the text of a HELP line."""
    return text.replace("\\", r"\\").replace("\n", r"\n")


def format_labels(labels: Mapping[str, str]) -> str:
    """Return `{a="1",b="2"}`, or nothing without labels."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escape_label(value)}"' for name, value in labels.items()) + "}"


def format_value(value: float) -> str:
    """Return a sample's value; whole numbers without a fraction."""
    if value != value:  # NaN has no other name
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


def format_family(name: str, kind: str, help_text: str, samples: Iterable[str]) -> str:
    """Return a family: its HELP and TYPE lines and `samples`, each a line or several."""
    return "\n".join([f"# HELP {name} {escape_help(help_text)}", f"# TYPE {name} {kind}", *samples])
