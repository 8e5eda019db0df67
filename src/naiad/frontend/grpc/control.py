"""Control operations over gRPC."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from naiad.core.errors import InferError, excerpt, internal
from naiad.core.tensor import Buffer
from naiad.frontend import failed_requests
from naiad.frontend.context import GrpcCall
from naiad.frontend.control.control import ControlCalls, ControlExchange
from naiad.frontend.control.control_audit import audited_call
from naiad.operations.operation import AnyOperation, MayBringFiles

_log = logging.getLogger(__name__)

HandleCall = Callable[[GrpcCall, Buffer], None]
"""Handles a unary call; its response may follow later."""


def control_handlers(
    operations: Sequence[AnyOperation], calls: ControlCalls, may_bring_files: MayBringFiles
) -> Mapping[str, HandleCall]:
    """Return the handlers of the control operations that have a gRPC method, by its path."""
    return {
        operation.grpc.path: _handler(operation, calls, may_bring_files)
        for operation in operations
        if operation.grpc is not None and operation.call is not None
    }


def _handler(operation: AnyOperation, calls: ControlCalls, may_bring_files: MayBringFiles) -> HandleCall:
    form, permit = operation.grpc, operation.permit
    if form is None or form.decode is None or form.encode is None:
        raise ValueError(f"{operation.name} has a call, but its gRPC method no decode and encode")
    decode, encode, target = form.decode, form.encode, form.target

    def decoder(message: Buffer) -> Callable[[], Any]:
        if permit is None:
            return partial(decode, message)
        return lambda: permit(decode(message), may_bring_files)

    def handle(call: GrpcCall, message: Buffer) -> None:
        if target is not None:
            call = audited_call(call, target(message), len(message))
        try:
            calls.handle(
                ControlExchange(
                    operation, call.client, decoder(message), encode, partial(_respond, call), partial(_fail, call)
                )
            )
        except InferError as error:
            failed_requests.finish(call, error)

    return handle


def _respond(call: GrpcCall, message: bytes) -> None:
    call.respond([message])


def _fail(call: GrpcCall, error: Exception) -> None:
    if not isinstance(error, InferError):
        _log.error("gRPC call %s failed", excerpt(call.path), exc_info=error)
        error = internal(f"internal error in {excerpt(call.path)}; see the server log")
    failed_requests.finish(call, error)
