"""The documentation of naiad in passages: parts of pages, each below one heading and short enough for a prompt."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MOST_CHARACTERS = 700
"""Of the text of a passage: about 200 tokens, as many as MiniLM is trained for."""
_LEAST_CHARACTERS = 40
_HEADING = re.compile(r"(#{1,6}) +(.+)")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})(\w*)")
_DRAWINGS = frozenset({"mermaid"})
"""Languages of blocks that are pictures, which say nothing as text."""
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a page."""

    page: str
    """The title of the page."""
    heading: str
    """The heading above the text; empty before the first one."""
    text: str

    @property
    def title(self) -> str:
        """Page and heading, for the reader."""
        return f"{self.page} > {self.heading}" if self.heading else self.page


def documentation() -> Path:
    """Return the directory of the pages: in an installed package a part of it, otherwise `docs/` of the checkout.

    Raises RuntimeError without one.
    """
    package = Path(__file__).parents[3]
    folders = (package / "documentation", package.parents[1] / "docs")
    found = next((folder for folder in folders if (folder / "index.md").is_file()), None)
    if found is None:
        raise RuntimeError(
            f"this installation of naiad has no documentation: {folders[0]} does not exist. Install a wheel, "
            "or use a checkout"
        )
    return found


def read_passages(folder: Path) -> list[Passage]:
    """Return the passages of all pages of a directory, in the order of their names."""
    found: list[Passage] = []
    for path in sorted(folder.glob("*.md")):
        found += passages_of(path.read_text(encoding="utf-8"), path.stem)
    return found


def passages_of(page: str, name: str) -> Iterator[Passage]:
    """Yield the passages of a page in Markdown. `name` is its title if it has none."""
    title, heading = name, ""
    for number, (level, text, blocks) in enumerate(_sections(page)):
        if level == 1 and number <= 1:
            title, heading = text, ""
        elif level:
            heading = text
        for part in _joined(blocks):
            yield Passage(title, heading, part)


def _sections(page: str) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Yield level, heading and blocks of each section; the first has level 0."""
    level, heading = 0, ""
    blocks: list[str] = []
    for block in _blocks(page):
        match = _HEADING.fullmatch(block)
        if match is None:
            blocks.append(block)
            continue
        yield level, heading, blocks
        level, heading, blocks = len(match[1]), _plain(match[2]), []
    yield level, heading, blocks


def _blocks(page: str) -> Iterator[str]:
    """Yield headings, paragraphs and code blocks; drawings are left out."""
    lines: list[str] = []
    fence = language = ""
    for line in page.splitlines():
        match = _FENCE.match(line)
        if fence:
            if match is not None and match[1].startswith(fence) and not match[2]:
                if language not in _DRAWINGS:
                    yield "\n".join(lines)
                fence, lines = "", []
            else:
                lines.append(line)
            continue
        if match is None and line.strip() and not _HEADING.fullmatch(line):
            lines.append(_plain(line))
            continue
        if lines:
            yield "\n".join(lines)
            lines = []
        if match is not None:
            fence, language = match[1], match[2]
        elif line.strip():
            yield line
    if lines:
        yield "\n".join(lines)


def _plain(line: str) -> str:
    """Return a line without the addresses of its links."""
    return _LINK.sub(r"\1", line).strip()


def _joined(blocks: Sequence[str]) -> Iterator[str]:
    """Yield blocks together as long as they are short, and long ones in parts that end with a line."""
    text = ""
    for line in (line for block in blocks for line in block.splitlines()):
        if text and len(text) + 1 + len(line) > MOST_CHARACTERS:
            yield text
            text = ""
        text = f"{text}\n{line}" if text else line[:MOST_CHARACTERS]
    if len(text) >= _LEAST_CHARACTERS:
        yield text


def encode_passages(passages: Sequence[Passage]) -> str:
    """Return passages as the JSON that the model `docs_chat` reads."""
    return json.dumps([asdict(passage) | {"title": passage.title} for passage in passages], ensure_ascii=False)


def digest_of(passages: Sequence[Passage], encoder: str) -> str:
    """Return a name for the vectors that an encoder with this configuration makes of passages."""
    return hashlib.sha256(f"{encoder}\n{encode_passages(passages)}".encode()).hexdigest()[:24]
