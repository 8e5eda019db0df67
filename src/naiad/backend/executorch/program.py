"""A `.pte` program in the runtime of ExecuTorch: its methods, their tensors, and how many rows they take.

A program gives upper bounds of shapes only, and does not say which dimensions may be smaller: a run with one row on
zeros shows whether it takes batches.
"""

import importlib
import threading
from collections.abc import Sequence
from typing import Any

import torch

from naiad.backend.api import ModelContext
from naiad.backend.framework import ModelFile, Parameters, find_model_file
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.config.backends import filenames_of
from naiad.core.datatype import DataType
from naiad.core.errors import excerpt

try:
    # The public module imports the exporter too, which takes many times longer.
    runtime: Any = importlib.import_module("executorch.extension.pybindings._C")
except ImportError:
    runtime = importlib.import_module("executorch.extension.pybindings.portable_lib")

_lock = threading.Lock()
"""Calls of the runtime redirect the standard streams of the process, which ends when two threads do so at once."""
_IDENTIFIER = b"ET12"
_TYPES = {
    0: (torch.uint8, DataType.UINT8),
    1: (torch.int8, DataType.INT8),
    2: (torch.int16, DataType.INT16),
    3: (torch.int32, DataType.INT32),
    4: (torch.int64, DataType.INT64),
    5: (torch.float16, DataType.FP16),
    6: (torch.float32, DataType.FP32),
    7: (torch.float64, DataType.FP64),
    11: (torch.bool, DataType.BOOL),
    15: (torch.bfloat16, DataType.BF16),
}
"""Number of a type in ExecuTorch, which is that of PyTorch's ScalarType, to its types elsewhere."""


class ProgramFile(ModelFile):
    """The file of a model version, and its method."""

    def __init__(self, context: ModelContext) -> None:
        """Read the file. Raises InferError(INVALID_ARG)."""
        super().__init__(context, find_model_file(context, filenames_of("executorch")))
        self._method = Parameters(context.config, context.backend_config).text("method", "forward")
        self._content = self.path.read_bytes()
        if self._content[4:8] != _IDENTIFIER:
            raise self.error("is no ExecuTorch program: it does not have 'ET12' at byte 4; export it again")
        method = self.open()
        meta = method.meta
        try:
            self._inputs = [meta.input_tensor_meta(index) for index in range(meta.num_inputs())]
            self._outputs = [meta.output_tensor_meta(index) for index in range(meta.num_outputs())]
        except RuntimeError as error:
            raise self.error(
                f"has a method '{self._method}' with an input or output that is no tensor; export a module whose "
                f"arguments and results are tensors: {excerpt(str(error))}"
            ) from error
        self.max_rows = self._find_max_rows(method)

    def open(self) -> "Method":
        """Return the method in memory of its own. Raises InferError(INVALID_ARG)."""
        try:
            with _lock:
                program = runtime._load_program_from_buffer(
                    self._content, program_verification=runtime.Verification.InternalConsistency
                )
        except RuntimeError as error:
            raise self.error(
                f"cannot be loaded: {excerpt(str(error))}; it is truncated, damaged or of an incompatible version: "
                "copy it again, or export it with the installed version of executorch"
            ) from error
        names = [program.get_method_name(index) for index in range(program.num_methods())]
        if self._method not in names:
            raise self.error(
                f"has no method '{excerpt(self._method)}'; set the parameter 'method' to one of {', '.join(names)}"
            )
        try:
            with _lock:
                return Method(self._content, program, program.load_method(self._method))
        except RuntimeError as error:
            backends = ", ".join(runtime._get_registered_backend_names())
            raise self.error(
                f"has a method '{self._method}' that cannot be loaded: {excerpt(str(error))}; it may need an "
                f"operator or a backend that this runtime does not have (it has {backends}): export it for XNNPACK, "
                "or without a partitioner"
            ) from error

    @property
    def signature(self) -> ModelSignature:
        """The tensors: `input_0`, `output_0`, ...; with a free first dimension if the program takes batches."""
        return ModelSignature(
            "ExecuTorch",
            {f"input_{index}": self._tensor(f"input_{index}", meta) for index, meta in enumerate(self._inputs)},
            {f"output_{index}": self._tensor(f"output_{index}", meta) for index, meta in enumerate(self._outputs)},
            max_rows=self.max_rows,
        )

    def shapes(self) -> str:
        """Return the largest shapes of the inputs, for messages."""
        return ", ".join(f"input_{index} {list(meta.sizes())}" for index, meta in enumerate(self._inputs))

    def _tensor(self, name: str, meta: Any) -> TensorSignature:
        sizes: tuple[int, ...] = tuple(meta.sizes())
        kind = _TYPES.get(meta.dtype())
        dims = (None, *sizes[1:]) if self.max_rows > 1 else sizes
        return TensorSignature(name, kind[1] if kind else None, dims, f"type {meta.dtype()}")

    def _find_max_rows(self, method: "Method") -> int:
        """Return the most rows of a batch, 0 for a program that does not take batches."""
        firsts = {meta.sizes()[:1] for meta in (*self._inputs, *self._outputs)}
        if len(firsts) != 1 or not self._inputs:
            return 0
        rows = int(next(iter(firsts))[0]) if next(iter(firsts)) else 0
        if rows < 2 or any(meta.dtype() not in _TYPES for meta in self._inputs):
            return 0
        zeros = [torch.zeros((1, *meta.sizes()[1:]), dtype=_TYPES[meta.dtype()][0]) for meta in self._inputs]
        try:
            results = method.call(zeros)
        except RuntimeError:  # of a fixed shape
            return 0
        return rows if all(tuple(result.shape[:1]) == (1,) for result in results) else 0


class Method:
    """A loaded method. Not for several threads at once."""

    def __init__(self, content: bytes, program: Any, method: Any) -> None:
        """`content` is what the program refers to while it exists."""
        self._kept = (content, program)
        self._method = method
        self.meta = method.method_meta()

    def call(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Return the results, in memory of their own. Raises RuntimeError."""
        with _lock:
            results: Sequence[Any] = self._method.call(tensors)
        return results


def limit_threads(count: int) -> None:
    """Set the number of threads, which all programs of the process share."""
    with _lock:  # A program that uses the pool while it is replaced never ends.
        if runtime._threadpool_get_thread_count() > count:
            runtime._unsafe_reset_threadpool(count)
