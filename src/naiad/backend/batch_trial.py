"""A trial execution at load: whether the free first dimension of all tensors is one batch dimension.

A free first dimension does not always count rows: values and row splits of a ragged tensor, two tables of different
length, a dense tensor beside a sparse one, `unique`. A model that batches on paper alone would be ready and refuse
every request, or mix the rows of clients. Such a model gets no `max_batch_size`; its requests have the full shape.

    3 rows of zeros  ->  all outputs have 3 rows: it batches
                     ->  another number:          it does not
    fails, but 1 row does not:                    it does not
    both fail:                                    unknown; it does not if an input may hold positions of another one

Then each input alone has one row more: if that is accepted and no output has a row more, the input has no batch.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.core.datatype import DataType
from naiad.core.tensor import Array, Shape

_log = logging.getLogger(__name__)

Run = Callable[[Mapping[str, Array]], Mapping[str, Shape]]
"""Executes a model, and returns the shapes of its outputs by name."""

_ROWS = 3
_MAX_VARIED = 8
"""Inputs that are tried with another number of rows."""
_MAX_ELEMENTS = 1 << 22
"""Larger trial rows are not made."""
_INTEGERS = (DataType.INT32, DataType.INT64, DataType.UINT32, DataType.UINT64)


def confirm_batching(model: str, signature: ModelSignature, run: Run) -> ModelSignature:
    """Return the signature, marked as not batching if a trial shows that its first dimensions are no batch."""
    if not signature.is_batching or _has_one_name(signature):
        return signature
    problem = _problem(signature, run)
    if not problem:
        return signature
    _log.info(
        "model '%s': no automatic max_batch_size, the free first dimensions are no batch dimension: %s; requests "
        "have the full shape. Set max_batch_size in config.pbtxt if the model does batch",
        model, problem,
    )  # fmt: skip
    return replace(signature, shares_rows=False)


def _has_one_name(signature: ModelSignature) -> bool:
    """Return whether the model itself says that all first dimensions are one."""
    tensors = (*signature.inputs.values(), *signature.outputs.values())
    names = {tensor.dims[0] if tensor.dims else None for tensor in tensors}
    return len(names) == 1 and isinstance(next(iter(names)), str)


def _problem(signature: ModelSignature, run: Run) -> str:
    several = _outcome(signature, run, _ROWS)
    if several is None:
        if _outcome(signature, run, 1) is not None:
            return f"one row of zeros is accepted, {_ROWS} are not"
        positions = [tensor.name for tensor in signature.inputs.values() if _may_be_positions(tensor)]
        if len(signature.inputs) > 1 and positions:
            return f"input '{positions[0]}' may hold positions of another input, and {_ROWS} rows are not accepted"
        return ""
    for name, shape in several.items():
        if shape[:1] != (_ROWS,):
            return f"{_ROWS} rows of zeros gave output '{name}' of shape {list(shape)}"
    for name in list(signature.inputs)[:_MAX_VARIED] if len(signature.inputs) > 1 else ():
        longer = _outcome(signature, run, _ROWS, longer=name)
        if longer is not None and all(shape[:1] != (_ROWS + 1,) for shape in longer.values()):
            return f"input '{name}' may have other rows than the other inputs"
    return ""


def _outcome(signature: ModelSignature, run: Run, rows: int, longer: str = "") -> Mapping[str, Shape] | None:
    """Return the shapes of the outputs for N rows, one more of the input `longer`; None if that fails."""
    inputs = {tensor.name: _zeros(tensor, rows + (tensor.name == longer)) for tensor in signature.inputs.values()}
    if sum(array.size for array in inputs.values()) > _MAX_ELEMENTS:
        return None
    try:
        return run(inputs)
    except Exception as error:  # frameworks have exceptions of their own; the outcome is what counts
        _log.debug("trial with %d rows: %s", rows, error)
        return None


def _may_be_positions(tensor: TensorSignature) -> bool:
    return tensor.datatype in _INTEGERS and len(tensor.dims or ()) == 1


def _zeros(tensor: TensorSignature, rows: int) -> Array:
    shape = (rows, *(size if size > 0 else 1 for size in tensor.shape[1:]))
    datatype = tensor.datatype or DataType.FP32
    if datatype is not DataType.BYTES:
        return np.zeros(shape, datatype.numpy)
    texts = np.empty(shape, object)
    texts[...] = b""
    return texts
