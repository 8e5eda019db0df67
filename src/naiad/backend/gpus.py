"""How many GPUs instances may be on."""

import functools
import logging
import os

from naiad.telemetry.metrics.gpus import NvmlError, load_nvml, visible

_log = logging.getLogger(__name__)


@functools.cache
def gpu_count() -> int:
    """Return the number of NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves; 0 on a machine without their driver."""
    try:
        nvml = load_nvml()
        count = len(visible(nvml.gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")))
        nvml.close()
    except NvmlError as error:
        _log.debug("no GPUs: %s", error)
        return 0
    return count
