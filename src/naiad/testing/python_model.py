"""A Python model in the test's own process."""

import inspect
import os
import queue
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from naiad.backend.custom_metrics import CustomMetrics
from naiad.config.forms.json_form import config_from_dict, config_to_json
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import raise_problems
from naiad.core.errors import InferError
from naiad.testing.called_models import Array, CalledModels, FakeModel, ModelError
from naiad.worker.api import pb_utils
from naiad.worker.api.failure import TritonModelException
from naiad.worker.api.metric_family import set_metric_server
from naiad.worker.api.request import InferenceRequest, RequestPlan, StreamedRequest
from naiad.worker.api.response import InferenceResponse
from naiad.worker.execution.execution import ModelLoop, awaited, checked
from naiad.worker.loop import completed_config
from naiad.worker.model_class import load_model_class

Arrays = Mapping[str, Array]
_DECOUPLED_S = 60.0


class PythonModel:
    """A Python model, initialized; `close` finalizes it."""

    def __init__(
        self,
        path: str | Path,
        *,
        config: str = "",
        version: int | None = None,
        models: Mapping[str, FakeModel] | None = None,
    ) -> None:
        """Load the model at `path`: its directory, or a `model.py`.

        `config` is the text of a `config.pbtxt` in place of the file beside the model; `version` a version directory,
        the newest by default. `models` are those that it can call, by name: functions from inputs to outputs, also
        `infer` and `stream` of other PythonModels. Raises exceptions of the import and of `initialize`, InferError
        for an invalid configuration, and ValueError for names in use by another open PythonModel.
        """
        path = Path(path).absolute()
        model_file = path if path.is_file() else _newest(path, version)
        model_dir = path if path.is_dir() else path.parent
        text = config or _text_of(model_dir / "config.pbtxt")
        parsed = parse_pbtxt(text, str(model_dir / "config.pbtxt"))
        raise_problems(parsed.problems)
        name = parsed.config.name or model_dir.name
        parsed.config.name = name
        pb_utils.set_model_dir(str(model_file.parent))
        before = list(sys.path)
        # A model imports `triton_python_backend_utils`, which is installed together with naiad.
        model_class = load_model_class(str(model_file), str(model_dir))
        self._paths = [entry for entry in sys.path if entry not in before]
        self.config: ModelConfig = _completed(model_class, parsed.config)
        """The configuration after `auto_complete_config`."""
        self.is_decoupled = self.config.model_transaction_policy.decoupled
        self.instance: Any = model_class()
        """The `TritonPythonModel` object."""
        self._loop = ModelLoop()
        self._called = CalledModels(models) if models else None
        METRICS.open()
        try:
            if hasattr(self.instance, "initialize"):
                self.instance.initialize(_args(self.config, model_dir, model_file))
        except BaseException:
            self._leave()
            raise

    def infer(
        self,
        inputs: Arrays,
        *,
        outputs: Sequence[str] = (),
        request_id: str = "",
        correlation_id: int | str = 0,
        flags: int = 0,
        parameters: Mapping[str, str | int | float | bool] | None = None,
    ) -> dict[str, Array]:
        """Execute one request and return its outputs by name. Raises ModelError if the model responds with an error.

        Arrays have the batch dimension that a client would send. `flags` are sequence flags.
        """
        (answer,) = self._execute([self._request(inputs, outputs, request_id, correlation_id, flags, parameters)])
        return _outputs(answer)

    def infer_batch(self, batch: Sequence[Arrays]) -> list[dict[str, Array] | ModelError]:
        """Execute several requests in one call of `execute`; return the result of each, an error as an object."""
        answers = self._execute([self._request(inputs) for inputs in batch])
        return [_outputs_or_error(answer) for answer in answers]

    def stream(self, inputs: Arrays, *, request_id: str = "") -> Iterator[dict[str, Array]]:
        """Yield the responses to one request of a decoupled model as they are sent.

        Raises ModelError for an error response, TimeoutError if no response arrives for a minute.
        """
        stream = _Stream()
        tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
        returned = self.instance.execute([StreamedRequest(RequestPlan(parameters="{}"), request_id, tensors, stream)])
        if inspect.iscoroutine(returned):
            returned = self._loop.run(returned)
        if returned is not None:
            raise ModelError("the execute function of a decoupled model must return None")
        while True:
            try:
                response, is_final = stream.responses.get(timeout=_DECOUPLED_S)
            except queue.Empty:
                raise TimeoutError(f"no response within {_DECOUPLED_S:g} s") from None
            if response is not None:
                yield _outputs(response)
            if is_final:
                return

    @property
    def metrics(self) -> dict[str, float]:
        """The values of the custom metrics of this and the other open models.

        By name and labels in the form of `/metrics`: `requests_total{kind="a"}`.
        """
        return METRICS.values()

    def _request(
        self,
        inputs: Arrays,
        outputs: Sequence[str] = (),
        request_id: str = "",
        correlation_id: int | str = 0,
        flags: int = 0,
        parameters: Mapping[str, Any] | None = None,
    ) -> InferenceRequest:
        wanted = outputs or [output.name for output in self.config.output]
        return InferenceRequest(
            request_id,
            correlation_id,
            [pb_utils.Tensor(name, array) for name, array in inputs.items()],
            wanted,
            self.config.name,
            flags=flags,
            parameters=dict(parameters or {}),
        )

    def _execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse]:
        returned = self.instance.execute(requests)
        if inspect.iscoroutine(returned):
            returned = self._loop.run(returned)
        responses, are_late = checked(requests, returned)
        if not are_late:
            return responses
        self._loop.keep_running()
        # A request without other references gets no more responses.
        requests.clear()
        return awaited(responses)

    def close(self) -> None:
        """Finalize the model."""
        if hasattr(self.instance, "finalize"):
            self.instance.finalize()
        self._loop.close()
        self._leave()

    def _leave(self) -> None:
        METRICS.close()
        if self._called is not None:
            self._called.close()
        for entry in self._paths:
            if entry in sys.path:
                sys.path.remove(entry)

    def __enter__(self) -> "PythonModel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Stream:
    """Receives the responses of a decoupled model."""

    def __init__(self) -> None:
        self.responses: queue.Queue[tuple[InferenceResponse | None, bool]] = queue.Queue()
        self._is_closed = False

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Receive a response, from any thread."""
        if self._is_closed:
            raise pb_utils.TritonModelException("Unable to send response. Response sender has been closed.")
        self._is_closed = is_final
        self.responses.put((response, is_final))

    def is_cancelled(self) -> bool:
        """Return False: the test does not cancel."""
        return False


def _newest(directory: Path, version: int | None) -> Path:
    versions = sorted(int(child.name) for child in directory.iterdir() if child.is_dir() and child.name.isdigit())
    if version is None and not versions:
        return directory / "model.py"
    return directory / str(versions[-1] if version is None else version) / "model.py"


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _completed(model_class: Any, config: ModelConfig) -> ModelConfig:
    args = {"model_config": config_to_json(config).decode(), "model_name": config.name}
    completed = completed_config(model_class, args)
    if completed is None:
        return config
    made, problems = config_from_dict(completed)
    raise_problems(problems)
    return made


def _args(config: ModelConfig, model_dir: Path, model_file: Path) -> dict[str, str]:
    version = model_file.parent.name
    return {
        "model_config": config_to_json(config).decode(),
        "model_instance_kind": "CPU",
        "model_instance_name": _instance_name(config),
        "model_instance_device_id": "0",
        "model_repository": os.fspath(model_dir),
        "model_version": version if version.isdigit() else "1",
        "model_name": config.name,
    }


def _instance_name(config: ModelConfig) -> str:
    """Return the name of the first instance in a server."""
    group = config.instance_group[0].name or f"{config.name}_0" if config.instance_group else config.name
    return f"{group}_0"


def _outputs_or_error(response: InferenceResponse) -> dict[str, Array] | ModelError:
    if response.has_error():
        error = response.error()
        return ModelError(error.message() if error is not None else "")
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def _outputs(response: InferenceResponse) -> dict[str, Array]:
    found = _outputs_or_error(response)
    if isinstance(found, ModelError):
        raise found
    return found


class TestedMetrics:
    """The metrics shared by all open models of the process; each model opens and closes them."""

    __test__ = False
    """Not collected by pytest."""

    def __init__(self) -> None:
        self._open_count = 0
        self._server: _Server | None = None

    def open(self) -> None:
        """Count an opened model."""
        self._open_count += 1
        if self._server is None:
            self._server = _Server()
            set_metric_server(self._server)

    def close(self) -> None:
        """Count a closed model; the last one removes the metrics."""
        self._open_count -= 1
        if not self._open_count and self._server is not None:
            set_metric_server(None)
            self._server.close()
            self._server = None

    def values(self) -> dict[str, float]:
        """Return the value of each series, by its name and labels in the form of `/metrics`."""
        text = "\n".join(self._server.metrics.render()) if self._server is not None else ""
        lines = [line.rpartition(" ") for line in text.split("\n") if line and not line.startswith("#")]
        return {series: float(value) for series, _, value in lines}


class _Server:
    """Replaces the worker's connection to the server."""

    def __init__(self) -> None:
        self.metrics = CustomMetrics()
        self._holder = self.metrics.holder()
        self.cells = self.metrics.cells

    def new_family(self, name: str, description: str, kind: str) -> int:
        try:
            return self._holder.new_family(name, description, kind)
        except InferError as error:
            raise TritonModelException(error.message) from None

    def new_metric(
        self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None
    ) -> tuple[int, Sequence[float]]:
        try:
            return self._holder.new_metric(family, labels, buckets)
        except InferError as error:
            raise TritonModelException(error.message) from None

    def release_family(self, family: int) -> None:
        self._holder.release_family(family)

    def close(self) -> None:
        self._holder.close()
        self.metrics.close()


METRICS = TestedMetrics()
