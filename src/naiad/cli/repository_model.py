"""One model of a repository, for verbs that start no server."""

from pathlib import Path

from naiad.backend.registry import BackendRegistry
from naiad.repository.check import ModelReport, check_path


class NoModelError(Exception):
    """There is no such model, or it would not load; the message has the reason."""


def find_models(repository: Path, name: str) -> dict[str, ModelReport]:
    """Return the models of a repository by name. Raises NoModelError unless `name` would load."""
    if not repository.is_dir():
        raise NoModelError(
            f"--model-repository {repository} is not a directory; give the one that contains the models"
        )
    reports = {r.name: r for r in check_path(repository, known_backends=BackendRegistry().names())}
    if name not in reports:
        known = ", ".join(reports) or "none"
        raise NoModelError(f"no model '{name}' in {repository}; its models: {known}")
    errors = [str(problem) for problem in reports[name].problems if problem.is_error]
    if errors:
        raise NoModelError("\n".join([f"model '{name}' would not load:", *errors]))
    return reports
