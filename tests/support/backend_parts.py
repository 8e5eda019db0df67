"""Models of a backend without a server: contexts, instances, requests for them and what they answer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.onnx.backend import OnnxRuntimeBackend
from naiad.config.autofill import merge_auto_completed, normalize
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.datatype import from_numpy
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Array, TensorSpec, to_array, to_buffer


def make_context(
    config: ModelConfig,
    model_dir: Path = Path(),
    *,
    usable_cores: int = 1,
    backend_config: Mapping[str, str] | None = None,
) -> ModelContext:
    """Return the context of version 1."""
    return ModelContext(
        name=config.name,
        version=1,
        config=config,
        model_dir=model_dir,
        version_dir=model_dir / "1",
        usable_cores=usable_cores,
        backend_config=backend_config or {},
    )


def load_model(backend: Backend, context: ModelContext) -> tuple[Model, ModelConfig]:
    """Complete the configuration as the engine does and load the model."""
    completed = backend.auto_complete(context)
    count = backend.default_instance_count(context)
    config = normalize(merge_auto_completed(context.config, completed), default_cpu_instances=count)
    return backend.load(replace(context, config=config)), config


def load_onnx(
    model_dir: Path,
    model: bytes | None,
    *,
    usable_cores: int = 1,
    backend_config: Mapping[str, str] | None = None,
    **fields: Any,
) -> tuple[Model, ModelConfig]:
    """Write `model` as model.onnx (None: it is there already) and load it with the configuration `fields`."""
    version_dir = model_dir / "1"
    version_dir.mkdir(parents=True, exist_ok=True)
    if model is not None:
        (version_dir / "model.onnx").write_bytes(model)
    config = ModelConfig(name="m", backend="onnxruntime", **fields)
    context = make_context(config, model_dir, usable_cores=usable_cores, backend_config=backend_config)
    return load_model(OnnxRuntimeBackend(), context)


def new_instance(model: Model, index: int = 0) -> Instance:
    """Create a CPU instance."""
    return model.create_instance(InstanceSpec(f"m_0_{index}", index, "KIND_CPU"))


def make_header(arrays: Mapping[str, Array], outputs: Sequence[str] = ()) -> RequestHeader:
    """Return the header of a request with these inputs that asks for `outputs`."""
    specs = []
    for name, array in arrays.items():
        datatype = from_numpy(array.dtype)
        assert datatype is not None
        specs.append(TensorSpec(name, datatype, array.shape))
    return RequestHeader(model_name="m", inputs=specs, outputs=[RequestedOutput(name) for name in outputs])


def make_request(
    arrays: Mapping[str, Array], outputs: Sequence[str] = (), *, header: RequestHeader | None = None, rows: int = 1
) -> InferRequest:
    """Return a request as the engine hands it to an instance."""
    data = [to_buffer(array) for array in arrays.values()]
    request = InferRequest(header or make_header(arrays, outputs), data, lambda request, response: None)
    request.batch_size = rows
    return request


def execute(instance: Instance, requests: Sequence[InferRequest]) -> Sequence[InferResponse]:
    """Execute `requests` as one batch; check that the instance stamps the times that statistics need."""
    batch = Batch(requests, sum(request.batch_size for request in requests))
    responses = instance.execute(batch)
    assert 0 < batch.compute_start_ns <= batch.compute_end_ns
    assert len(responses) == len(requests)
    return responses


def output_arrays(response: InferResponse) -> dict[str, Array]:
    """Return the outputs of a response by name; raises its error if it has one."""
    if response.error is not None:
        raise response.error
    assert len(response.data) == len(response.header.outputs)
    return {
        spec.name: to_array(spec, data) for spec, data in zip(response.header.outputs, response.data, strict=True)
    }


def infer(instance: Instance, arrays: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
    """Execute one request alone."""
    return output_arrays(execute(instance, [make_request(arrays, outputs)])[0])


def strings(*elements: bytes) -> Array:
    """Return a vector of BYTES elements."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
