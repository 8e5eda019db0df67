"""`TritonError`, `TritonModelException` and `LoadError`, and the text of a model's exception for the server."""

from __future__ import annotations

import os
import traceback

from naiad.worker.api.arguments import NativeEnum, instance, text

_WORKER_DIR = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""The package `naiad.worker`. Error texts and tracebacks leave its frames out."""


_MAX_CHARACTERS = 65_536


class LoadError(Exception):
    """The file has no model; the text names the missing part."""


class ErrorCode(NativeEnum):
    """Triton's error codes."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    # Triton's name of the class, in texts that models write.
    def __str__(self) -> str:
        return f"__ErrorCode.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {int(self)}>"


class TritonError:
    """An error that a response carries instead of outputs."""

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        # An error must arrive with any bytes in its text.
        self._message = text(message, "TritonError: expected message", "replace")
        self._code = instance(code, ErrorCode, "TritonError: expected code")

    def code(self) -> ErrorCode:
        """Return the error code."""
        return self._code

    def message(self) -> str:
        """Return the text."""
        return self._message


def not_ready(model: str, reason: str) -> str:
    """Return the text of a call of a model that is not ready: that of newer versions of Triton, then that of older
    ones.
    """
    return (
        f"Model {model} - Error when running inference: {reason}. Failed for execute the inference request. "
        f"Model '{model}' is not ready."
    )


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """Raised by `pb_utils` for misuse; a model may raise it to fail its whole batch."""


def describe(error: BaseException) -> str:
    """Return an exception in Triton's form: type, text, and the model's frames from the innermost outwards."""
    frames = [
        f"  {frame.filename}({frame.lineno}): {frame.name}\n"
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if not _is_own(frame.filename)
    ]
    return text_of(error) + ("\n\nAt:\n" + "".join(frames) if frames else "")


def text_of(error: BaseException) -> str:
    """Return type and text of an exception, with Triton's words for an empty text and for a failing `__str__`."""
    try:
        text = shortened(str(error)) or "<EMPTY MESSAGE>"
    except BaseException as other:
        text = (
            "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>\n\n"
            f"MESSAGE UNAVAILABLE DUE TO EXCEPTION: {type(other).__name__}"
        )
    return f"{type(error).__name__}: {text}"


def shortened(text: str) -> str:
    """Return a text without its middle if it is long: an exception may contain a whole tensor, and each of its
    requests would answer and log it.
    """
    excess = len(text) - _MAX_CHARACTERS
    if excess <= 0:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]}\n... {excess} characters are left out ...\n{text[-half:]}"


def format_traceback(error: BaseException) -> str:
    """Return the traceback without the frames of the worker itself."""
    lines = traceback.TracebackException.from_exception(error)
    lines.stack = traceback.StackSummary.from_list([f for f in lines.stack if not _is_own(f.filename)])
    return shortened("".join(lines.format()))


def _is_own(filename: str) -> bool:
    return filename.startswith((_WORKER_DIR, "<frozen importlib"))
