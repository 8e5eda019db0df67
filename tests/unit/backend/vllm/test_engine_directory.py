import json

import pytest

from naiad.backend.vllm.engine_directory import EngineDirectory
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import make_context


def read(path, content=None, lora=None):
    (path / "1").mkdir()
    for name, text in (("model.json", content), ("multi_lora.json", lora)):
        if text is not None:
            (path / "1" / name).write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
    return EngineDirectory(make_context(ModelConfig(name="m"), path))


def test_model_beside_the_file_is_a_path(tmp_path):
    (tmp_path / "1" / "weights").mkdir(parents=True)
    (tmp_path / "1" / "model.json").write_text('{"model": "weights"}')
    found = EngineDirectory(make_context(ModelConfig(name="m"), tmp_path))
    assert found.arguments["model"] == str(tmp_path / "1" / "weights")


def test_arguments_of_earlier_releases_are_left_out(tmp_path):
    found = read(tmp_path, {"model": "a/b", "disable_log_requests": True})
    assert found.known_arguments({"model"}) == {"model": "a/b"}
    assert found.known_arguments({"model", "disable_log_requests"})["disable_log_requests"] is True


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_adapters_are_read_where_they_are_wanted(tmp_path, value):
    found = read(tmp_path, {"model": "a/b", "enable_lora": value}, {"one": "/l/1", "two": "/l/2"})
    assert list(found.adapters) == ["one", "two"]
    assert found.known_arguments({"model", "enable_lora"})["enable_lora"] is True


@pytest.mark.parametrize(
    ("content", "lora", "words"),
    [
        (None, None, "has no model.json"),
        (b"{", None, "model.json that is no JSON"),
        (b"[" * 100_000, None, "model.json that is no JSON"),
        (b"\xff\xfe", None, "model.json that is no JSON"),
        ([1], None, "model.json with [1]; expected a JSON object"),
        ({}, None, "has no 'model' in model.json"),
        ({"model": 5}, None, "has 'model' with 5"),
        ({"model": ""}, None, "has 'model' with ''"),
        ({"model": "a" * (1 << 20)}, None, "more than 1048576 bytes"),
        ({"model": "a", "enable_lora": True}, None, "no multi_lora.json"),
        ({"model": "a", "enable_lora": True}, {"one": 1}, "has 'one' in multi_lora.json with 1"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, lora, words):
    with pytest.raises(InferError) as caught:
        read(tmp_path, content, lora)
    assert words in caught.value.message
    assert caught.value.message.startswith(f"model 'm' version 1: {tmp_path / '1'} has ")
