"""The OpenVINO backend without a server: shapes, datatypes, parameters and errors."""

import numpy as np
import openvino
import pytest
from openvino import opset15 as ops
from openvino.op.util import Variable, VariableInfo

from naiad.backend.openvino.backend import OpenVinoBackend
from naiad.core.errors import InferError
from naiad.testing import BackendModel, ModelError
from support.digits_classifier import digits_classifier
from support.openvino_models import digits_model, named, parameter, save


def parameters(**texts):
    return "".join(f' parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in texts.items())


def load(directory, config=""):
    text = f'name: "{directory.name}" backend: "openvino" {config}' if config else ""
    return BackendModel(OpenVinoBackend(), directory, config=text)


def refusal(directory, config=""):
    with pytest.raises(InferError) as caught:
        load(directory, config)
    return caught.value.message


def save_unary(tmp_path, function, shape, datatype=np.float32, name="m"):
    x = parameter("X", shape, datatype)
    return save(openvino.Model([named(function(x), "Y")], [x], name), tmp_path, name)


# --- shapes and datatypes -------------------------------------------------------------------------------------------


def test_baked_in_rows_turn_batching_off(tmp_path):
    """A reshape to one row leaves the outputs' first dimension at 1, for any number of input rows."""
    directory = save_unary(tmp_path, lambda x: ops.reshape(x, [1, -1, 2], special_zero=False), [1, 8])
    with load(directory) as model:
        assert model.config.max_batch_size == 0
        assert list(model.config.input[0].dims) == [1, 8]
        assert model.infer({"X": np.ones((1, 8), np.float32)})["Y"].shape == (1, 4, 2)


def test_configured_batching_of_baked_in_rows_is_refused(tmp_path):
    directory = save_unary(tmp_path, lambda x: ops.reshape(x, [1, -1, 2], special_zero=False), [1, 8])
    message = refusal(directory, "max_batch_size: 8")
    assert "output 'Y' then has the shape [1,?,2]" in message
    assert "set max_batch_size: 0, or export it with a free first dimension" in message


def test_single_numbers_are_no_rows(tmp_path):
    with load(save_unary(tmp_path, lambda x: ops.add(x, np.float32(1)), [1])) as model:
        assert model.config.max_batch_size == 0


def test_scalars_have_one_dimension_for_clients(tmp_path):
    with load(save_unary(tmp_path, lambda x: ops.add(x, np.float32(1)), [])) as model:
        assert model.infer({"X": np.array([2], np.float32)})["Y"].tolist() == [3]


@pytest.mark.parametrize("datatype", ["bool", "u1", "i1", "i2", "u4", "i8", "f2", "f4", "f8"])
def test_datatypes_pass_unchanged(tmp_path, datatype):
    dtype = np.dtype(datatype)
    directory = save_unary(tmp_path, lambda x: ops.concat([x, x], 1), [-1, 3], dtype.type)
    rows = np.array([[0, 1, 2], [3, 0, 1]]).astype(dtype)
    with load(directory) as model:
        output = model.infer({"X": rows})["Y"]
    assert output.dtype == dtype
    assert (output == np.concatenate([rows, rows], 1)).all()


def test_bf16_passes_unchanged(tmp_path):
    import ml_dtypes

    directory = save_unary(tmp_path, lambda x: ops.concat([x, x], 1), [-1, 2], openvino.Type.bf16)
    rows = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    with load(directory) as model:
        assert model.infer({"X": rows})["Y"].astype(float).tolist() == [[1.5, -2, 1.5, -2]]


def test_strings_pass_in_and_out(tmp_path):
    text = parameter("TEXT", [-1], openvino.Type.string)
    begins, ends, chars = ops.string_tensor_unpack(text).outputs()
    packed = named(ops.string_tensor_pack(begins, ends, chars), "SAME")
    directory = save(openvino.Model([packed], [text], "text"), tmp_path, "text")
    texts = np.array(["naiad", "", "né"], object)
    with load(directory) as model:
        found = model.infer({"TEXT": texts.reshape(3, 1)})["SAME"]
    assert [bytes(each) for each in found.reshape(-1)] == [text.encode() for text in texts]


@pytest.mark.parametrize(
    "function",
    [
        ops.relu,
        lambda x: ops.softmax(x, 1),
        lambda x: ops.add(ops.reshape(x, [0, 2, 512], special_zero=True), np.float32(1)),
        lambda x: ops.clamp(ops.add(x, x), 0.0, 1.0),
        lambda x: ops.relu(ops.split(x, np.int64(1), 2).output(0)),
        ops.result,
    ],
)
def test_runs_leave_inputs_unchanged(tmp_path, function):
    """The inputs are the memory of received messages, which other consumers read too."""
    rows = np.random.default_rng(0).normal(size=(4, 1024)).astype(np.float32)
    before = rows.copy()
    rows.setflags(write=False)
    x = parameter("X", [-1, 1024])
    made = function(x)
    model = openvino.Model([made if made.type_info.name == "Result" else named(made, "Y")], [x], "m")
    with load(save(model, tmp_path, "m")) as loaded:
        loaded.infer({"X": rows})
    assert (rows == before).all()


def test_outputs_survive_the_next_run(tmp_path):
    with load(save_unary(tmp_path, ops.relu, [-1, 8192])) as model:
        first = model.infer({"X": np.full((1, 8192), 1, np.float32)})["Y"]
        model.infer({"X": np.full((1, 8192), 2, np.float32)})
    assert (first == 1).all()


# --- parameters -----------------------------------------------------------------------------------------------------


def precise_product(tmp_path):
    """Write a model whose result is far off in bfloat16: 1 + 1/1024 is 1 there."""
    return save_unary(tmp_path, lambda x: ops.matmul(x, np.eye(32, dtype=np.float32), False, False), [-1, 32])


def test_precision_is_full_by_default(tmp_path):
    rows = np.full((2, 32), 1 + 1 / 1024, np.float32)
    with load(precise_product(tmp_path)) as model:
        assert (model.infer({"X": rows})["Y"] == rows).all()


@pytest.mark.parametrize(
    "chosen",
    [
        parameters(INFERENCE_NUM_THREADS="1", COMPILATION_NUM_THREADS="1", NUM_STREAMS="1", HINT_BF16="YES"),
        parameters(PERFORMANCE_HINT="THROUGHPUT", ENABLE_CPU_PINNING="NO", TARGET_DEVICE="CPU"),
        parameters(NUM_STREAMS="AUTO") + ' parameters { key: "property.PERF_COUNT" value { string_value: "YES" } }',
        parameters(TARGET_DEVICE="AUTO:CPU"),
    ],
)
def test_parameters_become_properties(tmp_path, chosen):
    digits = digits_classifier()
    with load(save(digits_model(), tmp_path, "m"), "max_batch_size: 8" + chosen) as model:
        found = model.infer({"IMAGE": digits.images[:8]})["PROBABILITIES"]
    np.testing.assert_allclose(found, digits.probabilities(digits.images[:8]), atol=0.05)


def test_compiled_models_are_cached(tmp_path):
    directory = save(digits_model(), tmp_path, "m")
    with load(directory, "max_batch_size: 8" + parameters(CACHE_DIR="cache")):
        assert any((directory / "cache").iterdir())


def test_padding_fills_fixed_batches(tmp_path):
    digits = digits_classifier()
    chosen = "max_batch_size: 8" + parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES", ENABLE_BATCH_PADDING="YES")
    with load(save(digits_model(rows=8), tmp_path, "m"), chosen) as model:
        found = model.infer({"IMAGE": digits.images[:3]})["PROBABILITIES"]
    np.testing.assert_allclose(found, digits.probabilities(digits.images[:3]), atol=1e-5)


def test_fixed_batches_refuse_fewer_rows(tmp_path):
    chosen = "max_batch_size: 8" + parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES")
    with (
        load(save(digits_model(rows=8), tmp_path, "m"), chosen) as model,
        pytest.raises(ModelError, match=r"executes exactly 8 rows.*but the batch has 3; set ENABLE_BATCH_PADDING"),
    ):
        model.infer({"IMAGE": digits_classifier().images[:3]})


def test_inputs_take_configured_dims(tmp_path):
    directory = save_unary(tmp_path, ops.relu, [1, 8])
    tensors = (
        "input { name: 'X' data_type: TYPE_FP32 dims: [12] } output { name: 'Y' data_type: TYPE_FP32 dims: [12] }"
    )
    chosen = "max_batch_size: 4 " + tensors + parameters(RESHAPE_IO_LAYOUTS="YES")
    with load(directory, chosen) as model:
        assert model.infer({"X": np.ones((3, 12), np.float32)})["Y"].shape == (3, 12)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TARGET_DEVICE", "NPU", "'TARGET_DEVICE' is 'NPU', but the devices here are CPU"),
        ("HINT_BF16", "maybe", "expected one of YES, NO"),
        ("NUM_STREAMS", "0", "expected AUTO, NUMA or a number of streams"),
        ("PERFORMANCE_HINT", "FAST", "expected one of LATENCY, THROUGHPUT"),
        ("property.NO_SUCH", "1", "Unsupported property NO_SUCH by CPU plugin"),
        ("CPU_EXTENSION_PATH", "/nowhere.so", "/nowhere.so"),
    ],
)
def test_wrong_parameters_are_named(tmp_path, name, value, expected):
    directory = save(digits_model(), tmp_path, "m")
    assert expected in refusal(directory, f"max_batch_size: 8 {parameters(**{name: value})}")


# --- files that cannot be served ------------------------------------------------------------------------------------


def test_missing_weights_are_named(tmp_path):
    directory = save(digits_model(), tmp_path, "m")
    (directory / "1" / "model.bin").unlink()
    assert "Put the weights of the model, model.bin, next to it" in refusal(directory)


@pytest.mark.parametrize("filename", ["model.xml", "model.bin"])
def test_truncated_files_are_refused(tmp_path, filename):
    directory = save(digits_model(), tmp_path, "m")
    path = directory / "1" / filename
    path.write_bytes(path.read_bytes()[:900])
    message = refusal(directory)
    assert f"{directory / '1' / 'model.xml'} cannot be read" in message
    assert "Copy model.xml and model.bin again" in message
    assert "\n" not in message


@pytest.mark.parametrize("filename", ["model.onnx", "model.tflite"])
def test_other_formats_are_refused(tmp_path, filename):
    path = tmp_path / "m" / "1" / filename
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a model")
    message = refusal(tmp_path / "m", f'default_model_filename: "{filename}"')
    assert f"{path} cannot be read" in message
    assert "Known formats are IR (.xml), ONNX (.onnx) and TFLite (.tflite)" in message


def test_unknown_operators_are_named(tmp_path):
    directory = save(digits_model(), tmp_path, "m")
    path = directory / "1" / "model.xml"
    path.write_text(path.read_text().replace('type="SoftMax"', 'type="SofterMax"'))
    assert "SofterMax" in refusal(directory)


def test_contradicting_output_shape_is_refused(tmp_path):
    directory = save(digits_model(), tmp_path, "m")
    output = "output { name: 'PROBABILITIES' data_type: TYPE_FP32 dims: [11] }"
    message = refusal(directory, f"max_batch_size: 8 {output}")
    assert "tensor 'PROBABILITIES': the model expects 2 dimensions (shape [-1,10])" in message
    assert "write dims: [10] in config.pbtxt" in message


def test_sizes_that_do_not_fit_fail_alone(tmp_path):
    directory = save_unary(tmp_path, ops.relu, [-1, 8])
    tensors = (
        "input { name: 'X' data_type: TYPE_FP32 dims: [-1] } output { name: 'Y' data_type: TYPE_FP32 dims: [-1] }"
    )
    with load(directory, "max_batch_size: 4 " + tensors) as model:
        good, bad = {"X": np.ones((1, 8), np.float32)}, {"X": np.ones((1, 9), np.float32)}
        with pytest.raises(ModelError, match=r"does not accept input 'X' of shape \[1,9\]"):
            model.infer(bad)
        assert model.infer(good)["Y"].shape == (1, 8)


# --- what a file says besides its graph -----------------------------------------------------------------------------


def save_running_sum(tmp_path):
    """Save a model that keeps a sum: it answers with the sum of all that it was given since its state began."""
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = openvino.PartialShape([1, 1]), openvino.Type.f32, "sum"
    x = parameter("X", [1, 1], np.float32)
    variable = Variable(info)
    total = ops.add(ops.read_value(np.zeros((1, 1), np.float32), variable), x)
    kept = ops.assign(total, variable)
    model = openvino.Model([ops.result(named(total, "Y"))], [kept], [x], "m")
    return save(model, tmp_path, "m")


SUM_CONFIG = """
input { name: "X" data_type: TYPE_FP32 dims: [ 1, 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1, 1 ] }
"""


@pytest.mark.parametrize(("more", "answers"), [("", [1, 1, 1]), ("sequence_batching { direct { } }", [1, 2, 3])])
def test_state_stays_within_a_sequence_only(tmp_path, more, answers):
    with load(save_running_sum(tmp_path), SUM_CONFIG + more) as model:
        one = np.ones((1, 1), np.float32)
        assert [float(model.infer({"X": one})["Y"].item()) for _ in answers] == answers


def test_layouts_do_not_move_the_batch(tmp_path):
    x = parameter("X", [1, 8], np.float32)
    model = openvino.Model([named(ops.relu(x), "Y")], [x], "m")
    model.inputs[0].node.set_layout(openvino.Layout("CN"))
    with load(save(model, tmp_path, "m")) as served:
        assert served.config.max_batch_size == 4
        assert list(served.config.input[0].dims) == [8]
