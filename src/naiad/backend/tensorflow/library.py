"""TensorFlow, imported in one place, with little noise, and set up once for the process."""

import contextlib
import logging
import os
import sys
import threading
from dataclasses import dataclass

# Errors only; TensorFlow writes its notes on hardware and optimisations to stderr.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

if "tensorflow" not in sys.modules:
    with contextlib.suppress(ImportError):
        # A dependency of PyTorch. Both contain LLVM, and the process dies if this one is loaded second.
        import triton._C.libtriton  # noqa: F401

import tensorflow

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters

__all__ = ["set_up", "tensorflow"]

_log = logging.getLogger(__name__)
tensorflow.get_logger().setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class ThreadPools:
    """The two thread pools of TensorFlow, which the whole process shares: TensorFlow 2 has no sessions with pools.

    The threads of the inter-op pool run operators, one each; an operator spreads its work over the intra-op pool.
    """

    intra_op: int
    inter_op: int


_lock = threading.Lock()
_pools: list[ThreadPools] = []
"""The pools of the process, empty before the first model."""


def set_up(context: ModelContext) -> None:
    """Set the thread pools, before the first operator runs, and let GPU memory grow instead of taking all of it.

    The pools cannot change later: another size of a later model is logged. Raises InferError(INVALID_ARG).
    """
    parameters = Parameters(context.config, context.backend_config)
    wanted = ThreadPools(
        parameters.count("TF_NUM_INTRA_THREADS") or context.usable_cores,
        parameters.count("TF_NUM_INTER_THREADS") or context.usable_cores,
    )
    if parameters.flag("TF_USE_PER_SESSION_THREADS"):
        _log.warning(
            "model '%s': TF_USE_PER_SESSION_THREADS has no effect, since TensorFlow 2 has no sessions; all models "
            "share the threads of the process",
            context.name,
        )
    with _lock:
        if not _pools:
            _set_pools(wanted)
            _pools.append(wanted)
    if _pools[0] != wanted:
        _log.warning(
            "model '%s' asks for %d intra-op and %d inter-op threads, but TensorFlow has %d and %d since the first "
            "model; set them for all with --backend-config=tensorflow,TF_NUM_INTRA_THREADS=%d",
            context.name, wanted.intra_op, wanted.inter_op, _pools[0].intra_op, _pools[0].inter_op, wanted.intra_op,
        )  # fmt: skip


def _set_pools(pools: ThreadPools) -> None:
    try:
        tensorflow.config.threading.set_intra_op_parallelism_threads(pools.intra_op)
        tensorflow.config.threading.set_inter_op_parallelism_threads(pools.inter_op)
        for gpu in tensorflow.config.list_physical_devices("GPU"):
            tensorflow.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        _log.warning("TensorFlow ran before its threads could be set: %s", error)
