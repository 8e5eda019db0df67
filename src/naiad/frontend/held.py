"""HTTP requests and gRPC calls that are held, as they arrived, until their model is loaded."""

import logging
from collections.abc import Callable
from functools import partial

from naiad.core.errors import InferError, excerpt, internal
from naiad.core.model import name_of
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, GrpcCall, HttpContext

_log = logging.getLogger(__name__)

Refuse = Callable[[InferError], object]


def hold_context(context: HttpContext, cold: ColdModelError, handle: Callable[[], object]) -> None:
    """Hold an HTTP request, and handle it again when its model is loaded."""
    name = name_of(cold.key)

    def refuse(error: InferError) -> None:
        failed_requests.refuse(context, "", name, "", error)

    def leave(why: CancelReason) -> None:
        held.cancel()
        failed_requests.log("HTTP", "", name, "", why.error(waited=True), getattr(context, "key_name", ""))

    def end(act: Callable[[], object]) -> None:
        context.on_disconnect = None
        act()

    try:
        held = cold.held.hold(
            cold,
            len(context.body),
            partial(end, partial(_handle, handle, refuse, context.path)),
            lambda error: end(partial(refuse, error)),
            since_ns=context.arrival_ns,
        )
    except InferError as error:
        refuse(error)
        return
    context.on_disconnect = leave


def hold_call(call: GrpcCall, size_bytes: int, cold: ColdModelError, handle: Callable[[], object]) -> None:
    """Hold a unary gRPC call, and handle it again when its model is loaded. The transport knows its deadline."""

    def refuse(error: InferError) -> None:
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
