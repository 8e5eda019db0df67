"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

import orjson

from naiad.core.errors import ErrorCode, InferError, Rejection, encodable

_PATHS = "/v1/"
"""All paths of the OpenAI API begin with it."""
_VERTEX_PATHS = "/v1/endpoints/"
_KSERVE_ENDS = (":predict", ":explain")
"""Vertex AI's default routes and KServe's V1 protocol have paths below /v1, too: /v1/models/NAME:predict."""
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 404: "not_found"}


class OpenAiError(InferError):
    """A mistake in a request for the OpenAI API."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, is_missing: bool = False
    ) -> None:
        """`param` is the member of the body, `code` OpenAI's code; `is_missing` for what does not exist."""
        super().__init__(
            ErrorCode.NOT_FOUND if is_missing else ErrorCode.INVALID_ARG,
            message,
            rejection=Rejection.UNKNOWN_MODEL if is_missing else Rejection.INVALID,
        )
        self.param = param
        self.openai_code = code


def is_openai_path(path: str) -> bool:
    """Return whether a client of the OpenAI API asks for a path; the errors of other paths have KServe's shape."""
    return path.startswith(_PATHS) and not path.startswith(_VERTEX_PATHS) and not path.endswith(_KSERVE_ENDS)


def encode_openai_error(status: int, message: str, error: InferError | None = None) -> bytes:
    """Return the body of an error response with this HTTP status."""
    type_ = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    param: str | None = None
    code = _CODES.get(status)
    if isinstance(error, OpenAiError):
        param, code = error.param, error.openai_code
    content = {"message": encodable(message), "type": type_, "param": param, "code": code}
    return orjson.dumps({"error": content})
