class EngineGenerateError(Exception):
    """Raised when a AsyncLLM.generate() fails. Recoverable."""


class EngineDeadError(Exception):
    """Raised when the EngineCore dies. Unrecoverable."""

    def __init__(self):
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.")
