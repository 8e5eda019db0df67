"""The tensors of a decoder in ONNX, by the names of Hugging Face Optimum or of the configuration, and its execution.

    input_ids [b, s]  attention_mask [b, p + s]  position_ids [b, s]  past_key_values.N.key [b, h, p, d]
    -> logits [b, s, v]  present.N.key [b, h, p + s, d]

Inputs and outputs are bound by address: the cache is neither copied nor allocated by ONNX Runtime.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.backend.framework import ModelFile, Parameters
from naiad.backend.onnx.instance import ELEMENT_TYPES
from naiad.backend.onnx.sessions import OnnxSession
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.core.datatype import DataType
from naiad.core.errors import excerpt
from naiad.core.tensor import Array

_NAMES = ("input_ids", "attention_mask", "position_ids", "logits")
"""Parameters that name a tensor, and its usual name."""
_INTEGERS = (DataType.INT64, DataType.INT32)
_FLOATS = (DataType.FP32, DataType.FP16, DataType.BF16)
_AS_OPTIMUM = "as 'optimum-cli export onnx --task text-generation-with-past' writes it"


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """The keys or the values of one layer."""

    past: str
    present: str
    heads: int
    size: int
    datatype: DataType

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.heads * self.size * self.datatype.numpy.itemsize

    def shape(self, rows: int, length: int) -> tuple[int, int, int, int]:
        """Return the shape for some tokens of some rows."""
        return rows, self.heads, length, self.size


@dataclass(frozen=True, slots=True)
class DecoderTensors:
    """The names of a graph's tensors, and what a configuration must know of them."""

    ids: TensorSignature
    mask: TensorSignature | None
    positions: TensorSignature | None
    logits: TensorSignature
    caches: Sequence[CacheTensor]
    vocabulary: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all caches."""
        return sum(cache.token_bytes for cache in self.caches)


def read_decoder(
    file: ModelFile, graph: ModelSignature, parameters: Parameters, settings: Mapping[str, Any]
) -> DecoderTensors:
    """Return the tensors of a graph; `settings` are the content of config.json. Raises InferError(INVALID_ARG)."""
    names = {name: parameters.text(name, name) for name in _NAMES}
    inputs = dict(graph.inputs)
    ids = inputs.pop(names["input_ids"], None)
    logits = graph.outputs.get(names["logits"])
    if ids is None or ids.datatype not in _INTEGERS:
        raise file.error(
            f"has no input '{excerpt(names['input_ids'])}' of integers; name it with the parameter input_ids"
        )
    if logits is None or logits.datatype not in _FLOATS or len(logits.dims or ()) != 3:
        raise file.error(
            f"has no output '{excerpt(names['logits'])}' of floating-point numbers [batch, sequence, vocabulary]; "
            "name it with the parameter logits"
        )
    mask, positions = inputs.pop(names["attention_mask"], None), inputs.pop(names["position_ids"], None)
    caches = _caches(file, inputs, graph.outputs, parameters)
    left = [name for name in inputs if name not in {cache.past for cache in caches}]
    if left:
        raise file.error(
            f"has the input '{excerpt(left[0])}', which this backend does not know; it serves decoders in one file, "
            f"{_AS_OPTIMUM}"
        )
    size = (logits.dims or ())[-1]
    vocabulary = size if isinstance(size, int) else settings.get("vocab_size")
    if type(vocabulary) is not int or vocabulary < 1:
        raise file.error("says nowhere how many tokens it knows; write 'vocab_size' in config.json")
    return DecoderTensors(ids, mask, positions, logits, caches, vocabulary)


def _caches(
    file: ModelFile,
    inputs: Mapping[str, TensorSignature],
    outputs: Mapping[str, TensorSignature],
    parameters: Parameters,
) -> Sequence[CacheTensor]:
    past, present = parameters.text("past", "past_key_values.*"), parameters.text("present", "present.*")
    for name, pattern in (("past", past), ("present", present)):
        if pattern.count("*") != 1:
            raise parameters.error(name, "names with one *, such as past_key_values.*")
    before, after = past.split("*")
    found = []
    for name, tensor in inputs.items():
        if name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after):
            middle = name[len(before) : len(name) - len(after)]
            found.append(_cache(file, tensor, outputs, present.replace("*", middle)))
    if not found:
        raise file.error(
            f"has no inputs '{excerpt(past)}' for keys and values of earlier tokens; export it with a cache, "
            f"{_AS_OPTIMUM}, or name them with the parameters past and present"
        )
    return found


def _cache(
    file: ModelFile, tensor: TensorSignature, outputs: Mapping[str, TensorSignature], present: str
) -> CacheTensor:
    dims = tensor.dims or ()
    made = outputs.get(present)
    if made is None or made.datatype is not tensor.datatype:
        raise file.error(
            f"has the input '{excerpt(tensor.name)}' and no output '{excerpt(present)}' of its type; name them with "
            "the parameters past and present"
        )
    if len(dims) != 4 or tensor.datatype not in _FLOATS or not all(type(dims[axis]) is int for axis in (1, 3)):
        shape = ", ".join(str(dim) for dim in dims)
        raise file.error(
            f"has the input '{excerpt(tensor.name)}' [{excerpt(shape)}]; expected floating-point numbers [batch, "
            "heads, tokens, size] with fixed heads and size"
        )
    return CacheTensor(tensor.name, present, int(dims[1] or 0), int(dims[3] or 0), tensor.datatype)


class DecoderGraph:
    """Executes a decoder."""

    def __init__(self, session: OnnxSession, tensors: DecoderTensors) -> None:
        self.tensors = tensors
        self._session = session.ort

    def run(
        self, ids: Array, mask: Array, positions: Array, pasts: Sequence[Array], presents: Sequence[Array]
    ) -> Array:
        """Compute the tokens `ids` [b, s], write keys and values to `presents`, return the last logits [b, v], FP32.

        `mask` is [b, p + s], `positions` [b, s]. Raises what ONNX Runtime raises.
        """
        binding = self._session.io_binding()
        tensors = self.tensors
        kept = []  # arrays must live as long as they are bound
        for tensor, array in ((tensors.ids, ids), (tensors.mask, mask), (tensors.positions, positions)):
            if tensor is not None and tensor.datatype is not None:
                kept.append(np.ascontiguousarray(array, tensor.datatype.numpy))
                _bind(binding.bind_input, tensor.name, tensor.datatype, kept[-1])
        for cache, past, present in zip(tensors.caches, pasts, presents, strict=True):
            _bind(binding.bind_input, cache.past, cache.datatype, past)
            _bind(binding.bind_output, cache.present, cache.datatype, present)
        datatype = tensors.logits.datatype or DataType.FP32
        logits = np.empty((*ids.shape, tensors.vocabulary), datatype.numpy)
        _bind(binding.bind_output, tensors.logits.name, datatype, logits)
        self._session.run_with_iobinding(binding)
        last: Array = np.asarray(logits[:, -1], np.float32)
        return last


def _bind(bind: Any, name: str, datatype: DataType, array: Array) -> None:
    bind(name, "cpu", 0, ELEMENT_TYPES[datatype], array.shape, array.ctypes.data)
