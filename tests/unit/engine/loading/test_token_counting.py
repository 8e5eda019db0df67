import sys
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.engine.loading.token_counting import read_token_counter
from support.text_models import word_tokenizer


def config_with(parameter: str) -> ModelConfig:
    config = ModelConfig(name="m")
    if parameter:
        config.parameters["openai"].string_value = parameter
    return config


CONFIG = config_with("embedding,tokenizer=t.json")


@pytest.mark.parametrize("parameter", ["", "embedding", "completion"])
def test_model_without_a_tokenizer_has_no_counter(tmp_path: Path, parameter: str) -> None:
    assert read_token_counter(config_with(parameter), tmp_path, tmp_path) is None


def test_version_has_its_own_tokenizer(tmp_path: Path) -> None:
    version = tmp_path / "1"
    version.mkdir()
    tokenizer = word_tokenizer()
    tokenizer.save(str(tmp_path / "t.json"))
    counter = read_token_counter(CONFIG, version, tmp_path)
    assert counter is not None
    assert counter.count(["cats purr", "dogs"]) == 4 + 3
    tokenizer.enable_truncation(3)
    tokenizer.save(str(version / "t.json"))
    counter = read_token_counter(CONFIG, version, tmp_path)
    assert counter is not None
    assert counter.count(["cats purr", "dogs"]) == 3 + 3


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InferError, match=r"model 'm': the tokenizer 't\.json' .* is not there; searched in"):
        read_token_counter(CONFIG, tmp_path / "1", tmp_path)
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(InferError, match=r"model 'm': the tokenizer 't\.json' .* cannot be read"):
        read_token_counter(CONFIG, tmp_path / "1", tmp_path)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word_tokenizer().save(str(tmp_path / "t.json"))
    monkeypatch.delitem(sys.modules, "naiad.backend.texts.file_tokenizer", raising=False)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InferError, match=r"needs the package 'tokenizers', .* pip install 'naiad\[tokenizers\]'"):
        read_token_counter(CONFIG, tmp_path, tmp_path)
