"""The table of backends agrees with the package: modules, extras, file names."""

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from naiad.config.backends import (
    BUILT_IN,
    EXTRAS,
    FILENAMES,
    FORMATS,
    KNOWN_BACKENDS,
    PLATFORM_BACKENDS,
    canonical_name,
    filenames_of,
)

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize(("name", "module"), BUILT_IN.items())
def test_modules_have_a_backend_of_that_name(name, module):
    """Their source is read, not imported: frameworks need not be installed."""
    module_name, _, class_name = module.partition(":")
    origin = importlib.util.find_spec(module_name).origin
    classes = {node.name: node for node in ast.parse(Path(origin).read_text()).body if isinstance(node, ast.ClassDef)}
    assert [base.id for base in classes[class_name].bases] == ["Backend"]
    assert f"name: ClassVar[str] = '{canonical_name(name)}'" in ast.unparse(classes[class_name])


def test_extras_match_the_package():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= extras.keys()


def test_names_and_files_are_unique():
    names = [backend.name for backend in KNOWN_BACKENDS]
    assert len(names) == len(set(names))
    assert len(FORMATS) == len(FILENAMES)


def test_first_file_of_a_backend_is_preferred():
    assert filenames_of("pytorch") == ["model.pt", "model.pt2"]
    assert filenames_of("unknown") == []


def test_documented_files_match_the_table():
    page = (PYPROJECT.parent / "docs" / "configuration.md").read_text()
    section = page.split("### Backend by model file\n")[1].split("\n#")[0]
    lines = re.findall(r"^\| `(.*?)\|(.*?)\|(.*?)\|$", section, re.MULTILINE)
    rows = [[set(re.findall(r"[\w.]+", cell)) for cell in cells] for cells in lines]
    found = {(name, backend) for names, backends, _ in rows for name in names for backend in backends}
    assert found == {(known.filename, known.backend) for known in FORMATS}
    assert set().union(*(platforms for _, _, platforms in rows)) == set(PLATFORM_BACKENDS)
