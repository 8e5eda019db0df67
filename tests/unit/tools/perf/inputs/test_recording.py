"""Recordings are read as they were written; broken ones are rejected with file and line."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.telemetry.traffic import Recorder, RingFile, TrafficWriter
from naiad.tools.perf.inputs.recording import RecordingError, read_recording

OPENING = {"naiad_traffic": 1, "wall_ns": 1_000_000, "monotonic_ns": 0}
LINE = {"arrival_ns": 1, "model": "m", "inputs": [{"name": "X", "datatype": "FP32", "shape": [2]}]}


class Frontend:
    transport = "grpc"

    def take(self, request, response):
        pass


def write(path, *entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def line(arrival_ns, **more):
    return {**LINE, "arrival_ns": arrival_ns, **more}


@st.composite
def requests(draw):
    specs = draw(
        st.lists(
            st.builds(
                TensorSpec,
                st.text(),
                st.sampled_from(DataType),
                st.lists(st.integers(-1, 1 << 40), max_size=4).map(tuple),
            ),
            max_size=3,
        )
    )
    values = st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)
    header = RequestHeader(
        model_name=draw(st.text()),
        model_version=draw(st.text()),
        inputs=specs,
        outputs=[RequestedOutput(name) for name in draw(st.lists(st.text(), max_size=3))],
        parameters=draw(st.dictionaries(st.text(), values, max_size=3)),
        priority=draw(st.integers(0, 2**64 - 1)),
        timeout_us=draw(st.integers(0, 2**64 - 1)),
        sequence_id=draw(st.integers(0, 2**64 - 1) | st.text(min_size=1)),
        sequence_start=draw(st.booleans()),
        sequence_end=draw(st.booleans()),
    )
    data = [draw(st.binary(max_size=200)) for _ in specs]
    return InferRequest(header, data, Frontend().take, id=draw(st.text()), arrival_ns=draw(st.integers(0, 1 << 60)))


def record(path, recorded, **options):
    recorder = Recorder(TrafficWriter(lambda: RingFile(str(path), 1 << 20)), **options)
    for request in recorded:
        recorder.begin(request)
        request.on_response(request, InferResponse(ResponseHeader("m", "1", ())))
    recorder.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(recorded=st.lists(requests(), max_size=8), has_payloads=st.booleans())
def test_requests_are_read_as_recorded(tmp_path_factory, recorded, has_payloads):
    path = tmp_path_factory.mktemp("ring") / "t"
    record(path, recorded, has_payloads=has_payloads)
    recorded.sort(key=lambda request: request.arrival_ns)
    found = read_recording([path])
    assert len(found) == len(recorded)
    for read, request in zip(found, recorded, strict=True):
        header = request.header
        assert read.arrival_ns == request.arrival_ns - recorded[0].arrival_ns
        assert read.outcome == "OK"
        assert (read.model, read.version, read.inputs) == (header.model_name, header.model_version, header.inputs)
        assert read.outputs == tuple(output.name for output in header.outputs)
        assert read.parameters == header.parameters
        assert (read.sequence_id, read.sequence_start) == (header.sequence_id, header.sequence_start)
        assert (read.sequence_end, read.priority) == (header.sequence_end, header.priority)
        assert read.timeout_us == header.timeout_us
        assert read.payloads == (tuple(request.data) if has_payloads and header.inputs else None)


def test_files_of_all_processes_are_merged(tmp_path):
    write(tmp_path / "t.process1.1", OPENING, line(10))
    write(tmp_path / "t.process1", OPENING, line(40))
    write(tmp_path / "t.process2", {**OPENING, "monotonic_ns": 1_000}, line(1_020), line(1_030))
    write(tmp_path / "t.process2.bak", {"other": 1})
    found = read_recording([tmp_path / "t", tmp_path / "t.process1"])
    assert [request.arrival_ns for request in found] == [0, 10, 20, 30]


def test_empty_recording(tmp_path):
    assert read_recording([write(tmp_path / "t", OPENING)]) == []


def test_incomplete_last_line_is_skipped(tmp_path):
    path = write(tmp_path / "t", OPENING, line(1))
    with path.open("a") as file:
        file.write('{"arrival_ns": 2, "mo')
    assert len(read_recording([path])) == 1


def test_incomplete_line_before_a_restart_is_skipped(tmp_path):
    path = write(tmp_path / "t", OPENING, line(1))
    with path.open("a") as file:
        file.write('{"arrival_ns": 2, "mo\n' + json.dumps(OPENING) + "\n" + json.dumps(line(3)) + "\n")
    assert [request.arrival_ns for request in read_recording([path])] == [0, 2]


@pytest.mark.parametrize("tail", ["{\n", "{\n" + json.dumps(LINE) + "\n", "\udcff\n"])
def test_broken_lines_are_rejected(tmp_path, tail):
    path = write(tmp_path / "t", OPENING, LINE)
    with path.open("a", errors="surrogateescape") as file:
        file.write(tail)
    with pytest.raises(RecordingError, match=r"/t:3: not a line of JSON \(.*\); delete the line"):
        read_recording([path])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, r"'model' is None; expected str"),
        ({"arrival_ns": True}, r"'arrival_ns' is True; expected int"),
        ({"arrival_ns": "1"}, r"'arrival_ns' is '1'; expected int"),
        ({"inputs": [1]}, r"expected an object, got 1"),
        ({"inputs": [{"name": "X", "datatype": "FP33", "shape": [1]}]}, r"'datatype' is 'FP33'; expected one of"),
        ({"inputs": [{"name": "X", "datatype": "FP32", "shape": ["a"]}]}, r"'shape' is \['a'\]; expected integers"),
        ({"sequence_start": 1}, r"'sequence_start' is 1; expected bool"),
        ({"sequence_id": 1.5}, r"'sequence_id' is 1\.5; expected int"),
        ({"data": []}, r"'data' has 0 elements; expected one for each of 1 inputs"),
        ({"data": [{"b64": "?"}]}, r"'data' is not a list of"),
        ({"data": ["AAAA"]}, r"'data' is not a list of"),
        ({"naiad_traffic": 2}, r"'naiad_traffic' is 2; this release reads version 1"),
    ],
)
def test_wrong_members_are_rejected(tmp_path, changes, message):
    path = write(tmp_path / "t", OPENING, LINE, {**LINE, **changes})
    with pytest.raises(RecordingError, match=f"/t:3: {message}"):
        read_recording([path])


@pytest.mark.parametrize("text", ["binary\n", "[]\n", json.dumps(LINE) + "\n"])
def test_other_files_are_rejected(tmp_path, text):
    (tmp_path / "t").write_text(text)
    with pytest.raises(RecordingError, match="/t:1: "):
        read_recording([tmp_path / "t"])


def test_missing_file(tmp_path):
    for path in (tmp_path / "t", tmp_path / "missing" / "t"):
        with pytest.raises(RecordingError, match="/t: no such file; give the path"):
            read_recording([path])
