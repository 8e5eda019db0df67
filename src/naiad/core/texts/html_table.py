"""Values as HTML for notebooks: small tables, escaped, in the colors of the page around them, light or dark."""

from collections.abc import Iterable, Sequence

_MAX_ROWS = 200
_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = f"padding:.25em .75em;border-bottom:{_LINE};vertical-align:top;text-align:"
_TABLE = "border-collapse:collapse;border:none;font-variant-numeric:tabular-nums"
_MAX_CHARACTERS = 500


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """Return a table with a title and a note; numbers stand to the right, and rows above a limit are counted."""
    listed = list(rows)
    lines = [_row("th", headings, [])] if headings else []
    lines += [_row("td", row, row) for row in listed[:_MAX_ROWS]]
    if len(listed) > _MAX_ROWS:
        note = f"{note} and {len(listed) - _MAX_ROWS} more rows".strip()
    table = f'<table style="{_TABLE}">{"".join(lines)}</table>'
    below = f'<div style="opacity:.7">{_text(note)}</div>' if note else ""
    return f"<div><div><strong>{_text(title)}</strong></div>{table}{below}</div>"


def _row(tag: str, cells: Sequence[object], values: Sequence[object]) -> str:
    aligned = ["right" if isinstance(value, (int, float)) else "left" for value in values] or ["left"] * len(cells)
    shown = [f'<{tag} style="{_CELL}{side}">{_text(cell)}</{tag}>' for cell, side in zip(cells, aligned, strict=True)]
    return f"<tr>{''.join(shown)}</tr>"


def _text(value: object) -> str:
    """Return a value as text for HTML; control characters, which no page shows, are replaced."""
    text = f"{value:,}" if type(value) is int else f"{value:,.3g}" if isinstance(value, float) else str(value)
    if len(text) > _MAX_CHARACTERS:
        text = text[: _MAX_CHARACTERS - 1] + "…"
    from html import escape  # its table of names is large, and servers show no notebook

    return escape("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text))


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape, with a question mark for a dimension of any size."""
    return " × ".join("?" if size < 0 else str(size) for size in shape) or "one value"
