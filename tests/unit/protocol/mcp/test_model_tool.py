"""The schemas of tools fit the arguments that the generate extension takes."""

import jsonschema
import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.protocol.mcp.model_tool import describe_model, value_schema


def config(**more: object) -> ModelConfig:
    return ModelConfig(
        name="m",
        max_batch_size=4,
        input=[
            {"name": "IN", "data_type": "TYPE_FP32", "dims": [2]},
            {"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
        ],
        output=[{"name": "OUT", "data_type": "TYPE_FP32", "dims": [3], "label_filename": "labels.txt"}],
        **more,
    )


def test_tool_has_names_types_and_shapes() -> None:
    tool = describe_model("m", config(), is_decoupled=False)
    assert tool["inputSchema"]["required"] == ["IN"]
    jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
    for arguments in ({"IN": [1, 2]}, {"IN": [[1, 2], [3, 4]], "TEXT": "a"}, {"IN": [1, 2], "temperature": 0.5}):
        jsonschema.validate(arguments, tool["inputSchema"])
    for wrong in ({}, {"IN": "a"}, {"IN": [[1, 2, 3]]}, {"IN": [1, 2], "TEXT": 5}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, tool["inputSchema"])
    assert "numbers (FP32), shape anyx2" in tool["inputSchema"]["properties"]["IN"]["description"]
    assert "best classes" in tool["outputSchema"]["properties"]["OUT"]["description"]
    assert "outputSchema" not in describe_model("m", config(), is_decoupled=True)


def test_owner_may_describe_the_model() -> None:
    described = config(parameters={"description": {"string_value": "Counts cats."}})
    assert describe_model("m", described, is_decoupled=False)["description"] == "Counts cats."
    assert describe_model("m", config(), is_decoupled=False)["description"].startswith("Executes the model m.")


def test_sequence_model_takes_the_sequence() -> None:
    tool = describe_model("m", config(sequence_batching={}), is_decoupled=False)
    assert "sequence_id" in tool["inputSchema"]["required"]
    assert {"sequence_start", "sequence_end"} <= tool["inputSchema"]["properties"].keys()
    iterative = describe_model("m", config(sequence_batching={"iterative_sequence": True}), is_decoupled=True)
    assert "sequence_id" not in iterative["inputSchema"]["properties"]


@pytest.mark.parametrize(
    ("shape", "accepted", "refused"),
    [
        ((), [5], ["a"]),
        ((1,), [5, [5]], [[5, 5], [[5]]]),
        ((-1,), [5, [], [1, 2]], ["a"]),
        ((2, 2), [[1, 2, 3, 4], [[1, 2], [3, 4]]], [5, [[1], [2]]]),
        ((-1, 1, 1), [5, [5, 6], [[[5]], [[6]]]], [[[5]]]),
    ],
)
def test_value_is_nested_or_in_one_list(shape: tuple[int, ...], accepted: list, refused: list) -> None:
    schema = value_schema(TensorSpec("IN", DataType.INT32, shape))
    for value in accepted:
        jsonschema.validate(value, schema)
    for value in refused:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value, schema)
