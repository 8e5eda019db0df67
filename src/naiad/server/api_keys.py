"""The key file: read at start, and again whenever it changes."""

from naiad.config.api_keys import ApiKeys, parse_api_keys
from naiad.core.errors import internal


def read_api_keys(path: str) -> ApiKeys:
    """Return the keys of the file at `path`. Raises InferError that names flag, file and line."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise internal(f"--api-key-file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise internal(f"--api-key-file {path} is not text") from error
    try:
        return parse_api_keys(text)
    except ValueError as error:
        raise internal(f"--api-key-file {path}: {error}") from error
