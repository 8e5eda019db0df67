"""The worker's part: runs an instance of a backend as a worker runs a Python model.

A worker is a transport, a loop, and an executor of batches: the class of a `model.py`, or this adapter. It creates
`InferRequest`s from received requests and passes them to an `Instance`. Tensors stay views on the received payload.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.loading import load_backend
from naiad.config.forms.json_form import config_from_dict, config_to_json
from naiad.core.batch import Batch, SequenceEnd
from naiad.core.datatype import BY_NAME
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import RESCHEDULE, InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec, to_buffer
from naiad.worker.api.failure import ErrorCode as WorkerErrorCode
from naiad.worker.api.failure import LoadError, TritonError
from naiad.worker.api.request import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    RequestPlan,
)
from naiad.worker.api.response import TRITONSERVER_RESPONSE_COMPLETE_FINAL, InferenceResponse
from naiad.worker.api.tensor import ReceivedStrings, ReceivedTensor, Tensor, TensorPlan

_log = logging.getLogger(__name__)
_CODES = {code.value: code for code in WorkerErrorCode}
"""The codes that a response can have: Triton's."""
MAX_HEADERS = 1024
"""Limit of the cached headers of requests, and of responses."""


class InstanceAdapter:
    """One instance of a backend, with the methods of a `TritonPythonModel`."""

    def __init__(self) -> None:
        self._name = ""
        self._version = ""
        self._is_batching = False
        self._is_decoupled = False
        self._model: Model | None = None
        self._instance: Instance | None = None
        self._request_headers: dict[RequestPlan, RequestHeader] = {}
        self._output_plans: dict[ResponseHeader, Sequence[TensorPlan]] = {}

    @classmethod
    def describe(cls, args: Mapping[str, str]) -> dict[str, Any]:
        """Return the backend's facts about a model that is not loaded: its configuration, and its support of GPUs.

        Raises LoadError.
        """
        try:
            backend, context = _open(args)
            completed = backend.auto_complete(context)
            return {
                "config": json.loads(config_to_json(completed)),
                "gpu_unsupported_reason": backend.gpu_unsupported_reason(),
            }
        except InferError as error:
            raise LoadError(error.message) from error

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model and create the instance. Raises LoadError."""
        try:
            backend, context = _open(args)
            self._name, self._version = context.name, str(context.version)
            self._is_batching = context.config.max_batch_size > 0
            self._is_decoupled = context.config.model_transaction_policy.decoupled
            self._model = backend.load(context)
            self._instance = instance = self._model.create_instance(_spec(args))
        except InferError as error:
            raise LoadError(error.message) from error
        if type(instance).says_ready is not Instance.says_ready:
            # A worker calls this method of a model.
            self.is_ready = lambda: instance.says_ready

    def execute(self, requests: Sequence[InferenceRequest]) -> list[InferenceResponse | None] | None:
        """Execute a batch; see `Instance.execute`. Failures are errors in the responses."""
        # hot: bench/micro_worker.py
        instance = self._instance
        if instance is None:
            raise RuntimeError("the instance is closed")
        received = [self._request(request) for request in requests]
        batch = Batch(received, sum([request.batch_size for request in received]))
        if self._is_decoupled:
            batch.emit = self._emit
        try:
            responses = instance.execute(batch)
        except InferError as error:
            responses = self._failures(batch, error)
        except Exception as error:
            _log.exception("executing model '%s' failed", self._name)
            text = f"executing model '{self._name}' failed: {type(error).__name__}: {error}"
            responses = self._failures(batch, InferError(ErrorCode.INTERNAL, text))
        if self._is_decoupled:
            for response, request in zip(responses, received, strict=False):
                self._emit(request, response)
            return None
        return [self._response(request, response) for request, response in zip(requests, responses, strict=True)]

    def sequence_ended(self, correlation_id: int | str, reason: Any) -> None:
        """Pass the end of a sequence on."""
        if self._instance is not None:
            self._instance.end_sequences([SequenceEnd(correlation_id, reason)])

    def finalize(self) -> None:
        """Close the instance and its model."""
        instance, model = self._instance, self._model
        self._instance = self._model = None
        if instance is not None:
            instance.close()
        if model is not None:
            model.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    def _request(self, request: InferenceRequest) -> InferRequest:
        header = self._request_headers.get(request._plan)
        if header is None:
            if len(self._request_headers) >= MAX_HEADERS:
                self._request_headers.clear()
            header = self._request_headers[request._plan] = self._header(request)
        received = _ReceivedRequest(header, [_data(tensor) for tensor in request._inputs], request)
        if self._is_batching and header.inputs:
            received.batch_size = header.inputs[0].shape[0]
        return received

    def _header(self, request: InferenceRequest) -> RequestHeader:
        plan = request._plan
        parameters = json.loads(plan.parameters or "{}")
        return RequestHeader(
            model_name=self._name,
            model_version=self._version,
            inputs=[TensorSpec(t._name, BY_NAME[t._datatype], _shape(t)) for t in request._inputs],
            outputs=[RequestedOutput(name) for name in sorted(plan.output_names)],
            parameters=parameters,
            timeout_us=plan.timeout_us,
            sequence_id=plan.correlation_id,
            sequence_start=bool(plan.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            sequence_end=bool(plan.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        )

    # --- responses --------------------------------------------------------------------------------------------------

    def _failures(self, batch: Batch, error: InferError) -> Sequence[InferResponse]:
        header = ResponseHeader(self._name, self._version, ())
        return [InferResponse(header, error=error) for _ in batch.requests]

    def _response(self, request: InferenceRequest, response: InferResponse) -> InferenceResponse | None:
        if response is RESCHEDULE:
            request.set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        return self._encodable(response)

    def _emit(self, request: InferRequest, response: InferResponse) -> None:
        """Send a response of a decoupled model; callable from any thread."""
        received: InferenceRequest = request.context  # type: ignore[assignment]  # set by `_ReceivedRequest`
        if response is RESCHEDULE:
            received.set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return
        flags = TRITONSERVER_RESPONSE_COMPLETE_FINAL if response.final else 0
        received.get_response_sender().send(None if response.empty_final else self._encodable(response), flags)

    def _encodable(self, response: InferResponse) -> InferenceResponse:
        error = response.error
        if error is not None:
            code = _CODES.get(error.code.value, TritonError.INTERNAL)
            return InferenceResponse((), TritonError(error.message, code))
        plans = self._output_plans.get(response.header)
        if plans is None:
            if len(self._output_plans) >= MAX_HEADERS:
                self._output_plans.clear()
            plans = [TensorPlan(spec.name, spec.datatype.value, spec.shape) for spec in response.header.outputs]
            self._output_plans[response.header] = plans
        tensors = [
            ReceivedStrings(plan, data, 0, len(data)) if plan.is_text else ReceivedTensor(plan, data, 0)
            for plan, data in zip(plans, response.data, strict=True)
        ]
        return InferenceResponse(tensors, None, dict(response.parameters) if response.parameters else None)


class _ReceivedRequest(InferRequest):
    """A request that reads its cancellation from the flags page."""

    def __init__(self, header: RequestHeader, data: Sequence[Buffer], request: InferenceRequest) -> None:
        self._is_cancelled = request.is_cancelled
        # Responses are returned by instances, or emitted.
        super().__init__(header, data, lambda *_: None, id=request._id, context=request)

    @property
    def cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
        return self._is_cancelled()

    @cancelled.setter
    def cancelled(self, _: bool) -> None:
        """Ignore the initial value."""


def _data(tensor: Tensor) -> Buffer:
    if type(tensor) is ReceivedStrings and tensor._data is not None:
        return tensor._data
    return to_buffer(tensor._array)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tensor._plan.shape if type(tensor) is ReceivedStrings else tuple(tensor._array.shape)


# --- what the server says of the model ------------------------------------------------------------------------------


def _open(args: Mapping[str, str]) -> tuple[Backend, ModelContext]:
    """Return the backend and the context of the model. Raises InferError, and LoadError."""
    notes = json.loads(args["isolation"])
    config, _ = config_from_dict(json.loads(args["model_config"]))
    context = ModelContext(
        name=args["model_name"],
        version=int(args["model_version"]),
        config=config,
        model_dir=Path(args["model_repository"]),
        version_dir=Path(notes["version_dir"]),
        usable_cores=notes["usable_cores"],
        backend_config=notes["backend_config"],
        execute_timeout_s=notes["execute_timeout_s"],
        namespace=notes["namespace"],
    )
    return load_backend(notes["backend"], notes["point"]), context


def _spec(args: Mapping[str, str]) -> InstanceSpec:
    return InstanceSpec(
        name=args["model_instance_name"],
        index=int(json.loads(args["isolation"])["index"]),
        kind="KIND_" + args["model_instance_kind"],
        device_id=int(args["model_instance_device_id"]),
    )
