"""The process group of PyTorch between the ranks of an instance: environment variables say which rank this is."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from naiad.worker.loading import LoadError


def join_group(backend: str, args: Mapping[str, str]) -> None:
    """Wait for all ranks and initialize `torch.distributed` with `backend`, gloo or nccl.

    nccl gets the GPU of `args["model_instance_device_id"]`. Raises LoadError without PyTorch.
    """
    try:
        import torch
        import torch.distributed as distributed
    except ModuleNotFoundError as error:
        raise LoadError(
            f"parameter 'torch_distributed' needs PyTorch in the environment of the worker, {sys.executable}: there "
            f"is no module {error.name}"
        ) from error
    if backend == "nccl":
        torch.cuda.set_device(int(args["model_instance_device_id"]))
    distributed.init_process_group(backend)


def leave_group() -> None:
    """Leave the group, if this process is in one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
