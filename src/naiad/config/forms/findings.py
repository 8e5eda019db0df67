"""A list of problems for one configuration, with the positions of its fields."""

from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import Problem, Severity


class Findings:
    """Collects the problems of one configuration."""

    def __init__(self, config: ModelConfig, parsed: ParsedConfig | None = None, filename: str = "") -> None:
        self.config = config
        self.problems: list[Problem] = []
        self._parsed = parsed
        self._filename = parsed.filename if parsed else filename

    def error(
        self, message: str, path: str = "", *, text: object = "", expected: str = "", suggestion: str = ""
    ) -> None:
        """Add an error that prevents loading. It ends in ` for <model>` unless it is a sentence."""
        ending = "" if message.endswith(".") else f" for {self.config.name}"
        self._add("error", message + ending, path, str(text), expected, suggestion)

    def error_as_is(
        self, message: str, path: str = "", *, text: object = "", expected: str = "", suggestion: str = ""
    ) -> None:
        """Add an error that prevents loading, with a complete message."""
        self._add("error", message, path, str(text), expected, suggestion)

    def warning(self, message: str, path: str = "", *, text: object = "", expected: str = "") -> None:
        """Add a warning about a valid but probably unintended value."""
        self._add("warning", message, path, str(text), expected, "")

    def is_written(self, path: str) -> bool:
        """Return whether a field is in the file, as far as there is one."""
        return self._parsed is not None and path in self._parsed.positions

    def take(self, problem: Problem) -> None:
        """Add a problem that was found without positions, at its position."""
        self._add(problem.severity, problem.message, problem.path, problem.text, problem.expected, problem.suggestion)

    def _add(self, severity: Severity, message: str, path: str, text: str, expected: str, suggestion: str) -> None:
        position = self._parsed.position(path) if self._parsed else None
        self.problems.append(
            Problem(
                message=message,
                path=path,
                filename=self._filename,
                line=position.line if position else 0,
                column=position.column if position else 0,
                text=text,
                expected=expected,
                suggestion=suggestion,
                severity=severity,
            )
        )
