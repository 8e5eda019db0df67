"""Inference: the way of every request to the version that executes it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from naiad.core.errors import InferError, unavailable
from naiad.core.limits.request_limits import RequestLimits
from naiad.core.request import InferRequest
from naiad.engine.lookup.model_table import ModelTable
from naiad.engine.on_demand.held_inference import WaitsForLoad, hold_request
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.engine.regions.regions import SharedMemory
from naiad.engine.serving.served import Served
from naiad.engine.transforms.device_headers import DeviceHeaders
from naiad.engine.transforms.shared_memory import SharedMemoryTensors
from naiad.options.trace import TraceOptions
from naiad.telemetry.trace.tracer import Changes, Trace, Tracer, unknown_model

if TYPE_CHECKING:
    from naiad.telemetry.traffic import Recorder


_MOST_TENSORS = 1024
"""Inputs and outputs of a request for a model that is not loaded: what it has is not known."""


class Inference:
    """Submits and cancels requests; traces and records them. Used on the event loop.

    Frontends hold it, and look up a version here before they submit.
    """

    def __init__(self, models: ModelTable, shared_memory: SharedMemory) -> None:
        self._models = models
        self.served = models.served
        """`ModelTable.served`: a caller that looks up and submits needs one object, and no call in between."""
        self._shared_memory = shared_memory
        self._device_headers = DeviceHeaders()
        self._tracer: Tracer | None = None
        self._begin_trace: Callable[[InferRequest], Trace | None] | None = None
        """None without tracing, which then has no cost."""
        self.recorder: Recorder | None = None
        """Records requests; set before the frontends start. None: nothing is recorded."""

    def submit(self, request: InferRequest, served: Served | None = None) -> None:
        """Submit a request; the response arrives through `request.on_response` on the loop.

        `served` is the version, if the caller has looked it up in the same callback of the loop. Raises InferError if
        the request is rejected; then `on_response` is not called.
        """
        # hot: once a request
        header = request.header
        if served is None:
            try:
                served = self.served(header.model_name, header.model_version)
            except ColdModelError as cold:
                hold_request(request, cold, self.submit)
                return
        # The tracer comes second: it finds the parents of traces by their callbacks.
        recording = None if self.recorder is None else self.recorder.begin(request)
        trace = None if self._begin_trace is None else self._begin_trace(request)
        try:
            if header.is_plain:
                served.submit(request)
            else:
                self._submit_exchanged(request, served)
        except InferError as error:
            if trace is not None:
                trace.drop()
            if recording is not None:
                recording.end(request, error)
            error.has_begun = False
            raise

    def _submit_exchanged(self, request: InferRequest, served: Served) -> None:
        """Submit a request with tensors in shared memory or with classified outputs."""
        # Triton: the error of a missing region precedes that of a wrong shape.
        exchange = SharedMemoryTensors(request, served, self._shared_memory, self._device_headers)
        try:
            served.submit(request)
        except InferError:
            exchange.release()
            raise

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a submitted request: drop it if queued, mark it if executing.

        Called on the loop. A dropped request gets the response CANCELLED before this returns True.
        """
        served: Served | WaitsForLoad | None = request.model
        return served is not None and served.cancel(request)

    def is_decoupled(self, name: str, version: str = "") -> bool:
        """Return whether a model is decoupled. Raises NOT_FOUND for an unknown model."""
        try:
            return self.served(name, version).is_decoupled
        except ColdModelError as cold:
            return cold.held.is_decoupled(name)

    def request_limits(self, name: str, version: str = "") -> RequestLimits:
        """Return the limits of a request for a model. Raises NOT_FOUND for an unknown model."""
        try:
            config = self.served(name, version).config
        except ColdModelError:
            return RequestLimits(name, _MOST_TENSORS, _MOST_TENSORS)
        return RequestLimits(name, len(config.input), len(config.output))

    # --- tracing --------------------------------------------------------------------------------------------------

    def trace(self, tracer: Tracer) -> None:
        """Enable tracing; called once, before the frontends start."""
        self._tracer = tracer
        self._begin_trace = tracer.begin if tracer.is_on else None

    def trace_settings(self, model: str = "") -> TraceOptions:
        """Return the trace settings of a model, or of the server. Raises InferError for an unknown model."""
        return self._known_tracer(model).options_of(model)

    def change_trace_settings(self, model: str, changes: Changes) -> None:
        """Change the trace settings of a model, or of the server with "". Raises InferError, without any change."""
        tracer = self._known_tracer(model)
        tracer.change(model, changes)
        self._begin_trace = tracer.begin if tracer.is_on else None

    def _known_tracer(self, model: str) -> Tracer:
        models = self._models
        is_known = model in models.named or (models.held is not None and models.held.knows(model))
        if model and not is_known:
            raise unknown_model(model)
        if self._tracer is None:
            raise unavailable("Server not ready")
        return self._tracer
