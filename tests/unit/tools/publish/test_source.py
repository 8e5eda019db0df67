"""What becomes of a file or directory in a repository."""

import pytest

from naiad.tools.publish import SourceError, read_source
from support import onnx_models


def files(path, **settings):
    source = read_source(path, **settings)
    return source.model, sorted(source.new.files), source.new.config


@pytest.fixture
def onnx_file(tmp_path):
    path = tmp_path / "iris.onnx"
    path.write_bytes(onnx_models.identity())
    return path


def test_file_gets_the_usual_name(onnx_file):
    assert files(onnx_file) == ("iris", ["model.onnx"], "")
    assert files(onnx_file, model="other")[0] == "other"


@pytest.mark.parametrize(
    ("name", "content", "usual"),
    [
        ("a.json", '{"learner": {}, "version": [3, 2, 0]}', "xgboost.json"),
        ("b.txt", "tree\nversion=v4\n", "model.txt"),
        ("c.py", "class TritonPythonModel:\n    pass\n", "model.py"),
    ],
)
def test_backend_decides_the_name(tmp_path, name, content, usual):
    (tmp_path / name).write_text(content)
    assert files(tmp_path / name)[1] == [usual]


def test_weights_of_openvino_come_along(tmp_path):
    (tmp_path / "net.xml").write_text('<?xml version="1.0"?><net name="n"></net>')
    (tmp_path / "net.bin").write_bytes(b"weights")
    assert files(tmp_path / "net.xml")[1] == ["model.bin", "model.xml"]


def test_directory_of_a_framework_is_the_version(tmp_path):
    (tmp_path / "net").mkdir()
    for name in ("MLmodel", "requirements.txt", ".hidden"):
        (tmp_path / "net" / name).write_text("")
    assert files(tmp_path / "net") == ("net", ["MLmodel", "requirements.txt"], "")


def test_newest_version_of_a_model_directory(tmp_path):
    for version in (2, 10):
        (tmp_path / f"net/{version}").mkdir(parents=True)
        (tmp_path / f"net/{version}/of-{version}").touch()
    (tmp_path / "net/config.pbtxt").write_text('name: "net" max_batch_size: 3')
    name, found, config = files(tmp_path / "net", model="other")
    assert (name, found) == ("other", ["of-10"])
    assert 'name: "other"' in config
    assert "max_batch_size: 3" in config


@pytest.mark.parametrize(
    ("config", "text"),
    [("max_batch_size: x", "config.pbtxt:1"), ("\udcff", "is not UTF-8"), ("", "has no version directory")],
)
def test_wrong_directory_is_explained(tmp_path, config, text):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/config.pbtxt").write_bytes(config.encode(errors="surrogateescape"))
    if config:
        (tmp_path / "net/1").mkdir()
    with pytest.raises(SourceError, match=text):
        files(tmp_path / "net")


def test_name_that_is_a_path_is_refused(onnx_file):
    with pytest.raises(SourceError, match="must not be a path"):
        files(onnx_file, model="../x")
