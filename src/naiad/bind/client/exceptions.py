"""Errors of the clients, with PyTriton's names."""


class PyTritonClientError(Exception):
    """An error with a message; base of all errors here."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._message = message

    @property
    def message(self) -> str:
        """The text of the error."""
        return self._message


class PyTritonClientValueError(PyTritonClientError):
    """An argument has an invalid value."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """The URL is not the one of an HTTP or gRPC server."""


class PyTritonClientTimeoutError(PyTritonClientError):
    """The server, the model or the response was not there in time, or the connection broke."""


class PyTritonClientModelUnavailableError(PyTritonClientError):
    """The server does not have the model."""


class PyTritonClientClosedError(PyTritonClientError):
    """The client was closed."""


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """`infer_batch` of a model that does not batch."""


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The server, or the inference callable, reported an error."""


class PyTritonClientQueueFullError(PyTritonClientError):
    """Too many requests wait in a `FuturesModelClient`."""
