"""Commands of benchmarks on the pages and in the Makefile exist, or name the commit that has them."""

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"python (?:-m (bench[\w.]*)|(bench/[\w/]+)\.py)([^`\n]*`?)(?=([^\n]{0,30}))")
PAGES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]


def missing_in(text: str) -> list[str]:
    """Return the commands that are neither here nor at a commit."""
    return [
        found[0]
        for found in COMMAND.finditer(text)
        if not found[4].startswith(" at commit ")
        and find_spec((found[1] or found[2].replace("/", ".")).rstrip(".")) is None
    ]


def test_commands_on_the_pages_exist() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    assert {name: missing for name, text in texts.items() if (missing := missing_in(text))} == {}
    assert COMMAND.search(texts["benchmarks.md"])


def test_command_without_file_or_commit_is_found() -> None:
    assert len(missing_in("`python -m bench.gone` and `python bench/gone.py x`")) == 2
    assert missing_in("(`python -m bench.gone 5` at commit abc), `python -m bench.soak bls`, python -m bench.") == []
