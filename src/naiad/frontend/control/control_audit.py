"""The audit of control calls: loads, unloads, changes of settings, shared memory and rollouts, by their outcome."""

from collections.abc import Mapping, Sequence
from typing import cast

from naiad.core.errors import InferError
from naiad.core.tensor import Buffer
from naiad.frontend.access.peer import address_of
from naiad.frontend.context import GrpcCall, HttpContext, HttpContextLayer
from naiad.frontend.router import Action, respond_infer_error
from naiad.telemetry.logs.access_log import AccessEntry, audit
from naiad.wire.grpc import GrpcStatus
from naiad.wire.header_fields import Headers


def audited(action: Action) -> Action:
    """Return an action whose outcome is logged."""

    def act(context: HttpContext, arguments: Mapping[str, str]) -> None:
        context = _ControlContext(context)
        try:
            action(context, arguments)
        except InferError as error:
            respond_infer_error(context, error)

    return act


class _ControlContext(HttpContextLayer):
    """A context that logs the status of its response."""

    __slots__ = ()

    def __init__(self, context: HttpContext) -> None:
        HttpContextLayer.__init__(self, context)
        self.note_control()

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response with a complete body."""
        entry = AccessEntry(
            protocol="HTTP",
            method=self.method,
            path=self.path,
            status=status,
            client=address_of(self.client),
            key=self.key_name,
            bytes_in=len(self.body),
        )
        self._context.respond(status, headers, parts)
        audit.controlled(entry)


def audited_call(call: GrpcCall, target: str | None, size: int) -> GrpcCall:
    """Return a call whose outcome is logged if it changes `target`, otherwise the call itself."""
    return call if target is None else cast("GrpcCall", ControlAudit(call, target, size))


class ControlAudit:
    """A unary call whose outcome is logged. Control calls read its path and fields, respond and finish."""

    def __init__(self, call: GrpcCall, target: str, size: int) -> None:
        """`target` is the model or the region that is changed, `size` the length of the message."""
        self._call = call
        self._target = target
        self._size = size
        self.path = call.path
        self.metadata = call.metadata
        self.client = call.client
        note_control = getattr(call, "note_control", None)
        if note_control is not None:
            note_control(target)

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Respond with one message."""
        self._log(GrpcStatus.OK)
        self._call.respond(parts)

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        """End the call with a status."""
        self._log(status, message)
        self._call.finish(status, message, trailers)

    def _log(self, status: int, message: str = "") -> None:
        audit.controlled(
            AccessEntry(
                protocol="gRPC",
                path=self.path.partition("?")[0],
                status=GrpcStatus(status).name,
                client=address_of(self._call.client),
                key=getattr(self._call, "key_name", ""),
                model=self._target,
                bytes_in=self._size,
                error=message,
            )
        )
