"""The LiteRT backend without a server: batches, signatures, datatypes and errors."""

import numpy as np
import pytest
import tensorflow as tf

from naiad.backend.litert.backend import LiteRtBackend
from naiad.core.errors import InferError
from naiad.testing import BackendModel, ModelError
from support.digits_classifier import digits_classifier
from support.model_repository import write_model
from support.tflite_models import convert, digits_tflite, two_signatures


def load(tmp_path, content, config=""):
    directory = write_model(tmp_path, "m", None, {"1/model.tflite": content})
    text = f'name: "m" backend: "litert" {config}' if config else ""
    return BackendModel(LiteRtBackend(), directory, config=text)


def refusal(tmp_path, content, config=""):
    with pytest.raises(InferError) as caught:
        load(tmp_path, content, config)
    return caught.value.message


def signature(name):
    return f' parameters {{ key: "signature" value {{ string_value: "{name}" }} }}'


def unary(function, shape, datatype=tf.float32, **options):
    def run(x):
        return {"y": function(x)}

    return convert(run, [tf.TensorSpec(shape, datatype, name="x")], **options)


# --- batches --------------------------------------------------------------------------------------------------------

BAKED_IN = {
    # As in face detectors: two rows in give one row with twice the boxes.
    "[1,64,2]": lambda x: tf.reshape(x, [1, -1, 2]),
    "fails": lambda x: tf.reshape(x, [1, 32, 2]),
}


@pytest.mark.parametrize("shown", BAKED_IN)
def test_baked_in_rows_turn_batching_off(tmp_path, shown):
    with load(tmp_path, unary(BAKED_IN[shown], [1, 8, 8, 1])) as model:
        assert model.config.max_batch_size == 0
        assert list(model.config.input[0].dims) == [1, 8, 8, 1]
        assert model.infer({"x": np.ones((1, 8, 8, 1), np.float32)})["y"].shape == (1, 32, 2)


@pytest.mark.parametrize("shown", BAKED_IN)
def test_configured_batching_of_baked_in_rows_is_refused(tmp_path, shown):
    message = refusal(tmp_path, unary(BAKED_IN[shown], [1, 8, 8, 1]), "max_batch_size: 4")
    assert "has its batch size built in, but the configuration has max_batch_size: 4" in message
    assert shown in message
    assert "set max_batch_size: 0, or convert the model with a free first dimension" in message


def test_single_numbers_are_no_rows(tmp_path):
    with load(tmp_path, unary(lambda x: x + 1, [1])) as model:
        assert model.config.max_batch_size == 0
        assert model.infer({"x": np.array([2], np.float32)})["y"].tolist() == [3]


def test_scalars_have_one_dimension_for_clients(tmp_path):
    with load(tmp_path, unary(lambda x: x + 1, [])) as model:
        assert model.infer({"x": np.array([2], np.float32)})["y"].tolist() == [3]


def test_batches_of_changing_sizes_keep_rows(tmp_path):
    digits = digits_classifier()
    with load(tmp_path, digits_tflite(), "max_batch_size: 8") as model:
        for rows in (1, 8, 3, 8, 1):
            found = model.infer({"image": digits.images[:rows]})["probabilities"]
            np.testing.assert_allclose(found, digits.probabilities(digits.images[:rows]), atol=1e-5)


def test_outputs_survive_the_next_run(tmp_path):
    with load(tmp_path, unary(lambda x: x * 2, [None, 8192])) as model:
        first = model.infer({"x": np.full((1, 8192), 1, np.float32)})["y"]
        model.infer({"x": np.full((1, 8192), 2, np.float32)})
    assert (first == 2).all()


# --- signatures and datatypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inputs", "output"), [("double", {"x": 1}, "twice"), ("add", {"x": 1, "y": 1}, "sum")]
)
def test_parameter_chooses_the_signature(tmp_path, name, inputs, output):
    arrays = {tensor: np.full((3, 4), value, np.float32) for tensor, value in inputs.items()}
    with load(tmp_path, two_signatures(tmp_path / "saved"), signature(name)) as model:
        assert (model.infer(arrays)[output] == 2).all()
        assert (model.infer({key: array[:1] for key, array in arrays.items()})[output] == 2).all()


def test_unknown_signatures_list_existing_ones(tmp_path):
    content = two_signatures(tmp_path / "saved")
    assert "no signature 'triple'; the existing ones are add, double" in refusal(
        tmp_path, content, signature("triple")
    )
    assert "choose one of its signatures add, double with the parameter 'signature'" in refusal(tmp_path, content)


def test_tensors_can_have_names_of_the_graph(tmp_path):
    tensors = (
        "max_batch_size: 4 input { name: 'serving_default_image:0' data_type: TYPE_FP32 dims: [64] } "
        "output { name: 'probabilities' data_type: TYPE_FP32 dims: [10] }"
    )
    digits = digits_classifier()
    with load(tmp_path, digits_tflite(), tensors) as model:
        found = model.infer({"serving_default_image:0": digits.images[:2]})["probabilities"]
    np.testing.assert_allclose(found, digits.probabilities(digits.images[:2]), atol=1e-5)


@pytest.mark.parametrize("datatype", ["float32", "int32", "int64", "uint8", "int8", "bool", "int16"])
def test_datatypes_pass_unchanged(tmp_path, datatype):
    rows = np.array([[0, 1, 2], [3, 0, 1]]).astype(datatype)
    content = unary(lambda x: tf.concat([x, x], 1), [None, 3], tf.as_dtype(datatype))
    with load(tmp_path, content) as model:
        output = model.infer({"x": rows})["y"]
    assert output.dtype == rows.dtype
    assert (output == np.concatenate([rows, rows], 1)).all()


def test_strings_pass_in_and_out(tmp_path):
    content = unary(lambda x: tf.reshape(x, [-1, 2, 1]), [None, 2], tf.string)
    with load(tmp_path, content) as model:
        found = model.infer({"x": np.array([["naiad", "né"]], object)})["y"]
    assert [bytes(text) for text in found.reshape(-1)] == [b"naiad", "né".encode()]


# --- files that cannot be served ------------------------------------------------------------------------------------


def test_other_formats_are_refused(tmp_path):
    assert "model.tflite is no TFLite file" in refusal(tmp_path, b"not a model")
    assert "model.tflite is no TFLite file" in refusal(tmp_path, b"")


def test_truncated_files_are_refused(tmp_path):
    message = refusal(tmp_path, digits_tflite()[:600])
    assert "model.tflite cannot be opened" in message
    assert "the file is truncated or damaged, copy it again" in message


def test_unknown_operators_are_named(tmp_path):
    content = unary(tf.math.bessel_i1e, [None, 4], allow_custom_ops=True)
    message = refusal(tmp_path, content)
    assert "BesselI1e" in message
    assert "convert the model with the operators of TFLite itself only" in message


def test_contradicting_output_shape_is_refused(tmp_path):
    output = "output { name: 'probabilities' data_type: TYPE_FP32 dims: [11] }"
    message = refusal(tmp_path, digits_tflite(), f"max_batch_size: 8 {output}")
    assert "tensor 'probabilities': the model expects 2 dimensions (shape [-1,10])" in message
    assert "write dims: [10] in config.pbtxt" in message


def test_sizes_that_do_not_fit_fail_alone(tmp_path):
    tensors = (
        "max_batch_size: 4 input { name: 'image' data_type: TYPE_FP32 dims: [-1] } "
        "output { name: 'probabilities' data_type: TYPE_FP32 dims: [10] }"
    )
    images = digits_classifier().images[:2]
    with load(tmp_path, digits_tflite(), tensors) as model:
        with pytest.raises(ModelError, match=r"cannot execute model 'm' on inputs of these shapes: 'image' \[2,63\]"):
            model.infer({"image": np.ascontiguousarray(images[:, :63])})
        assert model.infer({"image": images})["probabilities"].shape == (2, 10)
