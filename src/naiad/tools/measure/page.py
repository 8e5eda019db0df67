"""A self-contained HTML page: text, tables and SVG charts, without scripts and without a network."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from naiad.files.replacement import replace_file

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #24292f; background: #f6f8fa; margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; margin: 8px 0 4px; } h2 { font-size: 19px; margin: 32px 0 8px; }
p { margin: 6px 0; max-width: 75ch; } .note { color: #57606a; font-size: 13px; }
.card { background: #fff; border: 1px solid #d0d7de; border-radius: 8px; padding: 12px 16px; margin: 12px 0;
  overflow-x: auto; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; } .tile { background: #fff; border: 1px solid #d0d7de;
  border-radius: 8px; padding: 10px 16px; min-width: 130px; } .tile b { display: block; font-size: 22px; }
.tile span { color: #57606a; font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 8px; border-bottom: 1px solid #eaeef2; vertical-align: top; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
th { color: #57606a; font-weight: 600; } td:not(.text) { white-space: nowrap; }
tr.bad td { background: #fff5f5; } tr.best td { background: #f0fff4; }
svg { width: 100%; height: auto; max-width: 860px; display: block; } code, pre { font-size: 12.5px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; } details { margin: 8px 0; }
"""


class Page:
    """Collects the parts of a page in order."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, *, is_note: bool = False) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p{' class=note' if is_note else ''}>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add a command or other fixed text."""
        self._parts.append(f"<pre class=card>{escape(text)}</pre>")

    def tiles(self, tiles: Sequence[tuple[str, str]]) -> None:
        """Add figures that are read first: value and meaning of each."""
        boxes = "".join(f"<div class=tile><b>{escape(v)}</b><span>{escape(n)}</span></div>" for v, n in tiles)
        self._parts.append(f"<div class=tiles>{boxes}</div>")

    def chart(self, svg: str, caption: str = "") -> None:
        """Add a chart of this package's `charts`; `svg` is trusted."""
        note = f"<p class=note>{escape(caption)}</p>" if caption else ""
        self._parts.append(f"<div class=card>{svg}{note}</div>")

    def table(
        self,
        names: Sequence[str],
        rows: Sequence[Sequence[str]],
        classes: Sequence[str] = (),
        texts: Sequence[int] = (),
    ) -> None:
        """Add a table; `classes` has `bad`, `best` or "" for each row, `texts` the columns that hold text."""
        head = "".join(f"<th{_text(index, texts)}>{escape(name)}</th>" for index, name in enumerate(names))
        body = []
        for number, row in enumerate(rows):
            kind = classes[number] if number < len(classes) else ""
            cells = "".join(f"<td{_text(index, texts)}>{escape(cell)}</td>" for index, cell in enumerate(row))
            body.append(f"<tr{f' class={kind}' if kind else ''}>{cells}</tr>")
        self._parts.append(
            f"<div class=card><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        )

    def render(self) -> str:
        """Return the page."""
        return (
            f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{escape(self._title)}</title>"
            f'<meta name=viewport content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
            f"<body><main>{''.join(self._parts)}</main></body></html>\n"
        )

    def write(self, path: Path) -> None:
        """Write the page. Raises OSError."""
        content = self.render().encode()
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a pipe, /dev/stdout
        else:
            replace_file(path, content)


def _text(index: int, texts: Sequence[int]) -> str:
    return " class=text" if index in texts else ""
