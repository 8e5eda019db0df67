"""DLPack: tensors from and for other frameworks, without a copy; carries BF16, which numpy does not have."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from naiad.worker.api.cuda import CudaDriverError, copy_to_host

CPU_DEVICE = (1, 0)
"""kDLCPU and its number."""
_HOST_KINDS = (1, 3)
"""kDLCPU and kDLCUDAHost, which is pinned host memory."""
_GPU_KINDS = (2, 13)
"""kDLCUDA and kDLCUDAManaged."""
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_LETTERS = {_INT: "i", _UINT: "u", _FLOAT: "f", _BFLOAT: "u", _BOOL: "u"}
"""numpy's kinds of dtype for the bits of each type code."""
_CODES = {"BF16": (_BFLOAT, 16), "BOOL": (_BOOL, 8)}
"""What numpy, or older numpy, cannot export by itself: type code and bits."""


class DLPackError(Exception):
    """A tensor that cannot be exported or imported; the text has the reason."""


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """DLTensor, with which DLManagedTensor begins."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Producer:
    """The object that `numpy.from_dlpack` requires around a capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU_DEVICE


def export_array(array: Any, datatype: str) -> Any:
    """Return a capsule "dltensor" on the memory of `array`, which holds BF16 as bit patterns. Raises DLPackError."""
    if datatype == "BYTES":
        raise DLPackError("DLPack does not have support for string tensors.")
    code = _CODES.get(datatype)
    if code is not None:
        array = array.view(np.uint16 if datatype == "BF16" else np.uint8)
    try:
        capsule = array.__dlpack__()
    except (AttributeError, BufferError) as error:
        raise DLPackError(f"numpy {np.__version__} cannot export this array through DLPack: {error}") from None
    if code is not None:
        dtype = header_of(capsule).dtype
        dtype.code, dtype.bits = code
    return capsule


def import_array(source: Any) -> tuple[str, Any]:
    """Return datatype ("" for the array's own) and array of a capsule or of an object with `__dlpack__`.

    The array is a view on a tensor in host memory, and a copy of one on an NVIDIA GPU. Raises DLPackError for a
    tensor that is on another device or not contiguous, and for other objects.
    """
    capsule, header = _capsule_of(source)
    if header.device.kind in _GPU_KINDS:
        return _copy(header)
    datatype = ""
    if header.dtype.code == _BFLOAT:
        if header.dtype.bits != 16:
            raise DLPackError(f"Expected BF16 tensor to have 16 bits, but had: {header.dtype.bits}")
        datatype, header.dtype.code = "BF16", _UINT
    elif header.dtype.code == _BOOL:
        datatype, header.dtype.code = "BOOL", _UINT
    try:
        array = np.from_dlpack(_Producer(capsule))
    except (AttributeError, RuntimeError, BufferError, TypeError) as error:
        raise DLPackError(f"numpy {np.__version__} cannot import this DLPack tensor: {error}") from None
    if not array.flags.c_contiguous:
        raise DLPackError(_NOT_CONTIGUOUS)
    return datatype, array.view(np.bool_) if datatype == "BOOL" else array


_NOT_CONTIGUOUS = (
    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
)


def _copy(header: _Tensor) -> tuple[str, Any]:
    """Return datatype ("" for the array's own) and a copy of a tensor on a GPU. Raises DLPackError."""
    code, bits = header.dtype.code, header.dtype.bits
    if (
        code not in _LETTERS
        or bits not in (8, 16, 32, 64)
        or header.dtype.lanes != 1
        or (code == _FLOAT and bits == 8)
    ):
        raise DLPackError(f"DLPack tensor has type code {code} with {bits} bits, which is no datatype of tensors")
    shape = tuple(header.shape[: header.ndim])
    array = np.empty(shape, np.dtype(f"{_LETTERS[code]}{bits // 8}"))
    if header.strides and array.size:
        strides = tuple(header.strides[: header.ndim])
        expected = tuple(stride // array.itemsize for stride in array.strides)
        if any(size > 1 and own != wanted for size, own, wanted in zip(shape, strides, expected)):
            raise DLPackError(_NOT_CONTIGUOUS)
    try:
        copy_to_host(array, (header.data or 0) + header.byte_offset, header.device.number)
    except CudaDriverError as error:
        raise DLPackError(f"DLPack tensor on GPU {header.device.number} cannot be copied: {error}") from None
    if code == _BOOL:
        return "BOOL", array.view(np.bool_)
    return ("BF16" if code == _BFLOAT else ""), array


def _capsule_of(source: Any) -> tuple[Any, _Tensor]:
    if hasattr(source, "__dlpack__"):
        device = source.__dlpack_device__()
        if device[0] not in _HOST_KINDS + _GPU_KINDS:
            raise DLPackError(
                f"DLPack tensor is on device {tuple(device)}; only the CPU and NVIDIA GPUs are supported."
            )
        source = source.__dlpack__()
    elif type(source).__name__ != "PyCapsule":
        raise DLPackError(
            "Provided tensor is not supported. Tensor must be a DLPack capsule         or have `__dlpack__` and "
            "`__dlpack_device__` attributes"
        )
    try:
        header = header_of(source)
    except ValueError as error:
        raise DLPackError(f"DLPack capsule cannot be used: {error}") from None
    if header.device.kind not in _HOST_KINDS + _GPU_KINDS:
        raise DLPackError(
            f"DLPack tensor is on a device of kind {header.device.kind}; only the CPU and NVIDIA GPUs are supported."
        )
    return source, header


def header_of(capsule: Any) -> _Tensor:
    """Return the DLTensor of a capsule, which has to outlive it; raises ValueError for any other object."""
    return _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
