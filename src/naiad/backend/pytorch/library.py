"""PyTorch, imported in one place, without the compiler of GPU kernels where there is no GPU.

torch.export imports `triton` if it is installed, and that crashes in a process that has loaded TensorFlow. Both
contain LLVM.
"""

import sys

import torch as torch

if not torch.cuda.is_available():
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]  # None: its import raises ModuleNotFoundError

import torch.utils._pytree as pytree
from torch.export.passes import move_to_device_pass

__all__ = ["move_to_device_pass", "pytree", "torch"]
