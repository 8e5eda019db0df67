import importlib
import os
import sys

import pytest

from naiad.worker import model_source
from naiad.worker.model_class import load_model_class
from naiad.worker.model_source import import_from_source


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.setattr(model_source, "_directories", set())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path, value):
    """A module with a size and a time that do not depend on its value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"VALUE = {value}\nclass TritonPythonModel:\n    value = VALUE\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))


@pytest.mark.parametrize("name", ["beside", "package.inner", "package"])
def test_stale_compiled_file_is_not_used(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    files = {"beside": "beside.py", "package.inner": "package/inner.py", "package": "package/__init__.py"}
    write(tmp_path / "package/__init__.py", 0)
    import_from_source(str(tmp_path))
    sys.path.append(str(tmp_path))
    for value in (1, 2):
        write(tmp_path / files[name], value)
        for known in [each for each in sys.modules if each.split(".")[0] in ("beside", "package")]:
            del sys.modules[known]
        assert value == importlib.import_module(name).VALUE
    assert not list(tmp_path.rglob("__pycache__"))


def test_model_class_is_that_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for value in (1, 2):
        write(tmp_path / "1" / "model.py", value)
        assert load_model_class(str(tmp_path / "1/model.py"), str(tmp_path)).value == value
    assert not list(tmp_path.rglob("__pycache__"))


def test_environment_in_model_directory_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    write(tmp_path / "env/lib/compiled.py", 1)
    import_from_source(str(tmp_path))
    sys.path.append(str(tmp_path / "env/lib"))
    assert importlib.import_module("compiled").VALUE == 1
    assert (tmp_path / "env/lib/__pycache__").exists()


def test_other_directories_are_imported_as_usual(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(tmp_path / "model_files/other.py", 1)
    import_from_source(str(tmp_path / "model"))
    sys.path.append(str(tmp_path / "model_files"))
    assert importlib.import_module("other").VALUE == 1
    assert (tmp_path / "model_files/__pycache__").exists()
