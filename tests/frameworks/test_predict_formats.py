"""`naiad predict` with each format of the demonstration: all pictures, the answers of the reference."""

from pathlib import Path

import numpy as np
import pandas
import xgboost

from naiad.tools.demo.formats.classifier import train
from naiad.tools.demo.formats.format_catalog import FORMATS, answers, build
from support.predict_command import predict

NEED_A_FLAG = ("digits_joblib",)
"""Models that a server loads with a flag for pickles only."""


def test_all_formats_predict_files(tmp_path: Path) -> None:
    digits = train()
    formats = [each for each in build(tmp_path / "models", digits) if each.model not in NEED_A_FLAG]
    assert {each.name for each in formats} >= {"ONNX"} & {each.name for each in FORMATS}
    expected = answers(digits, formats)
    np.save(tmp_path / "pictures.npy", digits.pictures)
    for form in formats:
        predict(
            tmp_path / "models", form.model, "-i", tmp_path / "pictures.npy", "-o", tmp_path / "out.npz", "--restart"
        )
        with np.load(tmp_path / "out.npz") as found:
            assert found["ok"].all()
            outputs = [found[name] for name in found if name not in ("row", "ok")]
        (probabilities,) = [each for each in outputs if each.shape == expected[form.model].shape]
        np.testing.assert_array_equal(probabilities.argmax(1), expected[form.model].argmax(1), err_msg=form.name)


def test_forest_finds_columns_by_name(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    names = ["age", "income", "height", "weight"]
    frame = pandas.DataFrame(generator.normal(size=(200, 4)), columns=names)
    frame["city"] = pandas.Categorical(generator.choice(["Oslo", "Rome", "Wien"], 200))
    frame.loc[::7, "height"] = np.nan
    target = frame["age"] * 3 - frame["income"] + (frame["city"] == "Rome")
    model = xgboost.XGBRegressor(n_estimators=20, enable_categorical=True, n_jobs=1).fit(frame, target)
    (tmp_path / "models/m/1").mkdir(parents=True)
    model.save_model(tmp_path / "models/m/1/xgboost.json")
    frame[["income", "city", "age", "weight", "height"]].to_parquet(tmp_path / "in.parquet")
    predict(tmp_path / "models", "m", "-i", tmp_path / "in.parquet", "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["output__0"][:, 0], model.predict(frame), rtol=1e-5)
