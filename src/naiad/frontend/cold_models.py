"""HTTP requests and gRPC calls that are held, as they arrived, until their model is loaded."""

import logging
from collections.abc import Callable
from functools import partial

from naiad.core.errors import InferError, excerpt, internal
from naiad.core.model import name_of
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, GrpcCall, HttpContext
from naiad.protocol.json.document import SHORT_BYTES
from naiad.protocol.json.tree import parse_infer_document

_log = logging.getLogger(__name__)
_JSON_LENGTH = b"inference-header-content-length"
_MAX_DIGITS = 20
_TIMEOUT = b'"timeout"'

Refuse = Callable[[InferError], object]


def hold_context(context: HttpContext, cold: ColdModelError, handle: Callable[[], object]) -> None:
    """Hold an HTTP request, and handle it again when its model is loaded; again if it was evicted meanwhile."""
    name = name_of(cold.key)

    def refuse(error: InferError) -> None:
        error.has_begun = False
        failed_requests.refuse(context, "", name, "", error)

    def leave(why: CancelReason) -> None:
        held.cancel()
        failed_requests.log("HTTP", "", name, "", why.error(waited=True), getattr(context, "key_name", ""))

    def end(act: Callable[[], object]) -> None:
        context.on_disconnect = None
        act()

    def act() -> None:
        try:
            handle()
        except ColdModelError as again:
            hold_context(context, again, handle)

    try:
        held = cold.held.hold(
            cold,
            len(context.body),
            partial(end, partial(_handle, act, refuse, context.path)),
            lambda error: end(partial(refuse, error)),
            since_ns=context.arrival_ns,
            deadline_ns=_deadline_ns(context),
        )
    except InferError as error:
        refuse(error)
        return
    context.on_disconnect = leave


def _deadline_ns(context: HttpContext) -> int:
    """Return when the timeout in the JSON of a request has passed; 0 without one, and for a large or coded body."""
    length = context.headers.get(_JSON_LENGTH, b"")
    end = int(length) if length.isdigit() and len(length) < _MAX_DIGITS else len(context.body)
    if end > SHORT_BYTES:
        return 0
    text = bytes(context.body[:end])
    if _TIMEOUT not in text:
        return 0
    try:
        parameters = parse_infer_document(text).get("parameters")
    except InferError:
        return 0  # its route reports the mistake
    timeout_us = parameters.get("timeout") if isinstance(parameters, dict) else None
    return context.arrival_ns + timeout_us * 1000 if isinstance(timeout_us, int) and timeout_us > 0 else 0


def hold_call(
    call: GrpcCall, size_bytes: int, cold: ColdModelError, handle: Callable[[], object], timeout_us: int = 0
) -> None:
    """Hold a unary gRPC call, and handle it again when its model is loaded.

    `timeout_us`: of its request, 0 for none. The transport knows the deadline of the call.
    """

    def refuse(error: InferError) -> None:
        error.has_begun = False
        failed_requests.refuse_infer(call, "", name_of(cold.key), "", error)

    def leave(why: CancelReason) -> None:
        if held.cancel():
            refuse(why.error(waited=True))

    def end(act: Callable[[], object]) -> None:
        call.on_cancel = None
        act()

    try:
        held = cold.held.hold(
            cold,
            size_bytes,
            partial(end, partial(_handle, handle, refuse, call.path)),
            lambda error: end(partial(refuse, error)),
            since_ns=call.arrival_ns,
            deadline_ns=call.arrival_ns + timeout_us * 1000 if timeout_us else 0,
        )
    except InferError as error:
        refuse(error)
        return
    call.on_cancel = leave


def _handle(handle: Callable[[], object], refuse: Refuse, path: str) -> None:
    try:
        handle()
    except InferError as error:
        refuse(error)
    except Exception:
        _log.exception("%s of a request that was held for its model failed", excerpt(path))
        refuse(internal("internal error; see the server log"))
