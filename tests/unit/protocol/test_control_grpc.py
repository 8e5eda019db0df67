import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.model import IndexEntry, ModelMetadata, ModelState, ServerMetadata
from naiad.core.slices import finish
from naiad.core.tensor import TensorSpec
from naiad.protocol import service_pb2 as pb
from naiad.protocol.grpc import control as control_grpc
from naiad.telemetry.statistics.version_statistics import (
    BatchStatistics,
    Duration,
    PositionStatistics,
    VersionStatistics,
)


def test_model_reference():
    message = pb.ModelStatisticsRequest(name="m", version="3").SerializeToString()
    assert control_grpc.decode_model_reference(message) == ("m", "3")
    assert control_grpc.decode_model_reference(memoryview(b"")) == ("", "")


@pytest.mark.parametrize(("text", "version"), [("01", "1"), ("000", "0"), ("10", "10"), ("-1", "-1"), ("0x", "0x")])
def test_version_is_a_number(text, version):
    message = pb.ModelReadyRequest(name="m", version=text).SerializeToString()
    assert control_grpc.decode_model_reference(message) == ("m", version)


@pytest.mark.parametrize(
    "decode",
    [
        control_grpc.decode_model_reference,
        control_grpc.decode_index_request,
        control_grpc.decode_load_request,
        control_grpc.decode_unload_request,
    ],
)
def test_malformed_request(decode):
    with pytest.raises(InferError, match="Unable to parse request") as caught:
        decode(b"\x0a\xff")
    assert (caught.value.code, caught.value.triton_code) == (ErrorCode.INVALID_ARG, ErrorCode.INTERNAL)


@pytest.mark.parametrize(
    ("decode", "request_type"),
    [
        (control_grpc.decode_index_request, pb.RepositoryIndexRequest),
        (control_grpc.decode_load_request, pb.RepositoryModelLoadRequest),
        (control_grpc.decode_unload_request, pb.RepositoryModelUnloadRequest),
    ],
)
def test_repository_name_is_refused(decode, request_type):
    with pytest.raises(InferError, match="'repository_name' specification is not supported") as caught:
        decode(request_type(repository_name="r").SerializeToString())
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_index_request():
    assert control_grpc.decode_index_request(pb.RepositoryIndexRequest(ready=True).SerializeToString()) is True
    assert control_grpc.decode_index_request(b"") is False


def test_load_request():
    request = pb.RepositoryModelLoadRequest(model_name="m")
    request.parameters["config"].string_param = "{}"
    request.parameters["file:1/model.py"].bytes_param = b"\xff"
    assert control_grpc.decode_load_request(request.SerializeToString()) == (
        "m",
        {"config": "{}", "file:1/model.py": b"\xff"},
    )


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("config", {"int64_param": 1}, "invalid value type for load parameter 'config', expected string_param."),
        ("file:a", {"string_param": "1"}, "invalid value type for load parameter 'file:a', expected bytes_param."),
        ("force", {"string_param": "1"}, "invalid value type for load parameter 'force', expected bool_param."),
        ("dry_run", {"int64_param": 1}, "invalid value type for load parameter 'dry_run', expected bool_param."),
        ("else", {"string_param": "1"}, "unrecognized load parameter 'else'."),
    ],
)
def test_load_parameters_that_are_refused(key, value, text):
    request = pb.RepositoryModelLoadRequest(parameters={key: pb.ModelRepositoryParameter(**value)})
    with pytest.raises(InferError) as caught:
        control_grpc.decode_load_request(request.SerializeToString())
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, text)


def test_load_parameters_of_naiad():
    request = pb.RepositoryModelLoadRequest(model_name="m")
    request.parameters["force"].bool_param = True
    request.parameters["dry_run"].bool_param = False
    assert control_grpc.decode_load_request(request.SerializeToString()) == ("m", {"force": True, "dry_run": False})


def test_unload_request():
    request = pb.RepositoryModelUnloadRequest(model_name="m")
    assert control_grpc.decode_unload_request(request.SerializeToString()) == ("m", {})
    request.parameters["unload_dependents"].bool_param = True
    assert control_grpc.decode_unload_request(request.SerializeToString()) == ("m", {"unload_dependents": True})
    request.parameters["unload_dependents"].int64_param = 1
    with pytest.raises(InferError, match="'unload_dependents' parameter, expected bool_param"):
        control_grpc.decode_unload_request(request.SerializeToString())


def test_health():
    assert pb.ServerLiveResponse.FromString(control_grpc.encode_flag(True)).live
    assert pb.ServerReadyResponse.FromString(control_grpc.encode_flag(True)).ready
    assert not pb.ModelReadyResponse.FromString(control_grpc.encode_flag(False)).ready


def test_standard_health_messages():
    # HealthCheckResponse and ServerReadyResponse both have one varint field with number 1.
    assert pb.StatisticDuration.FromString(control_grpc.HEALTH_SERVING).count == 1
    assert pb.StatisticDuration.FromString(control_grpc.HEALTH_NOT_SERVING).count == 2


def test_server_metadata():
    message = control_grpc.encode_server_metadata(ServerMetadata("naiad", "1.0", ["statistics"]))
    parsed = pb.ServerMetadataResponse.FromString(message)
    assert (parsed.name, parsed.version, list(parsed.extensions)) == ("naiad", "1.0", ["statistics"])


def test_model_metadata():
    metadata = ModelMetadata(
        "m",
        ["1", "2"],
        "onnxruntime_onnx",
        [TensorSpec("x", DataType.FP32, (-1, 16))],
        [TensorSpec("y", DataType.BYTES, (-1,))],
    )
    parsed = pb.ModelMetadataResponse.FromString(control_grpc.encode_model_metadata(metadata))
    assert (parsed.name, list(parsed.versions), parsed.platform) == ("m", ["1", "2"], "onnxruntime_onnx")
    assert [(t.name, t.datatype, list(t.shape)) for t in parsed.inputs] == [("x", "FP32", [-1, 16])]
    assert [(t.name, t.datatype, list(t.shape)) for t in parsed.outputs] == [("y", "BYTES", [-1])]


def test_model_config():
    config = ModelConfig(name="m", max_batch_size=8)
    assert pb.ModelConfigResponse.FromString(control_grpc.encode_model_config(config)).config == config


def test_repository_index():
    entries = [
        IndexEntry("a", "1", ModelState.READY),
        IndexEntry("b"),
        IndexEntry("c", "2", ModelState.UNAVAILABLE, "x"),
    ]
    parsed = pb.RepositoryIndexResponse.FromString(control_grpc.encode_repository_index(entries))
    assert [(m.name, m.version, m.state, m.reason) for m in parsed.models] == [
        ("a", "1", "READY", ""),
        ("b", "", "", ""),
        ("c", "2", "UNAVAILABLE", "x"),
    ]


def test_statistics():
    durations = [Duration(number, number * 100) for number in range(11)]
    version = VersionStatistics(
        name="m",
        version="1",
        last_inference_ms=1_700_000_000_000,
        inference_count=5,
        execution_count=2,
        success=durations[1],
        fail=durations[2],
        queue=durations[3],
        compute_input=durations[4],
        compute_infer=durations[5],
        compute_output=durations[6],
        cache_hit=durations[7],
        cache_miss=durations[0],
        batch_stats=[BatchStatistics(4, durations[8], durations[9], durations[10])],
        response_stats=[PositionStatistics(*durations[:6]), PositionStatistics(*durations[5:])],
        failures={FailureReason.BACKEND: 1},
        release_reasons={},
    )
    message = finish(control_grpc.statistics_in_slices([version]))
    (parsed,) = pb.ModelStatisticsResponse.FromString(message).model_stats
    assert (parsed.name, parsed.version, parsed.last_inference) == ("m", "1", 1_700_000_000_000)
    assert (parsed.inference_count, parsed.execution_count) == (5, 2)
    fields = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit")
    stats = parsed.inference_stats
    assert [getattr(stats, field).count for field in fields] == [1, 2, 3, 4, 5, 6, 7]
    assert [getattr(stats, field).ns for field in fields] == [100, 200, 300, 400, 500, 600, 700]
    assert stats.HasField("cache_miss")
    fields = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
    assert sorted(parsed.response_stats) == ["0", "1"]
    for position, first in (("0", 0), ("1", 5)):
        row = parsed.response_stats[position]
        assert [getattr(row, field).count for field in fields] == list(range(first, first + 6))
        assert [getattr(row, field).ns for field in fields] == list(range(100 * first, 100 * first + 600, 100))
    (batch,) = parsed.batch_stats
    assert batch.batch_size == 4
    assert (batch.compute_input.count, batch.compute_infer.count, batch.compute_output.count) == (8, 9, 10)


@pytest.mark.parametrize("path", ["/x.Y/TraceSetting", "/inference.GRPCInferenceService/Nothing", ""])
def test_refusal_of_unknown_methods(path):
    assert control_grpc.refusal(path).message == f"unknown method '{path}'"


def test_repository_index_survives_reason_that_is_not_unicode():
    # the name of a file that is not UTF-8, in the message of an exception
    entries = [IndexEntry("a", "1", ModelState.UNAVAILABLE, "no file a\udcff"), IndexEntry("b")]
    parsed = pb.RepositoryIndexResponse.FromString(control_grpc.encode_repository_index(entries))
    assert [(model.name, model.reason) for model in parsed.models] == [("a", "no file a?"), ("b", "")]
