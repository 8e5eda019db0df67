"""The TensorFlow backend without a server: formats, signatures, datatypes and errors."""

import json
import os
import shutil
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from naiad.backend.tensorflow.backend import TensorFlowBackend
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.errors import InferError
from naiad.testing import BackendModel, ModelError
from support.digits_classifier import digits_classifier
from support.model_repository import write_model
from support.tensorflow_models import graph_def, keras_digits, save_digits, save_two_graphs


@pytest.fixture(scope="module")
def digits_saved(tmp_path_factory):
    return save_digits(tmp_path_factory.mktemp("digits") / "model.savedmodel")


@pytest.fixture
def digits_model(tmp_path, digits_saved):
    directory = write_model(tmp_path, "m", None)
    shutil.copytree(digits_saved, directory / "1" / "model.savedmodel")
    return directory


def parameters(**texts):
    return "".join(f' parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in texts.items())


def load(directory, config=""):
    text = f'name: "{directory.name}" backend: "tensorflow" {config}' if config else ""
    return BackendModel(TensorFlowBackend(), directory, config=text)


def refusal(directory, config=""):
    with pytest.raises(InferError) as caught:
        load(directory, config)
    return caught.value.message


def save_unary(tmp_path, function, shape, datatype=tf.float32):
    directory = write_model(tmp_path, "m", None)
    module = tf.Module()
    module.call = tf.function(lambda x: {"y": function(x)}, input_signature=[tf.TensorSpec(shape, datatype, "x")])
    tf.saved_model.save(module, str(directory / "1" / "model.savedmodel"), {"serving_default": module.call})
    return directory


# --- tags and signatures --------------------------------------------------------------------------------------------


def test_parameters_choose_graph_and_signature(digits_model):
    with load(digits_model, parameters(TF_GRAPH_TAG="serve", TF_SIGNATURE_DEF="measure")) as model:
        found = model.infer({"text": np.array([["a", "bc"]], object)})
    assert found["length"].tolist() == [[1, 2]]
    assert [bytes(text) for text in found["upper"][0]] == [b"A", b"BC"]


@pytest.mark.parametrize(("tags", "factor"), [("", 2), ("serve", 2), ("big, serve", 3)])
def test_tags_choose_between_graphs(tmp_path, tags, factor):
    directory = write_model(tmp_path, "m", None)
    save_two_graphs(directory / "1" / "model.savedmodel")
    with load(directory, parameters(TF_GRAPH_TAG=tags)) as model:
        assert (model.infer({"x": np.ones((3, 2), np.float32)})["y"] == factor).all()


def test_unknown_signatures_list_existing_ones(digits_model):
    message = refusal(digits_model, parameters(TF_SIGNATURE_DEF="classify"))
    assert "model 'm' version 1:" in message
    assert "no signature 'classify'" in message
    assert "its signatures are measure, serving_default" in message


def test_unknown_tags_list_existing_ones(digits_model):
    message = refusal(digits_model, parameters(TF_GRAPH_TAG="serve,gpu"))
    assert "no graph with the tags gpu,serve; write the parameter TF_GRAPH_TAG with the tags serve" in message


def test_empty_graph_file_is_named(tmp_path):
    directory = write_model(tmp_path, "m", None)
    (directory / "1" / "model.savedmodel").mkdir(parents=True)
    (directory / "1" / "model.savedmodel" / "saved_model.pb").touch()
    assert "its saved_model.pb has no graph; copy the directory of the SavedModel again" in refusal(directory, "")


def test_log_names_the_signature_that_is_served(tmp_path, caplog):
    directory = write_model(tmp_path, "m", None)
    module = tf.Module()
    module.one = tf.function(lambda x: {"y": x}, input_signature=[tf.TensorSpec([None, 1], tf.float32, "x")])
    module.two = tf.function(lambda x: {"y": x * 2}, input_signature=[tf.TensorSpec([None, 1], tf.float32, "x")])
    tf.saved_model.save(
        module, str(directory / "1" / "model.savedmodel"), {"first": module.one, "second": module.two}
    )
    with caplog.at_level("INFO"), load(directory) as model:
        assert model.infer({"x": np.float32([[3]])})["y"].tolist() == [[3]]
    assert "the signature 'first' is served; it also has 'second': choose with the parameter TF_SIGNATURE_DEF" in (
        caplog.text
    )
    caplog.clear()
    with caplog.at_level("INFO"), load(directory, parameters(TF_SIGNATURE_DEF="second")) as model:
        assert model.infer({"x": np.float32([[3]])})["y"].tolist() == [[6]]
    assert "is served" not in caplog.text


def test_models_without_signatures_are_refused(tmp_path):
    directory = write_model(tmp_path, "m", None)
    tf.saved_model.save(tf.Module(), str(directory / "1" / "model.savedmodel"))
    assert "model.savedmodel has no signatures; save it with" in refusal(directory)


# --- datatypes and shapes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "datatype", ["bool", "uint8", "uint16", "int8", "int32", "int64", "half", "float32", "float64"]
)
def test_datatypes_pass_unchanged(tmp_path, datatype):
    rows = np.array([[0, 1, 2], [3, 0, 1]]).astype(tf.as_dtype(datatype).as_numpy_dtype)
    directory = save_unary(tmp_path, lambda x: tf.concat([x, x], 1), [None, 3], tf.as_dtype(datatype))
    with load(directory) as model:
        output = model.infer({"x": rows})["y"]
    assert output.dtype == rows.dtype
    assert (output == np.concatenate([rows, rows], 1)).all()


def test_bf16_passes_unchanged(tmp_path):
    rows = np.array([[1.5, -2]], tf.bfloat16.as_numpy_dtype)
    with load(save_unary(tmp_path, lambda x: tf.concat([x, x], 1), [None, 2], tf.bfloat16)) as model:
        assert model.infer({"x": rows})["y"].astype(float).tolist() == [[1.5, -2, 1.5, -2]]


def test_scalars_have_one_dimension_for_clients(tmp_path):
    with load(save_unary(tmp_path, lambda x: x + 1, [])) as model:
        assert model.config.max_batch_size == 0
        assert model.infer({"x": np.array([2], np.float32)})["y"].tolist() == [3]


def test_baked_in_rows_turn_batching_off(tmp_path):
    with load(save_unary(tmp_path, lambda x: tf.reshape(x, [1, -1, 2]), [None, 8])) as model:
        assert model.config.max_batch_size == 0
        assert model.infer({"x": np.ones((1, 8), np.float32)})["y"].shape == (1, 4, 2)


def test_outputs_survive_the_next_run(tmp_path):
    with load(save_unary(tmp_path, lambda x: x * 2, [None, 8192])) as model:
        first = model.infer({"x": np.full((1, 8192), 1, np.float32)})["y"]
        model.infer({"x": np.full((1, 8192), 2, np.float32)})
    assert (first == 2).all()


# --- Keras files and frozen graphs ----------------------------------------------------------------------------------


def test_keras_models_keep_names_of_inputs_and_outputs(tmp_path):
    directory = write_model(tmp_path, "m", None)
    inputs = {name: keras.Input((4,), name=name) for name in ("b", "a")}
    outputs = {"sum": inputs["a"] + inputs["b"], "difference": inputs["a"] - inputs["b"]}
    keras.Model(inputs, outputs).save(directory / "1" / "model.keras")
    with load(directory) as model:
        found = model.infer({"a": np.full((2, 4), 3, np.float32), "b": np.full((2, 4), 1, np.float32)})
    assert (found["sum"] == 4).all()
    assert (found["difference"] == 2).all()


def test_keras_inputs_in_a_list_keep_their_order(tmp_path):
    directory = write_model(tmp_path, "m", None)
    left, right = keras.Input((4,), name="z"), keras.Input((4,), name="a")
    keras.Model([left, right], [left - right, left + right]).save(directory / "1" / "model.keras")
    with load(directory) as model:
        found = model.infer({"z": np.full((2, 4), 3, np.float32), "a": np.full((2, 4), 1, np.float32)})
    assert (found["output_0"] == 2).all()
    assert (found["output_1"] == 4).all()


def test_other_keras_versions_are_refused(tmp_path):
    directory = write_model(tmp_path, "m", None)
    path = directory / "1" / "model.h5"
    keras_digits().save(path)
    with h5py.File(path, "r+") as file:
        file.attrs["keras_version"] = "2.15.0"
    message = refusal(directory)
    assert f"{path} was saved by Keras 2.15.0, which Keras {keras.__version__} here may read wrongly" in message
    assert "export it as a SavedModel (model.export)" in message


def test_keras_archives_of_other_versions_are_refused(tmp_path):
    path = write_model(tmp_path, "m", None) / "1" / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "4.0.0"}))
    assert "was saved by Keras 4.0.0" in refusal(tmp_path / "m")


def test_code_in_keras_files_is_refused(tmp_path):
    directory = write_model(tmp_path, "m", None)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Lambda(lambda x: x * 2)])
    model.save(directory / "1" / "model.keras")
    assert "Lambda" in refusal(directory)


def test_weights_without_a_model_are_refused(tmp_path):
    path = write_model(tmp_path, "m", None) / "1" / "model.h5"
    keras_digits().save_weights(path.with_name("some.weights.h5"))
    path.with_name("some.weights.h5").rename(path)
    assert "has weights without a model" in refusal(tmp_path / "m")


def tensors(inputs, outputs):
    lines = [f'input {{ name: "{n}" data_type: TYPE_{t} dims: [{d}] }}' for n, t, d in inputs]
    lines += [f'output {{ name: "{n}" data_type: TYPE_{t} dims: [{d}] }}' for n, t, d in outputs]
    return " ".join(["max_batch_size: 4 platform: 'tensorflow_graphdef'", *lines])


def test_frozen_graphs_run_between_configured_tensors(tmp_path):
    directory = write_model(tmp_path, "m", None, {"1/model.graphdef": graph_def()})
    config = tensors([("y", "FP32", 4), ("x:0", "FP32", 4)], [("total", "FP32", 4)])
    with load(directory, config) as model:
        found = model.infer({"x:0": np.full((2, 4), 3, np.float32), "y": np.full((2, 4), 1, np.float32)})
    assert (found["total"] == 4).all()


def test_init_operators_of_frozen_graphs_run_first(tmp_path):
    files = {"1/model.graphdef": graph_def(), "1/init.json": '{"init_ops": ["fill"]}'}
    config = tensors([("key", "INT64", 1)], [("name", "STRING", 1)]) + parameters(TF_INIT_OPS_FILE="init.json")
    with load(write_model(tmp_path, "m", None, files), config) as model:
        found = model.infer({"key": np.array([[2], [5]])})["name"]
    assert [bytes(text) for text in found.reshape(-1)] == [b"two", b"none"]


def test_unknown_tensors_of_frozen_graphs_are_named(tmp_path):
    directory = write_model(tmp_path, "m", None, {"1/model.graphdef": graph_def()})
    message = refusal(directory, tensors([("z", "FP32", 4)], [("total", "FP32", 4)]))
    assert "has no tensor 'z'; its placeholders are x, y, key" in message
    assert "is a graph without a signature; write 'input' and 'output'" in refusal(directory)


# --- files that cannot be served ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"]
)
def test_truncated_files_are_refused(digits_model, name):
    path = digits_model / "1" / "model.savedmodel"
    (path / name).write_bytes((path / name).read_bytes()[:70])
    message = refusal(digits_model)
    assert f"{path} cannot be loaded" in message
    assert "\n" not in message


def test_incomplete_directories_are_refused(digits_model):
    path = digits_model / "1" / "model.savedmodel"
    shutil.rmtree(path / "variables")
    assert "variables" in refusal(digits_model)
    (path / "saved_model.pb").unlink()
    assert f"{path} has no saved_model.pb; copy the directory of a SavedModel there" in refusal(digits_model)


@pytest.mark.parametrize("filename", ["model.keras", "model.h5"])
def test_other_formats_are_refused(tmp_path, filename):
    directory = write_model(tmp_path, "m", None, {f"1/{filename}": b"not a model"})
    message = refusal(directory)
    assert f"{directory / '1' / filename} cannot be loaded" in message
    assert "has it the format of its name?" in message


def test_contradicting_output_shape_is_refused(digits_model):
    output = "output { name: 'probabilities' data_type: TYPE_FP32 dims: [11] }"
    message = refusal(digits_model, f"max_batch_size: 8 {output}")
    assert "tensor 'probabilities': the model expects 2 dimensions (shape [-1,10])" in message
    assert "write dims: [10] in config.pbtxt" in message


def test_values_that_do_not_fit_fail_alone(tmp_path):
    directory = save_unary(tmp_path, lambda x: tf.gather(tf.constant([1.0, 2.0]), x), [None, 1], tf.int32)
    with load(directory) as model:
        with pytest.raises(ModelError, match=r"TensorFlow cannot execute model 'm': .*not in \[0, 2\)"):
            model.infer({"x": np.array([[5]], np.int32)})
        good, bad = ({"x": np.array([[index]], np.int32)} for index in (1, 5))
        first, second = model.infer_batch([good, bad])
    assert first["y"].tolist() == [[2]]
    assert isinstance(second, ModelError)


def test_threads_belong_to_the_first_model(digits_model, caplog):
    digits = digits_classifier()
    chosen = parameters(TF_NUM_INTRA_THREADS="7", TF_USE_PER_SESSION_THREADS="true")
    with load(digits_model) as first, load(digits_model, "max_batch_size: 8" + chosen) as second:
        for model in (first, second):
            assert model.infer({"image": digits.images[:4]})["probabilities"].shape == (4, 10)
    assert "asks for 7 intra-op" in caplog.text
    assert "TF_USE_PER_SESSION_THREADS has no effect" in caplog.text


@pytest.mark.parametrize("first", ["tensorflow", "torch", "keras"])
def test_adapter_loads_after_other_imports(first):
    # The crash would be that of the process: models of other backends may have imported TensorFlow before.
    script = f"import {first}, naiad.backend.tensorflow.backend"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]


# --- first dimensions that are no batch -----------------------------------------------------------------------------


def save_module(tmp_path, function, **specs):
    directory = write_model(tmp_path, "m", None)
    module = tf.Module()
    module.call = tf.function(function, input_signature=list(specs.values()))
    tf.saved_model.save(module, str(directory / "1" / "model.savedmodel"), {"serving_default": module.call})
    return directory


def row_sums(x):
    return {"y": tf.reduce_sum(x, axis=1)}


def test_ragged_input_is_not_batched(tmp_path):
    spec = tf.RaggedTensorSpec([None, None], tf.float32)
    with load(save_module(tmp_path, row_sums, x=spec)) as model:
        assert model.config.max_batch_size == 0
        names = {BY_CONFIG_NUMBER[each.data_type].config_name: each.name for each in model.config.input}
        assert [list(each.dims) for each in model.config.input] == [[-1], [-1]]
        values, splits = names["TYPE_FP32"], names["TYPE_INT64"]
        found = model.infer({values: np.float32([1, 2, 3]), splits: np.int64([0, 1, 3])})
    assert found["y"].tolist() == [1, 5]


@pytest.mark.parametrize(
    ("function", "kind", "way"),
    [
        (lambda x: {"y": tf.RaggedTensor.from_row_lengths(x, [1])}, "RaggedTensor", "its to_tensor"),
        (lambda x: {"y": tf.sparse.from_dense(x)}, "SparseTensor", "tf.sparse.to_dense"),
        (lambda x: {"y": tf.IndexedSlices(x, tf.constant([0]))}, "IndexedSlices", "tf.convert_to_tensor"),
    ],
)
def test_outputs_of_several_tensors_are_refused(tmp_path, function, kind, way):
    said = refusal(save_module(tmp_path, function, x=tf.TensorSpec([None], tf.float32, "x")))
    assert f"output 'y' of the TensorFlow model is a {kind}, which the protocol cannot carry" in said
    assert f"plain tensors: {way}" in said


@pytest.mark.parametrize(
    ("function", "inputs", "wanted"),
    [
        (lambda x: {"y": tf.unique(x).y}, {"x": np.float32([1, 1, 2])}, [1, 2]),
        (lambda x: {"y": tf.boolean_mask(x, x > 1)}, {"x": np.float32([1, 3, 2])}, [3, 2]),
        (lambda x: {"y": tf.reduce_sum(x)}, {"x": np.float32([1, 3, 2])}, 6),
        (lambda x, w: {"y": tf.gather(w, x)}, {"x": np.int32([1, 1]), "w": np.float32([5, 6, 7])}, [6, 6]),
        (lambda x, w: {"y": tf.linalg.matvec(x, w)}, {"x": np.float32([[1, 2]]), "w": np.float32([5, 6])}, [17]),
    ],
)
def test_other_first_dimensions_are_not_batched(tmp_path, function, inputs, wanted):
    specs = {name: tf.TensorSpec([None] * array.ndim, array.dtype, name) for name, array in inputs.items()}
    with load(save_module(tmp_path, function, **specs)) as model:
        assert model.config.max_batch_size == 0
        assert np.squeeze(model.infer(inputs)["y"]).tolist() == np.squeeze(wanted).tolist()


def test_rows_are_still_batched(tmp_path):
    specs = {name: tf.TensorSpec([None, 2], tf.float32, name) for name in ("a", "b")}
    with load(save_module(tmp_path, lambda a, b: {"y": a + b}, **specs)) as model:
        assert model.config.max_batch_size == 4
