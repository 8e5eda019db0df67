"""The code blocks of a page."""

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block with its language and, for a file, its name."""

    language: str
    title: str
    text: str


def section_blocks(page: str, heading: str) -> list[Block]:
    """Return the blocks below a heading of the second level."""
    text = (DOCS / page).read_text()
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, heading
    return [Block(*found) for found in _BLOCK.findall(section[1])]
