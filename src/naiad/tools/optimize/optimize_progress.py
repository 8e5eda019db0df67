"""Reports of an optimization while it runs."""

from typing import Protocol


class Progress(Protocol):
    """What shows progress; a terminal, or nothing."""

    def step(self, stage: str, name: str, index: int, count: int) -> None:
        """Show that a step begins: `convert`, `judge`, `search`, `profile`, `tune`, `serve`."""

    def done(self, stage: str, name: str, message: str, *, was_cached: bool = False) -> None:
        """Show how a step ended."""


class NoProgress:
    """Shows nothing."""

    def step(self, stage: str, name: str, index: int, count: int) -> None:
        """Ignore the step."""

    def done(self, stage: str, name: str, message: str, *, was_cached: bool = False) -> None:
        """Ignore the end of the step."""
