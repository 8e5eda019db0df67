import json
import logging

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, wrong_request
from naiad.core.model import IndexEntry, ModelMetadata, ModelState, ServerMetadata
from naiad.core.tensor import TensorSpec
from naiad.protocol.json.management import control as control_json
from naiad.protocol.status_table import status_of, use_triton_codes
from naiad.telemetry.statistics.version_statistics import (
    BatchStatistics,
    Duration,
    PositionStatistics,
    VersionStatistics,
)


@pytest.mark.parametrize(
    ("code", "http", "grpc"),
    [
        (ErrorCode.UNKNOWN, 400, 2),
        (ErrorCode.INTERNAL, 500, 13),
        (ErrorCode.NOT_FOUND, 404, 5),
        (ErrorCode.INVALID_ARG, 400, 3),
        (ErrorCode.UNAVAILABLE, 503, 14),
        (ErrorCode.UNSUPPORTED, 501, 12),
        (ErrorCode.ALREADY_EXISTS, 400, 6),
        (ErrorCode.CANCELLED, 499, 1),
        (ErrorCode.DEADLINE_EXCEEDED, 504, 4),
    ],
)
def test_status_of_every_code(code, http, grpc):
    status = status_of(InferError(code, "no"))
    assert (status.http, status.grpc) == (http, grpc)
    assert status.log_level in (logging.INFO, logging.WARNING, logging.ERROR)


def test_flag_restores_triton_status():
    error = wrong_request("no")
    assert (status_of(error).http, status_of(error).grpc) == (400, 3)
    use_triton_codes(True)
    try:
        assert (status_of(error).http, status_of(error).grpc) == (500, 13)
        assert status_of(error.with_message("other")).http == 500
    finally:
        use_triton_codes(False)


def test_error_body_survives_a_lone_surrogate():
    assert json.loads(control_json.encode_error("x")) == {"error": "x"}
    assert json.loads(control_json.encode_error("\udcff")) == {"error": "?"}


def test_server_metadata():
    text = control_json.encode_server_metadata(ServerMetadata("triton", "1", ["a", "b"]))
    assert text == b'{"name":"triton","version":"1","extensions":["a","b"]}'


def test_model_metadata():
    tensor = TensorSpec("A", DataType.BYTES, (-1, 2))
    metadata = ModelMetadata("m", ["1", "3"], "onnxruntime_onnx", [tensor], [])
    assert control_json.encode_model_metadata(metadata) == (
        b'{"name":"m","versions":["1","3"],"platform":"onnxruntime_onnx",'
        b'"inputs":[{"name":"A","datatype":"BYTES","shape":[-1,2]}],"outputs":[]}'
    )


def test_config_prints_defaults_enum_names_and_integers():
    config = ModelConfig(name="m", max_batch_size=4)
    config.dynamic_batching.max_queue_delay_microseconds = 2**53
    config.dynamic_batching.priority_queue_policy[2].max_queue_size = 3
    config.input.add(name="A", data_type=11, dims=[-1, 2])
    config.model_transaction_policy.SetInParent()
    config.response_cache.SetInParent()
    config.parameters["k"].string_value = "v"
    tree = json.loads(control_json.encode_model_config(config))
    assert tree["platform"] == ""
    assert tree["dynamic_batching"]["max_queue_delay_microseconds"] == 2**53
    assert tree["dynamic_batching"]["preserve_ordering"] is False
    assert tree["dynamic_batching"]["preferred_batch_size"] == []
    assert tree["dynamic_batching"]["priority_queue_policy"]["2"]["timeout_action"] == "REJECT"
    assert tree["input"][0]["data_type"] == "TYPE_FP32"
    assert tree["input"][0]["dims"] == [-1, 2]
    assert tree["model_transaction_policy"] == {"decoupled": False}
    assert tree["response_cache"] == {"enable": False}
    assert tree["parameters"] == {"k": {"string_value": "v"}}
    assert "sequence_batching" not in tree


def test_config_prints_only_set_oneof_member():
    config = ModelConfig()
    config.version_policy.latest.num_versions = 2
    assert json.loads(control_json.encode_model_config(config))["version_policy"] == {"latest": {"num_versions": 2}}


def test_statistics_have_all_keys():
    batch = BatchStatistics(4, Duration(1, 10), Duration(1, 20), Duration(1, 30))
    row = VersionStatistics("m", "1", success=Duration(2, 99), batch_stats=[batch])
    (tree,) = json.loads(control_json.encode_statistics([row]))["model_stats"]
    assert list(tree["inference_stats"]) == [
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    ]
    assert tree["inference_stats"]["success"] == {"count": 2, "ns": 99}
    assert tree["batch_stats"] == [
        {
            "batch_size": 4,
            "compute_input": {"count": 1, "ns": 10},
            "compute_infer": {"count": 1, "ns": 20},
            "compute_output": {"count": 1, "ns": 30},
        }
    ]
    assert (tree["response_stats"], tree["memory_usage"]) == ({}, [])
    assert list(tree)[-4:] == ["inference_stats", "response_stats", "batch_stats", "memory_usage"]
    assert (tree["last_inference"], tree["inference_count"], tree["execution_count"]) == (0, 0, 0)


def test_statistics_of_responses():
    entries = [PositionStatistics(*(Duration(10 * i + k, 100 * i + k) for k in range(6))) for i in range(2)]
    row = VersionStatistics("m", "1", response_stats=entries)
    (tree,) = json.loads(control_json.encode_statistics([row]))["model_stats"]
    assert list(tree["response_stats"]) == ["0", "1"]
    assert tree["response_stats"]["1"] == {
        "compute_infer": {"count": 10, "ns": 100},
        "compute_output": {"count": 11, "ns": 101},
        "success": {"count": 12, "ns": 102},
        "fail": {"count": 13, "ns": 103},
        "empty_response": {"count": 14, "ns": 104},
        "cancel": {"count": 15, "ns": 105},
    }


def test_index_leaves_out_what_is_not_known():
    rows = [
        IndexEntry("a"),
        IndexEntry("b", "1", ModelState.READY),
        IndexEntry("c", "2", ModelState.UNAVAILABLE, "x"),
    ]
    assert json.loads(control_json.encode_repository_index(rows)) == [
        {"name": "a"},
        {"name": "b", "version": "1", "state": "READY"},
        {"name": "c", "version": "2", "state": "UNAVAILABLE", "reason": "x"},
    ]


@pytest.mark.parametrize(("body", "ready"), [(b"", False), (b"{}", False), (b'{"ready":true}', True)])
def test_index_request(body, ready):
    assert control_json.decode_index_request(body) is ready


@pytest.mark.parametrize(
    ("body", "code"),
    [(b'{"ready":1}', ErrorCode.INVALID_ARG), (b"{", ErrorCode.INTERNAL), (b"[]", ErrorCode.INVALID_ARG)],
)
def test_index_request_refused(body, code):
    with pytest.raises(InferError) as caught:
        control_json.decode_index_request(body)
    assert caught.value.triton_code is code


def test_load_parameters():
    assert control_json.decode_load_parameters(b"") == {}
    body = b'{"parameters":{"config":"{}","file:1/model.py":"AAE="}}'
    assert control_json.decode_load_parameters(body) == {"config": "{}", "file:1/model.py": b"\0\1"}
    body = b'{"parameters":{"force":true,"dry_run":false}}'
    assert control_json.decode_load_parameters(body) == {"force": True, "dry_run": False}


@pytest.mark.parametrize(
    ("parameters", "code", "text"),
    [
        (b'{"nope":"x"}', ErrorCode.INTERNAL, "unexpected error on creating Triton parameter 'nope'"),
        (b'{"config":{}}', ErrorCode.INTERNAL, "attempt to access JSON non-string as string"),
        (b'{"force":"yes"}', ErrorCode.INTERNAL, "non-boolean"),
        (b'{"file:1/x":5}', ErrorCode.INTERNAL, "attempt to access JSON non-string as string"),
        (b'{"file:1/x":"#"}', ErrorCode.INVALID_ARG, "'file:1/x': the content of a file must be in base64"),
        (b"5", ErrorCode.INTERNAL, "attempt to get members for non-object"),
    ],
)
def test_load_parameters_refused(parameters, code, text):
    with pytest.raises(InferError) as caught:
        control_json.decode_load_parameters(b'{"parameters":%b}' % parameters)
    assert caught.value.triton_code is code
    assert text in caught.value.message


def test_unload_parameters():
    assert control_json.decode_unload_parameters(b"") == {}
    body = b'{"parameters":{"unload_dependents":true,"other":1}}'
    assert control_json.decode_unload_parameters(body) == {"unload_dependents": True}
    with pytest.raises(InferError, match="non-boolean"):
        control_json.decode_unload_parameters(b'{"parameters":{"unload_dependents":"x"}}')


@pytest.mark.parametrize("encode", [control_json.encode_repository_index, control_json.encode_models])
def test_repository_index_survives_reason_that_is_not_unicode(encode):
    # the name of a file that is not UTF-8, in the message of an exception
    assert b'"reason":"no file a?"' in encode([IndexEntry("a", "1", ModelState.UNAVAILABLE, "no file a\udcff")])
