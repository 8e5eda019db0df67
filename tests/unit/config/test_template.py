from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.forms.template import format_commented
from naiad.config.model_config_pb2 import ModelConfig


def read(text: str) -> ModelConfig:
    parsed = parse_pbtxt(text)
    assert parsed.problems == []
    return parsed.config


def test_commented_text_reads_back_as_the_configuration():
    config = read(
        'name: "m" backend: "onnxruntime" default_model_filename: "other.onnx" max_batch_size: 4 '
        "dynamic_batching { } "
        'input [ { name: "a\\"b\\\\" data_type: TYPE_FP32 dims: [ -1, 3 ] optional: true }, '
        '{ name: "J" data_type: TYPE_STRING dims: 1 reshape { } } ] '
        'output { name: "O" data_type: TYPE_BOOL dims: [ 2 ] reshape { shape: [ 1, 2 ] } }'
    )
    assert read(format_commented(config)) == config


def test_text_for_an_unknown_model_reads_too():
    text = format_commented(ModelConfig(name="m"))
    assert read(text) == ModelConfig(name="m")
    assert "# input [" in text


def test_usual_file_name_is_left_out():
    config = ModelConfig(name="m", backend="python", default_model_filename="model.py")
    assert "default_model_filename" not in format_commented(config)
