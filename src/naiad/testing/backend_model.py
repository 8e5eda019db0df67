"""A model of a backend in the test's own process."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from naiad.backend.api import Backend, InstanceSpec, ModelContext
from naiad.client.client import encode_tensors
from naiad.config.autofill import autofill, merge_auto_completed, normalize
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.problem import raise_problems
from naiad.config.validate.model import validate
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, InferError, unsupported
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import to_array
from naiad.testing.called_models import ModelError

Array: TypeAlias = np.ndarray[Any, Any]


class BackendModel:
    """One instance of a model; `close` closes both. Configuration and arrays are as in a server."""

    def __init__(
        self,
        backend: Backend,
        path: str | Path,
        *,
        config: str = "",
        version: int | None = None,
        backend_config: Mapping[str, str] | None = None,
    ) -> None:
        """Load the model in the directory `path` of a model repository.

        `config` is the text of a `config.pbtxt` in place of the file in the directory; `version` a version directory,
        the newest by default; `backend_config` the settings of `--backend-config`. Raises InferError if a server
        would refuse to load the model, and for a decoupled model, whose responses have no receiver here.
        """
        model_dir = Path(path).absolute()
        context = _context(backend, model_dir, _version_of(model_dir, version), config, backend_config or {})
        self.config = context.config
        """The configuration after `auto_complete` and with defaults."""
        if self.config.model_transaction_policy.decoupled:
            raise unsupported(f"model '{context.name}' is decoupled; call 'Instance.execute' with a Batch and 'emit'")
        self._model = backend.load(context)
        try:
            group = self.config.instance_group[0].name
            self._instance = self._model.create_instance(InstanceSpec(f"{group}_0", 0, "KIND_CPU"))
        except BaseException:
            self._model.close()
            raise

    def infer(
        self,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] = (),
        parameters: Mapping[str, str | int | float | bool] | None = None,
    ) -> dict[str, Array]:
        """Execute one request and return its outputs by name, all unless `outputs` names some.

        Arrays have the batch dimension that a client would send. Raises ModelError for an error of the model.
        """
        (found,) = self._execute([self._request(inputs, outputs, parameters)])
        if isinstance(found, ModelError):
            raise found
        return found

    def infer_batch(self, batch: Sequence[Mapping[str, Array]]) -> list[dict[str, Array] | ModelError]:
        """Execute several requests as one batch; return the result of each, an error as an object."""
        return self._execute([self._request(inputs) for inputs in batch])

    def close(self) -> None:
        """Close the instance and the model."""
        self._instance.close()
        self._model.close()

    def __enter__(self) -> "BackendModel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _request(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = (),
        parameters: Mapping[str, str | int | float | bool] | None = None,
    ) -> InferRequest:
        specs, data = encode_tensors(inputs)
        header = RequestHeader(
            model_name=self.config.name,
            inputs=specs,
            outputs=[RequestedOutput(name) for name in outputs],
            parameters=dict(parameters or {}),
        )
        request = InferRequest(header, data, _ignore)
        if self.config.max_batch_size and specs and specs[0].shape:
            request.batch_size = specs[0].shape[0]
        return request

    def _execute(self, requests: Sequence[InferRequest]) -> list[dict[str, Array] | ModelError]:
        batch = Batch(requests, sum(request.batch_size for request in requests))
        try:
            responses = self._instance.execute(batch)
        except InferError as error:
            return [ModelError(error.message)] * len(requests)
        if len(responses) != len(requests):
            raise AssertionError(f"the backend returned {len(responses)} responses for {len(requests)} requests")
        return [_outputs(response) for response in responses]


def _context(
    backend: Backend, model_dir: Path, version: int, text: str, backend_config: Mapping[str, str]
) -> ModelContext:
    """Return the context of a version, with its configuration completed as in a server. Raises InferError."""
    version_dir = model_dir / str(version)
    path = model_dir / "config.pbtxt"
    parsed = parse_pbtxt(text or (path.read_text(encoding="utf-8") if path.is_file() else ""), str(path))
    raise_problems(parsed.problems)
    files = sorted(child.name for child in version_dir.iterdir()) if version_dir.is_dir() else []
    config = normalize(autofill(parsed.config, model_name=model_dir.name, version_files=files))
    config.backend = config.backend or backend.name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    context = ModelContext(config.name, version, config, model_dir, version_dir, cores, backend_config=backend_config)
    completed = merge_auto_completed(config, backend.auto_complete(context))
    count = backend.default_instance_count(replace(context, config=completed))
    final = normalize(completed, default_cpu_instances=count)
    raise_problems(validate(final, model_name=model_dir.name, parsed=parsed, complete=True))
    return replace(context, config=final)


def _version_of(model_dir: Path, version: int | None) -> int:
    if version is not None:
        return version
    versions = [int(child.name) for child in model_dir.iterdir() if child.is_dir() and child.name.isdigit()]
    if not versions:
        raise InferError(ErrorCode.NOT_FOUND, f"{model_dir} has no version directory, as {model_dir / '1'}")
    return max(versions)


def _outputs(response: InferResponse) -> dict[str, Array] | ModelError:
    if response.error is not None:
        return ModelError(response.error.message)
    pairs = zip(response.header.outputs, response.data, strict=True)
    return {spec.name: to_array(spec, data) for spec, data in pairs}


def _ignore(request: InferRequest, response: InferResponse) -> None:
    """Ignore a response: instances return them."""
