"""How often something happened and how long it took."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened and how long it took in all."""

    count: int = 0
    ns: int = 0
