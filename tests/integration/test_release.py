"""The wheel and the sdist: reproducible, complete, and enough to serve models."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import naiad

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "deploy" / "release"
VERSION = naiad.__version__
WHEEL, SDIST = f"naiad-{VERSION}-py3-none-any.whl", f"naiad-{VERSION}.tar.gz"


def build(source: Path, directory: Path, *targets: str) -> Path:
    """Build archives of a source tree, dated 2023: both, or those that are named."""
    chosen = [word for target in targets for word in ("-t", target)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", directory, *chosen],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        check=True,
        capture_output=True,
    )
    return directory


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def test_second_build_has_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    """That of the wheel is the next test."""
    second = build(ROOT, tmp_path / "second", "sdist")
    assert (second / SDIST).read_bytes() == (dist / SDIST).read_bytes()


def test_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / SDIST) as archive:
        archive.extractall(tmp_path, filter="data")
    built = build(tmp_path / f"naiad-{VERSION}", tmp_path / "built", "wheel")
    assert (built / WHEEL).read_bytes() == (dist / WHEEL).read_bytes()


def test_wheel_has_every_file_of_the_packages(dist: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, check=False, capture_output=True, text=True
    ).stdout.splitlines()
    if not listed:
        pytest.skip("not a git checkout")
    names = set(zipfile.ZipFile(dist / WHEEL).namelist())
    assert {name.removeprefix("src/") for name in listed} <= names
    # `naiad demo chat` answers from the pages.
    pages = {f"naiad/documentation/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert {name for name in names if name.startswith("naiad/documentation/")} == pages
    assert {name.partition("/")[0] for name in names} == {
        "naiad",
        "triton_python_backend_utils",
        f"naiad-{VERSION}.dist-info",
    }


def test_installed_wheel_serves_models(dist: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    # Python compiles what is imported, a third of the files.
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", target]
    subprocess.run([*pip, dist / WHEEL], check=True)
    done = subprocess.run(
        [sys.executable, RELEASE / "smoke_suite.py", target / "bin"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == f"naiad {VERSION}"
    assert "stopped with status 0" in done.stdout


def test_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert headings
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d{2}-\d{2}", heading) for heading in released)
    assert not released or released[0].startswith(f"{VERSION} - ")


def test_dependencies_name_their_licences() -> None:
    script = [sys.executable, RELEASE / "licences", "onnx"]
    done = subprocess.run(script, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^numpy +\S+ +BSD", done.stdout, re.MULTILINE)


def test_unknown_extra_has_no_licences() -> None:
    script = [sys.executable, RELEASE / "licences", "onyx"]
    done = subprocess.run(script, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "naiad has no extra 'onyx'; it has " in done.stderr
