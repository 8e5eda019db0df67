"""To OpenVINO IR, from ONNX: FP32, weights in FP16, int8 by NNCF."""

import platform
from pathlib import Path

from naiad.tools.optimize.converters.conversion_job import CALIBRATION_SAMPLES, ConversionJob


def convert(job: ConversionJob) -> None:
    """Write model.xml and model.bin."""
    import openvino

    model = openvino.convert_model(job.source)
    if job.precision == "int8":
        import nncf
        from nncf.quantization.advanced_parameters import OverflowFix
        from nncf.quantization.range_estimator import RangeEstimatorParametersSet

        calls = nncf.Dataset([dict(call) for call in job.batches()])
        ignored = nncf.IgnoredScope(names=list(job.settings.get("keep_nodes", ())), validate=False)
        # The default clips activations at the mean of the maxima of the samples.
        whole = nncf.AdvancedQuantizationParameters(
            activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
            overflow_fix=OverflowFix.ENABLE if sums_overflow() else OverflowFix.FIRST_LAYER,
        )
        model = nncf.quantize(
            model, calls, subset_size=CALIBRATION_SAMPLES, ignored_scope=ignored, advanced_parameters=whole
        )
    openvino.save_model(model, str(Path(job.output, "model.xml")), compress_to_fp16=job.precision == "fp16")


def sums_overflow(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether sums of int8 products may overflow here: on x64 processors without VNNI instructions.

    Weights of seven bits avoid that. `cpuinfo` is Linux's list of the instructions; without it, they may.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        return "vnni" not in cpuinfo.read_text()
    except OSError:
        return True
