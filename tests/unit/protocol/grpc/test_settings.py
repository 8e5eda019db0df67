import json
import os
from dataclasses import replace

import pytest
from tritonclient.grpc import service_pb2

from naiad.core.errors import ErrorCode, InferError
from naiad.options.options import LogOptions
from naiad.options.trace import TraceOptions
from naiad.protocol.grpc import control as settings_grpc
from naiad.protocol.json.management import control as settings_json

LOG = LogOptions(file="/log")


def refused(call, *arguments):
    with pytest.raises(InferError) as caught:
        call(*arguments)
    return caught.value.triton_code, caught.value.message


def log_message(**settings):
    request = service_pb2.LogSettingsRequest()
    for name, value in settings.items():
        kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
        setattr(request.settings[name], kind, value)
    return request.SerializeToString()


CHANGES = {
    "log_info": False,
    "log_warning": False,
    "log_error": False,
    "log_verbose_level": 3,
    "log_format": "ISO8601",
}
CHANGED = LogOptions(verbose=3, info=False, warning=False, error=False, format="ISO8601", file="/log")


def test_log_settings_as_json():
    assert json.loads(settings_json.encode_log_settings(LOG)) == {
        "log_file": "/log",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    assert replace(LOG, **settings_json.decode_log_changes(json.dumps(CHANGES).encode())) == CHANGED
    for nothing in (b"{}", b"[]", b'{"nope":1}'):
        assert settings_json.decode_log_changes(nothing) == {}


def test_undecodable_file_names_are_escaped():
    name = os.fsdecode(b"/log\xff")
    log, trace = LogOptions(file=name), TraceOptions(file=name)
    assert json.loads(settings_json.encode_log_settings(log))["log_file"] == r"/log\udcff"
    assert json.loads(settings_json.encode_trace_settings(trace))["trace_file"] == r"/log\udcff"
    response = service_pb2.LogSettingsResponse.FromString(settings_grpc.encode_log_settings(log))
    assert response.settings["log_file"].string_param == r"/log\udcff"
    response = service_pb2.TraceSettingResponse.FromString(settings_grpc.encode_trace_settings(trace))
    assert response.settings["trace_file"].value == [r"/log\udcff"]


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({"log_info": "true"}, ErrorCode.INTERNAL, "non-boolean as boolean"),
        ({"log_warning": 0}, ErrorCode.INTERNAL, "non-boolean as boolean"),
        ({"log_verbose_level": -1}, ErrorCode.INTERNAL, "non-unsigned-integer"),
        ({"log_verbose_level": "1"}, ErrorCode.INTERNAL, "non-unsigned-integer"),
        ({"log_verbose_level": 2**32}, ErrorCode.INVALID_ARG, "is too large"),
        ({"log_format": "iso"}, ErrorCode.UNAVAILABLE, "invalid argument for --log_format, got: iso"),
        ({"log_format": 1}, ErrorCode.INTERNAL, "non-string as string"),
        ({"log_file": "x"}, ErrorCode.UNSUPPORTED, "log file location can not be updated through network protocol"),
    ],
)
def test_wrong_log_settings_as_json(settings, code, text):
    found, message = refused(settings_json.decode_log_changes, json.dumps(settings).encode())
    assert found is code
    assert text in message


@pytest.mark.parametrize("body", [b"", b"{x"])
def test_what_is_not_json(body):
    assert refused(settings_json.decode_log_changes, body)[0] is ErrorCode.INTERNAL
    assert refused(settings_json.decode_trace_settings, body)[0] is ErrorCode.INTERNAL


def test_log_settings_as_messages():
    answer = service_pb2.LogSettingsResponse.FromString(settings_grpc.encode_log_settings(CHANGED))
    found = {name: getattr(v, v.WhichOneof("parameter_choice")) for name, v in answer.settings.items()}
    assert found == {**CHANGES, "log_file": "/log"}
    assert replace(LOG, **settings_grpc.decode_log_changes(log_message(**CHANGES))) == CHANGED
    assert settings_grpc.decode_log_changes(log_message(nope=1)) == {}


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        (
            {"log_info": "true"},
            ErrorCode.INVALID_ARG,
            "type for 'log_info' setting, expected bool_param.",
        ),
        ({"log_verbose_level": True}, ErrorCode.INVALID_ARG, "expected uint32_param."),
        ({"log_format": "iso"}, ErrorCode.INVALID_ARG, "invalid argument for log_format, got: iso"),
        ({"log_file": "x"}, ErrorCode.UNSUPPORTED, "can not be updated"),
    ],
)
def test_wrong_log_settings_as_messages(settings, code, text):
    found, message = refused(settings_grpc.decode_log_changes, log_message(**settings))
    assert found is code
    assert text in message


TRACE = TraceOptions(("TIMESTAMPS", "TENSORS"), 5, -1, 2, "/t")
VALUES = {
    "trace_level": ["TIMESTAMPS", "TENSORS"],
    "trace_rate": "5",
    "trace_count": "-1",
    "log_frequency": "2",
    "trace_file": "/t",
    "trace_mode": "triton",
}


def test_trace_settings_as_json():
    assert json.loads(settings_json.encode_trace_settings(TRACE)) == VALUES
    body = b'{"trace_level":["OFF"],"trace_rate":"7","trace_count":null,"nope":1}'
    assert settings_json.decode_trace_settings(body) == {
        "trace_level": ["OFF"],
        "trace_rate": ("7",),
        "trace_count": None,
    }


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"trace_rate":5}', "non-string as string"),
        (b'{"trace_rate":["7"]}', "non-string as string"),
        (b'{"trace_level":"OFF"}', "non-array as array"),
        (b'{"trace_level":[1]}', "non-string as string"),
    ],
)
def test_wrong_trace_settings_as_json(body, text):
    code, message = refused(settings_json.decode_trace_settings, body)
    assert code is ErrorCode.INTERNAL
    assert text in message


def test_trace_settings_as_messages():
    answer = service_pb2.TraceSettingResponse.FromString(settings_grpc.encode_trace_settings(TRACE))
    assert {name: list(setting.value) for name, setting in answer.settings.items()} == {
        name: [value] if isinstance(value, str) else value for name, value in VALUES.items()
    }
    request = service_pb2.TraceSettingRequest(model_name="m")
    request.settings["trace_rate"].value.append("7")
    request.settings["trace_level"].value.extend(["TIMESTAMPS", "TENSORS"])
    request.settings["trace_count"].SetInParent()
    assert settings_grpc.decode_trace_settings(request.SerializeToString()) == (
        "m",
        {"trace_rate": ["7"], "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_count": None},
    )


def test_wrong_trace_settings_as_messages():
    request = service_pb2.TraceSettingRequest()
    request.settings["trace_rate"].value.extend(["7", "8"])
    code, message = refused(settings_grpc.decode_trace_settings, request.SerializeToString())
    assert (code, message) == (ErrorCode.INVALID_ARG, "expect only 1 value for 'trace_rate', got 2")
    assert refused(settings_grpc.decode_trace_settings, b"\xff")[0] is ErrorCode.INTERNAL
