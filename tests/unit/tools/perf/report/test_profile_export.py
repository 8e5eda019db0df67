"""The profile export: its structure is perf_analyzer's, and its memory is bounded."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.request import RequestHeader
from naiad.core.tensor import Array, Buffer, TensorSpec, encode_bytes_elements, to_buffer
from naiad.tools.perf.generator import local_generator
from naiad.tools.perf.generator.local_generator import Keeping
from naiad.tools.perf.inputs.templates import TemplateSet
from naiad.tools.perf.measuring.level import ColumnStore
from naiad.tools.perf.perf_exchange import RequestTemplate, SentRequest
from naiad.tools.perf.perf_plan import Concurrency, Protocol, RequestRate, ServerTarget
from naiad.tools.perf.records import GeneratorFacts, KeptRequest, Measurement, Records
from naiad.tools.perf.report.profile_export import ProfileExport

SERVICE = ServerTarget("http://localhost", Protocol.HTTP)
FACTS = GeneratorFacts(1, 1.0, 0.1, 0.1, np.empty(0, np.int64), 1e4)
INPUT = TensorSpec("INPUT0", DataType.FP32, (1, 2))
MODEL = TemplateSet(
    [RequestTemplate(RequestHeader(model_name="m", inputs=[INPUT]), [to_buffer(np.array([[0.5, 2]], np.float32))])],
    [range(1)],
)


def measurement(*kept: KeptRequest, unkept: int = 0) -> Measurement:
    return Measurement(100, 900, [50, 100, 500, 900], ColumnStore().columns, FACTS, kept=kept, unkept=unkept)


def output(array: Array, datatype: DataType) -> tuple[TensorSpec, Buffer]:
    return TensorSpec("OUT", datatype, array.shape), to_buffer(array)


def request(
    start_ns: int = 200, *response_ns: int, sequence_id: int = 0, outputs: Sequence[tuple[TensorSpec, Buffer]] = ()
) -> KeptRequest:
    return KeptRequest(0, 0, sequence_id, start_ns, response_ns or (300,), [[each] for each in outputs])


def exported(path: Path, *measurements: Measurement) -> dict[str, Any]:
    with ProfileExport(path, SERVICE, "v1/chat") as export:
        for number, each in enumerate(measurements, 1):
            export.add([MODEL], Concurrency(number), each)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_members_are_perf_analyzers(tmp_path: Path) -> None:
    outputs = [output(np.array([7], np.int32), DataType.INT32), output(np.array([8, 9], np.int32), DataType.INT32)]
    content = exported(tmp_path / "x.json", measurement(request(200, 300, 350, sequence_id=5, outputs=outputs)))
    assert list(content) == ["experiments", "version", "service_kind", "endpoint"]
    assert content["service_kind"] == "triton"
    (experiment,) = content["experiments"]
    assert experiment["experiment"] == {"mode": "concurrency", "value": 1}
    (found,) = experiment["requests"]
    assert found["sequence_id"] == 5
    assert found["request_inputs"] == {"INPUT0": [0.5, 2.0]}
    assert found["response_outputs"] == [{"OUT": 7}, {"OUT": [8, 9]}]
    sent_ns = found["timestamp"]
    assert [each - sent_ns for each in found["response_timestamps"]] == [100, 150]
    assert [each - sent_ns for each in experiment["window_boundaries"]] == [-100, 300, 700]


def test_requests_outside_the_measurement_are_left_out(tmp_path: Path) -> None:
    content = exported(
        tmp_path / "x.json", measurement(request(500, 901), request(400), request(10, 99), request(300))
    )
    times = [each["timestamp"] for each in content["experiments"][0]["requests"]]
    assert times[1] - times[0] == 100


def test_each_load_is_an_experiment(tmp_path: Path) -> None:
    content = exported(tmp_path / "x.json", measurement(request()), measurement())
    assert [each["experiment"]["value"] for each in content["experiments"]] == [1, 2]
    assert content["experiments"][1]["requests"] == []


def test_rates_may_have_fractions(tmp_path: Path) -> None:
    with ProfileExport(tmp_path / "x.json", SERVICE) as export:
        export.add([MODEL], RequestRate(2.5), measurement())
    (experiment,) = json.loads((tmp_path / "x.json").read_text())["experiments"]
    assert experiment["experiment"] == {"mode": "request_rate", "value": 2.5}


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (output(np.array([True, False]), DataType.BOOL), [True, False]),
        (output(np.array([1.5, np.nan, np.inf], np.float32), DataType.FP32), [1.5, None, None]),
        ((TensorSpec("OUT", DataType.BYTES, (2,)), encode_bytes_elements([b'a"', b"\xff"])), ['a"', "\ufffd"]),
        ((TensorSpec("OUT", DataType.BF16, (1,)), b"\x80\x3f"), 1.0),
        ((TensorSpec("OUT", DataType.FP32, (0,)), b""), []),
    ],
)
def test_elements_are_valid_json(tmp_path: Path, tensor: tuple[TensorSpec, Buffer], expected: object) -> None:
    content = exported(tmp_path / "x.json", measurement(request(outputs=[tensor])))
    assert content["experiments"][0]["requests"][0]["response_outputs"] == [{"OUT": expected}]


def test_tensors_in_shared_memory_are_left_out(tmp_path: Path) -> None:
    tensor = (TensorSpec("OUT", DataType.FP32, (4,)), b"")
    content = exported(tmp_path / "x.json", measurement(request(outputs=[tensor])))
    assert content["experiments"][0]["requests"][0]["response_outputs"] == [{}]


def test_file_is_complete_after_an_error(tmp_path: Path) -> None:
    def fail(export: ProfileExport) -> None:
        with export:
            export.add([MODEL], Concurrency(1), measurement(unkept=3))
            raise RuntimeError

    export = ProfileExport(tmp_path / "x.json", SERVICE)
    with pytest.raises(RuntimeError):
        fail(export)
    assert len(json.loads((tmp_path / "x.json").read_text())["experiments"]) == 1
    assert export.unkept == 3


def exchange(byte_size: int, failure: str = "") -> SentRequest:
    made = SentRequest(lambda _: None)
    made.first_ns, made.responses, made.failure = 10, 1, failure
    made.body = [([TensorSpec("OUT", DataType.UINT8, (byte_size,))], [bytes(byte_size)])]
    return made


def test_memory_of_a_load_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_generator, "MAX_KEPT_BYTES", 10_000)
    kept, records = Keeping(2), Records()
    for byte_size in (1000, 1000, 3000, 1):
        kept.keep(exchange(byte_size), records)
    assert (len(records.kept), records.unkept) == (2, 2)
    kept.clear()
    kept.keep(exchange(3000), records)
    assert len(records.kept) == 3


def test_failures_are_not_kept() -> None:
    records = Records()
    Keeping(1).keep(exchange(1, "timeout"), records)
    assert (records.kept, records.unkept) == ([], 0)


def test_responses_have_their_times() -> None:
    made, records = exchange(1), Records()
    made.gaps_ns, made.responses = [5, 7], 3
    Keeping(1).keep(made, records)
    assert records.kept[0].response_ns == (10, 15, 22)
