"""Whether a client may bring the files of a model with a load.

A Python model is code, so a client that may load with `file:` parameters runs code with the rights of the server.
Triton takes them from every client under explicit control; here the clients need to be restricted first, or a flag.
"""

from collections.abc import Callable, Iterable

from naiad.core.errors import permission_denied

CATEGORY = "model-repository"
_PREFIX = "file:"

MayBringFiles = Callable[[], bool]
"""Tells whether the clients that reach the load commands of a protocol may bring files; the answer may change."""


def check_files(parameters: Iterable[str], may_bring_files: MayBringFiles) -> None:
    """Raise InferError(PERMISSION_DENIED) when the parameters of a load have files and must not."""
    if any(name.startswith(_PREFIX) for name in parameters) and not may_bring_files():
        raise permission_denied(
            "files of a model ('file:' parameters of a load) are not taken from clients, because they may be code: "
            f"give clients API keys with the category '{CATEGORY}' (--api-key-file), restrict that category "
            "(--http-restricted-api, --grpc-restricted-protocol), or start the server with "
            "--allow-client-model-files=true if all its clients may run code on it"
        )
