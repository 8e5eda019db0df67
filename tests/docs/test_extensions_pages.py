"""What is added in one place has its page: backends, formats of predict, candidates of optimize."""

import re
from pathlib import Path

import pytest

from naiad.config.backends import BUILT_IN, FORMATS
from naiad.tools.optimize.converters.conversion_plan import candidates
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.predict.files.row_formats import INPUT_SUFFIXES, OUTPUT_SUFFIXES

DOCS = Path(__file__).parents[2] / "docs"
PAGES = "\n".join(path.read_text() for path in DOCS.glob("*.md"))
NAME = re.compile(r"`([\w-]+)`")


def section(page: str, title: str) -> str:
    """Return the text below a title of a page."""
    _, _, text = (DOCS / page).read_text().partition(f"\n## {title}\n")
    return text.partition("\n## ")[0]


@pytest.mark.parametrize("name", [each.filename for each in FORMATS if each.backend in BUILT_IN])
def test_model_files_have_a_page(name):
    assert re.search(rf"[`/]{re.escape(name)}[`/ ]", PAGES)


@pytest.mark.parametrize("suffix", INPUT_SUFFIXES)
def test_inputs_of_predict_have_a_page(suffix):
    assert f"`{suffix}`" in section("batch-prediction.md", "Inputs")


@pytest.mark.parametrize("suffix", OUTPUT_SUFFIXES)
def test_outputs_of_predict_have_a_page(suffix):
    assert f"`{suffix}`" in section("batch-prediction.md", "Output")


def planned_names() -> list[str]:
    sources = [Source("m", each, Path("m")) for each in Format]
    return sorted({candidate.name for source in sources for candidate in candidates(source, {}, (), ("gpu",))})


def documented_names() -> set[str]:
    """Return the names in the list of candidates, where `-b` after `x-a` is `x-b`."""
    names: set[str] = set()
    last = ""
    for name in NAME.findall(section("optimize-conversions.md", "Candidates")):
        last = last.rpartition("-")[0] + name if name.startswith("-") else name
        names.add(last)
    return names


@pytest.mark.parametrize("name", planned_names())
def test_candidates_have_a_page(name):
    assert name in documented_names()
