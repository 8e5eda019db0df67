"""Reports of an optimization while it runs."""


class Progress:
    """Shows nothing; derived classes show progress, in a terminal for example."""

    def step(self, stage: str, name: str, index: int, count: int) -> None:
        """Show that a step begins: `convert`, `judge`, `search`, `profile`, `tune`, `serve`."""

    def done(self, stage: str, name: str, message: str, *, was_cached: bool = False) -> None:
        """Show how a step ended."""
