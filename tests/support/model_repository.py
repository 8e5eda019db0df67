"""Model repositories on disk for tests: a model is its configuration and the files of its versions."""

from collections.abc import Mapping
from pathlib import Path

PYTHON_ADD_SUB = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
                )
            )
        return responses
"""

_SCALE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() * FACTOR)]
            )
            for r in requests
        ]
"""

_TENSOR = 'name: "%s" data_type: TYPE_%s dims: [ %s ]'


def write_model(
    repository: Path, name: str, config: str | None, files: Mapping[str, str | bytes] | None = None
) -> Path:
    """Write a model and return its directory; file names are relative to it, and version 1 always exists."""
    model_dir = repository / name
    (model_dir / "1").mkdir(parents=True, exist_ok=True)
    if config is not None:
        (model_dir / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    for relative, content in (files or {}).items():
        path = model_dir / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return model_dir


def add_sub_config(backend: str, *, datatype: str = "FP32", max_batch_size: int = 8, extra: str = "") -> str:
    """Return the configuration of an add/sub model of two vectors of 16."""
    inputs = ", ".join("{ " + _TENSOR % (name, datatype, 16) + " }" for name in ("INPUT0", "INPUT1"))
    outputs = ", ".join("{ " + _TENSOR % (name, datatype, 16) + " }" for name in ("OUTPUT0", "OUTPUT1"))
    return (
        f'backend: "{backend}"\nmax_batch_size: {max_batch_size}\ninput [ {inputs} ]\noutput [ {outputs} ]\n{extra}\n'
    )


def write_python_add_sub(repository: Path, name: str = "python_add_sub", *, extra: str = "") -> Path:
    """Write an add/sub model of the Python backend."""
    return write_model(repository, name, add_sub_config("python", extra=extra), {"1/model.py": PYTHON_ADD_SUB})


def write_identity(
    repository: Path,
    name: str = "identity",
    *,
    datatype: str = "FP32",
    max_batch_size: int = 8,
    parameters: Mapping[str, str] | None = None,
    extra: str = "",
) -> Path:
    """Write a model that answers with its input, of any length; `parameters` are the identity backend's."""
    config = (
        f'backend: "identity"\nmax_batch_size: {max_batch_size}\n'
        f"input [ {{ {_TENSOR % ('INPUT0', datatype, -1)} }} ]\n"
        f"output [ {{ {_TENSOR % ('OUTPUT0', datatype, -1)} }} ]\n"
    )
    for key, value in (parameters or {}).items():
        config += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return write_model(repository, name, config + extra)


def scale_source(factor: object) -> str:
    """Return a `model.py` that multiplies its input by a number."""
    return _SCALE.replace("FACTOR", str(factor))


def write_scale(repository: Path, factor: object, version: int = 1, name: str = "scale") -> None:
    """Write a Python model that multiplies FP32[1] IN by a number and returns it as OUT."""
    config = """
      backend: "python" max_batch_size: 0
      input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
      output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """
    write_model(repository, name, config, {f"{version}/model.py": scale_source(factor)})
