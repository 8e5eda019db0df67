"""Recorded traffic as requests: moments, models, data, and sequences under ids of the run's own."""

import json
from base64 import b64encode

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.tensor import to_array
from naiad.telemetry.traffic import FORMAT_VERSION
from naiad.tools.perf.inputs.replay import replay_inputs
from naiad.tools.perf.perf_plan import Concurrency, InputSettings, Mode, ModelLoad, Plan, Protocol, ServerTarget
from naiad.tools.values.tensor import InputError

FIRST = {"naiad_traffic": FORMAT_VERSION, "wall_ns": 0, "monotonic_ns": 0}
A = {"name": "A", "datatype": "INT32", "shape": [1, 2]}
SERVICE = ServerTarget("http://localhost:8000", Protocol.HTTP)
GRPC = ServerTarget("grpc://localhost:8001", Protocol.GRPC)
TRANSPORTS = ("http", "grpc", "grpc_stream", "http_stream", "generate", "grpc")


def replay(tmp_path, *requests, service=SERVICE, models=(), **more):
    path = tmp_path / "traffic"
    lines = [FIRST, *({"model": "m", "inputs": [A], **request} for request in requests)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return replay_inputs(Plan(service, models, Concurrency(1), replay_files=(str(path),), **more))


def test_moments_are_recorded_ones_divided_by_speed(tmp_path):
    replayed = replay(tmp_path, {"arrival_ns": 3000}, {"arrival_ns": 1000}, replay_speed=2.0)
    assert replayed.schedule.offsets_ns == (0, 1000)


def test_equal_requests_share_a_template(tmp_path):
    wide = {**A, "shape": [1, 5]}
    replayed = replay(tmp_path, *({"arrival_ns": i, "inputs": [A if i % 2 else wide]} for i in range(4)))
    assert [each.template_index for each in replayed.requests] == [0, 1, 0, 1]
    assert [template.header.inputs[0].shape for template in replayed.inputs[0].templates] == [(1, 5), (1, 2)]


def test_data_without_payload_is_random(tmp_path):
    settings = InputSettings(integer_bounds={"A": 3})
    (template,) = replay(tmp_path, {"arrival_ns": 0}, models=[ModelLoad("m", inputs=settings)]).inputs[0].templates
    array = to_array(template.header.inputs[0], template.data[0])
    assert array.shape == (1, 2)
    assert set(array.ravel()) <= {0, 1, 2}


def test_recorded_payloads_are_sent(tmp_path):
    data = np.array([[7, -1]], np.int32).tobytes()
    inputs = [A, {"name": "B", "datatype": "FP32", "shape": [1]}]
    request = {"arrival_ns": 0, "inputs": inputs, "data": [{"b64": b64encode(data).decode()}, None]}
    (template,) = replay(tmp_path, request).inputs[0].templates
    assert template.data[0] == data
    assert len(template.data[1]) == 4
    assert template.header.inputs[1].datatype is DataType.FP32


def test_header_has_the_recorded_fields(tmp_path):
    request = {
        "arrival_ns": 0,
        "version": "2",
        "outputs": ["X"],
        "parameters": {"p": 1, "priority": 5},
        "priority": 1,
        "timeout_us": 9,
    }
    service = ServerTarget("grpc://localhost:8001", Protocol.GRPC, Mode.STREAM)
    header = replay(tmp_path, request, service=service).inputs[0].templates[0].header
    assert (header.model_version, header.parameters, header.priority, header.timeout_us) == ("2", {"p": 1}, 1, 9)
    assert [each.name for each in header.outputs] == ["X"]
    assert header.wants_empty_final


def ways(replayed):
    """The protocol and mode of each request in turn."""
    routes = [replayed.inputs[0].templates[each.template_index].route for each in replayed.requests]
    return [(replayed.services[route].protocol.value, replayed.services[route].mode.value) for route in routes]


def by_transport(tmp_path, service, **more):
    lines = ({"arrival_ns": i, "transport": each} for i, each in enumerate(TRANSPORTS))
    return replay(tmp_path, *lines, service=service, **more)


@pytest.mark.parametrize(("service", "other"), [(SERVICE, GRPC), (GRPC, SERVICE)])
def test_requests_keep_their_transport(tmp_path, service, other):
    replayed = by_transport(tmp_path, service, replay_service=other)
    unary, stream = ("grpc", "unary"), ("grpc", "stream")
    assert ways(replayed) == [("http", "unary"), unary, stream, stream, ("http", "unary"), unary]
    assert {each.url for each in replayed.services} == {SERVICE.url, GRPC.url}
    assert not replayed.notes
    templates = replayed.inputs[0].templates
    assert len(templates) == 3
    assert [each.header.wants_empty_final for each in templates] == [False, False, True]


def test_streams_need_no_flag(tmp_path):
    replayed = by_transport(tmp_path, GRPC)
    assert [mode for _, mode in ways(replayed)] == ["unary", "unary", "stream", "stream", "unary", "unary"]
    assert [note.partition(" are sent over grpc; ")[0] for note in replayed.notes] == [
        "1 requests recorded over http",
        "1 requests recorded over generate",
    ]


def test_requests_without_an_address_are_named(tmp_path):
    replayed = by_transport(tmp_path, SERVICE)
    assert ways(replayed) == [("http", "unary")] * len(TRANSPORTS)
    assert "2 requests recorded over grpc are sent over http" in replayed.notes[0]
    assert "--replay-url grpc://HOST:PORT" in replayed.notes[0]


def test_streaming_flag_sends_all_on_streams(tmp_path):
    service = ServerTarget(GRPC.url, Protocol.GRPC, Mode.STREAM)
    replayed = by_transport(tmp_path, service)
    assert (replayed.services, replayed.notes) == ([service], [])


def test_models_have_templates_of_their_own(tmp_path):
    requests = [{"arrival_ns": i, "model": name} for i, name in enumerate(("m", "n", "m"))]
    replayed = replay(tmp_path, *requests)
    assert replayed.models == ["m", "n"]
    assert [(each.model_index, each.template_index) for each in replayed.requests] == [(0, 0), (1, 0), (0, 0)]
    only = replay(tmp_path, *requests, models=[ModelLoad("n")])
    assert (only.models, only.schedule.offsets_ns) == (["n"], (0,))


def test_sequences_keep_their_order_under_new_ids(tmp_path):
    steps = [("s", True, False), (7, True, False), ("s", False, True), (7, False, False), (0, False, False)]
    names = ("sequence_id", "sequence_start", "sequence_end")
    requests = [{"arrival_ns": i, **dict(zip(names, step, strict=True))} for i, step in enumerate(steps)]
    got = replay(tmp_path, *requests).requests
    first, second = got[0].sequence_id, got[1].sequence_id
    assert len({first, second, 0}) == 3
    assert [each.sequence_id for each in got] == [first, second, first, second, 0]
    assert [(each.sequence_start, each.sequence_end) for each in got] == [step[1:] for step in steps]


def test_sequence_without_its_beginning_starts_again(tmp_path):
    steps = [(False, False), (False, True), (False, False)]
    requests = [
        {"arrival_ns": i, "sequence_id": 5, "sequence_start": start, "sequence_end": end}
        for i, (start, end) in enumerate(steps)
    ]
    assert [each.sequence_start for each in replay(tmp_path, *requests).requests] == [True, False, True]


def test_wrong_requests_are_not_sent_again(tmp_path):
    outcomes = ["INVALID_ARG", "OK", "UNAVAILABLE"]
    replayed = replay(tmp_path, *({"arrival_ns": i, "outcome": each} for i, each in enumerate(outcomes)))
    assert len(replayed.requests) == 2
    assert replayed.schedule.offsets_ns == (0, 1)


def test_wrong_recordings_are_explained(tmp_path):
    with pytest.raises(InputError, match="no request to replay; the recording has 'm'"):
        replay(tmp_path, {"arrival_ns": 0}, models=[ModelLoad("n")])
    with pytest.raises(InputError, match="replay speed 0: expected a number above 0"):
        replay(tmp_path, {"arrival_ns": 0}, replay_speed=0.0)
    with pytest.raises(InputError, match="traffic:2: 'inputs' is 5"):
        replay(tmp_path, {"arrival_ns": 0, "inputs": 5})
    with pytest.raises(InputError, match="nothing: no such file"):
        replay_inputs(Plan(SERVICE, [], Concurrency(1), replay_files=(str(tmp_path / "nothing"),)))
