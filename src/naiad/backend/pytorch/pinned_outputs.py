"""Large outputs of a GPU in page-locked host memory, to which the GPU copies by itself.

Copying to memory of the ordinary kind goes through a buffer of the driver, by the CPU, and first has the system clear
every page. PyTorch keeps page-locked memory for the next output when an array on it is released.
"""

import threading
import weakref
from typing import Any

import numpy as np

from naiad.backend.pytorch.library import torch
from naiad.backend.pytorch.tensors import to_array
from naiad.core.tensor import Array

LEAST_BYTES = 256 << 10
"""Smaller outputs are copied faster than page-locked memory is found."""
MOST_BYTES = 256 << 20
"""Limit for the outputs of an instance that are not sent yet; further ones are in ordinary memory."""


class PinnedOutputs:
    """The page-locked memory of an instance."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.used_bytes = 0
        self._most_bytes = most_bytes
        self._lock = threading.Lock()

    def take(self, tensor: Any) -> Array:
        """Return a tensor as an array: page-locked if it is large and on a GPU; see `to_array`."""
        if not tensor.is_cuda or tensor.layout is not torch.strided or tensor.nbytes < LEAST_BYTES:
            return to_array(tensor)
        return self.pin(tensor)

    def pin(self, tensor: Any) -> Array:
        """Return a page-locked copy, or one in ordinary memory where there is no more of the other."""
        size = tensor.nbytes
        with self._lock:
            if self.used_bytes + size > self._most_bytes:
                return to_array(tensor)
            self.used_bytes += size
        try:
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            array = to_array(pinned.copy_(tensor))
        except RuntimeError:  # the system allows no more; an error of the tensor itself comes again
            self._give_back(size)
            return to_array(tensor)
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        # All views refer to this one.
        weakref.finalize(root, self._give_back, size).atexit = False
        return array

    def _give_back(self, size: int) -> None:
        with self._lock:
            self.used_bytes -= size
