"""Instances of PyTorch models: arrays in, one call of the program, arrays out.

Threads: `torch.set_num_threads` sets OpenMP's number of the calling thread, MKL's of the process, and the number of
threads that call PyTorch later. Each instance therefore sets its own number before every run (0.1 us). Matrix
products of MKL in two models that run at the same time use the number that was set last.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.device_tensors import device_of
from naiad.backend.pytorch.library import release, torch
from naiad.backend.pytorch.model_parameters import TorchOptions
from naiad.backend.pytorch.naming import bind_inputs, bind_outputs
from naiad.backend.pytorch.pinned_outputs import PinnedOutputs
from naiad.backend.pytorch.programs.program import Program
from naiad.backend.pytorch.tensors import (
    copy_to,
    dlpack_device,
    from_texts,
    reason,
    storage_address,
    to_array,
    to_device_tensor,
    to_tensor,
    to_texts,
)
from naiad.backend.tensor_instance import TensorInstance
from naiad.config.execution_tensors import execution_config
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, internal, invalid_argument
from naiad.core.tensor import Array, Shape

MAX_SHAPES = 1024
"""Checked shapes of outputs that an instance remembers."""


class TorchInstance(TensorInstance):
    """Runs batches with one program."""

    def __init__(self, context: ModelContext, program: Program, device: str, options: TorchOptions) -> None:
        super().__init__(context, dlpack_device(device))
        self.executable = program
        config = execution_config(context.config)
        slots = program.arguments
        self._inputs = {} if slots is None else bind_inputs(config, slots)
        self._defaults = None if slots is None else [slot.default for slot in slots]
        self._texts = {name for name, place in self._inputs.items() if slots is not None and slots[place].is_text}
        self._copied = {name for name, place in self._inputs.items() if program.may_write_to(place)}
        self._copies_all = slots is None
        self._outputs = bind_outputs(config, program.results)
        self._text_outputs = {output.name for output in self._table.outputs if output.datatype is DataType.BYTES}
        self._dims = {output.name: output.model_dims for output in self._table.outputs}
        self._checked: set[tuple[str, Shape]] = set()
        self._pinned = PinnedOutputs()
        self._device = "" if device == "cpu" else device
        self._options = options
        self._mode: Callable[[], Any] = torch.inference_mode if options.has_inference_mode else torch.no_grad

    def close(self) -> None:
        """Release the program, and its memory on a GPU unless other instances share it; see `Instance.close`."""
        program = self.executable
        super().close()
        if program is not None and self._device and not self._options.shares_weights:
            release(program.weights)

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Call the program; see `TensorInstance.run`."""
        return self.run_on_device(inputs, output_names, frozenset())

    def run_on_device(self, inputs: dict[str, Any], output_names: Sequence[str], staying: Set[str]) -> Sequence[Any]:
        """Call the program with tensors on its device; see `TensorInstance.run_on_device`."""
        program, options = self.executable, self._options
        if program is None:
            raise RuntimeError("the instance is closed")
        torch.set_num_threads(options.thread_count)
        optimized = contextlib.nullcontext() if options.is_optimized else torch.jit.optimized_execution(False)
        try:
            with self._mode(), optimized:
                tensors = {name: self._to_argument(name, array) for name, array in inputs.items()}
                returned = program.call(self._arguments(tensors))
                found = _leaves(returned)
                taken = program.states.union(storage_address(t) for t in tensors.values() if not isinstance(t, list))
                results = [self._result(name, found, taken, stays=name in staying) for name in output_names]
                if self.device is not None and staying:
                    torch.cuda.current_stream(self._device).synchronize()
                return results
        except InferError:
            raise
        except Exception as error:  # PyTorch raises classes of several libraries
            raise self._failure(error) from error
        finally:
            if options.cleans_cache and self._device:
                torch.cuda.empty_cache()

    def run_into(
        self, inputs: dict[str, Array], output_names: Sequence[str], destinations: Mapping[str, memoryview]
    ) -> Sequence[Array] | None:
        """Copy outputs from the GPU to where the client wants them; see `TensorInstance.run_into`."""
        if not self._device or not self._text_outputs.isdisjoint(destinations):
            return None
        results = self.run_on_device(inputs, output_names, frozenset(destinations))
        arrays: list[Array] = []
        for name, result in zip(output_names, results, strict=True):
            array = copy_to(destinations[name], result) if name in destinations else result
            if array is None:
                return None
            arrays.append(array)
        return arrays

    @staticmethod
    def to_host(tensor: Any) -> Array:
        """Return a tensor of PyTorch as an array; see `TensorInstance.to_host`."""
        try:
            return to_array(tensor)
        except RuntimeError as error:
            raise BufferError(f"a tensor on '{tensor.device}' cannot become an array: {reason(error)}") from error

    def _to_argument(self, name: str, array: Any) -> Any:
        if name in self._texts:
            return to_texts(name, array)
        if not isinstance(array, np.ndarray):
            tensor = torch.from_dlpack(array)
        elif self._device:
            return to_tensor(array).to(self._device)
        else:
            tensor = to_tensor(array)
        # A view on the request, which other models and the response cache may read, too.
        return tensor.clone() if self._copies_all or name in self._copied else tensor

    def _arguments(self, tensors: Mapping[str, Any]) -> Sequence[Any]:
        if self._defaults is None:
            return [dict(tensors)]
        arguments = list(self._defaults)
        for name, tensor in tensors.items():
            arguments[self._inputs[name]] = tensor
        return arguments

    def _result(
        self, name: str, found: Sequence[Any] | Mapping[str, Any], taken: frozenset[int], *, stays: bool
    ) -> Any:
        place = self._outputs[name]
        if isinstance(found, Mapping):
            value = found[name] if name in found else next(iter(list(found.values())[place : place + 1]), None)
        else:
            value = found[place] if place < len(found) else None
        if isinstance(value, torch.Tensor):
            is_kept = storage_address(value) in taken
            value = value.clone() if is_kept else value
            stays = stays and value.layout is torch.strided and device_of(value) == self.device
            array = to_device_tensor(value) if stays else self._pinned.take(value)
        elif isinstance(value, list) and all(isinstance(text, str) for text in value):
            array = from_texts(value)
        else:
            raise self._no_tensor(name, value, found)
        if (name, array.shape) not in self._checked:
            array = self._check_shape(name, array)
        return array

    def _check_shape(self, name: str, array: Any) -> Any:
        """Return the output with the dimensions of the configuration; a scalar may be [1] there."""
        dims = self._dims[name]
        if array.ndim == 0 and dims == (1,) and not self._is_batching:
            return array.reshape(1)
        tail = array.shape[1:] if self._is_batching else array.shape
        if len(tail) != len(dims) or any(dim not in (-1, size) for dim, size in zip(dims, tail, strict=True)):
            rows = "-1," if self._is_batching else ""
            raise internal(
                f"model '{self._model_name}' returned output '{name}' with shape {list(array.shape)}, but the model "
                f"configuration says [{rows}{','.join(map(str, dims))}]; write dims: {list(tail)} (-1 for a size "
                "that varies) in config.pbtxt"
            )
        if len(self._checked) < MAX_SHAPES:
            self._checked.add((name, array.shape))
        return array

    def _no_tensor(self, name: str, value: object, found: Sequence[Any] | Mapping[str, Any]) -> InferError:
        if value is None and not isinstance(found, Mapping) and self._outputs[name] >= len(found):
            # Triton: the first two sentences.
            return invalid_argument(
                f"The output {name} in the model configuration refers to an output index which doesn't exist. This "
                f"model has {len(found)} outputs; correct the configuration of model '{self._model_name}'"
            )
        keys = f", whose keys are {', '.join(map(str, found))}" if isinstance(found, Mapping) else ""
        return internal(
            f"model '{self._model_name}' returned a {type(value).__name__} for output '{name}'{keys}; return a "
            "tensor, a list of strings, or a tuple, list or dictionary of them"
        )

    def _failure(self, error: Exception) -> InferError:
        text = f"PyTorch execute failure: model '{self._model_name}': {reason(error)}"
        # An index of one request must not fail the batch.
        return invalid_argument(text) if "index out of range" in text else internal(text)


def _leaves(returned: Any) -> Sequence[Any] | Mapping[str, Any]:
    if isinstance(returned, (tuple, Mapping)):
        return returned
    is_sequence = isinstance(returned, list) and not all(isinstance(text, str) for text in returned)
    return returned if is_sequence else [returned]
