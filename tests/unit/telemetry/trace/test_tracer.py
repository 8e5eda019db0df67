import json
import struct

import pytest

from naiad.core.datatype import DataType
from naiad.core.device_tensor import DeviceTensor
from naiad.core.errors import ErrorCode, InferError, internal
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.options.trace import TraceOptions
from naiad.telemetry.trace.file import TraceFile, TraceSeries
from naiad.telemetry.trace.trace_record import TraceRecord
from naiad.telemetry.trace.tracer import Tracer

X = TensorSpec("X", DataType.FP32, (1, 2))
S = TensorSpec("S", DataType.BYTES, (2,))
DATA = struct.pack("<2f", 1, 2.5)
STRINGS = b"\x01\0\0\0a\x02\0\0\0bc"


class Frontend:
    protocol = "HTTP"

    def __init__(self):
        self.responses = []

    def take(self, request, response):
        self.responses.append(response)


class Run:
    """The caller of an ensemble member."""

    def __init__(self, request):
        self.request = request

    def take(self, request, response):
        pass


class Scene:
    def __init__(self, path, **options):
        options = {"level": ("TIMESTAMPS",), "rate": 1, "file": str(path), **options}
        self.path = path
        self.tracer = Tracer(TraceOptions(**options))
        self.frontend = Frontend()

    def request(self, model="m", asker=None, **more):
        header = RequestHeader(model_name=model, inputs=(X, S))
        return InferRequest(header, (DATA, STRINGS), (asker or self.frontend).take, arrival_ns=5, **more)

    def ask(self, model="m", *, executes=True, **more):
        request = self.request(model, **more)
        self.tracer.begin(request)
        if executes and request.times is not None:
            times = request.times
            times.exec_start_ns, times.compute_start_ns, times.compute_end_ns, times.exec_end_ns = 6, 7, 8, 9
        self.answer(request)
        return request

    def answer(self, request, **more):
        response = InferResponse(ResponseHeader(request.header.model_name, "3", (X,)), (DATA,), **more)
        request.on_response(request, response)

    def close(self):
        self.tracer.close()
        return json.loads(self.path.read_text()) if self.path.exists() else []

    def traced(self):
        """Return the traced requests in all files."""
        self.tracer.close()
        return [request_id for found in self.files().values() for request_id in found]

    def files(self):
        """Return the requests in each file, by its name."""
        return {
            file.name: [entry.get("request_id") for entry in json.loads(file.read_text()) if "model_name" in entry]
            for file in sorted(self.path.parent.iterdir())
        }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def test_timestamps(path):
    scene = Scene(path)
    scene.ask(id="r1")
    header, *stamps = scene.close()
    assert header == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "r1"}
    assert all(entry["id"] == 1 for entry in stamps)
    moments = {entry["timestamps"][0]["name"]: entry["timestamps"][0]["ns"] for entry in stamps}
    assert list(moments) == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
        "REQUEST_END",
    ]
    assert moments["HTTP_RECV_END"] == 5
    assert [moments[name] for name in list(moments)[4:8]] == [6, 7, 8, 9]
    assert moments["REQUEST_START"] <= moments["HTTP_SEND_START"] <= moments["REQUEST_END"]
    assert len(scene.frontend.responses) == 1


def test_tensors(path):
    scene = Scene(path, level=("TENSORS",))
    scene.ask()
    _, *tensors = scene.close()
    assert [(entry["activity"], entry["tensor"]) for entry in tensors] == [
        ("TENSOR_QUEUE_INPUT", {"name": "X", "data": "1.0,2.5", "shape": "1,2", "dtype": "FP32"}),
        ("TENSOR_QUEUE_INPUT", {"name": "S", "data": "a,bc", "shape": "2", "dtype": "BYTES"}),
        ("TENSOR_BACKEND_OUTPUT", {"name": "X", "data": "1.0,2.5", "shape": "1,2", "dtype": "FP32"}),
    ]


def test_failures_are_traced(path):
    scene = Scene(path, level=("TIMESTAMPS", "TENSORS"))
    request = scene.request(id="r")
    scene.tracer.begin(request)
    error = InferError(ErrorCode.INTERNAL, "broke")
    request.on_response(request, InferResponse(ResponseHeader("m", "1", ()), error=error))
    names = [entry["timestamps"][0]["name"] for entry in scene.close() if "timestamps" in entry]
    assert "COMPUTE_START" not in names
    assert names[-1] == "REQUEST_END"


def test_responses_of_a_decoupled_model(path):
    scene = Scene(path)
    request = scene.request()
    scene.tracer.begin(request)
    scene.answer(request, final=False)
    scene.answer(request, final=False)
    scene.answer(request)
    entries = scene.close()
    names = [entry["timestamps"][0]["name"] for entry in entries if "timestamps" in entry]
    assert names.count("INFER_RESPONSE_COMPLETE") == 3
    assert names.count("REQUEST_END") == 1
    assert len(scene.frontend.responses) == 3


def test_steps_of_an_ensemble_are_traced_with_it(path):
    scene = Scene(path, rate=2)
    for number in range(4):
        whole = scene.request("e", id=f"whole{number}")
        scene.tracer.begin(whole)
        scene.ask("member", asker=Run(whole), id=f"step{number}")
        scene.answer(whole)
    headers = [entry for entry in scene.close() if "model_name" in entry]
    assert [(h["request_id"], h.get("parent_id")) for h in headers] == [
        ("step1", headers[1]["id"]),
        ("whole1", None),
        ("step3", headers[3]["id"]),
        ("whole3", None),
    ]


@pytest.mark.parametrize(
    ("options", "traced"),
    [
        ({"rate": 3}, ["2", "5", "8"]),
        ({"count": 2}, ["0", "1"]),
        ({"rate": 2, "count": 3}, ["1", "3", "5"]),
        ({"count": 0}, []),
        ({"level": ("OFF",)}, []),
    ],
)
def test_sampling(path, options, traced):
    scene = Scene(path, **options)
    assert scene.tracer.is_on == bool(traced)
    for number in range(10):
        scene.ask(id=str(number))
    assert scene.traced() == traced


def test_models_with_settings_of_their_own(path):
    scene = Scene(path, rate=4)
    scene.tracer.change("quiet", {"trace_level": ["OFF"]})
    scene.tracer.change("loud", {"trace_rate": ["1"], "trace_count": ["3"]})
    for number in range(4):
        for model in ("quiet", "loud", "other"):
            scene.ask(model, id=f"{model}{number}")
    assert scene.traced() == ["other3", "loud0", "loud1", "loud2"]


def test_change_restarts_only_own_counts(path):
    scene = Scene(path, count=1)
    scene.tracer.change("m", {"trace_count": ["1"]})
    scene.ask("m", id="m")
    scene.ask("other", id="other")
    scene.tracer.change("", {"trace_count": ["1"]})
    scene.ask("m", id="m again")
    scene.ask("other", id="other again")
    assert scene.traced() == ["m", "other", "other again"]


def test_count_counts_down_and_ends_a_file(path):
    scene = Scene(path)
    for number in range(3):
        scene.ask(id=str(number))
    scene.tracer.change("", {"trace_count": ["2"]})
    assert scene.tracer.options_of("").count == 2
    scene.ask(id="3")
    assert scene.tracer.options_of("").count == scene.tracer.options_of("m").count == 1
    for number in (4, 5):
        scene.ask(id=str(number))
    assert scene.tracer.options_of("").count == 0
    scene.tracer.close()
    assert scene.files() == {"trace.json": ["0", "1", "2"], "trace.json.0": ["3", "4"]}


def test_counted_file_ends_with_its_last_response(path):
    scene = Scene(path, count=1)
    request = scene.request(id="slow")
    scene.tracer.begin(request)
    scene.ask(id="not traced")
    scene.answer(request)
    scene.tracer.close()
    assert scene.files() == {"trace.json.0": ["slow"]}


@pytest.mark.parametrize("changes", [{"trace_rate": ["1"]}, None])
def test_count_cut_short_goes_to_the_path(path, changes):
    scene = Scene(path, count=3)
    scene.tracer.change("m", {"trace_count": ["2"]})
    scene.ask("m", id="0")
    scene.ask("other", id="1")
    if changes is not None:
        scene.tracer.change("m", changes)
        scene.tracer.change("", changes)
    scene.tracer.close()
    assert sorted(scene.files()["trace.json"]) == ["0", "1"]


def test_unrelated_changes_keep_remaining_count(path):
    scene = Scene(path, count=4)
    scene.tracer.change("m", {"trace_count": ["3"]})
    for model in ("m", "other"):
        scene.ask(model)
    scene.tracer.change("m", {"log_frequency": ["5"]})
    scene.tracer.change("", {"log_frequency": ["7"]})
    assert scene.tracer.options_of("m").count == 2
    assert scene.tracer.options_of("").count == 4
    scene.tracer.close()


def test_count_with_a_frequency_fills_several_files(path):
    scene = Scene(path, count=3, log_frequency=2)
    for number in range(4):
        scene.ask(id=str(number))
    scene.tracer.change("", {"trace_count": ["1"]})
    scene.ask(id="4")
    scene.tracer.close()
    assert scene.files() == {"trace.json.0": ["0", "1"], "trace.json.1": ["2"], "trace.json.2": ["4"]}


def test_settings_go_back(path):
    scene = Scene(path, rate=4)
    settings = scene.tracer.settings
    scene.tracer.change("", {"trace_rate": ["9"], "log_frequency": ["5"]})
    scene.tracer.change("m", {"trace_rate": ["7"], "trace_level": ["OFF"]})
    assert (settings.of_model("m").rate, settings.of_model("m").log_frequency) == (7, 5)
    assert settings.of_model("m").level == ("OFF",)
    scene.tracer.change("m", {"trace_rate": None})
    assert settings.of_model("m").rate == 9
    scene.tracer.change("", {"trace_rate": None})
    assert settings.of_server().rate == settings.of_model("m").rate == 4
    scene.tracer.change("m", {"trace_level": None})
    assert settings.own() == {}


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (
            {"trace_level": ["OFF", "TENSORS"]},
            ErrorCode.INVALID_ARG,
            "Expect only one trace level 'OFF'",
        ),
        ({"trace_level": ["X"]}, ErrorCode.INVALID_ARG, "Unable to parse 'trace_level', got: X"),
        ({"trace_rate": ["x"]}, ErrorCode.INVALID_ARG, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": ["0"]}, ErrorCode.INVALID_ARG, "sample rate must be non-zero"),
        ({"trace_rate": ["99999999999"]}, ErrorCode.INVALID_ARG, "out of range [ 0, 4294967295 ], got: 99999999999"),
        ({"trace_count": ["-2"]}, ErrorCode.INVALID_ARG, "Expecting value >= -1, got:-2"),
        ({"log_frequency": ["x"]}, ErrorCode.INVALID_ARG, "Unable to parse 'log_frequency', got: x"),
        ({"trace_file": ["x"]}, ErrorCode.UNSUPPORTED, "can not be updated through network protocol"),
        ({"trace_file": None}, ErrorCode.UNSUPPORTED, "can not be updated through network protocol"),
    ],
)
def test_a_wrong_change_changes_nothing(path, changes, code, text):
    scene = Scene(path)
    with pytest.raises(InferError) as caught:
        scene.tracer.change("", {"log_frequency": ["8"], **changes})
    assert caught.value.code is code
    assert text in caught.value.message
    assert scene.tracer.settings.of_server().log_frequency == 0


@pytest.mark.parametrize("changes", [{"trace_mode": ["opentelemetry"]}, {"nope": ["1"]}, {"trace_level": []}, {}])
def test_what_cannot_be_changed_is_left(path, changes):
    scene = Scene(path)
    before = scene.tracer.settings.of_server()
    scene.tracer.change("", changes)
    assert scene.tracer.settings.of_server() == before


def test_negative_numbers_wrap(path):
    scene = Scene(path)
    scene.tracer.change("", {"trace_rate": ["-1"]})
    assert scene.tracer.settings.of_server().rate == 4294967295


def test_without_a_file_nothing_is_turned_on():
    tracer = Tracer(TraceOptions())
    with pytest.raises(InferError, match="needs a trace file"):
        tracer.change("", {"trace_level": ["TIMESTAMPS"]})
    assert not tracer.is_on
    tracer.change("", {"trace_rate": ["5"]})


def test_files_by_frequency(path):
    scene = Scene(path, log_frequency=2)
    for number in range(5):
        scene.ask(id=str(number))
    scene.tracer.close()
    found = {
        file.name: [entry["request_id"] for entry in json.loads(file.read_text()) if "request_id" in entry]
        for file in sorted(path.parent.iterdir())
    }
    assert found == {"trace.json.0": ["0", "1"], "trace.json.1": ["2", "3"], "trace.json.2": ["4"]}


def test_file_is_valid_after_every_trace(path):
    file = TraceFile(str(path))
    for number in range(3):
        file.write(TraceRecord(number, "m", "", 0), TraceSeries())
        assert [entry["id"] for entry in json.loads(path.read_text())] == list(range(number + 1))
    file.close()


@pytest.mark.parametrize(("name", "reason"), [("absent/t", "No such file"), ("folder", "Is a directory")])
def test_unwritable_file_is_logged_at_the_start(tmp_path, caplog, name, reason):
    (tmp_path / "folder").mkdir()
    Scene(tmp_path / name)
    assert caplog.text.count("traces cannot be written") == 1
    assert reason in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_unwritable_file_is_logged_when_tracing_begins(tmp_path, caplog):
    scene = Scene(tmp_path / "absent" / "t", level=("OFF",))
    assert not caplog.text
    scene.tracer.change("m", {"trace_level": ["TIMESTAMPS"]})
    assert caplog.text.count("traces cannot be written") == 1


def test_file_that_can_be_written_is_not_logged(tmp_path, caplog):
    (tmp_path / "t").mkdir()
    Scene(tmp_path / "t", log_frequency=1)
    Scene(tmp_path / "new")
    assert not caplog.text


def test_file_that_cannot_be_written_is_logged_once(tmp_path, caplog):
    scene = Scene(tmp_path / "nowhere" / "trace.json")
    for number in range(3):
        scene.ask(id=str(number))
    scene.tracer.close()
    assert caplog.text.count("traces cannot be written") == 1


def test_rejected_request_does_not_keep_a_count_open(path):
    scene = Scene(path, count=2)
    scene.ask(id="0")
    rejected = scene.request(id="rejected")
    scene.tracer.begin(rejected).drop()
    scene.ask(id="1")
    scene.ask(id="2")
    assert scene.tracer.options_of("").count == 0
    scene.tracer.close()
    assert scene.files() == {"trace.json.0": ["0", "1"]}


def test_rejected_step_does_not_keep_a_count_open(path):
    scene = Scene(path, count=1)
    whole = scene.request(id="whole")
    scene.tracer.begin(whole)
    step = scene.request("member", Run(whole), id="step")
    scene.tracer.begin(step).drop()
    scene.answer(whole)
    scene.tracer.close()
    assert scene.files() == {"trace.json.0": ["whole"]}


@pytest.mark.parametrize("fails", [False, True])
def test_tensors_on_a_device_are_copied(path, fails):
    def copy():
        if fails:
            raise internal("an illegal memory access was encountered")
        return DATA

    tensor = DeviceTensor(None, device=(2, 0), shape=(1, 2), byte_size=len(DATA), copy=copy)
    scene = Scene(path, level=("TENSORS",))
    request = scene.request()
    request.data = (tensor.as_buffer(), STRINGS)
    scene.tracer.begin(request)
    response = InferResponse(ResponseHeader("m", "3", (X,)), (tensor.as_buffer(),))
    request.on_response(request, response)
    assert scene.frontend.responses == [response]
    tensors = [entry["tensor"]["data"] for entry in scene.close() if "tensor" in entry]
    values = "" if fails else "1.0,2.5"
    assert tensors == [values, "a,bc", values]


def test_ids_that_are_not_unicode_are_written(path):
    scene = Scene(path)
    scene.ask(id="half \ud83d")
    scene.ask(id="next")
    entries = scene.close()
    assert [entry["request_id"] for entry in entries if "request_id" in entry][-1] == "next"
