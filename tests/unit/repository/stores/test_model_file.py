"""What a file is: models, other formats, and what failed downloads leave."""

import gzip
import io
import pickle
import zipfile
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.repository.stores.bare_files import bare_backend, bare_file
from naiad.repository.stores.model_file import KINDS, file_problem, model_file_problem, way_out
from support import onnx_models

ONNX = onnx_models.add_sub()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 97554\n"
XML_ERROR = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name in names:
            opened.writestr(name, "content")
    return buffer.getvalue()


def problem(directory: Path, name: str, content: bytes) -> str:
    path = directory / name
    path.write_bytes(content)
    return file_problem(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty (0 bytes); copy or download it again"),
        (POINTER, f"is a git-lfs pointer ({len(POINTER)} bytes), not an ONNX model; run 'git lfs pull'"),
        (b"<!DOCTYPE html>\n<html>", "is an HTML page (22 bytes), not an ONNX model; download the file itself"),
        (b"\n<html lang='en'>", "is an HTML page"),
        (XML_ERROR, "is an XML error of an object store"),
        (b"<Error><Code>NoSuchKey", "is an XML error of an object store"),
        (b'{"error": "not found"}', "is JSON text (22 bytes)"),
        (b"Not Found", "the file (9 bytes) is text that begins with 'Not Found', not an ONNX model"),
        (b"\xff" * 100, "the file (100 bytes) is of another format, not an ONNX model"),
        (b"\x08\x08", "the file (2 bytes) is of another format"),
        (ONNX[: len(ONNX) // 2], "is cut off: at least "),
        (ONNX[:-1], "at least 1 byte is missing"),
        (archive("model/data.pkl", "model/data/0"), "is a PyTorch model"),
        (archive("config.json", "model.weights.h5"), "is a Keras model"),
        (archive("notes.txt"), "is a ZIP archive"),
        (pickle.dumps({"a": 1}), "is a Python pickle (joblib, scikit-learn)"),
        (b"\x89HDF\r\n\x1a\n" + bytes(8), "is a Keras model"),
        (b"\x1c\0\0\0TFL3" + bytes(8), "is a TensorFlow Lite model"),
        (b"GGUF\x03\0\0\0", "is a GGUF file"),
        (b'\x40\0\0\0\0\0\0\0{"a":{}}', "is a safetensors file"),
        (gzip.compress(ONNX), "is a gzip archive"),
    ],
)
def test_onnx_file_of_other_content(tmp_path, content, words):
    assert words in problem(tmp_path, "model.onnx", content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.onnx", ONNX),
        ("model.onnx", onnx_models.classifier()),
        ("model.onnx", b"\x1c\0\0\0ORTM" + bytes(8)),
        ("model.py", b"[1]\n"),
        ("model.pt", archive("model/data.pkl")),
        ("model.pt2", archive("data/weights/0")),
        ("weights.of_a_stranger", b"{}"),
    ],
)
def test_files_that_may_be_models(tmp_path, name, content):
    assert problem(tmp_path, name, content) == ""


@pytest.mark.parametrize("name", ["model.py", "model.pt", "model.plan"])
def test_pointer_in_place_of_any_model(tmp_path, name):
    assert "is a git-lfs pointer" in problem(tmp_path, name, POINTER)


def test_archive_that_is_cut_off(tmp_path):
    content = archive("model/data.pkl")
    assert "the file is cut off" in problem(tmp_path, "model.pt", content[: len(content) // 2])


def test_file_that_is_not_there_is_no_problem(tmp_path):
    assert file_problem(tmp_path / "model.onnx") == ""


def test_model_file_comes_from_the_configuration(tmp_path):
    (tmp_path / "net.bin").write_bytes(POINTER)
    (tmp_path / "model.onnx").mkdir()
    (tmp_path / "model.onnx" / "model.onnx").write_bytes(b"")
    config = ModelConfig(backend="onnxruntime", default_model_filename="net.bin")
    path, found = model_file_problem(config, tmp_path)
    assert path == tmp_path / "net.bin"
    assert "is a git-lfs pointer" in found
    path, found = model_file_problem(ModelConfig(backend="onnxruntime"), tmp_path)
    assert path == tmp_path / "model.onnx" / "model.onnx"
    assert "is empty" in found
    assert model_file_problem(ModelConfig(backend="of_a_stranger"), tmp_path)[1] == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.joblib", "skl2onnx.to_onnx(model, X)"),
        ("model.pkl", "skl2onnx.to_onnx(model, X)"),
        ("model.pt", "torch.onnx.export"),
        ("model.h5", "model.export"),
        ("model.keras", "model.export"),
        ("model.tflite", "tf2onnx"),
        ("model.safetensors", "optimum-cli export onnx"),
    ],
)
def test_way_out_names_a_tool(tmp_path, name, words):
    (tmp_path / name).write_bytes(b"\x01\x02")
    assert words in way_out(tmp_path / name)


def test_way_out_of_damage(tmp_path):
    (tmp_path / "model.pt").write_bytes(POINTER)
    assert "git lfs pull" in way_out(tmp_path / "model.pt")
    (tmp_path / "notes.txt").write_bytes(b"text")
    assert way_out(tmp_path / "notes.txt") == ""


def test_suffixes_are_in_the_table_once():
    suffixes = [suffix for kind in KINDS for suffix in kind.suffixes]
    assert len(suffixes) == len(set(suffixes))


@pytest.mark.parametrize(
    ("name", "content", "backend"),
    [
        ("forest.json", b'{"learner": {}, "version": [3, 2, 0]}', "trees"),
        ("forest.model", b"{L\0\0\0\0\0\0\0\x07learner{", "trees"),
        ("forest.txt", b"tree\nversion=v4\n", "trees"),
        ("forest", b"\x04\0\0\0\x07\0\0\0\0\0\0\0\x02", "trees"),
        ("net.xml", b'<?xml version="1.0"?>\n<net name="a" version="11">', "openvino"),
        ("net.bin", archive("net/constants.pkl", "net/data.pkl"), "pytorch"),
        ("net.PT2", archive("net/archive_format"), "pytorch"),
        ("net.pth", b"anything", "pytorch"),
        ("net.unknown", b"\x1c\0\0\0TFL3" + bytes(8), "litert"),
        ("net", ONNX, "onnxruntime"),
        ("net.keras", archive("config.json", "model.weights.h5"), "tensorflow"),
        ("estimator", archive("schema.json"), "sklearn"),
        ("estimator.dat", pickle.dumps({"a": 1}), "sklearn"),
    ],
)
def test_backend_of_a_file_of_any_name(tmp_path, name, content, backend):
    (tmp_path / name).write_bytes(content)
    assert bare_backend(tmp_path / name) == backend


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.txt", b"cat\ndog\n"),
        ("config.json", b'{"model_type": "bert"}'),
        ("sitemap.xml", b'<?xml version="1.0"?><urlset>'),
        ("weights.bin", bytes(64)),
        ("weights.bin", b"\x80"),
        ("notes", b""),
        ("net.xml", POINTER),
    ],
)
def test_other_files_have_no_backend(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert bare_backend(tmp_path / name) == ""


def test_directories_are_known_by_their_files(tmp_path):
    saved = tmp_path / "flowers.v1"
    assert bare_backend(tmp_path) == ""
    saved.mkdir()
    (saved / "saved_model.pb").write_bytes(b"\x08\x01")
    for path in (saved, saved / "saved_model.pb"):
        entry = bare_file(path)
        assert (entry.name, entry.preset.backend) == ("flowers.v1", "tensorflow")
        assert entry.version_dirs[1] / entry.preset.default_model_filename == saved
