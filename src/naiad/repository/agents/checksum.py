"""The checksum agent: rejects a model with files that do not have the digests of its configuration."""

import hashlib
import hmac
from pathlib import Path, PurePosixPath

from naiad.core.errors import excerpt, invalid_argument
from naiad.repository.agents.api import AgentContext, RepositoryAgent

_ALGORITHMS = {"MD5": "md5", "SHA256": "sha256"}
"""Triton supports MD5, which detects accidents; SHA256 also detects intent."""


class ChecksumAgent(RepositoryAgent):
    """Each parameter has the key `<algorithm>:<file below the model's directory>` and a hex digest as its value."""

    name = "checksum"

    def load(self, context: AgentContext) -> Path | None:
        """Compare every digest. Raises InferError(INVALID_ARG) with the file, never with the right digest."""
        if not context.parameters:
            raise invalid_argument(
                "the checksum agent has no parameters; give one per file, such as key 'MD5:1/model.onnx'"
            )
        for key, expected in sorted(context.parameters.items()):
            _check(context.model_dir, key, expected)
        return None


def _check(model_dir: Path, key: str, expected: str) -> None:
    algorithm, colon, name = key.partition(":")
    if not colon or algorithm not in _ALGORITHMS:
        known = " or ".join(f"'{known}:<file>'" for known in _ALGORITHMS)
        raise invalid_argument(f"checksum parameter '{key}': expected {known}")
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise invalid_argument(f"checksum parameter '{key}': the file must lie in the model's directory {model_dir}")
    try:
        with open(model_dir / path, "rb") as file:
            found = hashlib.file_digest(file, _ALGORITHMS[algorithm]).hexdigest()
    except OSError as error:
        raise invalid_argument(f"checksum of {model_dir / path} cannot be taken: {error.strerror}") from error
    if not hmac.compare_digest(found.encode(), expected.strip().lower().encode()):
        raise invalid_argument(
            f"{algorithm} digest of {model_dir / path} is not '{excerpt(expected)}' of the configuration: the file "
            f"is another one than was meant, or has changed ({algorithm.lower()}sum shows its own)"
        )
