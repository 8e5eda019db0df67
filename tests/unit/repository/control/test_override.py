import json
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from naiad.repository.control.load_order import UploadedFiles, read_override, with_config
from naiad.repository.stores.store import ModelEntry

CONFIG = json.dumps({"backend": "python", "max_batch_size": 3})


def refusal(name, parameters):
    with pytest.raises(InferError) as caught:
        read_override(name, parameters)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def test_no_parameters_bring_nothing():
    assert read_override("m", {}) is None


def test_config_gets_the_name_of_the_model():
    override = read_override("m", {"config": CONFIG})
    assert override is not None
    assert (override.config.name, override.config.max_batch_size, dict(override.files)) == ("m", 3, {})


def test_leading_slash_stands_for_the_models_directory():
    override = read_override("m", {"config": CONFIG, "file:/1/model.py": b"x"})
    assert override is not None
    assert dict(override.files) == {"1/model.py": b"x"}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"nope": "x"}, "unrecognized load parameter 'nope'"),
        ({"file:1/model.py": b"x"}, "without a 'config'"),
        ({"config": CONFIG, "file:../model.py": b"x"}, "must lie in the model's directory"),
        ({"config": CONFIG, "file:1/../../model.py": b"x"}, "must lie in the model's directory"),
        ({"config": CONFIG, "file:/../etc/model.py": b"x"}, "must lie in the model's directory"),
        ({"config": CONFIG, "file:/": b"x"}, "must lie in the model's directory"),
        ({"config": CONFIG, "file:/config.pbtxt": b"x"}, "give the configuration as 'config'"),
        ({"config": CONFIG, "file:": b"x"}, "must lie in the model's directory"),
        ({"config": CONFIG, "file:1\\..\\x": b"x"}, "must lie in the model's directory"),
        ({"config": CONFIG, "file:1/a\0b": b"x"}, "must lie in the model's directory"),
        ({"config": CONFIG, "file:config.pbtxt": b"x"}, "give the configuration as 'config'"),
        ({"config": CONFIG, **{f"file:1/{i}": b"" for i in range(1025)}}, "1025 files"),
    ],
)
def test_bad_parameters_are_refused(parameters, text):
    assert text in refusal("m", parameters)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{bad", "Invalid config override"),
        ('{"nam":"m"}', "nam"),
        ('{"name":"other"}', "its name is 'other', that of the model to load is 'm'"),
    ],
)
def test_invalid_configuration_is_poll_failure(text, reason):
    with pytest.raises(InferError) as caught:
        read_override("m", {"config": text})
    assert (caught.value.code, caught.value.triton_code) == (ErrorCode.INVALID_ARG, ErrorCode.INTERNAL)  # Triton
    assert caught.value.message.startswith("failed to load 'm', failed to poll from model repository: ")
    assert reason in caught.value.message


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_bad_names_are_refused(name):
    refusal(name, {"config": CONFIG})


def test_files_have_own_directory_until_removal():
    brought = UploadedFiles("m", {"1/model.py": b"code", "2/deep/x.bin": b"\0", "labels.txt": b"a"})
    entry = brought.entry(ModelConfig(name="m"))
    assert sorted(entry.version_dirs) == [1, 2]
    assert (entry.version_dirs[1] / "model.py").read_bytes() == b"code"
    assert (entry.model_dir / "labels.txt").read_bytes() == b"a"
    brought.remove()
    assert not entry.model_dir.exists()


def test_conflicting_files_are_rejected_and_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InferError, match="another file of the same load is in its way"):
        UploadedFiles("m", {"1/model": b"x", "1/model/weights": b"x"})
    assert list(tmp_path.iterdir()) == []


def test_config_of_a_bare_file_keeps_the_file():
    entry = ModelEntry("m", Path("/x"), {1: Path("/x")}, None, ModelConfig(name="m", default_model_filename="m.onnx"))
    override = read_override("m", {"config": CONFIG})
    assert override is not None
    made = with_config(entry, override)
    assert (made.preset.default_model_filename, made.preset.max_batch_size) == ("m.onnx", 3)
    assert with_config(entry, override).config_path is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("A" * 300, "has a part of 300 bytes; the most is 255"),
        ("1/" + "é" * 128, "has a part of 256 bytes"),
        ("/".join(["d"] * 2000), "has 2000 levels; the most is 32"),
        ("/".join(["d" * 250] * 10), "has 2509 bytes; the most is 2048"),
        ("1/a\nb", "has characters that cannot be printed"),
    ],
)
def test_paths_that_no_file_has_are_refused(path: str, text: str) -> None:
    message = refusal("m", {"config": CONFIG, f"file:{path}": b"x"})
    assert message.startswith("failed to load 'm', failed to poll from model repository: load parameter 'file:")
    assert text in message


def test_longest_path_is_written() -> None:
    path = f"1/{'a' * 255}"
    assert read_override("m", {"config": CONFIG, f"file:{path}": b"x"}).files == {path: b"x"}
