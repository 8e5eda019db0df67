"""PyTorch, imported in one place, without the compiler of GPU kernels where there is no GPU.

torch.export imports `triton` if it is installed, and that crashes in a process that has loaded TensorFlow. Both
contain LLVM.
"""

import sys
from collections.abc import Iterable
from typing import Any

import torch as torch

if not torch.cuda.is_available():
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]  # None: its import raises ModuleNotFoundError

import torch.utils._pytree as pytree
from torch.export.passes import move_to_device_pass

__all__ = ["move_to_device_pass", "pytree", "release", "torch"]


def release(tensors: Iterable[Any]) -> None:
    """Give the memory of weights on GPUs back to the driver, also where a cycle of references keeps the tensors.

    The collector may not run for minutes, and never sees what was loaded before the server was ready. PyTorch itself
    would keep the memory for its next tensors, out of reach of other processes and frameworks.
    """
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.data = tensor.data.new_empty(0)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
