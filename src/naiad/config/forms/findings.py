"""A list of problems for one configuration, with the positions of its fields."""

from dataclasses import replace

from naiad.config.forms.pbtxt.lexer import ParsedConfig, map_path
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import Problem


class Findings:
    """Collects the problems of one configuration."""

    def __init__(self, config: ModelConfig, parsed: ParsedConfig | None = None) -> None:
        self.config = config
        self.problems: list[Problem] = []
        self._parsed = parsed

    def error(
        self, message: str, path: str = "", *, text: object = "", expected: str = "", suggestion: str = ""
    ) -> None:
        """Add an error that prevents loading. It ends in ` for <model>` unless it is a sentence."""
        ending = "" if message.endswith(".") else f" for {self.config.name}"
        self.error_as_is(message + ending, path, text=text, expected=expected, suggestion=suggestion)

    def error_as_is(
        self, message: str, path: str = "", *, text: object = "", expected: str = "", suggestion: str = ""
    ) -> None:
        """Add an error that prevents loading, with a complete message."""
        self.take(Problem(message=message, path=path, text=str(text), expected=expected, suggestion=suggestion))

    def parameter_error(
        self, key: str, message: str, *, text: object = "", expected: str = "", suggestion: str = ""
    ) -> None:
        """Add an error about one of `parameters`; its text begins with the key."""
        path = map_path("parameters", key)
        self.error(f"parameter '{key}' {message}", path, text=text, expected=expected, suggestion=suggestion)

    def warning(self, message: str, path: str = "", *, text: object = "", expected: str = "") -> None:
        """Add a warning about a valid but probably unintended value."""
        self.take(Problem(message=message, path=path, text=str(text), expected=expected, severity="warning"))

    def is_written(self, path: str) -> bool:
        """Return whether a field is in the file, as far as there is one."""
        return self._parsed is not None and path in self._parsed.positions

    def take(self, problem: Problem) -> None:
        """Add a problem that was found without positions, at its position."""
        position = self._parsed.position(problem.path) if self._parsed else None
        line, column = (position.line, position.column) if position else (0, 0)
        filename = self._parsed.filename if self._parsed else ""
        self.problems.append(replace(problem, filename=filename, line=line, column=column))
