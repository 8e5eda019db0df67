import json
import math

import orjson
import pytest

from naiad.config.forms.json_form import (
    config_from_dict,
    config_from_json,
    config_of_server,
    config_to_json,
    read_json,
)
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError


def config_of(text: str) -> ModelConfig:
    return parse_pbtxt(text).config


def test_every_scalar_is_written_with_its_default():
    written = json.loads(config_to_json(ModelConfig(name="m")))
    assert written == {
        "name": "m", "platform": "", "backend": "", "runtime": "", "max_batch_size": 0, "input": [], "output": [],
        "batch_input": [], "batch_output": [], "instance_group": [], "default_model_filename": "",
        "cc_model_filenames": {}, "metric_tags": {}, "parameters": {}, "model_warmup": [],
    }  # fmt: skip


def test_tensors_are_written_as_clients_expect_them():
    config = config_of('input { name: "I" data_type: TYPE_STRING dims: [ -1, 4 ] }')
    (tensor,) = orjson.loads(config_to_json(config))["input"]
    assert tensor == {
        "name": "I", "data_type": "TYPE_STRING", "format": "FORMAT_NONE", "dims": [-1, 4], "is_shape_tensor": False,
        "allow_ragged_batch": False, "optional": False, "is_non_linear_format_io": False,
    }  # fmt: skip


def test_64_bit_integers_are_numbers_keys_are_strings():
    config = config_of(
        "dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 priority_levels: 2 "
        "priority_queue_policy { key: 10 value { max_queue_size: 1 } } priority_queue_policy { key: 2 value { } } }"
    )
    batching = json.loads(config_to_json(config))["dynamic_batching"]
    assert batching["max_queue_delay_microseconds"] == 18446744073709551615
    assert list(batching["priority_queue_policy"]) == ["2", "10"]
    assert batching["priority_queue_policy"]["10"]["timeout_action"] == "REJECT"


def test_only_chosen_oneof_member_is_written():
    config = config_of(
        "version_policy { all { } } model_warmup { inputs { key: 'I' value { zero_data: false } } } "
        "dynamic_batching { }"
    )
    written = orjson.loads(config_to_json(config))
    assert written["version_policy"] == {"all": {}}
    assert written["model_warmup"][0]["inputs"]["I"] == {"data_type": "TYPE_INVALID", "dims": [], "zero_data": False}
    assert "dynamic_batching" in written
    assert "sequence_batching" not in written


@pytest.mark.parametrize("value", [0.1, 0.5, 1 / 3, 1e-7, 123456.789])
def test_single_floats_are_written_short_and_exact(value: float):
    config = ModelConfig()
    config.sequence_batching.direct.minimum_slot_utilization = value
    single = config.sequence_batching.direct.minimum_slot_utilization
    written = orjson.loads(config_to_json(config))["sequence_batching"]["direct"]["minimum_slot_utilization"]
    assert len(repr(written)) <= len(repr(single))
    assert config_from_json(config_to_json(config)) == config


def test_override_reads_what_was_written():
    config = config_of(
        'name: "m" max_batch_size: 4 input { name: "I" data_type: TYPE_FP32 dims: [ 3 ] reshape { shape: [ ] } } '
        'parameters { key: "a" value { string_value: "x" } } metric_tags { key: "b" value: "c" } '
        "instance_group { count: 2 kind: KIND_CPU } sequence_batching { direct { minimum_slot_utilization: 0.3 } }"
    )
    assert config_from_json(config_to_json(config)) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"maxBatchSize": 3}', 'max_batch_size: 3'),
        ('{"max_batch_size": "4"}', 'max_batch_size: 4'),
        ('{"max_batch_size": 4.0}', 'max_batch_size: 4'),
        ('{"max_batch_size": null, "input": null}', ""),
        ('{"input": [{"data_type": "type_fp32"}]}', "input { data_type: TYPE_FP32 }"),
        ('{"input": [{"data_type": 11}]}', "input { data_type: TYPE_FP32 }"),
        ('{"instance_group": [{"kind": "Kind_Cpu"}]}', "instance_group { kind: KIND_CPU }"),
        ('{"dynamic_batching": {}}', "dynamic_batching { }"),
        ('{"metric_tags": {"a": "b"}}', 'metric_tags { key: "a" value: "b" }'),
        (
            '{"dynamic_batching": {"priority_queue_policy": {"2": {"max_queue_size": 1}}}}',
            "dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 1 } } }",
        ),
    ],
)  # fmt: skip
def test_override_accepts(text: str, expected: str):
    assert config_from_json(text) == config_of(expected)


def test_override_accepts_float_names():
    text = '{"sequence_batching": {"direct": {"minimum_slot_utilization": "%s"}}}'
    assert config_from_json(text % "Infinity").sequence_batching.direct.minimum_slot_utilization == math.inf
    assert math.isnan(config_from_json(text % "NaN").sequence_batching.direct.minimum_slot_utilization)


@pytest.mark.parametrize(
    ("text", "path", "message", "suggestion"),
    [
        ('{"inpt": []}', "inpt", "Invalid config override: inpt: Cannot find field.", "input"),
        ('{"input": [{"dim": [1]}]}', "input[0].dim", "input[0].dim: Cannot find field.", "dims"),
        ('{"input": [{"data_type": "FLOAT32"}]}', "input[0].data_type", 'invalid value "FLOAT32"', "TYPE_FP32"),
        ('{"input": [{"data_type": 99}]}', "input[0].data_type", "invalid value 99", ""),
        ('{"input": [{"data_type": true}]}', "input[0].data_type", "invalid value true", ""),
        ('{"input": [{"data_type": []}]}', "input[0].data_type", "invalid value []", ""),
        ('{"max_batch_size": 1.5}', "max_batch_size", "(max_batch_size): invalid value 1.5", ""),
        ('{"max_batch_size": true}', "max_batch_size", "invalid value true", ""),
        ('{"max_batch_size": 2147483648}', "max_batch_size", "invalid value 2147483648", ""),
        ('{"max_batch_size": "99999999999999999999999"}', "max_batch_size", "invalid value", ""),
        ('{"name": 5}', "name", "invalid value 5", ""),
        ('{"response_cache": {"enable": "true"}}', "response_cache.enable", 'invalid value "true"', "true"),
        ('{"input": 3}', "input", "(input): invalid value 3", ""),
        ('{"input": [3]}', "input[0]", "(input[0]): invalid value 3", ""),
        ('{"dynamic_batching": []}', "dynamic_batching", "invalid value []", ""),
        ('{"parameters": []}', "parameters", "invalid value []", ""),
        ('{"parameters": {"a": "b"}}', 'parameters["a"]', 'invalid value "b"', ""),
        (
            '{"sequence_batching": {"direct": {"minimum_slot_utilization": "half"}}}',
            "sequence_batching.direct.minimum_slot_utilization", 'invalid value "half"', "",
        ),
        ('{"metric_tags": {"a": 1}}', 'metric_tags["a"]', "invalid value 1", ""),
        (
            '{"dynamic_batching": {"priority_queue_policy": {"x": {}}}}',
            'dynamic_batching.priority_queue_policy["x"]', "invalid value", "",
        ),
        ('{"dynamic_batching": {}, "sequence_batching": {}}', "sequence_batching", "cannot be given along with", ""),
        ("[]", "", "the root must be an object", ""),
    ],
)  # fmt: skip
def test_override_rejects(text: str, path: str, message: str, suggestion: str):
    (problem,) = read_json(text)[1]
    assert problem.path == path
    assert message in problem.message
    assert problem.suggestion == suggestion
    with pytest.raises(InferError) as raised:
        config_from_json(text)
    assert raised.value.code is ErrorCode.INVALID_ARG
    assert message in raised.value.message


def test_all_problems_of_an_override_come_together():
    with pytest.raises(InferError) as raised:
        config_from_json('{"inpt": [], "max_batch_size": "x", "output": [{"dims": ["a"]}]}')
    assert len(raised.value.message.splitlines()) == 3


def test_broken_json_has_a_place():
    (problem,) = read_json('{"name": "m",\n "input": [}', "override.json")[1]
    assert str(problem).startswith("override.json:2:12: Invalid config override: ")


def test_deep_json_is_an_error():
    assert read_json("[" * 10000 + "]" * 10000)[1]


def test_dictionary_is_read_like_json():
    config, problems = config_from_dict({"name": "m", "input": [{"name": "I", "dims": [1]}]})
    assert problems == []
    assert config == config_of('name: "m" input { name: "I" dims: 1 }')


def test_fields_of_other_versions_are_passed_over():
    found = config_of_server({"name": "m", "new": 1, "input": [{"name": "I", "data_type": "TYPE_FP32", "newer": {}}]})
    assert found == config_of('name: "m" input { name: "I" data_type: TYPE_FP32 }')
    with pytest.raises(InferError, match=r"configuration that cannot be read: .*max_batch_size"):
        config_of_server({"max_batch_size": "many"})
