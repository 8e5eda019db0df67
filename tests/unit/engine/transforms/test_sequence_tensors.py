"""What a model of a sequence is given: controls, empty rows, states. Rules of docs/scheduling-rules.md."""

import struct
from pathlib import Path

import pytest
from google.protobuf import text_format

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, internal
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec, encode_bytes_elements
from naiad.engine.transforms.sequence_tensors import SequenceTensors
from naiad.scheduler.sequence.slots import LiveSequence

FLAGS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 7 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
"""
ID = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } }'
STATE = 'state { input_name: "S" output_name: "NEXT" data_type: TYPE_FP32 dims: [ -1 ] %s }'
ROWS = TensorSpec("IN", DataType.FP32, (1, 2))


def tensors(inside: str, *, max_batch_size: int = 4, directory: Path = Path(), extra: str = "") -> SequenceTensors:
    text = f'name: "m" max_batch_size: {max_batch_size} sequence_batching {{ direct {{ }} {inside} }} {extra}'
    return SequenceTensors(text_format.Parse(text, ModelConfig()), directory)


def asked(
    sequence: LiveSequence, *outputs: str, data: bytes = bytes(8), start: bool = False, end: bool = False
) -> InferRequest:
    header = RequestHeader(
        model_name="m",
        inputs=[ROWS],
        outputs=[RequestedOutput(name) for name in outputs],
        sequence_id=sequence.correlation_id,
        sequence_start=start,
        sequence_end=end,
    )
    request = InferRequest(header, [data], lambda request, response: None)
    request.batch_size = 1
    request.sequence = sequence
    return request


def prepared(made: SequenceTensors, *requests: InferRequest, slots: list[int] | None = None) -> Batch:
    batch = Batch(list(requests), len(requests))
    if slots is not None:
        batch.slots = slots
    made.prepare(batch)
    return batch


def inputs_of(request: InferRequest) -> dict[str, tuple[TensorSpec, bytes]]:
    return {spec.name: (spec, bytes(data)) for spec, data in zip(request.header.inputs, request.data, strict=True)}


def returned(values: bytes, *names: str) -> InferResponse:
    specs = [TensorSpec(name, DataType.FP32, (1, len(values) // 4)) for name in names]
    return InferResponse(ResponseHeader("m", "1", specs), [values for _ in names])


class TestControls:
    @pytest.mark.parametrize(("max_batch_size", "shape"), [(4, (1, 1)), (0, (1,))])
    def test_shape_is_one_element_of_each_row(self, max_batch_size, shape):
        # C1
        batch = prepared(tensors(FLAGS + ID % "UINT64", max_batch_size=max_batch_size), asked(LiveSequence(5, 0)))
        found = inputs_of(batch.requests[0])
        assert {name: spec.shape for name, (spec, _) in found.items() if name != "IN"} == dict.fromkeys(
            ("START", "END", "READY", "ID"), shape
        )

    @pytest.mark.parametrize(("start", "end"), [(False, False), (True, False), (False, True), (True, True)])
    def test_flags_have_the_values_of_the_configuration(self, start, end):
        # C2
        (request,) = prepared(tensors(FLAGS), asked(LiveSequence(5, 0), start=start, end=end)).requests
        found = {name: data for name, (_, data) in inputs_of(request).items()}
        assert found["START"] == struct.pack("<i", 7 if start else 0)
        assert found["END"] == struct.pack("<f", 1 if end else -1)
        assert found["READY"] == b"\x01", "a real request is always ready"

    @pytest.mark.parametrize(
        ("datatype", "expected"),
        [
            ("UINT64", struct.pack("<Q", 2**40 + 3)),
            ("INT64", struct.pack("<q", 2**40 + 3)),
            ("UINT32", struct.pack("<I", 3)),
            ("INT32", struct.pack("<i", 3)),
        ],
    )
    def test_a_32_bit_id_is_the_low_half(self, datatype, expected):
        # C3
        (request,) = prepared(tensors(ID % datatype), asked(LiveSequence(2**40 + 3, 0))).requests
        assert inputs_of(request)["ID"][1] == expected

    def test_a_string_id_is_a_bytes_tensor(self):
        # C3
        (request,) = prepared(tensors(ID % "STRING"), asked(LiveSequence("id", 0))).requests
        spec, data = inputs_of(request)["ID"]
        assert (spec.datatype, data) == (DataType.BYTES, encode_bytes_elements([b"id"]))

    @pytest.mark.parametrize(("datatype", "correlation_id"), [("INT32", "7"), ("STRING", 7)])
    def test_an_id_of_the_other_kind_is_refused(self, datatype, correlation_id):
        # C3
        header = asked(LiveSequence(correlation_id, 0)).header
        with pytest.raises(InferError, match="CONTROL_SEQUENCE_CORRID is TYPE_" + datatype) as caught:
            tensors(ID % datatype).check(header)
        assert caught.value.code is ErrorCode.INVALID_ARG

    @pytest.mark.parametrize("correlation_id", [0, ""])
    @pytest.mark.parametrize("datatype", ["INT32", "STRING"])
    def test_missing_id_differs_from_other_kind(self, datatype, correlation_id):
        # C3: "must specify a non-zero or non-empty correlation ID" is what to say (S1)
        tensors(ID % datatype).check(asked(LiveSequence(correlation_id, 0)).header)

    @pytest.mark.parametrize("correlation_id", [7, "7"])
    def test_a_model_without_the_control_takes_both(self, correlation_id):
        # C3
        tensors(FLAGS).check(asked(LiveSequence(correlation_id, 0)).header)


class TestEmptyRows:
    """C4: the rows of the direct strategy without a sequence."""

    def test_rows_up_to_the_highest_are_there(self):
        # C4
        made = tensors(FLAGS + ID % "UINT64" + STATE % "")
        real = [asked(LiveSequence(key, 0), data=b"\x01" * 8, start=True, end=True) for key in (5, 6)]
        batch = prepared(made, *real, slots=[1, 3])
        assert [request in real for request in batch.requests] == [False, True, False, True]
        for row in (0, 2):
            found = inputs_of(batch.requests[row])
            assert {name: spec for name, (spec, _) in found.items()} == {
                name: spec for name, (spec, _) in inputs_of(real[0]).items()
            }, "shapes are as in a real request"
            assert found["IN"][1] == bytes(8)
            assert found["READY"][1] == b"\x00"
            assert found["START"][1] == struct.pack("<i", 0)
            assert found["END"][1] == struct.pack("<f", -1)
            assert found["ID"][1] == bytes(8)
            assert found["S"][1] == bytes(4)

    def test_a_string_id_is_empty(self):
        batch = prepared(tensors(ID % "STRING"), asked(LiveSequence("id", 0)), slots=[1])
        assert inputs_of(batch.requests[0])["ID"][1] == encode_bytes_elements([b""])

    def test_empty_rows_get_no_responses(self):
        # C4
        made = tensors(FLAGS)
        real = asked(LiveSequence(5, 0))
        client_header = real.header
        batch = prepared(made, real, slots=[2])
        answers = [returned(bytes([row] * 4), "OUT") for row in range(3)]
        (kept,) = made.settle(batch, answers)
        assert bytes(kept.data[0]) == b"\x02" * 4
        assert batch.requests == [real]
        assert real.header is client_header

    def test_failed_batch_is_restored(self):
        made = tensors(FLAGS)
        real = asked(LiveSequence(5, 0))
        client_header = real.header
        batch = prepared(made, real, slots=[2])
        for _ in range(2):
            made.restore(batch)
            assert (batch.requests, real.header) == ([real], client_header)


class TestState:
    def ask(self, made: SequenceTensors, sequence: LiveSequence, answer: InferResponse, **flags: bool) -> bytes:
        """Execute one request and return the state that the model was given."""
        batch = prepared(made, asked(sequence, **flags))
        given = inputs_of(batch.requests[0])["S"][1]
        made.settle(batch, [answer])
        return given

    def test_what_a_model_returns_it_is_given_next(self):
        # I1
        made, sequence = tensors(STATE % ""), LiveSequence(5, 0)
        assert self.ask(made, sequence, returned(b"aaaa", "OUT", "NEXT"), start=True) == bytes(4)
        assert self.ask(made, sequence, returned(b"bbbb", "OUT", "NEXT")) == b"aaaa"
        assert self.ask(made, sequence, returned(b"cccc", "OUT", "NEXT")) == b"bbbb"

    def test_start_discards_it(self):
        # S6
        # I2
        made, sequence = tensors(STATE % ""), LiveSequence(5, 0)
        self.ask(made, sequence, returned(b"aaaa", "OUT", "NEXT"), start=True)
        assert self.ask(made, sequence, returned(b"bbbb", "OUT", "NEXT"), start=True) == bytes(4)

    def test_sequences_do_not_see_each_other(self):
        # I1
        made = tensors(STATE % "")
        self.ask(made, LiveSequence(5, 0), returned(b"aaaa", "OUT", "NEXT"), start=True)
        assert self.ask(made, LiveSequence(6, 0), returned(b"bbbb", "OUT", "NEXT")) == bytes(4)

    def test_its_shape_may_vary(self):
        # I3
        made, sequence = tensors(STATE % ""), LiveSequence(5, 0)
        self.ask(made, sequence, returned(b"aaaabbbb", "OUT", "NEXT"), start=True)
        (request,) = prepared(made, asked(sequence)).requests
        spec, data = inputs_of(request)["S"]
        assert (spec.shape, data) == ((1, 2), b"aaaabbbb")

    def test_an_execution_that_fails_leaves_it(self):
        # I4
        made, sequence = tensors(STATE % ""), LiveSequence(5, 0)
        self.ask(made, sequence, returned(b"aaaa", "OUT", "NEXT"), start=True)
        self.ask(made, sequence, InferResponse(ResponseHeader("m", "1", ()), [], error=internal("broken")))
        assert self.ask(made, sequence, returned(b"cccc", "OUT", "NEXT")) == b"aaaa"

    def test_missing_state_output_is_a_model_error(self):
        # I5
        made = tensors(STATE % "")
        with pytest.raises(InferError, match="model 'm' did not return its state 'NEXT'"):
            self.ask(made, LiveSequence(5, 0), returned(b"aaaa", "OUT"), start=True)

    @pytest.mark.parametrize(
        ("extra", "outputs", "names"),
        [
            ("", (), ["OUT"]),
            ("", ("OUT",), ["OUT"]),
            ('output { name: "NEXT" data_type: TYPE_FP32 dims: [ -1 ] }', (), ["OUT", "NEXT"]),
            ('output { name: "NEXT" data_type: TYPE_FP32 dims: [ -1 ] }', ("OUT",), ["OUT"]),
            ('output { name: "NEXT" data_type: TYPE_FP32 dims: [ -1 ] }', ("NEXT",), ["NEXT"]),
        ],
    )
    def test_clients_see_it_if_it_is_an_output(self, extra, outputs, names):
        # I6
        made = tensors(STATE % "", extra=extra)
        batch = prepared(made, asked(LiveSequence(5, 0), *outputs, start=True))
        wanted = [output.name for output in batch.requests[0].header.outputs]
        assert not outputs or "NEXT" in wanted, "the model is asked for the state with any requested outputs"
        (response,) = made.settle(batch, [returned(b"aaaa", "OUT", "NEXT")])
        assert [spec.name for spec in response.header.outputs] == names

    def test_it_begins_with_zeros(self):
        # I7
        initial = 'initial_state { name: "z" data_type: TYPE_FP32 dims: [ 3 ] zero_data: true }'
        (request,) = prepared(tensors(STATE % initial), asked(LiveSequence(5, 0), start=True)).requests
        spec, data = inputs_of(request)["S"]
        assert (spec.shape, data) == ((1, 3), bytes(12))

    def test_it_begins_with_a_file(self, tmp_path):
        # I7
        (tmp_path / "initial_state").mkdir()
        (tmp_path / "initial_state" / "begin").write_bytes(b"xxxxyyyy")
        initial = 'initial_state { name: "f" data_type: TYPE_FP32 dims: [ 2 ] data_file: "begin" }'
        made = tensors(STATE % initial, directory=tmp_path)
        (request,) = prepared(made, asked(LiveSequence(5, 0), start=True)).requests
        assert inputs_of(request)["S"][1] == b"xxxxyyyy"

    @pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), (b"abc", "has 3 bytes, expected 8")])
    def test_state_file_of_wrong_size_fails_load(self, tmp_path, content, said):
        # I7
        if content is not None:
            (tmp_path / "initial_state").mkdir()
            (tmp_path / "initial_state" / "begin").write_bytes(content)
        initial = 'initial_state { name: "f" data_type: TYPE_FP32 dims: [ 2 ] data_file: "begin" }'
        with pytest.raises(InferError, match=said):
            tensors(STATE % initial, directory=tmp_path)
