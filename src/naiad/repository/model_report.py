"""What was found out about a model by looking at its files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.parsed_config import ParsedConfig
from naiad.config.problem import Problem, Severity


@dataclass(slots=True)
class ModelReport:
    """What was found out about one model."""

    name: str
    path: Path
    config: ModelConfig = field(default_factory=ModelConfig)
    versions: Sequence[int] = ()
    problems: list[Problem] = field(default_factory=list)
    parsed: ParsedConfig | None = None

    @property
    def is_ok(self) -> bool:
        """True when a server would try to load the model."""
        return not any(problem.is_error for problem in self.problems)

    def add(
        self,
        message: str,
        place: Path | str = "",
        *,
        expected: str = "",
        suggestion: str = "",
        text: str = "",
        severity: Severity = "error",
    ) -> None:
        """Add a problem: `place` is a path on disk, or the path of a field of the configuration."""
        position = None
        filename = str(place)
        if isinstance(place, str) and self.parsed is not None:
            position, filename = self.parsed.position(place), self.parsed.filename
        self.problems.append(
            Problem(
                message=message,
                path=place if isinstance(place, str) else "",
                filename=filename or str(self.path),
                line=position.line if position else 0,
                column=position.column if position else 0,
                text=text,
                expected=expected,
                suggestion=suggestion,
                severity=severity,
            )
        )
