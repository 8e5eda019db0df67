"""Directories in Hugging Face's layout whose JSON files have odd members: each error names file and member."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters
from naiad.backend.texts.text_directory import TextDirectory
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError

POOLING = "sentence_transformers.models.Pooling"
NONE = Parameters(ModelConfig(name="m"))


def directory(root: Path, **files: Any) -> TextDirectory:
    """Return a directory with the given contents of `config.json` and others, by names with `__` for a dot."""
    version = root / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2}, unk_token="[UNK]")).save(str(version / "tokenizer.json"))
    for name, content in {"config__json": {"model_type": "bert"}, **files}.items():
        (version / name.replace("__", ".")).write_text(json.dumps(content))
    return TextDirectory(ModelContext("m", 1, ModelConfig(name="m"), root / "m", version, 1))


def check(error: InferError, words: str) -> None:
    assert error.code is ErrorCode.INVALID_ARG
    assert words in error.message


@pytest.mark.parametrize(
    ("file", "member", "value"),
    [
        ("config.json", "max_position_embeddings", "512"),
        ("config.json", "max_position_embeddings", [512]),
        ("config.json", "pad_token_id", -1),
        ("tokenizer_config.json", "model_max_length", float("inf")),
        ("tokenizer_config.json", "model_max_length", True),
        ("sentence_bert_config.json", "max_seq_length", "128"),
    ],
)
def test_odd_numbers_are_named_with_their_file(tmp_path: Path, file: str, member: str, value: object) -> None:
    content = {"model_type": "roberta", member: value} if file == "config.json" else {member: value}
    found = directory(tmp_path, **{file.replace(".", "__"): content})
    if file != "config.json":
        (found.path / "config.json").write_text('{"model_type": "roberta"}')
    with pytest.raises(InferError) as raised:
        found.tokenizer(NONE)
    check(raised.value, f"has '{member}' in {file} with {value!r}; expected a whole number")


def test_lengths_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    files = {"tokenizer_config__json": {"model_max_length": 1e30}, "sentence_bert_config__json": {}}
    found = directory(tmp_path, config__json={"model_type": "bert", "max_position_embeddings": 16}, **files)
    assert found.tokenizer(NONE).truncation["max_length"] == 16


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", 7, None, "link"])
def test_folders_outside_the_directory_are_refused(tmp_path: Path, path: object) -> None:
    found = directory(tmp_path, modules__json=[{"type": POOLING, "path": path}])
    (tmp_path / "other").mkdir()
    (found.path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(InferError) as raised:
        found.pooling(NONE)
    check(raised.value, f"'path' {path!r}; expected a folder in the directory")


def test_pooling_may_be_a_link(tmp_path: Path) -> None:
    found = directory(tmp_path, modules__json=[{"type": POOLING, "path": "1_Pooling"}])
    (tmp_path / "blob").write_text('{"pooling_mode_cls_token": true}')
    (found.path / "1_Pooling").mkdir()
    (found.path / "1_Pooling" / "config.json").symlink_to(tmp_path / "blob")
    assert found.pooling(NONE).mode == "cls"


def test_modules_and_architectures_of_other_kinds_are_named(tmp_path: Path) -> None:
    with pytest.raises(InferError) as raised:
        directory(tmp_path, modules__json=["x"]).pooling(NONE)
    check(raised.value, "a module in modules.json that is no object")
    (tmp_path / "m" / "1" / "modules.json").unlink()
    with pytest.raises(InferError) as raised:
        directory(tmp_path, config__json={"model_type": "bert", "architectures": 5}).choose_task(NONE)
    check(raised.value, "'architectures' in config.json that are no list")
    with pytest.raises(InferError) as raised:
        directory(tmp_path, config__json={"model_type": ["bert"]})
    check(raised.value, "no config.json with a 'model_type'")
