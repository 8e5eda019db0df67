"""The parameters that pad inputs and cut outputs, and errors in them."""

import numpy as np
import pytest

from naiad.config.execution_tensors import execution_config, server_inputs
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelInput
from naiad.config.scheduling_rules import scheduling_rules
from naiad.config.tensors.padding import InputPadding, element, parse_input_padding, read_padding
from naiad.config.validate.model import validate
from naiad.core.datatype import BY_CONFIG_NAME, DataType

_MODEL = """name: "m"
backend: "onnxruntime"
max_batch_size: 8
dynamic_batching { }
input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "fixed" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "states" data_type: TYPE_FP32 dims: [ -1, 384 ] }
output { name: "pooled" data_type: TYPE_FP32 dims: [ 384 ] }
"""


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


PAD = parameter("pad_input.ids", "buckets=16,32 value=0")
CUT = parameter("cut_output.states", "ids")


def problems(text: str) -> list[str]:
    parsed = parse_pbtxt(text, "config.pbtxt")
    return [str(problem) for problem in validate(parsed.config, parsed=parsed)]


def padding_of(text: str, dims: tuple[int, ...] = (-1,), datatype: str = "TYPE_INT64") -> InputPadding:
    return parse_input_padding(ModelInput(name="ids", data_type=datatype, dims=dims), text)


def test_without_parameters_nothing_is_padded() -> None:
    assert read_padding(parse_pbtxt(_MODEL).config) is None


def test_a_valid_configuration_is_read() -> None:
    config = parse_pbtxt(_MODEL + PAD + CUT).config
    assert problems(_MODEL + PAD + CUT) == []
    padding = read_padding(config)
    assert padding is not None
    assert padding.outputs == {"states": "ids"}
    assert padding.inputs == {
        "ids": InputPadding("ids", DataType.INT64, (-1,), buckets=(16, 32), max_length=32, value=bytes(8))
    }


def test_an_output_may_have_lengths_of_its_own() -> None:
    config = parse_pbtxt(_MODEL + PAD + parameter("cut_output.states", "")).config
    assert problems(_MODEL + PAD + parameter("cut_output.states", "")) == []
    padding = read_padding(config)
    assert padding is not None
    assert padding.outputs == {}


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("buckets=16,32", {0: 16, 1: 16, 16: 16, 17: 32, 32: 32, 33: 33}),
        ("multiple_of=10", {0: 0, 1: 10, 10: 10, 11: 20, 995: 1000}),
        ("multiple_of=10 max=25", {1: 10, 21: 25, 25: 25, 26: 26}),
        ("buckets=100 max_waste=0.5", {100: 100, 50: 100, 49: 49, 0: 0, 101: 101}),
    ],
)
def test_lengths(text: str, lengths: dict[int, int]) -> None:
    # P2
    padding = padding_of(text)
    assert {length: padding.padded((length,))[0] for length in lengths} == lengths


def test_every_variable_dimension_is_padded_and_no_other() -> None:
    padding = padding_of("multiple_of=4", dims=(-1, 3, -1))
    assert padding.padded((5, 3, 8)) == (8, 3, 8)
    assert padding.variable((5, 3, 8)) == (5, 8)


def test_waste_is_that_of_all_dimensions_together() -> None:
    padding = padding_of("multiple_of=10 max_waste=0.4", dims=(-1, -1))
    assert padding.padded((8, 8)) == (10, 10)
    assert padding.padded((7, 7)) == (7, 7)


@pytest.mark.parametrize("datatype", [each for each in DataType if each is not DataType.BYTES])
def test_a_value_of_every_datatype(datatype: DataType) -> None:
    one = "true" if datatype is DataType.BOOL else "1"
    assert np.frombuffer(element(datatype, one), datatype.numpy).tolist() == [1]
    assert element(datatype, "") == bytes(datatype.item_bytes)


def test_values_at_the_edges() -> None:
    assert element(DataType.BYTES, "pad") == b"\x03\x00\x00\x00pad"
    assert element(DataType.INT8, "-128") == b"\x80"
    assert np.isneginf(np.frombuffer(element(DataType.FP16, "-inf"), np.float16)[0])


def test_masks_and_lengths_are_inputs_of_model_only() -> None:
    text = _MODEL + parameter("pad_input.ids", "multiple_of=8 mask=mask:TYPE_INT64 lengths=tf:0") + CUT
    assert problems(text) == []
    config = parse_pbtxt(text).config
    assert server_inputs(config) == {"mask", "tf:0"}
    added = execution_config(config).input[2:]
    assert [(tensor.name, BY_CONFIG_NAME["TYPE_INT64"].config_number) for tensor in added[:1]] == [
        ("mask", added[0].data_type)
    ]
    assert [list(tensor.dims) for tensor in added] == [[-1], []]
    assert added[1].data_type == DataType.INT32.config_number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no lengths"),
        ("value=0", "has no lengths"),
        ("buckets=16 max=20", "has 'buckets' together with 'multiple_of' or 'max'"),
        ("buckets=16 buckets=17", "has 'buckets' twice"),
        ("bucket=16", "unknown part 'bucket=16'"),
        ("16,32", "unknown part '16,32'"),
        ("buckets=32,16", "are not ascending"),
        ("buckets=16,16", "are not ascending"),
        ("buckets=0,16", "'buckets' that is not a number of elements"),
        ("buckets=16,", "'buckets' that is not a number of elements"),
        ("multiple_of=-1", "'multiple_of' that is not a number of elements"),
        ("multiple_of=8 max=99999999999999999999", "'max' that is not a number of elements"),
        ("multiple_of=8 max_waste=2", "'max_waste' that is not a share"),
        ("multiple_of=8 max_waste=half", "'max_waste' that is not a share"),
        ("multiple_of=8 max_waste=nan", "'max_waste' that is not a share"),
        ("multiple_of=8 value=0.5", "'value' that is not a TYPE_INT64"),
        ("multiple_of=8 value=99999999999999999999", "'value' that is not a TYPE_INT64"),
        ("multiple_of=8 mask=", "'mask' that is not an input with a type"),
        ("multiple_of=8 mask=m:TYPE_STRING", "'mask' that is not an input with a type"),
        ("multiple_of=8 lengths=l:TYPE_INT8", "'lengths' that is not an input with a type"),
        ("multiple_of=8 mask=fixed", "adds input 'fixed', which exists already"),
        ("multiple_of=8 mask=x lengths=x", "adds input 'x', which exists already"),
    ],
)
def test_mistakes_are_reported_at_their_position(text: str, message: str) -> None:
    found = problems(_MODEL + parameter("pad_input.ids", text) + CUT)
    assert any(f"'pad_input.ids' {message}" in line or message in line for line in found), found
    assert all(line.startswith("config.pbtxt:9:") for line in found), found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_MODEL + PAD, "output 'states' has a variable dimension, and inputs are padded"),
        (_MODEL + CUT, "cuts an output, but no input is padded"),
        (_MODEL + PAD + CUT + parameter("pad_input.idz", "multiple_of=8"), "did you mean 'ids'?"),
        (_MODEL + PAD + CUT + parameter("cut_output.state", "ids"), "did you mean 'states'?"),
        (_MODEL + PAD + CUT + parameter("pad_input.fixed", "multiple_of=8"), "without a variable dimension"),
        (_MODEL + PAD + parameter("cut_output.states", "fixed"), "which is not padded"),
        (_MODEL + PAD + CUT + parameter("cut_output.pooled", "ids"), "another number of variable dimensions"),
        (_MODEL.replace("[ -1 ]", "[ -1 ] allow_ragged_batch: true") + PAD + CUT, "an input that is ragged"),
        (_MODEL.replace("[ -1 ]", "[ -1 ] optional: true") + PAD + CUT, "which requests may omit"),
        (
            _MODEL.replace("[ -1 ]", "[ -1 ] optional: true") + parameter("pad_input.ids", "multiple_of=8 mask=m"),
            "lengths of an input that requests may omit",
        ),
        (_MODEL.replace("max_batch_size: 8", "max_batch_size: 0") + PAD + CUT, "with a model without batches"),
        (_MODEL + PAD + CUT + "model_transaction_policy { decoupled: true }", "with a decoupled model"),
        (_MODEL.replace("dynamic_batching", "sequence_batching") + PAD + CUT, "with a model of sequences"),
        (
            _MODEL
            + PAD
            + CUT
            + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT32 source_input: "ids" }',
            "uses the shape of input 'ids', which is padded",
        ),
    ],
)
def test_incompatible_parameters_are_rejected(text: str, message: str) -> None:
    found = problems(text)
    assert any(message in line for line in found), found


_ROWS = _MODEL.replace("-1", "4")


@pytest.mark.parametrize("text", ["8", "1,2,4,8"])
def test_rows_that_a_batch_is_filled_up_to(text: str) -> None:
    parsed = parse_pbtxt(_ROWS + parameter("pad_batch", text))
    assert problems(_ROWS + parameter("pad_batch", text)) == []
    padding = read_padding(parsed.config)
    assert padding is not None
    assert padding.rows == tuple(map(int, text.split(",")))
    assert f"Its batch is padded to {' or '.join(text.split(','))} rows." in scheduling_rules(parsed.config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_ROWS + parameter("pad_batch", "true"), "'rows' that is not a number of elements"),
        (_ROWS + parameter("pad_batch", ""), "'rows' that is not a number of elements"),
        (_ROWS + parameter("pad_batch", "4,2"), "rows that are not ascending"),
        (_ROWS + parameter("pad_batch", "4"), "ends in 4 rows, and batches have up to 8"),
        (_ROWS.replace("max_batch_size: 8", "") + parameter("pad_batch", "8"), "with a model without batches"),
        (
            _ROWS.replace("[ 4 ] }", "[ 4 ] allow_ragged_batch: true }") + parameter("pad_batch", "8"),
            "a ragged batch",
        ),
    ],
)
def test_rows_that_cannot_be(text: str, message: str) -> None:
    found = problems(text)
    assert any(message in line and line.startswith("config.pbtxt:") for line in found), found


def test_the_rules_of_a_model_name_the_lengths() -> None:
    rules = "\n".join(scheduling_rules(parse_pbtxt(_MODEL + PAD + CUT).config))
    assert "Its ids is padded to the next of 16, 32; longer inputs stay unchanged." in rules
    assert "of equal shapes once they are padded" in rules
    assert "Output states of its response is cut to the length of input ids." in rules
    pad = parameter("pad_input.ids", "multiple_of=8 max=64 max_waste=0.25")
    rules = "\n".join(scheduling_rules(parse_pbtxt(_MODEL + pad + CUT).config))
    assert "the next multiple of 8, up to 64; longer inputs stay unchanged, and so do inputs that would be" in rules
    assert "more than 25% padding" in rules
