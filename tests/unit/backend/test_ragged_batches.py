"""Ragged inputs, batch inputs and batch outputs, with a Python function as the framework and with ONNX Runtime."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from naiad.backend.tensor_instance import TensorInstance
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError, invalid_argument
from naiad.core.tensor import Array
from support.backend_parts import execute, infer, load_onnx, make_context, make_request, new_instance, output_arrays
from support.backend_parts import strings as bytes_vector
from support.onnx_models import RAGGED_CONFIG, model, ragged, value

Run = Callable[[dict[str, Array], Sequence[str]], Sequence[Array]]


class RecordingInstance(TensorInstance):
    """Keeps what it is run with and answers what a function makes of it."""

    def __init__(self, made: ModelConfig, run: Run) -> None:
        super().__init__(make_context(made))
        self._function = run
        self.calls: list[dict[str, Array]] = []

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        self.calls.append(dict(inputs))
        return self._function(inputs, output_names)


def config(max_batch_size: int = 8, dims: Sequence[int] = (-1,), **more: object) -> ModelConfig:
    made = ModelConfig(name="m", max_batch_size=max_batch_size)
    made.input.add(name="X", data_type="TYPE_FP32", dims=dims, allow_ragged_batch=True)
    made.output.add(name="Y", data_type="TYPE_FP32", dims=dims)
    made.batch_output.add(target_name=["Y"], source_input=["X"])
    return made


def vector(*values: float, rows: int = 1) -> Array:
    return np.array(values, np.float32).reshape(rows, -1)


def double(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
    return [inputs["X"] * 2 for name in names if name == "Y"]


def test_ragged_requests_are_flattened_and_split():
    instance = RecordingInstance(config(), double)
    arrays = [vector(1, 2, 3), vector(4), vector(5, 6, 7, 8, rows=2)]
    responses = execute(instance, [make_request({"X": a}, rows=len(a)) for a in arrays])
    (call,) = instance.calls
    assert call["X"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    for response, array in zip(responses, arrays, strict=True):
        assert output_arrays(response)["Y"].tolist() == (array * 2).tolist()


def test_a_single_request_is_flat_too():
    instance = RecordingInstance(config(), double)
    assert infer(instance, {"X": vector(1, 2)})["Y"].tolist() == [[2, 4]]
    assert instance.calls[0]["X"].shape == (2,)


# Triton, backend_input_collector.cc: counts are per request, item shapes per row.
KINDS = {
    "BATCH_ELEMENT_COUNT": [3, 4],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [3, 7],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 3, 7],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [0, 0, 0, 0],
    "BATCH_ITEM_SHAPE": [[3], [2], [2]],
    "BATCH_ITEM_SHAPE_FLATTEN": [3, 2, 2],
}


@pytest.mark.parametrize(("kind", "expected"), KINDS.items())
@pytest.mark.parametrize("datatype", ["INT32", "FP32"])
def test_batch_inputs_describe_batch(kind, expected, datatype):
    made = config()
    made.batch_input.add(kind=kind, target_name=["T", "U"], data_type=f"TYPE_{datatype}", source_input=["X"])
    instance = RecordingInstance(made, double)
    execute(instance, [make_request({"X": vector(1, 2, 3)}), make_request({"X": vector(1, 2, 3, 4, rows=2)}, rows=2)])
    for name in ("T", "U"):
        array = instance.calls[0][name]
        assert array.tolist() == expected
        assert array.dtype == (np.int32 if datatype == "INT32" else np.float32)
        assert array.flags.c_contiguous


def test_item_shapes_have_a_column_a_dimension():
    # The example of Triton's model_config.proto.
    made = config(dims=[-1, -1])
    for kind in ("BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN"):
        made.batch_input.add(kind=kind, target_name=[kind], data_type="TYPE_INT32", source_input=["X"])
    instance = RecordingInstance(made, double)
    first, second = np.zeros((2, 3, 1), np.float32), np.zeros((1, 2, 2), np.float32)
    responses = execute(instance, [make_request({"X": first}, rows=2), make_request({"X": second})])
    assert instance.calls[0]["BATCH_ITEM_SHAPE"].tolist() == [[3, 1], [3, 1], [2, 2]]
    assert instance.calls[0]["BATCH_ITEM_SHAPE_FLATTEN"].tolist() == [3, 1, 3, 1, 2, 2]
    assert [output_arrays(response)["Y"].shape for response in responses] == [(2, 3, 1), (1, 2, 2)]


def test_source_may_be_regular_and_inputs_keep_rows():
    made = config()
    made.input.add(name="W", data_type="TYPE_FP32", dims=[2])
    made.output.add(name="Z", data_type="TYPE_FP32", dims=[2])
    made.batch_input.add(kind="BATCH_ELEMENT_COUNT", target_name=["T"], data_type="TYPE_INT32", source_input=["W"])
    instance = RecordingInstance(
        made, lambda inputs, names: [{"Y": inputs["X"], "Z": inputs["W"] + 1}[name] for name in names]
    )
    requests = [
        make_request({"X": vector(1), "W": vector(1, 2)}),
        make_request({"W": vector(3, 4, 5, 6, rows=2), "X": vector(7, 8, rows=2)}, ["Z"], rows=2),
    ]
    first, second = execute(instance, requests)
    assert instance.calls[0]["W"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert instance.calls[0]["X"].tolist() == [1, 7, 8]
    assert instance.calls[0]["T"].tolist() == [2, 4]
    assert output_arrays(first)["Y"].tolist() == [[1]]
    assert {name: array.tolist() for name, array in output_arrays(second).items()} == {"Z": [[4, 5], [6, 7]]}


def test_requests_differing_in_regular_inputs_are_separate():
    made = config()
    made.input.add(name="W", data_type="TYPE_FP32", dims=[-1])
    instance = RecordingInstance(made, double)
    arrays = [{"X": vector(1), "W": vector(1)}, {"X": vector(2), "W": vector(1, 2)}]
    responses = execute(instance, [make_request(a) for a in arrays])
    assert [output_arrays(response)["Y"].tolist() for response in responses] == [[[2]], [[4]]]
    assert len(instance.calls) == 2


def test_strings_may_be_ragged():
    made = config()
    made.input[0].data_type = made.output[0].data_type = 13
    instance = RecordingInstance(made, lambda inputs, names: [inputs["X"]])
    arrays = [bytes_vector(b"a", b"bc").reshape(1, 2), bytes_vector(b"").reshape(1, 1)]
    responses = execute(instance, [make_request({"X": array}) for array in arrays])
    assert instance.calls[0]["X"].tolist() == [b"a", b"bc", b""]
    assert [output_arrays(response)["Y"].tolist() for response in responses] == [[[b"a", b"bc"]], [[b""]]]


def test_requests_without_elements():
    made = config()
    made.batch_input.add(kind="BATCH_ELEMENT_COUNT", target_name=["T"], data_type="TYPE_INT32", source_input=["X"])
    instance = RecordingInstance(made, double)
    empty = np.zeros((1, 0), np.float32)
    first, second = execute(instance, [make_request({"X": empty}), make_request({"X": vector(1)})])
    assert instance.calls[0]["T"].tolist() == [0, 1]
    assert output_arrays(first)["Y"].shape == (1, 0)
    assert output_arrays(second)["Y"].tolist() == [[2]]


def test_without_batching_nothing_is_flattened():
    made = config(max_batch_size=0, dims=[-1, 2])
    made.batch_input.add(kind="BATCH_ELEMENT_COUNT", target_name=["T"], data_type="TYPE_INT32", source_input=["X"])
    instance = RecordingInstance(made, double)
    assert infer(instance, {"X": vector(1, 2, 3, 4, rows=2)})["Y"].tolist() == [[2, 4], [6, 8]]
    assert instance.calls[0]["X"].shape == (2, 2)
    assert instance.calls[0]["T"].tolist() == [4]


def test_only_the_faulty_request_fails():
    def run(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
        if (inputs["X"] < 0).any():
            raise invalid_argument("negative")
        return [inputs["X"]]

    instance = RecordingInstance(config(), run)
    good, bad = execute(instance, [make_request({"X": vector(1, 2)}), make_request({"X": vector(-1)})])
    assert output_arrays(good)["Y"].tolist() == [[1, 2]]
    assert bad.error is not None
    assert bad.error.message == "negative"


def test_uneven_output_is_detected():
    instance = RecordingInstance(config(), lambda inputs, names: [inputs["X"][1:]])
    with pytest.raises(InferError, match=r"output 'Y' with 2 elements, but cut by the shapes of input 'X'.* have 3"):
        infer(instance, {"X": vector(1, 2, 3)})


def test_output_error_suggests_batch_output():
    made = config()
    made.ClearField("batch_output")
    instance = RecordingInstance(made, double)
    with pytest.raises(InferError, match="needs a 'batch_output' that names this input"):
        infer(instance, {"X": vector(1, 2, 3)})


def test_scattered_reshaped_output_is_cut_in_model_shape():
    made = config()
    made.output[0].ClearField("dims")
    made.output[0].dims.extend([-1, 1])
    made.output[0].reshape.shape.extend([-1])
    instance = RecordingInstance(made, double)
    assert infer(instance, {"X": vector(1, 2)})["Y"].tolist() == [[[2], [4]]]


# --- ONNX Runtime ---------------------------------------------------------------------------------------------------


def onnx_fields(text: str = RAGGED_CONFIG, **changes: object) -> dict[str, object]:
    parsed = parse_pbtxt(text)
    assert not parsed.problems
    fields = {field.name: content for field, content in parsed.config.ListFields()}
    return {**fields, **changes}


def test_onnx_model_sums_requests_of_ragged_batch(tmp_path: Path):
    loaded, _ = load_onnx(tmp_path, ragged(), **onnx_fields())
    instance = new_instance(loaded)
    for count in (1, 2, 5):
        arrays = [np.arange(n + 1, dtype=np.float32).reshape(1, -1) for n in range(count)]
        responses = execute(instance, [make_request({"DATA": array}) for array in arrays])
        for response, array in zip(responses, arrays, strict=True):
            outputs = output_arrays(response)
            assert outputs["SUM"].tolist() == [[array.sum()]]
            assert outputs["DOUBLED"].tolist() == (array * 2).tolist()


def test_inputs_and_outputs_are_completed_around_batch_inputs(tmp_path: Path):
    fields = onnx_fields()
    del fields["output"]
    (made,) = fields["input"]
    made.ClearField("dims")
    _, completed = load_onnx(tmp_path, ragged(), **fields)
    assert [(tensor.name, list(tensor.dims)) for tensor in completed.input] == [("DATA", [-1])]
    assert [tensor.name for tensor in completed.output] == ["SUM", "DOUBLED"]


def refusal(tmp_path: Path, onnx_model: bytes, **changes: object) -> InferError:
    with pytest.raises(InferError) as caught:
        load_onnx(tmp_path, onnx_model, **onnx_fields(**changes))
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value


def test_ragged_input_with_rows_is_rejected(tmp_path: Path):
    rows = model([], [value("DATA", ["N", 4])], [value("DATA", ["N", 4])])
    error = refusal(tmp_path, rows, batch_input=[], batch_output=[], output=[])
    assert "with shape [-1] for ragged input 'DATA', model provides [-1,4]" in error.message
    assert "remove 'allow_ragged_batch'" in error.message


def test_missing_batch_input_is_rejected(tmp_path: Path):
    fields = onnx_fields()["batch_input"]
    fields[0].target_name[0] = "ENDINGS"
    error = refusal(tmp_path, ragged(), batch_input=fields)
    assert "DATA, ENDS" in error.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_type": "TYPE_FP32"}, "unexpected datatype TYPE_FP32 for input 'ENDS', expecting TYPE_INT32"),
        ({"kind": "BATCH_ITEM_SHAPE"}, "batch input 'ENDS' of kind BATCH_ITEM_SHAPE needs .* \\[-1,-1\\]"),
    ],
)
def test_mismatched_batch_input_is_rejected(tmp_path: Path, change, message):
    made = ModelConfig()
    rule = {"kind": "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "data_type": "TYPE_INT32", **change}
    made.batch_input.add(target_name=["ENDS"], source_input=["DATA"], **rule)
    error = refusal(tmp_path, ragged(), batch_input=made.batch_input)
    assert re.search(message, error.message), error.message
