"""Warm-up: every instance executes the samples of the configuration before the version is ready."""

import logging
import math
import select
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from naiad.backend.api import Instance, InstanceSpec, ModelContext, RemoteInstance
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelWarmup
from naiad.config.tensors.padding import read_padding
from naiad.core.batch import Batch
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import InferError, invalid_argument
from naiad.core.request import InferRequest, RequestHeader, ignore_response
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer, TensorSpec, to_buffer, zeros
from naiad.engine.admission import AdmissionRules
from naiad.engine.transforms.padding import PaddedRequests

_log = logging.getLogger(__name__)

_DECOUPLED_S = 300.0
"""Time limit of the final responses of a decoupled model to a sample."""
_LOOK_MS = 250
"""Polling interval meanwhile."""
_EXIT_POLL_S = 0.002
"""Polling interval for the exit status of a process that has closed its sockets."""


class WarmUp:
    """The samples of one version, read and checked once, executed on each instance."""

    def __init__(self, context: ModelContext) -> None:
        """Read and check every sample. Raises InferError for one that does not fit the model or cannot be read."""
        self._context = context
        self._is_decoupled = context.config.model_transaction_policy.decoupled
        padding = read_padding(context.config)
        self._padding = None if padding is None else PaddedRequests(context.config, padding)
        # Sequence controls are part of a sample; masks and lengths are derived from it as from a request.
        self._rules = AdmissionRules(execution_config(context.config) if padding is None else context.config)
        self._samples = [
            (sample, self._requests(sample)) for sample in context.config.model_warmup if sample.batch_size != 0
        ]

    def run(self, instance: Instance, spec: InstanceSpec) -> None:
        """Execute every sample on an instance, in order. Raises InferError if one fails."""
        for sample, requests in self._samples:
            # Triton: 0 means once.
            for iteration in range(1, (sample.count or 1) + 1):
                _log.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    self._context.name,
                    spec.name,
                    sample.name,
                    iteration,
                )
                start_ns = time.monotonic_ns()
                try:
                    with self._context.stop.calling(instance.interrupt):
                        self._execute(instance, requests)
                except Exception as error:
                    self._context.stop.check()
                    raise self._failed(sample, spec, error) from error
                seconds = (time.monotonic_ns() - start_ns) / 1e9
                _log.info(
                    "model '%s' version %d: instance '%s' executed warmup sample '%s' in %.3f s",
                    self._context.name,
                    self._context.version,
                    spec.name,
                    sample.name,
                    seconds,
                )

    def _failed(self, sample: ModelWarmup, spec: InstanceSpec, error: Exception) -> InferError:
        said = error.message if isinstance(error, InferError) else f"{type(error).__name__}: {error}"
        return invalid_argument(
            f"model '{self._context.name}' version {self._context.version}: failed to run warmup sample "
            f"'{sample.name}': {said} (instance '{spec.name}')"
        )

    def _execute(self, instance: Instance, requests: Sequence[InferRequest]) -> None:
        # An instance may release a request's data.
        fresh = [InferRequest(r.header, r.data, ignore_response, id=r.id) for r in requests]
        for request in fresh:
            request.batch_size = 1
        batch = Batch(fresh, len(fresh), "warmup")
        batch.exec_start_ns = time.monotonic_ns()
        finals = _Finals(len(fresh))
        if self._padding is not None:
            self._padding.prepare(batch)
        if self._is_decoupled:
            batch.emit = finals.emit
        for response in instance.execute(batch):
            if response.error is not None:
                raise response.error
        if self._is_decoupled:
            deadline_s = time.monotonic() + _DECOUPLED_S
            if isinstance(instance, RemoteInstance):
                _listen(instance, deadline_s)
            finals.wait(deadline_s)

    # --- samples ---------------------------------------------------------------------------------------------------

    def _requests(self, sample: ModelWarmup) -> Sequence[InferRequest]:
        """Return the requests of a sample: one per row of its batch size."""
        name = self._context.name
        rows = (1,) if self._context.config.max_batch_size > 0 else ()
        specs: list[TensorSpec] = []
        data: list[Buffer] = []
        for tensor, entry in sorted(sample.inputs.items()):
            spec = TensorSpec(tensor, BY_CONFIG_NUMBER[entry.data_type], (*rows, *entry.dims))
            specs.append(spec)
            try:
                data.append(self._data(sample, spec, entry))
            except (MemoryError, OverflowError):
                raise invalid_argument(
                    f"model '{name}': warmup sample '{sample.name}', input '{tensor}': there is no memory for "
                    f"{spec.byte_size} bytes of {spec.datatype.value} {list(spec.shape)}; lower its dims"
                ) from None
        header = RequestHeader(model_name=name, inputs=specs)
        request = InferRequest(header, data, ignore_response, id=f"warmup {sample.name}")
        try:
            self._rules.check_sizes(request, self._rules.admit(request))
        except InferError as error:
            raise invalid_argument(f"model '{name}': warmup sample '{sample.name}': {error.message}") from None
        return [request] * sample.batch_size

    def _data(self, sample: ModelWarmup, spec: TensorSpec, entry: ModelWarmup.Input) -> Buffer:
        kind = entry.WhichOneof("input_data_type")
        if kind == "input_data_file":
            return self._file(sample, spec, self._context.model_dir / "warmup" / entry.input_data_file)
        # Triton: random strings are empty.
        return _random(spec) if kind == "random_data" and spec.datatype is not DataType.BYTES else zeros(spec)

    def _file(self, sample: ModelWarmup, spec: TensorSpec, path: Path) -> Buffer:
        opening = f"model '{self._context.name}': warmup sample '{sample.name}', input '{spec.name}'"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise invalid_argument(f"{opening}: {path} cannot be read: {error.strerror}") from error
        if spec.datatype is not DataType.BYTES and len(data) < spec.byte_size:
            raise invalid_argument(
                f"{opening}: {path} has {len(data)} bytes, expected {spec.byte_size} for {spec.datatype.value} "
                f"{list(spec.shape)}"
            )
        return data if spec.datatype is DataType.BYTES else data[: spec.byte_size]


class _Finals:
    """Waits for the final responses of a decoupled model."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._error: InferError | None = None
        self._changed = threading.Condition()

    def emit(self, request: InferRequest, response: InferResponse) -> None:
        """Receive a response, on any thread."""
        with self._changed:
            self._error = self._error or response.error
            if response.final:
                self._left -= 1
                self._changed.notify_all()

    def wait(self, deadline_s: float) -> None:
        """Wait for every final response. Raises InferError for an error response or a timeout."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._left <= 0, max(0.0, deadline_s - time.monotonic())):
                raise invalid_argument(f"no final response within {_DECOUPLED_S:g} s")
        if self._error is not None:
            raise self._error


def _listen(instance: RemoteInstance, deadline_s: float) -> None:
    """Read the responses that a process sends after its batch: no runner reads them before requests arrive."""
    while instance.is_busy and time.monotonic() < deadline_s:
        if instance.is_silent:
            time.sleep(_EXIT_POLL_S)
        else:
            poll = select.poll()
            poll.register(instance.fileno(), select.POLLIN)
            if not poll.poll(_LOOK_MS):
                continue
        instance.finish()


def _random(spec: TensorSpec) -> Buffer:
    """Return values that are valid for every model: fractions of one, small numbers, truth values."""
    generator = np.random.default_rng(0)
    dtype = spec.datatype.numpy
    count = math.prod(spec.shape)
    if dtype.kind in "iu":
        return to_buffer(generator.integers(0, 100, count).astype(dtype))
    if dtype.kind == "b":
        return to_buffer(generator.integers(0, 2, count).astype(dtype))
    return to_buffer(generator.random(count).astype(dtype))
