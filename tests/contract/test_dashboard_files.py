"""The dashboard's files in the package are those that its sources give, and small."""

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "dashboard"
FILES = ROOT / "src" / "naiad" / "frontend" / "dashboard" / "files"
NAMES = ["app.css", "app.js", "index.html"]
MAX_BYTES = 150 * 1024
NPM = shutil.which("npm")
needs_npm = pytest.mark.skipif(
    NPM is None or not (DASHBOARD / "node_modules").is_dir(), reason="run `npm ci` in dashboard/ first"
)


def run(*arguments: str) -> None:
    found = subprocess.run([str(NPM), *arguments], cwd=DASHBOARD, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@needs_npm
def test_built_files_match_the_sources(tmp_path: Path) -> None:
    run("run", "build", "--", "--out", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES
    for name in NAMES:
        assert (tmp_path / name).read_bytes() == (FILES / name).read_bytes(), f"{name}: run `npm run build`, commit"


@needs_npm
def test_types_of_sources() -> None:
    run("run", "check")


def test_size_and_content_of_files() -> None:
    assert sorted(path.name for path in FILES.iterdir()) == NAMES
    contents = [(FILES / name).read_bytes() for name in NAMES]
    assert sum(len(gzip.compress(content, 9)) for content in contents) < MAX_BYTES
    page = (FILES / "index.html").read_text()
    for wanted in ('src="dashboard/app.js"', 'href="dashboard/app.css"'):
        assert wanted in page
    for forbidden in ("<style", "style=", "onload", "http"):
        assert forbidden not in page
