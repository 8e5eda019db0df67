from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from naiad.engine.loading.load_configuration import read_labels


def config_with(label_filename: str) -> ModelConfig:
    config = ModelConfig(name="m")
    config.output.add(name="PLAIN")
    config.output.add(name="CLASSES", label_filename=label_filename)
    return config


def test_labels_are_the_lines_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\nhouse cat\n\ndög\n", encoding="utf-8")
    assert read_labels(config_with("labels.txt"), tmp_path) == {"CLASSES": ["cat", "house cat", "", "dög"]}


def test_output_without_a_label_file_has_no_labels(tmp_path: Path) -> None:
    assert read_labels(config_with(""), tmp_path) == {}


@pytest.mark.parametrize("filename", ["../labels.txt", "sub/../../labels.txt", "/etc/passwd"])
def test_label_file_outside_the_model_is_refused(tmp_path: Path, filename: str) -> None:
    with pytest.raises(InferError, match="must be inside") as caught:
        read_labels(config_with(filename), tmp_path)
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_missing_label_file_is_named_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(InferError) as caught:
        read_labels(config_with("nothing.txt"), tmp_path)
    for word in ("nothing.txt", "CLASSES", "'m'", "No such file"):
        assert word in caught.value.message


def test_label_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InferError, match="not UTF-8"):
        read_labels(config_with("labels.txt"), tmp_path)
