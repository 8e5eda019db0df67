"""How far the life of a server is."""

import time


class ServerPhase:
    """What a server is doing: it starts, serves, drains. Changed on the event loop."""

    __slots__ = ("is_draining", "is_starting", "started_ms")

    def __init__(self) -> None:
        self.is_starting = True
        """Whether the models of the start still load; from its end on the models decide readiness."""
        self.started_ms = time.time_ns() // 1_000_000
        """Unix time of the start of the server, the same in all its processes."""
        self.is_draining = False
        """Whether the server is going to exit; requests are still answered."""
