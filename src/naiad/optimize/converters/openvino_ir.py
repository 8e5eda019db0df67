"""To OpenVINO IR, from ONNX: FP32, weights in FP16, int8 by NNCF."""

from pathlib import Path

from naiad.optimize.converters.job import CALIBRATION_SAMPLES, Job


def convert(job: Job) -> None:
    """Write model.xml and model.bin."""
    import openvino

    model = openvino.convert_model(job.source)
    if job.precision == "int8":
        import nncf

        calls = nncf.Dataset([dict(call) for call in job.batches()])
        ignored = nncf.IgnoredScope(names=list(job.settings.get("keep_nodes", ())), validate=False)
        model = nncf.quantize(model, calls, subset_size=CALIBRATION_SAMPLES, ignored_scope=ignored)
    openvino.save_model(model, str(Path(job.output, "model.xml")), compress_to_fp16=job.precision == "fp16")
