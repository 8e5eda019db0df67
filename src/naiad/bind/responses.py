"""Outputs of inference callables as responses: checked once for each combination of names, dtypes and shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from naiad.bind.model_config.tensor import datatype_of
from naiad.bind.model_config.triton_model_config import TensorSpec as DeclaredTensor
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.bind.results import wrong_array
from naiad.core.datatype import DataType, conversion_hint, from_numpy
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Array, Buffer, TensorSpec, text_problem, to_buffer

MAX_HEADERS = 512
"""Combinations of outputs that are remembered."""
_SMALL_BYTES = 16384
"""An output up to this size is copied by one call; a larger one by a copy that releases the interpreter's lock."""


class ModelResponseEncoder:
    """Makes responses of the outputs of one model version. Not safe for use by several threads at once."""

    def __init__(self, config: TritonModelConfig, *, is_strict: bool) -> None:
        """`is_strict`: outputs must have the names, datatypes and shapes of the configuration."""
        self._model = config.model_name
        self._version = str(config.model_version)
        self._is_batching = config.batching
        self._declared = {spec.name: spec for spec in config.outputs}
        self._is_strict = is_strict
        self._headers: dict[tuple[object, ...], ResponseHeader] = {}

    def encode_all(self, requests: Sequence[InferRequest], results: Any) -> list[InferResponse]:
        """Return the responses to the requests of a batch.

        Raises ValueError for anything but one dictionary of arrays for each request.
        """
        if not isinstance(results, list | tuple):
            raise ValueError(
                f"inference callable of model '{self._model}' returned {type(results).__name__}, expected a list of "
                "one dictionary of numpy arrays for each request; @batch and @sample make it"
            )
        if len(results) != len(requests):
            raise ValueError(
                f"inference callable of model '{self._model}' returned {len(results)} responses for {len(requests)} "
                "requests"
            )
        return [self.encode(request, outputs) for request, outputs in zip(requests, results, strict=True)]

    def encode(self, request: InferRequest, outputs: Any, *, is_final: bool = True) -> InferResponse:
        """Return the response with the outputs that the client wants. Raises ValueError for invalid ones."""
        if not isinstance(outputs, Mapping):
            raise ValueError(
                f"inference callable of model '{self._model}' returned a response of type {type(outputs).__name__}, "
                "expected a dictionary of numpy arrays"
            )
        wanted = {output.name for output in request.header.outputs} or self._declared
        sent: list[Array] = []
        key: list[object] = []
        for name, array in outputs.items():
            if type(array) is not np.ndarray:
                problem = wrong_array(array)
                if problem:
                    raise self._invalid(name, problem)
            if name in wanted:
                sent.append(array)
                key += name, array.dtype, array.shape
            elif self._is_strict and name not in self._declared:
                self._check(name, array)
        header = self._headers.get(tuple(key))
        if header is None:
            header = self._make_header(tuple(key), outputs)
        pairs = zip(header.outputs, sent, strict=True)
        return InferResponse(header, [self._data(spec, array) for spec, array in pairs], final=is_final)

    def _make_header(self, key: tuple[object, ...], outputs: Mapping[str, Array]) -> ResponseHeader:
        names = [str(name) for name in key[::3]]
        specs = [TensorSpec(name, self._check(name, outputs[name]), outputs[name].shape) for name in names]
        if len(self._headers) >= MAX_HEADERS:
            self._headers.clear()
        header = self._headers[key] = ResponseHeader(self._model, self._version, specs)
        return header

    def _check(self, name: str, array: Array) -> DataType:
        """Return the datatype of an output. Raises ValueError."""
        datatype = from_numpy(array.dtype)
        if datatype is None:
            hint = conversion_hint(array.dtype)
            raise self._invalid(name, f"has dtype {array.dtype}, which the protocol does not have: {hint}")
        if self._is_strict:
            self._check_strictly(name, array, datatype, self._declared.get(name))
        return datatype

    def _check_strictly(self, name: str, array: Array, datatype: DataType, spec: DeclaredTensor | None) -> None:
        if spec is None:
            raise self._invalid(name, f"is not in the configuration, which has {', '.join(self._declared)}")
        expected = datatype_of(spec.dtype, f"output '{name}'")
        if datatype is not expected:
            raise self._invalid(name, f"has dtype {array.dtype} ({datatype.value}), expected {expected.value}")
        shape = array.shape[1:] if self._is_batching else array.shape
        fits = len(shape) == len(spec.shape) and all(
            size in (-1, found) for found, size in zip(shape, spec.shape, strict=True)
        )
        if not fits:
            without = " without the batch dimension" if self._is_batching else ""
            raise self._invalid(name, f"has shape {shape}{without}, expected {tuple(spec.shape)}")

    def _data(self, spec: TensorSpec, array: Array) -> Buffer:
        """Return a copy: the function may use its arrays again while the response waits to be sent."""
        if spec.datatype is DataType.BYTES:
            if array.dtype.kind in "OT":
                self._check_elements(spec.name, array)
            try:
                return to_buffer(array)
            except UnicodeEncodeError:
                raise self._invalid(spec.name, text_problem(array)) from None
        if array.nbytes <= _SMALL_BYTES and array.dtype.byteorder != ">":
            return array.tobytes()
        return to_buffer(np.array(array, dtype=spec.datatype.numpy, order="C"))

    def _check_elements(self, name: str, array: Array) -> None:
        kinds = set(map(type, array.ravel().tolist())) - {bytes, str, np.bytes_, np.str_}
        if kinds:
            found = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise self._invalid(name, f"is an array of objects of type {found}, expected bytes or str")

    def _invalid(self, name: object, problem: str) -> ValueError:
        return ValueError(f"output '{name}' of model '{self._model}' {problem}")
