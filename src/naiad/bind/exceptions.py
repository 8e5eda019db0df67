"""Errors of bound models and of their server, with PyTriton's names.

`naiad.bind.client.exceptions` has the errors of clients.
"""


class PyTritonError(Exception):
    """An error with a message; base of all errors here."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._message = message

    @property
    def message(self) -> str:
        """The text of the error."""
        return self._message


class PyTritonValidationError(PyTritonError):
    """A name, a configuration or an output of a model is invalid."""


class PyTritonInvalidOperationError(PyTritonError):
    """The operation does not fit the state of the server: a model that is bound already, for example."""


class PyTritonBadParameterError(PyTritonError):
    """An argument has an invalid value."""


class PyTritonModelConfigError(PyTritonError):
    """The configuration of a model cannot be served."""


class PyTritonUnrecoverableError(PyTritonError):
    """Raised by an inference callable that can execute no further request: it stops the whole server."""


class PyTritonRuntimeError(PyTritonError):
    """Any other failure: a port is taken, a model does not load."""
