"""Accepted forms of `config.pbtxt`."""

import math

import pytest
from google.protobuf import text_format

from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.forms.pbtxt.text_format import format_config, parse_pbtxt
from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

TYPICAL = """
# A typical configuration.
name: "resnet"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  { name: "image" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ] },
  { name: 'mask', data_type: TYPE_BOOL; dims: -1 dims: 4, optional: true }
]
output { name: "class" data_type: TYPE_FP32 dims: [ 1000 ] label_filename: "labels.txt" }
dynamic_batching <
  preferred_batch_size: [4, 8]; max_queue_delay_microseconds: 100,
  priority_queue_policy: [ { key: 1 value { max_queue_size: 3 } }, { key: 2 value: { timeout_action: DELAY } } ]
>
instance_group [ { count: 2 kind: KIND_CPU } ]  # two
parameters { key: "a" value: { string_value: "x" 'y' "z" } }
parameters: { key: "b.c" value { string_value: "" } }
version_policy: { all {} }
"""


def read(text: str) -> ModelConfig:
    parsed = parse_pbtxt(text)
    assert [str(problem) for problem in parsed.problems] == []
    return parsed.config


def test_typical_file_is_read_as_protobuf_reads_it():
    assert read(TYPICAL) == text_format.Parse(TYPICAL, ModelConfig())


def test_formatted_config_reads_back_equal():
    config = read(TYPICAL)
    assert read(format_config(config)) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_batch_size: 0x1F", 31),
        ("max_batch_size: 017", 15),
        ("max_batch_size: -1", -1),
        ("max_batch_size: - 1", -1),
        ("max_batch_size:3", 3),
        ("max_batch_size : 2147483647", 2147483647),
    ],
)
def test_integers(text: str, expected: int):
    assert read(text).max_batch_size == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5", 0.5), (".5", 0.5), ("5e-1", 0.5), ("1", 1.0), ("0.5f", 0.5), ("1e40", math.inf), ("inf", math.inf),
        ("-inf", -math.inf), ("-Infinity", -math.inf), ("-0.25", -0.25),
    ],
)  # fmt: skip
def test_floats(text: str, expected: float):
    config = read(f"sequence_batching {{ direct {{ minimum_slot_utilization: {text} }} }}")
    assert config.sequence_batching.direct.minimum_slot_utilization == expected


def test_nan_is_a_float():
    config = read("sequence_batching { direct { minimum_slot_utilization: nan } }")
    assert math.isnan(config.sequence_batching.direct.minimum_slot_utilization)


@pytest.mark.parametrize("text", ["true", "True", "t", "1"])
def test_true_in_all_its_forms(text: str):
    assert read(f"response_cache {{ enable: {text} }}").response_cache.enable


@pytest.mark.parametrize("text", ["false", "False", "f", "0"])
def test_false_in_all_its_forms(text: str):
    config = read(f"response_cache {{ enable: {text} }}")
    assert config.HasField("response_cache")
    assert not config.response_cache.enable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'"a\nb\t\"\'\\"', "a\nb\t\"'\\"),
        (r"'\101\x42\u00e9\U0001F600'", "ABé😀"),
        (r"'\303\251'", "é"),
        ('"naïve"', "naïve"),
        ("'a' \"b\"\n  'c'", "abc"),
        ('"# no comment"', "# no comment"),
        ('"{ : [ }"', "{ : [ }"),
    ],
)
def test_strings(text: str, expected: str):
    assert read(f"name: {text}").name == expected


def test_enums_by_name_and_number():
    config = read("instance_group { kind: 2 } input { data_type: TYPE_BF16 }")
    assert config.instance_group[0].kind == ModelInstanceGroup.KIND_CPU
    assert config.input[0].data_type == DataType.TYPE_BF16


def test_empty_message_is_set():
    for text in ("dynamic_batching {}", "dynamic_batching: {}", "dynamic_batching < >"):
        assert read(text).HasField("dynamic_batching")


def test_empty_text_is_an_empty_config():
    assert read("") == ModelConfig()
    assert read("\ufeff  # nothing\r\n") == ModelConfig()


def test_lists_may_come_in_parts():
    assert list(read("input { dims: [] dims: [1, 2] dims: 3 }").input[0].dims) == [1, 2, 3]


@pytest.mark.parametrize(
    ("path", "stands_at"),
    [
        ("name", '"resnet"'),
        ("input[0]", '{ name: "image"'),
        ("input[0].name", '"image"'),
        ("input[0].dims", "dims: [ 3"),
        ("input[0].dims[2]", "224 ] }"),
        ("input[1].dims[1]", "4, optional"),
        ("output[0].label_filename", '"labels.txt"'),
        ('parameters["a"]', '"a" value'),
        ('parameters["a"].string_value', "\"x\" 'y'"),
        ("dynamic_batching.priority_queue_policy[2].timeout_action", "DELAY"),
        # A missing field has the position of the message around it.
        ("input[0].reshape.shape[0]", '{ name: "image"'),
    ],
)
def test_position_of(path: str, stands_at: str):
    position = parse_pbtxt(TYPICAL).position(path)
    assert position is not None
    assert TYPICAL.splitlines()[position.line - 1][position.column - 1 :].startswith(stands_at)


def test_position_of_what_is_not_there_is_unknown():
    assert parse_pbtxt(TYPICAL).position("ensemble_scheduling") is None
    assert ParsedConfig("x").position("") is None
