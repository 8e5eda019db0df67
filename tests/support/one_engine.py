"""An engine in one object, for tests whose fakes have few methods."""

from typing import Any

_PARTS = frozenset(("inference", "models", "views", "in_flight", "repository", "phase"))


class OneEngine:
    """Has every part of an engine; unless a fake has its own, the part is the object itself."""

    def __getattr__(self, name: str) -> Any:
        if name in _PARTS:
            return self
        raise AttributeError(name)
