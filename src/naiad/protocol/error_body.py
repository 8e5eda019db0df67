"""The body of an error response over REST: KServe's form, or OpenAI's for the paths of its API."""

from naiad.core.errors import InferError
from naiad.protocol.json.management.control import encode_error
from naiad.protocol.openai.openai_error import encode_openai_error, is_openai_path


def error_body(path: str, status: int, message: str, error: InferError | None = None) -> bytes:
    """Return the body of the error response to a request for a path."""
    return encode_openai_error(status, message, error) if is_openai_path(path) else encode_error(message)
