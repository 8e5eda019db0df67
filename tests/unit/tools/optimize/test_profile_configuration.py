"""Runtimes of a candidate, and the configuration that it is measured and packaged with."""

import pytest

from naiad.config.autofill import normalize
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.validate.model import validate
from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.profile import configuration, runtimes
from naiad.tools.optimize.results.candidate_measurement import Runtime

IMAGE = TensorSpec("image", DataType.FP32, (-1, 3, 8, 8))
SCORES = TensorSpec("scores", DataType.FP32, (-1, 10))


def candidate(backend="onnxruntime", form=Format.ONNX):
    return Candidate("candidate", form, Precision.FP32, backend)


def config(tmp_path, runtime=None, max_batch_size=8, *, of=None, backend_parameters=None, warm_up=()):
    """Return the configuration after the parser that a server reads it with."""
    made = of or candidate()
    conversion = Conversion(made, Status.PASSED, tmp_path, backend_parameters=backend_parameters or {})
    source = Source("model", made.format, tmp_path, (IMAGE,), (SCORES,))
    text = configuration(made, conversion, source, runtime or Runtime(), max_batch_size, warm_up)
    parsed = parse_pbtxt(text, "config.pbtxt")
    assert not parsed.problems
    return parsed.config


@pytest.mark.parametrize(
    ("backend", "cores", "names"),
    [
        ("onnxruntime", 1, ["default"]),
        ("onnxruntime", 2, ["default", "threads-1"]),
        ("openvino", 8, ["default", "threads-1", "threads-4"]),
        ("trees", 2, ["default", "threads-2"]),
        ("sklearn", 8, ["default", "threads-4", "threads-8"]),
        ("tensorrt", 8, ["default"]),
    ],
)
def test_runtimes_are_thread_counts(backend, cores, names):
    assert [each.name for each in runtimes(candidate(backend), cores)] == names


def test_tensorflow_has_both_thread_counts():
    assert runtimes(candidate("tensorflow"), 2)[1].parameters == {
        "TF_NUM_INTRA_THREADS": "1",
        "TF_NUM_INTER_THREADS": "1",
    }


def test_runtime_is_in_the_configuration(tmp_path):
    found = config(tmp_path, Runtime("own", {"intra_op_thread_count": "1"}, 2), backend_parameters={"a": 'b "c"'})
    assert (found.name, found.backend, found.max_batch_size) == ("candidate", "onnxruntime", 8)
    assert {name: each.string_value for name, each in found.parameters.items()} == {
        "intra_op_thread_count": "1",
        "a": 'b "c"',
    }
    assert found.instance_group[0].count == 2
    assert found.HasField("dynamic_batching")


def test_no_batch_dimension_means_no_batching(tmp_path):
    found = config(tmp_path, max_batch_size=0)
    assert found.max_batch_size == 0
    assert not found.HasField("dynamic_batching")


def test_torchscript_gets_the_tensors_of_the_source(tmp_path):
    found = config(tmp_path, of=candidate("pytorch", Format.TORCHSCRIPT))
    assert [(each.name, list(each.dims)) for each in found.input] == [("image", [3, 8, 8])]
    assert [(each.name, list(each.dims)) for each in found.output] == [("scores", [10])]
    assert not validate(normalize(found), model_name="candidate", complete=True)


def test_warm_up_has_zeros_for_each_input(tmp_path):
    found = config(tmp_path, warm_up=(IMAGE,)).model_warmup[0]
    assert found.batch_size == 1
    assert found.inputs["image"].zero_data
    assert list(found.inputs["image"].dims) == [3, 8, 8]


def test_variable_inputs_have_no_warm_up(tmp_path):
    assert not config(tmp_path, warm_up=(TensorSpec("text", DataType.INT64, (-1, -1)),)).model_warmup
