"""The rows as a table that fits on a few screens."""

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_CHARACTERS = 11_000
_NOTE = 150


def table(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], spent_s: Mapping[str, float]) -> str:
    """Return one line a row: its verdict, what was checked, its figures, and why it failed or was not run."""
    counts = {
        verdict: sum(row["verdict"] == verdict for row in rows)
        for verdict in ("ok", "failed", "not proven", "not run")
    }
    lines = [_machine(facts), ", ".join(f"{count} {verdict}" for verdict, count in counts.items()), ""]
    for row in rows:
        figures = " ".join(f"{name}={_text(value)}" for name, value in row["figures"].items())
        note = row["note"].replace("\n", " ")[:_NOTE]
        lines.append(f"{row['verdict']:11}{row['part']:12} {row['check']}: {figures} {note}".rstrip())
    lines.append("seconds: " + " ".join(f"{name}={value}" for name, value in spent_s.items()))
    text = "\n".join(lines) + "\n"
    if len(text) > _MOST_CHARACTERS:
        text = text[: _MOST_CHARACTERS - 60] + "\n... the rest is in summary.txt and results.json\n"
    return text


def _machine(facts: Mapping[str, Any]) -> str:
    found = facts["gpus"]
    name = ", ".join(gpu["name"] for gpu in found) if isinstance(found, list) else found
    torch = facts["versions"].get("torch", "-")
    return f"{facts['date']}; GPU {name}; driver {facts['driver']}; {facts['cores']} cores; torch {torch}"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
