import pytest

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.correctness.runners.model_runner import RunnerError
from naiad.tools.optimize.correctness.tensor_names import match_names


def specs(*names):
    return [TensorSpec(name, DataType.FP32, (-1,)) for name in names]


def test_equal_names_match_in_any_order():
    assert match_names(specs("a", "b"), specs("b", "a"), "inputs") == {"a": "a", "b": "b"}


def test_renamed_tensors_match_in_order():
    assert match_names(specs("a", "x", "b"), specs("INPUT__0", "x", "INPUT__1"), "inputs") == {
        "a": "INPUT__0",
        "x": "x",
        "b": "INPUT__1",
    }


def test_missing_output_is_refused_with_names():
    with pytest.raises(RunnerError, match=r"it has 1 outputs \(y\), the source has 2 \(y, z\)"):
        match_names(specs("y", "z"), specs("y"), "outputs")


def test_other_order_is_found_by_shape():
    scores, label = TensorSpec("scores", DataType.FP32, (-1, 3)), TensorSpec("label", DataType.INT64, (-1,))
    wide, first = TensorSpec("o0", DataType.INT64, (-1,)), TensorSpec("o1", DataType.FP16, (-1, 3))
    assert match_names([scores, label], [wide, first], "outputs") == {"scores": "o1", "label": "o0"}
    one, four = TensorSpec("o0", DataType.FP32, (-1, 1)), TensorSpec("o1", DataType.FP32, (-1, 4))
    wanted = [TensorSpec("a", DataType.FP32, (-1, 4)), TensorSpec("b", DataType.FP32, (-1, 1))]
    assert match_names(wanted, [one, four], "outputs") == {"a": "o1", "b": "o0"}
    unknown = [TensorSpec("o0", DataType.FP64, (-1,)), TensorSpec("o1", DataType.FP64, (-1,))]
    assert match_names(wanted, unknown, "outputs") == {"a": "o0", "b": "o1"}
