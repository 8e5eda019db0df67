"""To LiteRT, from TensorFlow: FP32, weights in FP16, dynamic range, full int8 with float inputs and outputs."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from naiad.tools.optimize.converters.conversion_job import ConversionJob


def convert(job: ConversionJob) -> None:
    """Write model.tflite."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        saved = export_saved_model(job, folder) if job.source_format == "keras" else job.source
        converter = tf.lite.TFLiteConverter.from_saved_model(_frozen(saved, f"{folder}/frozen"))
        if job.precision != "fp32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if job.precision == "fp16":
            converter.target_spec.supported_types = [tf.float16]
        if job.precision == "int8":
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            converter.representative_dataset = lambda: _calls(job)
        Path(job.output, "model.tflite").write_bytes(converter.convert())


def export_saved_model(job: ConversionJob, folder: str) -> str:
    """Return a SavedModel of a Keras file, with its inputs under the names of the source."""
    import tensorflow as tf

    model = tf.keras.models.load_model(job.source, compile=False)
    inputs: list[Any] = [
        tf.TensorSpec([None if axis < 0 else axis for axis in each.shape], _dtype(each.datatype), name=each.name)
        for each in job.inputs
    ]
    names = [each.name for each in job.outputs]

    @tf.function(input_signature=inputs)  # type: ignore[untyped-decorator, unused-ignore]  # no types
    def serve(*arrays: Any) -> Any:
        result = model(arrays[0] if len(arrays) == 1 else list(arrays), training=False)
        flat = tf.nest.flatten(result)
        return dict(zip(names, flat, strict=True)) if names else result

    tf.saved_model.save(model, folder, signatures={"serving_default": serve})
    return folder


def _frozen(saved: str, folder: str) -> str:
    """Return a SavedModel whose variables are constants: LiteRT leaves variables of Keras 3 without values."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    model = tf.saved_model.load(saved)  # Its variables live as long as it.
    function = model.signatures["serving_default"]
    frozen = convert_variables_to_constants_v2(function)
    specs = list(function.structured_input_signature[1].values())
    names = list(function.structured_outputs)
    module = tf.Module()

    @tf.function(input_signature=specs)  # type: ignore[untyped-decorator, unused-ignore]  # no types
    def serve(*arrays: Any) -> Any:
        return dict(zip(names, tf.nest.flatten(frozen(*arrays)), strict=True))

    module.serve = serve
    tf.saved_model.save(module, folder, signatures={"serving_default": serve})
    return folder


def _dtype(datatype: str) -> str:
    special = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BYTES": "string"}
    return special.get(datatype, datatype.lower())


def _calls(job: ConversionJob) -> Iterator[dict[str, Any]]:
    for call in job.batches():
        yield dict(call)
