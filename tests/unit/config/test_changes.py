"""The differences between two configurations, for the log."""

from naiad.config.changes.configuration_changes import config_changes
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig


def parsed(text: str) -> ModelConfig:
    return parse_pbtxt(text, "").config


def test_changed_fields_are_listed_with_both_values() -> None:
    before = parsed('max_batch_size: 8 input [ { name: "A" dims: [ 3 ] } ] backend: "onnxruntime"')
    after = parsed('max_batch_size: 16 input [ { name: "A" dims: [ 4 ] } ]')
    assert config_changes(before, after) == (
        "backend: onnxruntime -> unset; max_batch_size: 8 -> 16; input[0].dims: [3] -> [4]"
    )


def test_equal_configurations_change_nothing() -> None:
    assert config_changes(parsed("max_batch_size: 8"), parsed("max_batch_size: 8")) == "nothing"


def test_length_is_bounded() -> None:
    inputs = " ".join(f'input [ {{ name: "{"x" * 5000}{number}" }} ]' for number in range(100))
    text = config_changes(ModelConfig(), parsed(inputs))
    assert len(text) < 4000
    assert "more fields" in text
