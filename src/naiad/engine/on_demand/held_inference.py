"""Decoded requests that wait for their model: calls of models, requests inside programs, and large bodies."""

from collections.abc import Callable
from functools import partial

from naiad.core.errors import InferError, cancelled_request
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.on_demand.held_requests import ColdModelError, HeldRequest


class WaitsForLoad:
    """In place of the version of a request that is held: it can be cancelled, and is not executed yet."""

    __slots__ = ("_held", "version")

    def __init__(self, version: str) -> None:
        self.version = version
        self._held: HeldRequest | None = None

    def begin(self, held: HeldRequest) -> None:
        """Set what holds the request."""
        self._held = held

    def is_waiting(self, request: InferRequest) -> bool:
        """Return True: no instance executes it."""
        return True

    def cancel(self, request: InferRequest) -> bool:
        """Drop the request, which gets the response CANCELLED; return False if it is not held any more."""
        if request.cancelled or self._held is None or not self._held.cancel():
            return False
        request.cancelled = True
        _refuse(request, cancelled_request())
        return True


def hold_request(request: InferRequest, cold: ColdModelError, submit: Callable[[InferRequest], None]) -> None:
    """Hold a request until its model is loaded, and submit it then; errors become its response.

    Raises InferError if it is not held.
    """
    header = request.header
    timeout_ns = request.arrival_ns + header.timeout_us * 1000 if header.timeout_us else 0
    deadlines = [each for each in (request.deadline_ns, timeout_ns) if each]
    waits = WaitsForLoad(header.model_version)
    held = cold.held.hold(
        cold,
        0 if header.is_on_device else sum(map(len, request.data)),
        partial(_resume, request, submit),
        partial(_refuse, request),
        since_ns=request.arrival_ns,
        deadline_ns=min(deadlines, default=0),
        is_urgent=request.call is not None,
    )
    waits.begin(held)
    request.model = waits


def _resume(request: InferRequest, submit: Callable[[InferRequest], None]) -> None:
    request.model = None
    try:
        submit(request)
    except InferError as error:
        _refuse(request, error)


def _refuse(request: InferRequest, error: InferError) -> None:
    header = ResponseHeader(request.header.model_name, request.header.model_version, ())
    request.on_response(request, InferResponse(header, error=error))
