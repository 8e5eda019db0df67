from pathlib import Path

import pytest

from naiad.config.backends import BUILT_IN
from naiad.tools.optimize.converters.conversion_plan import candidates, installed_packages
from naiad.tools.optimize.optimize_source import Format, ShapeRange, Source

RANGES = {"x": ShapeRange((1, 4), (8, 4), (8, 4))}
ALL = {
    "torch", "onnx", "onnxscript", "onnxruntime", "onnxslim", "openvino", "nncf",
    "tensorflow", "tf2onnx", "scikit-learn", "skl2onnx", "xgboost", "lightgbm", "onnxmltools", "treelite", "tensorrt",
}  # fmt: skip


def plan(source_format, packages=ALL, devices=("cpu",)):
    found = candidates(Source("m", source_format, Path("m")), RANGES, packages, devices)
    return {each.name: each for each in found}


@pytest.mark.parametrize("source_format", [each for each in Format if each is not Format.PYTHON])
def test_each_candidate_follows_its_origin(source_format):
    planned = plan(source_format)
    assert planned
    names = list(planned)
    for position, each in enumerate(planned.values()):
        assert each.backend in BUILT_IN
        assert not each.after or each.after in names[:position]


def test_module_has_all_formats():
    planned = plan(Format.TORCH)
    runnable = [name for name, each in planned.items() if not each.not_run]
    assert runnable == [
        "torchscript", "torch-export", "aot-inductor", "aot-inductor-tuned", "onnx-fp32", "onnx-simplified",
        "onnx-optimized-basic", "onnx-optimized-extended", "onnx-optimized-all", "onnx-fp16", "onnx-mixed",
        "onnx-int8-dynamic", "onnx-int8-minmax", "onnx-int8-entropy", "onnx-int8-percentile",
        "openvino-fp32", "openvino-fp16", "openvino-int8",
    ]  # fmt: skip


def test_tensorrt_without_gpu_is_not_run():
    planned = plan(Format.ONNX)
    names = [name for name, each in planned.items() if "GPU" in each.not_run]
    assert names == [f"tensorrt-{precision}" for precision in ("fp32", "tf32", "fp16", "bf16", "int8")]
    assert planned["tensorrt-fp16"].settings["profile"] == {"x": [(1, 4), (8, 4), (8, 4)]}


def test_tensorrt_with_gpu_is_run():
    planned = plan(Format.ONNX, devices=("cpu", "gpu"))
    assert not [each for each in planned.values() if each.not_run]
    without = plan(Format.ONNX, ALL - {"tensorrt"}, ("cpu", "gpu"))
    assert without["tensorrt-fp32"].not_run == "needs tensorrt: pip install 'naiad[tensorrt]'"


def test_forests_become_treelite_and_onnx_only():
    for source in (Format.XGBOOST, Format.LIGHTGBM, Format.SKLEARN):
        assert set(plan(source)) == {"source", "treelite", "onnx-fp32"}


def test_missing_package_names_extra():
    planned = plan(Format.ONNX, {"onnx", "onnxruntime"})
    assert planned["onnx-simplified"].not_run == "needs onnxslim: pip install 'naiad[optimize]'"
    assert planned["openvino-int8"].not_run == "needs openvino, nncf: pip install 'naiad[openvino]' 'nncf'"
    assert not planned["onnx-int8-dynamic"].not_run


def test_candidates_of_a_missing_one():
    planned = plan(Format.KERAS, {"onnx", "onnxruntime"})
    assert planned["onnx-fp16"].not_run.startswith(
        "made from 'onnx-fp32', which is not run: needs tensorflow, tf2onnx"
    )


def test_python_callable_has_no_conversion():
    assert plan(Format.PYTHON) == {}


def test_installed_packages_of_this_interpreter():
    assert installed_packages()["numpy"]


def test_package_that_is_installed_meanwhile_is_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "converts-all" not in installed_packages()
    (tmp_path / "converts_all_cpu-1.2.dist-info").mkdir()
    (tmp_path / "converts_all_cpu-1.2.dist-info" / "METADATA").write_text("Name: converts_all-cpu\nVersion: 1.2\n")
    assert installed_packages()["converts-all"] == "1.2"
