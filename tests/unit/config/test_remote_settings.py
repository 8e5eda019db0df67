"""Parameters of models on other servers, and whether two configurations fit each other."""

import pytest

from naiad.config.changes.override import limited_override
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.remote_settings import RemoteAccess, RemoteSettings, completed_by, difference, read_remote
from naiad.config.validate.model import validate
from naiad.core.errors import InferError

SERVER = 'parameters { key: "server" value { string_value: "grpc://a:8001, grpc://b" } }'
TLS_SERVER = 'parameters { key: "server" value { string_value: "grpcs://a:8001" } }'
THERE = """
name: "m" backend: "onnxruntime" max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: [ 16 ] }
input { name: "B" data_type: TYPE_INT64 dims: [ -1 ] optional: true }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }
"""
INPUT, OUTPUT = (
    'input { name: "A" data_type: TYPE_FP32 dims: [ 16 ] }',
    'output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }',
)

OTHER_OUTPUT = 'output { name: "Z" data_type: TYPE_FP32 dims: [ 2 ] }'


def config(text: str) -> ModelConfig:
    parsed = parse_pbtxt(text, "config.pbtxt")
    assert not parsed.problems, parsed.problems
    return parsed.config


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def test_settings_have_defaults() -> None:
    assert read_remote(config(f'name: "m" backend: "remote" {SERVER}')) == RemoteSettings(
        ["grpc://a:8001", "grpc://b"], "m"
    )
    text = SERVER + "".join(
        parameter(key, value)
        for key, value in {"model": "n", "model_version": "3", "max_in_flight": "5", "timeout_s": "0.5"}.items()
    )
    assert read_remote(config(f'name: "m" {text}')) == RemoteSettings(["grpc://a:8001", "grpc://b"], "n", "3", 5, 0.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "parameter 'server' has no address of gRPC"),
        (parameter("server", "grpc://a, http://b:8000"), "parameter 'server' has no address of gRPC"),
        (parameter("server", ",".join(f"grpc://h{index}" for index in range(65))), "has 65 addresses"),
        (SERVER + parameter("max_in_flight", "0"), "parameter 'max_in_flight' is out of range"),
        (SERVER + parameter("max_in_flight", "1.5"), "parameter 'max_in_flight' is out of range"),
        (SERVER + parameter("timeout_s", "nan"), "parameter 'timeout_s' is out of range"),
        (TLS_SERVER + parameter("ca_file", "ca.pem"), "parameter 'ca_file' is no absolute name"),
        (TLS_SERVER + parameter("key_file", "/key.pem"), "parameter 'key_file' is alone"),
        (SERVER + parameter("ca_file", "/ca.pem"), "parameter 'ca_file' needs addresses with TLS"),
        (SERVER + parameter("token_file", "/token"), "parameter 'token_file' needs addresses with TLS"),
        (SERVER + "max_batch_size: 4 dynamic_batching { }", "'dynamic_batching' has no meaning"),
        (SERVER + parameter("pad_input.A", "0"), "parameter 'pad_input.A' has no meaning"),
        (SERVER + parameter("pad_batch", "8"), "parameter 'pad_batch' has no meaning"),
        (SERVER + "instance_group { count: 2 }", "'instance_group' has no meaning"),
        (SERVER + "sequence_batching { }", "'sequence_batching' has no meaning"),
    ],
)
def test_wrong_settings_are_refused(text: str, reason: str) -> None:
    parsed = parse_pbtxt(f'name: "m" backend: "remote" {text}', "config.pbtxt")
    problems = validate(parsed.config, parsed=parsed, known_backends=["remote"], complete=False)
    assert any(reason in str(each) for each in problems if each.is_error), problems


def test_files_for_connections_belong_to_the_owner() -> None:
    names = ("ca_file", "certificate_file", "key_file", "token_file")
    text = TLS_SERVER + "".join(parameter(name, f"/{name}") for name in names)
    parsed = parse_pbtxt(f'name: "m" backend: "remote" {text}', "config.pbtxt")
    problems = validate(parsed.config, parsed=parsed, known_backends=["remote"], complete=False)
    assert not [each for each in problems if each.is_error]
    assert read_remote(parsed.config).access == RemoteAccess(
        "/ca_file", "/certificate_file", "/key_file", "/token_file"
    )
    owner = config(f'name: "m" backend: "remote" {TLS_SERVER}')
    for name in ("server", *names):
        with pytest.raises(InferError, match=f"'parameters.*{name}"):
            limited_override(config(f'name: "m" {parameter(name, "/etc/passwd")}'), owner)


def test_tensors_come_from_the_other_server() -> None:
    completed = completed_by(config(f'name: "n" backend: "remote" {SERVER}'), config(THERE))
    assert completed.max_batch_size == 8
    assert [(each.name, list(each.dims), each.optional) for each in completed.input] == [
        ("A", [16], False),
        ("B", [-1], True),
    ]
    assert [(each.name, each.label_filename) for each in completed.output] == [("Y", "")]
    assert (completed.name, completed.backend) == ("n", "remote")
    assert difference(completed, config(THERE)) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"max_batch_size: 8 {INPUT} {OUTPUT}", ""),
        (f"max_batch_size: 4 {INPUT} {OUTPUT.replace('[ 2 ]', '[ -1 ]')}", ""),
        (f"max_batch_size: 4 {INPUT} input {{ name: 'B' data_type: TYPE_INT64 dims: [ 3 ] }} {OUTPUT}", ""),
        (f"max_batch_size: 16 {INPUT} {OUTPUT}", "max_batch_size is 16 here and 8 there"),
        (f"{INPUT} {OUTPUT}", "max_batch_size is 0 here and 8 there"),
        (
            f"max_batch_size: 8 {INPUT.replace('FP32', 'FP64')} {OUTPUT}",
            "input 'A' is FP64 [16] here and FP32 [16] there",
        ),
        (
            f"max_batch_size: 8 {INPUT.replace('16', '-1')} {OUTPUT}",
            "input 'A' is FP32 [-1] here and FP32 [16] there",
        ),
        (
            f"max_batch_size: 8 {INPUT} {OUTPUT.replace('[ 2 ]', '[ 2, 1 ]')}",
            "output 'Y' is FP32 [2, 1] here and FP32 [2] there",
        ),
        (
            f"max_batch_size: 8 {INPUT} {OTHER_OUTPUT}",
            "output 'Z' is missing there; it has 'Y'",
        ),
        (
            f"max_batch_size: 8 input {{ name: 'B' data_type: TYPE_INT64 dims: [ 3 ] }} {OUTPUT}",
            "input 'A' (FP32 [16]) is required there and missing here",
        ),
    ],
)
def test_differences_name_both_sides(text: str, expected: str) -> None:
    assert difference(config(text), config(THERE)) == expected


def test_both_are_decoupled_or_none() -> None:
    there = config(f"{THERE} model_transaction_policy {{ decoupled: true }}")
    here = config(f"max_batch_size: 8 {INPUT} {OUTPUT}")
    assert difference(here, there) == "model_transaction_policy is decoupled there and not here"
    assert difference(there, config(THERE)) == "model_transaction_policy is decoupled here and not there"
    assert difference(there, there) == ""
    completed = completed_by(config('name: "m" backend: "remote"'), there)
    assert completed.model_transaction_policy.decoupled
