"""The profile of a model is read when the model loads."""

import logging
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.model_profile import MAX_PROFILE_BYTES, PROFILE_FILE, ModelProfile, format_profile
from naiad.engine.loading.load_configuration import read_profile

PROFILE = ModelProfile(100.0, 20.0, 8, 250.0, (1, 6))


@pytest.fixture
def adaptive() -> ModelConfig:
    config = ModelConfig(name="m", max_batch_size=8)
    config.dynamic_batching.SetInParent()
    config.parameters["adaptive_batching"].string_value = "true"
    return config


def test_profile_is_for_adaptive_batching(tmp_path: Path, adaptive: ModelConfig) -> None:
    assert read_profile(adaptive, tmp_path) is None
    (tmp_path / PROFILE_FILE).write_text(format_profile(PROFILE))
    assert read_profile(adaptive, tmp_path) == PROFILE
    assert read_profile(ModelConfig(name="m"), tmp_path) is None


@pytest.mark.parametrize("content", [b"{}", b"\xff", b" " * (MAX_PROFILE_BYTES + 1)])
def test_unusable_profile_is_a_warning(tmp_path: Path, adaptive: ModelConfig, caplog, content: bytes) -> None:
    (tmp_path / PROFILE_FILE).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert read_profile(adaptive, tmp_path) is None
    assert "model 'm' learns from the beginning: naiad-profile.json" in caplog.text
