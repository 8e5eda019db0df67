"""Arrays of numpy and tensors of PyTorch, without copies where both know the datatype."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from naiad.backend.assembler import ALIGNMENT_BYTES
from naiad.backend.pytorch.library import torch
from naiad.core.datatype import DataType
from naiad.core.device_tensor import Device
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array

with warnings.catch_warnings():
    # PyTorch warns once about memory that is read-only. Arguments that a program writes to are copied before.
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(bytes(4), np.float32))

DATATYPES: Mapping[Any, DataType] = {
    torch.bool: DataType.BOOL,
    torch.uint8: DataType.UINT8,
    torch.uint16: DataType.UINT16,
    torch.uint32: DataType.UINT32,
    torch.uint64: DataType.UINT64,
    torch.int8: DataType.INT8,
    torch.int16: DataType.INT16,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.float16: DataType.FP16,
    torch.float32: DataType.FP32,
    torch.float64: DataType.FP64,
    torch.bfloat16: DataType.BF16,
}

_BF16 = DataType.BF16.numpy


def to_tensor(array: Array) -> Any:
    """Return a tensor on the memory of an array, which it must not write to if that is read-only."""
    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_array(tensor: Any) -> Array:
    """Return a tensor as an array: a view where it is in host memory. Raises TypeError for a sparse one."""
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.dtype is torch.bfloat16:
        view: Array = tensor.view(torch.int16).numpy(force=True).view(_BF16)
        return view
    array: Array = tensor.numpy(force=True)
    return array


def to_device_tensor(tensor: Any) -> Any:
    """Return a tensor on a device as other frameworks can read it: C-contiguous and aligned."""
    made = tensor.detach().resolve_neg().contiguous()
    return made.clone() if made.data_ptr() % ALIGNMENT_BYTES else made


def copy_to(target: memoryview, found: Any) -> Array | None:
    """Copy a contiguous tensor, or an array, to memory and return it as an array there; None if it does not fit."""
    if found.nbytes > len(target):
        return None
    dtype = found.dtype if isinstance(found, np.ndarray) else DATATYPES[found.dtype].numpy
    array: Array = np.ndarray(tuple(found.shape), dtype, target)
    if isinstance(found, np.ndarray):
        array[...] = found
    elif found.nbytes:
        memory = torch.from_numpy(np.frombuffer(target, np.uint8, found.nbytes))
        memory.copy_(found.reshape(-1).view(torch.uint8))
    return array


def dlpack_device(device: str) -> Device | None:
    """Return a device as DLPack numbers it; None for the CPU, and for the one that a file determines."""
    if device in ("", "cpu"):
        return None
    kind, number = torch.empty(0, device=device).__dlpack_device__()
    return int(kind), int(number)


def to_texts(name: str, array: Array) -> list[str]:
    """Return the elements of a BYTES input as text. Raises InferError(INVALID_ARG) for one that is not UTF-8."""
    try:
        return [element.decode() for element in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise invalid_argument(
            f"input '{name}' has an element that is not UTF-8 ({error}); strings of TorchScript are text"
        ) from error


def from_texts(texts: Sequence[str]) -> Array:
    """Return a list of strings as a BYTES array."""
    array = np.empty(len(texts), np.object_)
    array[:] = texts
    return array


def storage_address(tensor: Any) -> int:
    """Return the address of the memory that a tensor is a view of."""
    address: int = tensor.untyped_storage().data_ptr()
    return address


def reason(error: BaseException) -> str:
    """Return PyTorch's own sentence of an error, without the frames of its interpreter and of C++."""
    text = str(error).partition("\nException raised from")[0].strip()
    if text.startswith("The following operation failed in the TorchScript interpreter"):
        text = text.rpartition("Error: ")[2]
    return text[:1000] or type(error).__name__
