"""`triton_python_backend_utils`: the module that `model.py` imports as `pb_utils`."""

from __future__ import annotations

import json
import struct
from typing import Any, Mapping, Sequence

import numpy as np

from naiad.worker.api.arguments import flag, text
from naiad.worker.api.failure import TritonError, TritonModelException
from naiad.worker.api.iteration import ResponseIterator
from naiad.worker.api.logger import Logger
from naiad.worker.api.metric_family import Metric, MetricFamily, MetricKind
from naiad.worker.api.model_config import (
    ModelConfig,
    get_input_config_by_name,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)
from naiad.worker.api.request import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    current_caller,
)
from naiad.worker.api.response import TRITONSERVER_RESPONSE_COMPLETE_FINAL, InferenceResponse, InferenceResponseSender
from naiad.worker.api.tensor import BY_DTYPE, NUMBERS, NUMPY, Tensor, encode_strings

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}": bool if name == "BOOL" else kind
    for name, kind in NUMPY.items()
}
_BY_NUMBER = {NUMBERS[name]: kind for name, kind in NUMPY.items()}

_model_dir = ""


def get_model_dir() -> str:
    """Return the directory of the model version. Raises TritonModelException outside a model."""
    if not _model_dir:
        raise TritonModelException("get_model_dir: no model has been loaded")
    return _model_dir


def set_model_dir(path: str) -> None:
    """Set the result of `get_model_dir`; for the server."""
    global _model_dir  # noqa: PLW0603 - a process has one model
    _model_dir = path


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str | bytes) -> Tensor | None:
    """Return the input with that name, or None (a missing optional input)."""
    return _by_name(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str | bytes) -> Tensor | None:
    """Return the output with that name, or None."""
    return _by_name(inference_response.output_tensors(), name)


def _by_name(tensors: Sequence[Tensor], name: str | bytes) -> Tensor | None:
    # hot: bench/micro_worker.py
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    # Triton: None; but a name of bytes is valid where a tensor is made.
    return _by_name(tensors, text(name, "expected name")) if isinstance(name, (bytes, bytearray)) else None


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type of a Triton datatype number, None for BF16 and unknown numbers."""
    return _BY_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return the Triton datatype number of a numpy type, None without one."""
    if data_type == np.bytes_:
        return NUMBERS["BYTES"]
    try:
        name = BY_DTYPE.get(np.dtype(data_type), "")
    except TypeError:
        return None
    return NUMBERS.get(name)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type of a name like TYPE_FP32. Raises KeyError for an unknown one."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> Any:
    """Return an array of strings as bytes: each element after its length as a little-endian uint32.

    Triton: () for an empty array, None for an array that is not of strings.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    return encode_strings(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray[Any, Any]:
    """Return the elements of the bytes of `serialize_byte_tensor`, as a one-dimensional object array."""
    elements = []
    offset = 0
    while offset < len(encoded_tensor):
        (length,) = struct.unpack_from("<I", encoded_tensor, offset)
        offset += 4
        (element,) = struct.unpack_from("<%ds" % length, encoded_tensor, offset)
        offset += length
        elements.append(element)
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def _command(notes: Mapping[str, Any], parts: Sequence[bytes] = ()) -> dict[str, Any]:
    caller = current_caller()
    if caller is None:
        raise TritonModelException(f"no server executes this model, so there is no model '{notes['model']}'")
    answer: dict[str, Any] = json.loads(caller.command(notes, parts) or "{}")
    return answer


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load or reload a model; returns when it is ready. The server must be in model control mode EXPLICIT.

    `config` is the JSON text of a configuration that replaces the one in the repository, and `files` are the contents
    of files by their paths, such as `file:1/model.onnx`. Raises TritonModelException if it fails.
    """
    name = text(model_name, "load_model: expected model_name")
    config = text(config, "load_model: expected config")
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{name}', files should be a dictionary of file paths and file contents"
        )
    contents = {
        text(path, "load_model: expected each path"): _content(path, data) for path, data in (files or {}).items()
    }
    listed = [(path, len(content)) for path, content in contents.items()]
    _command({"command": "load", "model": name, "config": config, "files": listed}, list(contents.values()))


def _content(path: Any, content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8")
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError(f"load_model: expected file {path!r} to be bytes, found {type(content).__name__}")
    return bytes(content)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model, with its members if it is an ensemble and `unload_dependents`.

    Returns when its requests have finished. Raises TritonModelException when it fails.
    """
    name = text(model_name, "unload_model: expected model_name")
    dependents = flag(unload_dependents, "unload_model: expected unload_dependents")
    _command({"command": "unload", "model": name, "dependents": dependents})


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a version of a model, its newest by default, is ready for requests."""
    name = text(model_name, "is_model_ready: expected model_name")
    version = text(model_version, "is_model_ready: expected model_version")
    return bool(_command({"command": "is_ready", "model": name, "version": version})["ready"])


_LATER = {"SharedMemory"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        raise AttributeError(f"pb_utils.{name} is not supported by this version of naiad")
    raise AttributeError(f"module 'triton_python_backend_utils' has no attribute '{name}'")
