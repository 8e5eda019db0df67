"""`naiad check` without a load: damaged files, Python syntax, packages, and what it leaves out."""

import hashlib
from pathlib import Path

import pytest

from naiad.cli.check import check
from naiad.repository import check_contents
from naiad.repository.model_check import ModelReport
from support import onnx_models
from support.model_repository import write_model

ONNX = 'backend: "onnxruntime"\n'
PYTHON = """backend: "python"
input { name: "I" data_type: TYPE_FP32 dims: 4 }
output { name: "O" data_type: TYPE_FP32 dims: 4 }
"""
ENVIRONMENT = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "env.tar.gz" } }\n'


def output_of(path: Path, capsys: pytest.CaptureFixture[str], status: int) -> str:
    assert check.run([str(path)]) == status
    return capsys.readouterr().out


def python_model(root: Path, source: str, config: str = PYTHON) -> Path:
    return write_model(root, "m", config, {"1/model.py": source}) / "1" / "model.py"


def test_damaged_model_files(tmp_path, capsys):
    model = onnx_models.add_sub()
    write_model(tmp_path, "fine", ONNX, {"1/model.onnx": model})
    write_model(tmp_path, "cut", ONNX, {"1/model.onnx": model[:50]})
    write_model(tmp_path, "pointer", None, {"1/model.onnx": b"version https://git-lfs.github.com/spec/v1\n"})
    text = output_of(tmp_path, capsys, 1)
    assert f"{tmp_path}/cut/1/model.onnx: the file of 50 bytes is cut off: at least " in text
    assert (
        f"{tmp_path}/pointer/1/model.onnx: the file is a git-lfs pointer (43 bytes), not an ONNX model; run" in text
    )
    assert "fine: ok (onnxruntime, version 1)" in text
    assert text.endswith(
        f"2 errors, 0 warnings in 3 models\nNo model was loaded; to load them: naiad check --load {tmp_path}\n"
    )


def test_syntax_error_has_its_place(tmp_path, capsys):
    path = python_model(tmp_path, "import os\nclass TritonPythonModel(:\n")
    assert f"{path}:2:25: SyntaxError: " in output_of(tmp_path, capsys, 1)


def test_null_byte_is_no_source(tmp_path, capsys):
    path = python_model(tmp_path, "x = 1\0\n")
    assert f"{path}" in output_of(tmp_path, capsys, 1)


def test_missing_modules_are_named(tmp_path, capsys):
    source = """import os, no_such_module.inner
import triton_python_backend_utils as pb_utils
import neighbour
from . import sibling
from no_such_package import thing
try:
    import no_such_accelerator
except ImportError:
    pass
def later():
    import no_such_late_module
"""
    path = python_model(tmp_path, source)
    (path.parent / "neighbour.py").touch()
    text = output_of(tmp_path, capsys, 1)
    assert f"{path}:1:1: module 'no_such_module' is not installed; expected its package in the environment" in text
    assert f"{path}:5:1: module 'no_such_package' is not installed" in text
    assert "2 errors, 0 warnings" in text


def test_environment_of_a_model_is_not_tried(tmp_path, capsys):
    path = python_model(tmp_path, "import no_such_module\n", PYTHON + ENVIRONMENT)
    text = output_of(tmp_path, capsys, 0)
    assert f"m: not tried: syntax and imports of {path}, which runs in the environment of EXECUTION_ENV_PATH" in text


@pytest.mark.parametrize("parameter", ["", ENVIRONMENT])
def test_package_of_a_backend_that_is_missing(tmp_path, monkeypatch, parameter):
    monkeypatch.setattr(check_contents, "PACKAGES", {"onnxruntime": "no_such_runtime"})
    report = ModelReport("m", tmp_path, versions=[1])
    report.config.backend = "onnxruntime"
    if parameter:
        report.config.parameters["EXECUTION_ENV_PATH"].string_value = "env.tar.gz"
    check_contents.check_contents([report])
    if parameter:
        assert report.not_tried == ["whether the environment of EXECUTION_ENV_PATH has the package 'no_such_runtime'"]
    else:
        (problem,) = report.problems
        assert problem.message == "backend 'onnxruntime' needs the package 'no_such_runtime', which is not installed"
        assert problem.expected == "pip install 'naiad[onnx]'"


def test_bare_files_are_checked(tmp_path, capsys):
    (tmp_path / "a.onnx").write_bytes(onnx_models.add_sub())
    (tmp_path / "b.onnx").write_bytes(b"<html>")
    text = output_of(tmp_path, capsys, 1)
    assert f"{tmp_path}/b.onnx: the file is an HTML page (6 bytes)" in text
    assert "a: ok (onnxruntime)" in text
    assert f"{tmp_path}/b.onnx: the file is an HTML page" in output_of(tmp_path / "b.onnx", capsys, 1)


def test_other_formats_name_a_way_out(tmp_path, capsys):
    path = tmp_path / "model.mlmodel"
    path.write_bytes(b"\x80\x04")
    for where in (path, tmp_path):
        assert f"{path}: this file cannot be served: it is a Core ML model" in output_of(where, capsys, 1)


@pytest.mark.parametrize(
    ("digest", "allow_pickle", "problem"),
    [
        ("", False, "model.joblib is a pickle, and loading a pickle executes its code: start the server with"),
        ("", True, ""),
        ("right", False, ""),
        ("0" * 64, False, "the SHA-256 digest of model.joblib is not the parameter 'sha256'"),
        ("0" * 64, True, "the SHA-256 digest of model.joblib is not the parameter 'sha256'"),
    ],
)
@pytest.mark.parametrize("filename", ["", "model.joblib"])
def test_pickle_that_a_server_refuses(tmp_path, monkeypatch, digest, allow_pickle, problem, filename):
    monkeypatch.setattr(check_contents, "PACKAGES", {})
    (tmp_path / "1").mkdir()
    content = b"\x80\x04\x95 no estimator"
    (tmp_path / "1" / "model.joblib").write_bytes(content)
    report = ModelReport("m", tmp_path, versions=[1])
    report.config.backend = "sklearn"
    report.config.default_model_filename = filename
    if digest:
        right = hashlib.sha256(content).hexdigest()
        report.config.parameters["sha256"].string_value = right if digest == "right" else digest
    check_contents.check_contents([report], allow_pickle=allow_pickle)
    found = [each.message for each in report.problems]
    assert len(found) == bool(problem)
    assert all(message.startswith(problem) for message in found)
    assert not any(hashlib.sha256(content).hexdigest() in message for message in found)


def test_python_files_of_a_backend_need_no_package(tmp_path, capsys):
    write_model(tmp_path / "models", "m", 'backend: "vllm"\n', {"1/model.json": '{"model": "a/b"}'})
    assert "needs the package 'vllm', which is not installed; expected pip install vllm" in output_of(
        tmp_path / "models", capsys, 1
    )
    (tmp_path / "backends" / "vllm").mkdir(parents=True)
    (tmp_path / "backends" / "vllm" / "model.py").write_text("class TritonPythonModel: pass\n")
    assert check.run([str(tmp_path / "models"), f"--backend-directory={tmp_path / 'backends'}"]) == 0
