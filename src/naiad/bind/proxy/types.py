"""Types of inference callables: `from naiad.bind.proxy.types import Request`."""

from naiad.bind.request import Request, Requests

__all__ = ["Request", "Requests"]
