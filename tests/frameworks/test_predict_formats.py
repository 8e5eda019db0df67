"""`naiad predict` with each format of the demonstration: all pictures, the answers of the reference."""

from pathlib import Path

import numpy as np

from naiad.demo.formats.catalog import FORMATS, answers, build
from naiad.demo.formats.classifier import train
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
