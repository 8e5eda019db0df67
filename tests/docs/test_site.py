"""The built site needs no other host, and every page is in the navigation."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ["Start", "Models", "Serve", "Operate", "Tools", "Reference", "Internals"]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}


class Elements(HTMLParser):
    """Collects the elements that load something, and the labels of the tabs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        fields = dict(attributes)
        if tag in LOADED and fields.get("rel") != "canonical":
            self.loaded.append(fields.get(LOADED[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(directory)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return directory


def test_pages_load_from_the_site_only(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loaded = {(page, url) for page in pages for url in Elements(page.read_text()).loaded if url}
    assert len(loaded) > 200
    assert not [(page.name, url) for page, url in loaded if re.match(r"(https?:)?//", url)]
    missing = [
        url
        for page, url in loaded
        if page.name != "404.html" and not (page.parent / re.split("[?#]", url)[0]).exists()
    ]
    assert not missing


def test_style_sheets_load_nothing_external(site: Path) -> None:
    sheets = [sheet.read_text() for sheet in site.rglob("*.css")]
    assert sheets
    assert not [
        found for sheet in sheets for found in re.findall(r"@import[^;]+|url\(['\"]?(?:https?:)?//[^)]+", sheet)
    ]


def test_pages_with_diagrams_bring_mermaid(site: Path) -> None:
    with_diagram = [page.read_text() for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text()]
    assert len(with_diagram) > 10
    assert all("javascripts/mermaid.min.js" in page for page in with_diagram)


def test_search_index_has_every_page(site: Path) -> None:
    index = (site / "search/search_index.json").read_text()
    pages = [page.stem for page in (ROOT / "docs").glob("*.md") if page.stem != "index"]
    assert not [page for page in pages if f'"{page}/"' not in index]


def test_navigation_has_groups_and_all_pages() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("nav:\n")[2]
    assert re.findall(r"^  - (\w+):$", navigation, re.MULTILINE) == GROUPS
    listed = re.findall(r": ([\w-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_words_of_inline_code_stay_whole(site: Path) -> None:
    page = (site / "endpoints/index.html").read_text()
    assert '<code><span class="word">GET</span> <span class="word">/v2</span></code>' in page
    assert "/v2<wbr>/models/{model}<wbr>[/versions" in page


def test_navigation_fits_windows_of_1200_pixels(site: Path) -> None:
    """The theme would hide it below 1,220 pixels: 76.25 em in style sheets and scripts."""
    for pattern in ("assets/stylesheets/main.*.css", "assets/javascripts/bundle.*.js"):
        (path,) = site.glob(pattern)
        text = path.read_text()
        assert "68.75em" in text
        assert not re.search(r"76\.(25|1875|234375)em", text)


def test_home_page_has_a_picture_and_commands(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert [Path(each).name for each in re.findall(r'<img [^>]*src="([^"#]+\.svg)#only', text)] == [
        "cpu-per-request.svg",
        "cpu-per-request-dark.svg",
    ]
    assert "naiad" in text.partition("<code>")[2]
