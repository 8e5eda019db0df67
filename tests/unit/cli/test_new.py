"""`naiad new`: accepted names and written files."""

import ast
import re
import tomllib

import pytest

from naiad.cli.new import run, write_backend
from naiad.core.errors import InferError


def test_placeholders_are_filled_in(tmp_path):
    write_backend("my-frame2", tmp_path)
    files = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert "src/naiad_my_frame2/backend.py" in files
    assert not re.findall("@[A-Z]+@", str(files))
    for name, text in files.items():
        if name.endswith(".py"):
            ast.parse(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == "naiad-my-frame2"
    points = project["entry-points"]["naiad.backends"]
    assert points == {"my-frame2": "naiad_my_frame2.backend:MyFrame2Backend"}


@pytest.mark.parametrize("name", ["", "My", "2x", "a--b", "a_", "../x", "a.b", "a b", "é"])
def test_unusable_names_are_rejected(tmp_path, name):
    with pytest.raises(InferError, match="cannot be the name of a backend"):
        write_backend(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_names_of_naiad_are_rejected(tmp_path, capsys):
    assert run(["backend", "onnxruntime", "--directory", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "naiad new: naiad has a backend 'onnxruntime'; choose another name\n"


def test_file_in_place_of_directory_is_error(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert run(["backend", "mine", "--directory", str(tmp_path / "file")]) == 1
    assert run(["backend", "mine", "--directory", str(tmp_path / "file" / "below")]) == 1
    assert "cannot be written: Not a directory" in capsys.readouterr().err
