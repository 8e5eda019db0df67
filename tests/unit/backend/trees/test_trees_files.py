"""Formats and engines of forest files, without the libraries that read them."""

import importlib.util
import json
import math
import struct

import numpy as np
import pytest
from google.protobuf import text_format

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters
from naiad.backend.registry import BackendRegistry
from naiad.backend.trees import engines
from naiad.backend.trees.backend import plan_output
from naiad.backend.trees.engines import Forest, choose_engine
from naiad.backend.trees.forest_file import ForestFile, find_forest_file, reason_of
from naiad.backend.trees.xgboost_attributes import read_attributes, stored_attributes
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError

CHECKPOINT = bytes((4, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0)) + bytes(20)


def find(directory, config="", **parameters):
    config = text_format.Parse(config, ModelConfig(name="forest"))
    for name, text in parameters.items():
        config.parameters[name].string_value = text
    context = ModelContext("forest", 1, config, directory, directory, 1)
    return find_forest_file(context, Parameters(config))


@pytest.mark.parametrize(
    ("name", "data", "model_type"),
    [
        ("xgboost.json", b'{"learner": 1}', "xgboost_json"),
        ("xgboost.ubj", b"{L\0\0\0\0\0\0\0\x07learner", "xgboost_ubj"),
        ("xgboost.model", b"binf\0\0\0", "xgboost"),
        ("xgboost.model", b'{\n "learner": 1}', "xgboost_json"),
        ("model.txt", b"tree\r\nversion=v4\nend of trees\n", "lightgbm"),
        ("checkpoint.tl", CHECKPOINT, "treelite_checkpoint"),
    ],
)
def test_format_follows_from_the_content(tmp_path, name, data, model_type):
    (tmp_path / name).write_bytes(data)
    assert find(tmp_path).model_type == model_type


@pytest.mark.parametrize("data", [b"", b"hello", b"\x80\x04\x95"])
def test_other_file_is_refused(tmp_path, data):
    (tmp_path / "model.txt").write_bytes(data)
    with pytest.raises(InferError, match=r"model\.txt is no model of trees: expected JSON"):
        find(tmp_path)


def test_wrong_model_type_names_both_formats(tmp_path):
    (tmp_path / "xgboost.json").write_bytes(b'{"learner": 1}')
    with pytest.raises(InferError, match="has the format xgboost_json, but parameter 'model_type' is 'lightgbm'"):
        find(tmp_path, model_type="lightgbm")


def test_model_type_selects_among_files(tmp_path):
    (tmp_path / "xgboost.json").write_bytes(b'{"learner": 1}')
    (tmp_path / "checkpoint.tl").write_bytes(CHECKPOINT)
    config = 'default_model_filename: "xgboost.json"'
    assert find(tmp_path, config, model_type="treelite_checkpoint").path.name == "checkpoint.tl"


def test_unknown_model_type_lists_the_known(tmp_path):
    (tmp_path / "xgboost.json").write_bytes(b"{}")
    with pytest.raises(InferError, match="'model_type' is 'onnx', expected one of xgboost_json, xgboost_ubj"):
        find(tmp_path, model_type="onnx")


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (b'{"learner": {}, "version": [2, 1, 4]}', (2, 1)),
        (b"{L\0\0\0\0\0\0\0\x07version[#L" + bytes(7) + b"\x03i\x03i\x02i\0}", (3, 2)),
        (b"{}", None),
    ],
)
def test_version_of_xgboost_is_read(tmp_path, data, version):
    path = tmp_path / "xgboost.json"
    path.write_bytes(data)
    assert ForestFile("forest", path, "xgboost_json").xgboost_version() == version


@pytest.mark.parametrize(
    ("model_type", "installed", "engine"),
    [
        ("xgboost_json", {"xgboost", "treelite"}, "xgboost"),
        ("xgboost_ubj", {"treelite"}, "treelite"),
        ("xgboost", {"xgboost", "treelite"}, "treelite"),
        ("lightgbm", {"lightgbm", "treelite"}, "lightgbm"),
        ("lightgbm", {"xgboost", "treelite"}, "treelite"),
        ("treelite_checkpoint", {"xgboost", "lightgbm", "treelite"}, "treelite"),
    ],
)
def test_own_library_has_priority_over_treelite(monkeypatch, tmp_path, model_type, installed, engine):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in installed else None)
    assert choose_engine(ForestFile("forest", tmp_path, model_type), "auto") == engine


def test_missing_library_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InferError, match=r"needs the package lightgbm or treelite: pip install 'naiad\[trees\]'"):
        choose_engine(ForestFile("forest", tmp_path, "lightgbm"), "auto")


def test_engine_that_does_not_read_the_format(tmp_path):
    with pytest.raises(InferError, match="the engine 'xgboost' does not read; set parameter 'engine' to lightgbm or"):
        choose_engine(ForestFile("forest", tmp_path, "lightgbm"), "xgboost")


def test_stack_traces_are_cut_off():
    error = ValueError("[12:00:01] /workspace/src/json.cc:409: Expecting: EOF\n  here\nStack trace:\n  lib.so")
    assert reason_of(error) == "Expecting: EOF here"


def plan(class_count, score_count, **texts):
    config = ModelConfig(name="forest")
    for name, text in texts.items():
        config.parameters[name].string_value = text
    forest = Forest(4, class_count, "some", score_count)
    return plan_output("forest", forest, Parameters(config))


@pytest.mark.parametrize(
    ("class_count", "score_count", "parameters", "width"),
    [
        (0, 1, {}, 1),
        (0, 3, {}, 3),
        (2, 1, {}, 1),
        (2, 2, {}, 1),
        (5, 5, {}, 5),
        (2, 1, {"predict_proba": "true"}, 2),
        (5, 5, {"predict_proba": "true"}, 5),
        (2, 2, {"output_class": "true"}, 1),
        (5, 5, {"output_class": "true"}, 1),
        (5, 5, {"output_class": "true", "predict_proba": "true"}, 5),
    ],
)
def test_width_of_the_output(class_count, score_count, parameters, width):
    found = plan(class_count, score_count, **parameters)
    assert found.width == width
    assert found.convert(np.full((3, score_count), 0.5)).shape == (3, width)


def test_class_of_a_score_is_above_the_threshold():
    scores = np.array([[0.2], [0.7], [0.8]])
    found = plan(2, 1, output_class="true", threshold="0.7").convert(scores)
    assert found.tolist() == [[0.0], [0.0], [1.0]]
    both = plan(2, 2, output_class="true", threshold="0.7").convert(np.concatenate((1 - scores, scores), axis=1))
    assert both.tolist() == found.tolist()


def test_class_of_several_scores_is_the_highest():
    found = plan(3, 3, output_class="true").convert(np.array([[0.2, 0.7, 0.1], [0.5, 0.2, 0.3]]))
    assert found.tolist() == [[1.0], [0.0]]
    assert found.dtype == np.float32


@pytest.mark.parametrize("name", ["output_class", "predict_proba"])
def test_classes_of_a_regression_are_refused(name):
    with pytest.raises(InferError, match=f"parameter '{name}' is true, but the model is no classifier"):
        plan(0, 1, **{name: "true"})


def test_fil_is_an_alias():
    registry = BackendRegistry({})
    assert type(registry.get("fil")) is type(registry.get("trees"))


def test_engines_import_no_library_by_themselves():
    assert not {"xgboost", "lightgbm", "treelite"} & set(vars(engines))


def attributes_of(path, model_type, wanted="auto"):
    file = ForestFile("forest", path, model_type)
    return read_attributes(file, stored_attributes(file), wanted)


WRAPPER = '{"_estimator_type": "classifier"}'


def stored_file(directory, model_type, attributes):
    """A file with attributes as XGBoost writes them."""
    if model_type == "xgboost_json":
        data = json.dumps({"learner": {"attributes": attributes}}).encode()
    elif model_type == "xgboost_ubj":
        data = b"".join(
            b"L" + struct.pack(">q", len(key)) + key.encode() + b"SL" + struct.pack(">q", len(text)) + text.encode()
            for key, text in attributes.items()
        )
    else:
        data = b"".join(
            struct.pack("<q", len(key)) + key.encode() + struct.pack("<q", len(text)) + text.encode()
            for key, text in attributes.items()
        )
    path = directory / "stored"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("model_type", ["xgboost_json", "xgboost_ubj", "xgboost"])
@pytest.mark.parametrize(
    ("attributes", "wanted", "rounds"),
    [
        ({"best_iteration": "4", "scikit_learn": WRAPPER}, "auto", 5),
        ({"best_iteration": "0", "scikit_learn": WRAPPER}, "auto", 1),
        ({"best_iteration": "4", "scikit_learn": WRAPPER}, "false", 0),
        ({"best_iteration": "4"}, "auto", 0),
        ({"best_iteration": "4"}, "true", 5),
        ({"scikit_learn": WRAPPER}, "auto", 0),
        ({}, "auto", 0),
    ],
)
def test_best_round_follows_the_class_of_the_file(tmp_path, model_type, attributes, wanted, rounds):
    path = stored_file(tmp_path, model_type, attributes)
    assert attributes_of(path, model_type, wanted).rounds == rounds


@pytest.mark.parametrize("text", ["four", "-1", ""])
def test_best_round_that_is_no_number_is_refused(tmp_path, text):
    path = stored_file(tmp_path, "xgboost_json", {"best_iteration": text})
    with pytest.raises(InferError, match=r"has the attribute best_iteration '.*', expected a whole number"):
        attributes_of(path, "xgboost_json")


@pytest.mark.parametrize(
    ("state", "labels", "missing"),
    [
        ({"classes_": [0, 1], "missing": math.nan}, (), None),
        ({"_le": {"classes_": ["a", "b"]}}, ("a", "b"), None),
        ({"classes_": [2, 5], "missing": -999.0}, (2, 5), -999.0),
        ({"missing": None}, (), None),
        ([], (), None),
    ],
)
def test_state_of_an_early_wrapper_is_read(tmp_path, state, labels, missing):
    found = attributes_of(stored_file(tmp_path, "xgboost_json", {"scikit_learn": json.dumps(state)}), "xgboost_json")
    assert (found.labels, found.missing) == (labels, missing)


def test_model_of_catboost_names_the_way(tmp_path):
    (tmp_path / "model.txt").write_bytes(b"CBM1" + bytes(40))
    with pytest.raises(InferError, match="is a model of CatBoost, which this backend does not read; save it with"):
        find(tmp_path)
