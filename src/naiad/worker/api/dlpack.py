"""DLPack: tensors from and for other frameworks, without a copy; carries BF16, which numpy does not have."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU_DEVICE = (1, 0)
"""kDLCPU and its number."""
_UINT, _BFLOAT, _BOOL = 1, 4, 6
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

    Raises DLPackError for a tensor that is not on the CPU or not contiguous, and for other objects.
    """
    capsule, header = _capsule_of(source)
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
        raise DLPackError(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
            "supported."
        )
    return datatype, array.view(np.bool_) if datatype == "BOOL" else array


def _capsule_of(source: Any) -> tuple[Any, _Tensor]:
    if hasattr(source, "__dlpack__"):
        device = source.__dlpack_device__()
        if device[0] != CPU_DEVICE[0]:
            raise DLPackError(f"DLPack tensor is on device {tuple(device)}; only CPU tensors are supported.")
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
    if header.device.kind != CPU_DEVICE[0]:
        raise DLPackError(f"DLPack tensor is on a device of kind {header.device.kind}; only CPU is supported.")
    return source, header


def header_of(capsule: Any) -> _Tensor:
    """Return the DLTensor of a capsule, which has to outlive it; raises ValueError for any other object."""
    return _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
