"""`pb_utils.Tensor`, the tensors that a worker receives, and datatypes: KServe's names, Triton's numbers, numpy's
dtypes.
"""

from __future__ import annotations

import struct
from typing import Any, Sequence

import numpy as np

from naiad.worker.api import dlpack
from naiad.worker.api.arguments import text
from naiad.worker.api.failure import TritonModelException

NUMPY: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
"""Protocol name to numpy type; BF16, which numpy lacks, is missing."""

NUMBERS: dict[str, int] = {name: number for number, name in enumerate([*NUMPY, "BF16"], start=1)}
"""Protocol name to Triton's number (TRITONSERVER_DataType, and the number in a ModelConfig)."""

STORED: dict[str, Any] = {name: np.dtype(kind) for name, kind in NUMPY.items()}
"""Protocol name to the dtype of the elements in a worker; BF16 as its bit patterns."""
STORED["BF16"] = np.dtype(np.uint16)

BY_DTYPE: dict[Any, str] = {dtype: name for name, dtype in STORED.items() if name != "BF16"}
"""dtype to protocol name; strings of fixed width and foreign byte orders need `normalize`."""


def normalize(array: Any) -> tuple[str, Any]:
    """Return the datatype of an array and the array in the dtype of that datatype; ("", array) without one."""
    dtype = array.dtype
    if dtype.kind in "SU":
        return "BYTES", array
    if dtype.kind == "T":  # NumPy 2's StringDType, which has no byte order
        return _strings_of(array)
    if dtype.name == "bfloat16":  # ml_dtypes
        return "BF16", array.view(np.uint16)
    native = dtype.newbyteorder("=")
    name = BY_DTYPE.get(native, "")
    return name, array.astype(native) if name else array


def _strings_of(array: Any) -> tuple[str, Any]:
    """Return an array of StringDType as one of `str`; ("", array) if elements are missing."""
    objects = array.astype(np.object_)
    has_texts = all(type(element) is str for element in objects.ravel().tolist())
    return ("BYTES", objects) if has_texts else ("", array)


CONVERSIONS = {
    "M": "write it as text or as a number: array.astype(str), or array.astype('int64')",
    "m": "write it as a number: array.astype('int64')",
    "c": "send real and imaginary part: array.real, array.imag",
    "T": "it has missing values; replace them: pandas' fillna(''), or an array of dtype object",
}
"""How to send arrays of a kind that the protocol lacks."""


def conversion_hint(dtype: Any) -> str:
    """Return how to convert an array whose dtype has no datatype. `core/datatype.py` says the same."""
    return CONVERSIONS.get(dtype.kind, f"use a dtype of {', '.join(NUMPY)}")


def _unsupported(name: str, dtype: Any) -> TritonModelException:
    # Triton: the first sentence.
    return TritonModelException(
        f"NumPy dtype is not supported. Tensor '{name}' has {dtype}: {conversion_hint(dtype)}"
    )


def plain_array(name: str, value: Any) -> Any:
    """Return an array of a subclass as it is, a masked one without its mask.

    Raises TypeError for anything else, and TritonModelException if elements are masked: others would be sent.
    """
    if not isinstance(value, np.ndarray):
        hint = ": use its to_numpy()" if hasattr(value, "to_numpy") else ""
        raise TypeError(f"Tensor '{name}': expected a numpy.ndarray, found {type(value).__name__}{hint}")
    if not isinstance(value, np.ma.MaskedArray):
        return value
    if np.ma.is_masked(value):
        raise TritonModelException(
            f"Tensor '{name}' has masked elements, which tensors do not have; fill them: array.filled(value)"
        )
    return np.asarray(value)


_LENGTH = struct.Struct("<I")


class Tensor:
    """A named tensor: `Tensor(name, array)`.

    Strings are arrays of dtype object (`bytes` or `str` elements), `S` or `U`. BF16 exists through DLPack only.
    """

    __slots__ = ("_array", "_datatype", "_name")

    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        # hot: bench/micro_worker.py
        if type(name) is not str or not name:
            name = _tensor_name(name, array)
        if type(array) is not np.ndarray:
            array = plain_array(name, array)
        datatype = BY_DTYPE.get(array.dtype)
        # An unusual byte order compares equal to none of the table's dtypes.
        if datatype is None:
            datatype, array = normalize(array)
            if not datatype:
                raise _unsupported(name, array.dtype)
        self._name = name
        self._datatype = datatype
        # Triton: tensors are kept in C order.
        self._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def name(self) -> str:
        """Return the name."""
        return self._name

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """Return the tensor as an array, always the same object; it may be written to.

        Raises TritonModelException for BF16.
        """
        if self._datatype == "BF16":
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self._array

    def triton_dtype(self) -> int:
        """Return the number of the datatype, as for `triton_to_numpy_type`."""
        return NUMBERS[self._datatype]

    def shape(self) -> list[int]:
        """Return the dimensions."""
        return list(self._array.shape)

    @property
    def size_bytes(self) -> int:
        """The bytes of its elements; naiad."""
        size: int = self._array.nbytes
        return size

    def is_cpu(self) -> bool:
        """Return whether the tensor is in CPU memory; always True."""
        return True

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule on the tensor's memory. Raises TritonModelException for strings."""
        try:
            return dlpack.export_array(self._array, self._datatype)
        except dlpack.DLPackError as error:
            raise TritonModelException(str(error)) from None

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Return a tensor on the memory of a DLPack capsule or of an object with `__dlpack__`, which it keeps alive.

        A tensor on an NVIDIA GPU is copied to the host, once all work on that GPU is done. Raises
        TritonModelException for a tensor of another device, and for one that is not contiguous.
        """
        try:
            datatype, array = dlpack.import_array(tensor)
        except dlpack.DLPackError as error:
            raise TritonModelException(str(error)) from None
        made = Tensor(name, array)
        if datatype:
            made._datatype = datatype
        return made

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU_DEVICE


def _tensor_name(name: Any, array: Any) -> str:
    given = text(name, "Tensor: expected name")
    # Triton: arguments of a wrong type come first.
    if not given and isinstance(array, np.ndarray):
        raise TritonModelException("Tensor name cannot be an empty string.")
    return given


class TensorPlan:
    """Datatype, shape and position of a received tensor; shared by all requests with the same header."""

    __slots__ = ("datatype", "dtype", "is_text", "name", "offset", "shape", "size_bytes")

    def __init__(self, name: str, datatype: str, shape: Sequence[int]) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = tuple(shape)
        self.dtype = STORED[datatype]
        self.is_text = datatype == "BYTES"
        self.size_bytes = 0 if self.is_text else int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.offset = 0
        """Position after the first tensor of a request, if all sizes are fixed."""


class ReceivedTensor(Tensor):
    """An input: a view on the payload of a batch."""

    __slots__ = ()

    def __init__(self, plan: TensorPlan, payload: Any, offset: int) -> None:
        # hot: bench/micro_worker.py
        self._name = plan.name
        self._datatype = plan.datatype
        self._array = np.ndarray(plan.shape, plan.dtype, payload, offset)


class ReceivedStrings(Tensor):
    """An input of strings, which are decoded on access."""

    __slots__ = ("_data", "_elements", "_plan")

    def __init__(self, plan: TensorPlan, payload: Any, offset: int, size_bytes: int) -> None:
        self._name = plan.name
        self._datatype = plan.datatype
        self._plan = plan
        self._data: bytes | None = bytes(memoryview(payload)[offset : offset + size_bytes])
        self._elements: Any = None

    @property
    def size_bytes(self) -> int:
        """The bytes of its elements, also while they are not decoded."""
        return len(self._data) if self._data is not None else super().size_bytes

    @property
    def _array(self) -> Any:  # type: ignore[override]  # made when it is read
        if self._data is not None:
            self._elements = decode_strings(self._data, self._plan.shape)
            self._data = None
        return self._elements


def decode_strings(data: bytes, shape: Sequence[int]) -> Any:
    """Return length-prefixed elements as an array of `bytes`. Raises TritonModelException for a wrong count."""
    unpack = _LENGTH.unpack_from
    elements = []
    position, end = 0, len(data)
    while position < end:
        (length,) = unpack(data, position)
        position += 4
        elements.append(data[position : position + length])
        position += length
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    try:
        return array.reshape(shape)
    except ValueError:
        raise TritonModelException(
            f"unexpected number of string elements {len(elements)} for shape {list(shape)}"
        ) from None


def encode_strings(array: Any) -> bytes:
    """Return the elements of an array of strings, each after its length as a little-endian uint32."""
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        data = element if type(element) is bytes else str(element).encode("utf-8", "surrogateescape")
        parts.append(pack(len(data)))
        parts.append(data)
    return b"".join(parts)
