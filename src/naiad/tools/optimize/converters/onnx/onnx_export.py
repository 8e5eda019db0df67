"""To ONNX, from PyTorch, TensorFlow, scikit-learn, XGBoost and LightGBM."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.tools.optimize.converters.conversion_job import ConversionJob
from naiad.tools.optimize.converters.onnx.graph_outputs import fit_outputs
from naiad.tools.optimize.converters.onnx.operators import check_loads, replace_missing, round_inputs
from naiad.tools.process.child import ChildProcess, ProcessError

_OPSET = 17


def convert(job: ConversionJob) -> None:
    """Write model.onnx."""
    target = Path(job.output, "model.onnx")
    opset = int(job.settings.get("opset", _OPSET))
    exporters = {
        "torch": _from_torch,
        "torchscript": _from_torchscript,
        "torch_export": _from_torch_export,
        "saved_model": _from_tensorflow,
        "keras": _from_keras,
        "litert": _from_tensorflow,
        "sklearn": _from_sklearn,
        "xgboost": _from_trees,
        "lightgbm": _from_trees,
    }
    exporters[job.source_format](job, target, opset)
    check_loads(str(target))


def _from_torch(job: ConversionJob, target: Path, opset: int) -> None:
    """Export with dynamo; where that fails, with the exporter by TorchScript."""
    from naiad.tools.optimize.converters.torch_formats import arguments, dynamic_shapes, load

    module = load(job)
    try:
        _torch_export(job, module, arguments(job), target, dynamo=True, dynamic_shapes=dynamic_shapes(job))
    except Exception as error:
        print(f"torch.onnx.export(dynamo=True) failed: {error}", file=sys.stderr)
        _torch_export(job, module, arguments(job), target, opset_version=opset, **_by_script(job))


def _from_torchscript(job: ConversionJob, target: Path, opset: int) -> None:
    from naiad.tools.optimize.converters.torch_formats import arguments, load

    _torch_export(job, load(job), arguments(job), target, opset_version=opset, **_by_script(job))


def _from_torch_export(job: ConversionJob, target: Path, opset: int) -> None:
    import torch

    _torch_export(job, torch.export.load(job.source), (), target, dynamo=True)


def _torch_export(job: ConversionJob, model: Any, arguments: tuple[Any, ...], target: Path, **settings: Any) -> None:
    import torch

    names = [each.name for each in job.inputs], [each.name for each in job.outputs]
    inputs, outputs = (each or None for each in names)
    torch.onnx.export(
        model, arguments, str(target), input_names=inputs, output_names=outputs, external_data=False, **settings
    )


def _by_script(job: ConversionJob) -> Mapping[str, Any]:
    axes = {each.name: {axis: f"{each.name}_{axis}" for axis in job.dynamic_axes(each.name)} for each in job.inputs}
    if job.has_batch:
        axes = {name: {**known, 0: "batch"} for name, known in axes.items()}
        axes.update({each.name: {0: "batch"} for each in job.outputs})
    return {"dynamo": False, "dynamic_axes": axes}


def _from_keras(job: ConversionJob, target: Path, opset: int) -> None:
    """Export the Keras model as a SavedModel first: tf2onnx does not know Keras 3."""
    import tempfile
    from dataclasses import replace

    from naiad.tools.optimize.converters.litert import export_saved_model

    with tempfile.TemporaryDirectory() as folder:
        _from_tensorflow(
            replace(job, source=export_saved_model(job, folder), source_format="saved_model"), target, opset
        )


def _from_tensorflow(job: ConversionJob, target: Path, opset: int) -> None:
    import onnx

    option = "--tflite" if job.source_format == "litert" else "--saved-model"
    command = [sys.executable, "-m", "tf2onnx.convert", option, job.source, "--output", str(target)]
    # In the session of this process, whose limits count; its output is the end of this one's.
    export = ChildProcess([*command, "--opset", str(opset)], shows_output=True, is_own_session=False)
    if export.wait():
        raise ProcessError(f"tf2onnx: {export.ending}")
    graph = onnx.load(target)
    replace_missing(graph)
    onnx.save(graph, target)


def _from_sklearn(job: ConversionJob, target: Path, opset: int) -> None:
    _write_sklearn(job, target, opset, _SKLEARN_TYPES)
    if any(each.datatype == "FP64" for each in job.inputs):
        try:
            check_loads(str(target))
        except ValueError as error:
            # Forests of ONNX answer in FP32, and scikit-learn rounds what its forests read to FP32, too.
            print(f"FP64 in all of the graph: {error}", file=sys.stderr)
            _write_sklearn(job, target, opset, {**_SKLEARN_TYPES, "FP64": "Float"})


_SKLEARN_TYPES = {
    "FP32": "Float",
    "FP64": "Double",
    "INT64": "Int64",
    "INT32": "Int32",
    "BOOL": "Boolean",
    "BYTES": "String",
}


def _write_sklearn(job: ConversionJob, target: Path, opset: int, types: Mapping[str, str]) -> None:
    from skl2onnx import to_onnx
    from skl2onnx.common import data_types

    from naiad.tools.optimize.converters.forests import load_estimator

    inputs = [
        (each.name, getattr(data_types, f"{types[each.datatype]}TensorType")([None, *each.shape[1:]]))
        for each in job.inputs
    ]
    estimator = load_estimator(job)
    # A map for each row is no tensor: probabilities as an array.
    options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "predict_proba") else None
    graph = to_onnx(estimator, initial_types=inputs, options=options, target_opset={"": opset, "ai.onnx.ml": 3})
    if types["FP64"] == "Float":
        round_inputs(graph, [each.name for each in job.inputs if each.datatype == "FP64"])
    fit_outputs(graph, job.outputs)
    target.write_bytes(graph.SerializeToString())


def _from_trees(job: ConversionJob, target: Path, opset: int) -> None:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    inputs = [(each.name, FloatTensorType([None, *each.shape[1:]])) for each in job.inputs]
    if job.source_format == "xgboost":
        import xgboost

        model = xgboost.Booster(model_file=job.source)
        graph = onnxmltools.convert_xgboost(model, initial_types=inputs, target_opset=15)
    else:
        import lightgbm

        model = lightgbm.Booster(model_file=job.source)
        graph = onnxmltools.convert_lightgbm(model, initial_types=inputs, target_opset=15, zipmap=False)
    fit_outputs(graph, job.outputs)
    target.write_bytes(graph.SerializeToString())
