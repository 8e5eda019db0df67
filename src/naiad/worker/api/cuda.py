"""Copies of memory of NVIDIA GPUs to the host, by calls of the driver, so that no framework is needed.

The driver works in the primary context of the GPU, the one that PyTorch, CuPy, JAX and the CUDA runtime use.
"""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libcuda.so.1"
_driver: Any = None


class CudaDriverError(Exception):
    """There is no driver, or a call failed; the text names the call."""


def _load() -> Any:
    global _driver  # noqa: PLW0603 - one library for the process
    if _driver is None:
        try:
            _driver = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise CudaDriverError(f"{_LIBRARY} cannot be loaded: {error}") from None
        _call(_driver, "cuInit", ctypes.c_uint(0))
    return _driver


def copy_to_host(target: Any, address: int, device: int) -> None:
    """Fill a contiguous array with device memory, once all work on that GPU is done. Raises CudaDriverError."""
    driver = _load()
    number, context = ctypes.c_int(), ctypes.c_void_p()
    _call(driver, "cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
    _call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    try:
        _call(driver, "cuCtxPushCurrent_v2", context)
        try:
            # The tensor may be the result of work in progress on any stream of its framework.
            _call(driver, "cuCtxSynchronize")
            if target.nbytes:
                place, size = ctypes.c_void_p(target.ctypes.data), ctypes.c_size_t(target.nbytes)
                _call(driver, "cuMemcpyDtoH_v2", place, ctypes.c_uint64(address), size)
        finally:
            _call(driver, "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    finally:
        _call(driver, "cuDevicePrimaryCtxRelease_v2", number)


def _call(driver: Any, name: str, *arguments: Any) -> None:
    status = getattr(driver, name)(*arguments)
    if status:
        raise CudaDriverError(f"{name} failed with error {status}")
