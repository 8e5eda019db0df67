"""Compressed messages that take a while, decompressed beside the loop; the order of a call's messages stays."""

import functools
import logging
from typing import Protocol

from naiad.core.errors import excerpt
from naiad.core.tensor import Buffer
from naiad.frontend.body_reservation import NO_ROOM
from naiad.frontend.http2_call import Http2Call
from naiad.frontend.side_threads import RunAside
from naiad.wire.grpc import CompressedMessage, GrpcError, GrpcStatus

_log = logging.getLogger(__name__)


class CallKeeper(Protocol):
    """The receiving side of the calls' connection."""

    def hold_messages(self, call: Http2Call) -> None:
        """Hand over no more messages of a call."""

    def release_messages(self, call: Http2Call) -> None:
        """Hand over the messages of a call that wait."""

    def unary_message(self, call: Http2Call, message: Buffer) -> None:
        """Hand over the message of a unary call."""

    def refuse(self, call: Http2Call, error: GrpcError) -> None:
        """End a call whose request is wrong."""


class Decompression:
    """Decompresses one message of a call at a time; a streaming call is held meanwhile."""

    def __init__(self, keeper: CallKeeper, run_aside: RunAside) -> None:
        self._keeper = keeper
        self._run_aside = run_aside

    def start(self, call: Http2Call, message: CompressedMessage) -> None:
        """Begin; the message is handed over when it is plain. Refused when the server has no room for it."""
        reserved_bytes = message.most_plain_bytes
        if not call.reserve_bytes(reserved_bytes):
            self._keeper.refuse(call, GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, NO_ROOM))
            return
        call.is_decompressing = True
        if call.is_streaming:
            self._keeper.hold_messages(call)
        self._run_aside(
            functools.partial(_decompress, call, message),
            functools.partial(self._done, call, reserved_bytes),
            functools.partial(self._failed, call),
        )

    def _done(self, call: Http2Call, reserved_bytes: int, plain: Buffer) -> None:
        call.is_decompressing = False
        if call.is_local_closed:
            return  # cancelled, or past its deadline
        # A stream counts its messages itself, while their requests are open.
        call.release_bytes(reserved_bytes if call.is_streaming else reserved_bytes - len(plain))
        if not call.is_streaming:
            self._keeper.unary_message(call, plain)
        elif call.held_body is not None:
            call.held_body.messages.appendleft(plain)
            if not call.is_held_by_service:
                self._keeper.release_messages(call)

    def _failed(self, call: Http2Call, error: Exception) -> None:
        call.is_decompressing = False
        if not isinstance(error, GrpcError):
            _log.error("decompressing a message of gRPC call %s failed", excerpt(call.path), exc_info=error)
            error = GrpcError(GrpcStatus.INTERNAL, "internal error of the server; its log says more")
        self._keeper.refuse(call, error)


def _decompress(call: Http2Call, message: CompressedMessage) -> Buffer:
    # A flag that the loop sets: a call that has ended is not worth the work.
    return b"" if call.is_local_closed else message.decompress()
