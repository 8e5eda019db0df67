"""To OpenVINO IR, from ONNX: FP32, weights in FP16, int8 by NNCF."""

from pathlib import Path

from naiad.optimizer.converters.job import CALIBRATION_SAMPLES, Job


def convert(job: Job) -> None:
    """Write model.xml and model.bin."""
    import openvino

    model = openvino.convert_model(job.source)
    if job.precision == "int8":
        import nncf
        from nncf.quantization.range_estimator import RangeEstimatorParametersSet

        calls = nncf.Dataset([dict(call) for call in job.batches()])
        ignored = nncf.IgnoredScope(names=list(job.settings.get("keep_nodes", ())), validate=False)
        # The default clips activations at the mean of the maxima of the samples.
        whole = nncf.AdvancedQuantizationParameters(
            activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX
        )
        model = nncf.quantize(
            model, calls, subset_size=CALIBRATION_SAMPLES, ignored_scope=ignored, advanced_parameters=whole
        )
    openvino.save_model(model, str(Path(job.output, "model.xml")), compress_to_fp16=job.precision == "fp16")
