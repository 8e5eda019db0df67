"""Forests that cannot be loaded: the error names file, reason and fix."""

import copy
import json
import struct

import lightgbm
import numpy as np
import pytest
import treelite
import xgboost
from sklearn.ensemble import RandomForestClassifier

from naiad.core.errors import ErrorCode, InferError
from support.forests import CANCER, DIABETES, load_forest, parameters, train_xgboost


@pytest.fixture(scope="module")
def booster():
    return train_xgboost(CANCER, objective="binary:logistic")


def failure(directory, config=""):
    with pytest.raises(InferError) as raised:
        load_forest(directory, config)
    assert raised.value.code is ErrorCode.INVALID_ARG
    assert "model 'forest'" in raised.value.message
    assert len(raised.value.message) < 700
    return raised.value.message


@pytest.mark.parametrize("form", ["json", "ubj"])
@pytest.mark.parametrize("engine", ["xgboost", "treelite"])
def test_truncated_xgboost_file_is_refused(tmp_path, booster, form, engine):
    path = tmp_path / f"xgboost.{form}"
    path.write_bytes(bytes(booster.save_raw(form))[:2000])
    message = failure(tmp_path, parameters(engine=engine))
    assert str(path) in message
    assert "cannot be loaded" in message or "is damaged" in message
    assert "Stack trace" not in message


@pytest.mark.parametrize("engine", ["xgboost", "treelite"])
def test_damaged_xgboost_trees_are_refused(tmp_path, booster, engine):
    whole = json.loads(bytes(booster.save_raw("json")))
    for field, value in (("left_children", 9999), ("left_children", 0), ("split_indices", 100_000_000)):
        model = copy.deepcopy(whole)
        model["learner"]["gradient_booster"]["model"]["trees"][0][field][0] = value
        (tmp_path / "xgboost.json").write_text(json.dumps(model))
        assert "xgboost.json is damaged: tree 0: a node " in failure(tmp_path, parameters(engine=engine))
    data = bytearray(booster.save_raw("ubj"))
    at = data.index(b"left_children[$l#L") + len(b"left_children[$l#L") + 8
    data[at : at + 4] = struct.pack(">i", 9999)
    (tmp_path / "xgboost.json").unlink()
    (tmp_path / "xgboost.ubj").write_bytes(data)
    assert "xgboost.ubj is damaged: tree 0: a node " in failure(tmp_path, parameters(engine=engine))


def test_damaged_checkpoint_is_refused(tmp_path, booster):
    (tmp_path / "whole.json").write_bytes(bytes(booster.save_raw("json")))
    treelite.frontend.load_xgboost_model(str(tmp_path / "whole.json")).serialize(str(tmp_path / "checkpoint.tl"))
    (tmp_path / "whole.json").unlink()
    data = (tmp_path / "checkpoint.tl").read_bytes()
    model = treelite.Model.deserialize(str(tmp_path / "checkpoint.tl"))
    whole = model.get_tree_accessor(0).get_field("cleft").copy()
    changed = np.concatenate(([9999], whole[1:])).astype(whole.dtype)
    assert whole.tobytes() in data
    (tmp_path / "checkpoint.tl").write_bytes(data.replace(whole.tobytes(), changed.tobytes(), 1))
    assert "is damaged: tree 0: a node has a child that does not exist" in failure(tmp_path)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_truncated_lightgbm_file_is_refused(tmp_path, fraction):
    settings = {"num_threads": 1, "verbosity": -1}
    text = lightgbm.train(settings, lightgbm.Dataset(DIABETES.data, DIABETES.target), 3).model_to_string()
    trees = text[: text.index("end of trees")]
    (tmp_path / "model.txt").write_text(trees[: int(len(trees) * fraction)])
    assert "is truncated: the line 'end of trees' is missing" in failure(tmp_path)


def test_damaged_lightgbm_trees_are_refused(tmp_path):
    settings = {"num_threads": 1, "verbosity": -1}
    text = lightgbm.train(settings, lightgbm.Dataset(DIABETES.data, DIABETES.target), 3).model_to_string()
    for changed in (text.replace("leaf_value=", "leaf_value=9 "), text.replace("Tree=1\n", "Trxx=1\n")):
        (tmp_path / "model.txt").write_text(changed)
        for engine in ("lightgbm", "treelite"):
            assert "model.txt is damaged: " in failure(tmp_path, parameters(engine=engine))
    (tmp_path / "model.txt").write_text(text.replace("objective=regression", "objective=x"))
    assert "LightGBM: Unknown objective type name: x" in failure(tmp_path)


def test_truncated_checkpoint_is_refused(tmp_path):
    forest = RandomForestClassifier(3).fit(CANCER.data, CANCER.target)
    data = treelite.sklearn.import_model(forest).serialize_bytes()
    (tmp_path / "checkpoint.tl").write_bytes(data[: len(data) // 2])
    assert "checkpoint.tl cannot be loaded: treelite" in failure(tmp_path)


def test_classifier_with_two_targets_is_refused(tmp_path):
    forest = RandomForestClassifier(3).fit(CANCER.data, np.stack([CANCER.target] * 2, 1))
    treelite.sklearn.import_model(forest).serialize(str(tmp_path / "checkpoint.tl"))
    assert "a classifier with 2 targets" in failure(tmp_path)


@pytest.mark.parametrize("engine", ["xgboost", "treelite"])
def test_unknown_objective_is_named(tmp_path, booster, engine):
    raw = bytes(booster.save_raw("json")).replace(b"binary:logistic", b"binary:logistik")
    (tmp_path / "xgboost.json").write_bytes(raw)
    assert "binary:logistik" in failure(tmp_path, parameters(engine=engine))


@pytest.mark.parametrize("form", ["json", "ubj"])
def test_later_major_version_is_refused(tmp_path, booster, form):
    raw = bytes(booster.save_raw(form))
    major = int(xgboost.__version__.split(".")[0])
    mark, later = (b'"version":[%d', b'"version":[%d') if form == "json" else (b"\x03i%c", b"\x03i%c")
    assert mark % major in raw
    (tmp_path / f"xgboost.{form}").write_bytes(raw.replace(mark % major, later % (major + 1)))
    message = failure(tmp_path)
    assert f"was written by XGBoost {major + 1}." in message
    assert f"install xgboost>={major + 1}" in message


def test_earlier_major_version_is_served(tmp_path, booster, caplog):
    raw = bytes(booster.save_raw("json"))
    major = int(xgboost.__version__.split(".")[0])
    (tmp_path / "xgboost.json").write_bytes(raw.replace(b'"version":[%d' % major, b'"version":[%d' % (major - 1)))
    with caplog.at_level("INFO"):
        load_forest(tmp_path)
    assert f"was written by XGBoost {major - 1}." in caplog.text


def test_unknown_field_needs_the_parameter(tmp_path, booster):
    raw = bytes(booster.save_raw("json")).replace(b'"learner":{', b'"learner":{"novel":3,')
    (tmp_path / "xgboost.json").write_bytes(raw)
    failure(tmp_path, parameters(engine="treelite"))
    load_forest(tmp_path, parameters(engine="treelite", xgboost_allow_unknown_field="true"))
    load_forest(tmp_path)


def test_linear_booster_is_no_forest(tmp_path):
    train_xgboost(DIABETES, booster="gblinear").save_model(tmp_path / "xgboost.json")
    assert "booster gblinear" in failure(tmp_path)


def test_class_of_regression_is_refused(tmp_path):
    train_xgboost(DIABETES).save_model(tmp_path / "xgboost.json")
    message = failure(tmp_path, parameters(output_class="true"))
    assert "'output_class' is true, but the model is no classifier (objective reg:squarederror)" in message


def test_wrong_feature_count_names_the_right_one(tmp_path, booster):
    booster.save_model(tmp_path / "xgboost.json")
    config = (
        'max_batch_size: 8 input { name: "input__0" data_type: TYPE_FP32 dims: 29 } '
        'output { name: "output__0" data_type: TYPE_FP32 dims: 1 }'
    )
    message = failure(tmp_path, config)
    assert "write dims: [30]" in message
    assert "29" in message


def test_shap_values_need_their_library(tmp_path, booster):
    booster.save_model(tmp_path / "xgboost.json")
    config = (
        'max_batch_size: 8 input { name: "input__0" data_type: TYPE_FP32 dims: 30 } '
        'output { name: "treeshap_output" data_type: TYPE_FP32 dims: 31 }'
    )
    assert "'treeshap_output' needs XGBoost or LightGBM" in failure(tmp_path, config + parameters(engine="treelite"))


def test_old_binary_format_names_the_way_out(tmp_path):
    (tmp_path / "xgboost.model").write_bytes(b"binf" + bytes(300))
    assert "cannot be loaded: treelite" in failure(tmp_path)
    assert "does not read" in failure(tmp_path, parameters(engine="xgboost"))


def test_damaged_json_names_the_position(tmp_path):
    (tmp_path / "xgboost.json").write_text('{"a": 1}')
    assert "xgboost.json cannot be loaded: XGBoost: " in failure(tmp_path)
