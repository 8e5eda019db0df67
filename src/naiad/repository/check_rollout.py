"""Checks `rollout.toml` of a model's directory, as `model_check` does with the other files."""

from collections.abc import Collection, Mapping
from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import Problem
from naiad.config.rollout.rollout_declaration import FILE_NAME, MAX_BYTES, Rollout, locate, parse_toml
from naiad.repository.stores.store import read_file_text


def check_rollout(
    model_dir: Path, names: Collection[str], version_dirs: Mapping[int, Path], config: ModelConfig
) -> tuple[Rollout | None, list[Problem]]:
    """Return the rollout that a model's directory declares, None without one, and the problems of the file."""
    if FILE_NAME not in names:
        return None, []
    path = model_dir / FILE_NAME
    try:
        if path.stat().st_size > MAX_BYTES:
            return None, [Problem(message=f"the file is larger than {MAX_BYTES} bytes", filename=str(path))]
        text = read_file_text(path)
    except UnicodeDecodeError:
        return None, [Problem(message="the file is not UTF-8 text", filename=str(path), expected="UTF-8")]
    except OSError as error:
        return None, [Problem(message=f"the file cannot be read: {error.strerror}", filename=str(path))]
    rollout, problems = parse_toml(text, str(path))
    if rollout is None:
        return None, problems
    known = ", ".join(map(str, sorted(version_dirs))) or "none: there is no version directory"
    found = [
        Problem(
            message=f"{field} is version {version}, which has no directory in {model_dir}",
            path=field,
            expected=f"one of the versions {known}",
            text=str(version),
            severity="error" if field == "stable" else "warning",
        )
        for field, version in _named(rollout)
        if version not in version_dirs
    ]
    kind = "decoupled" if config.model_transaction_policy.decoupled else ""
    if config.HasField("sequence_batching"):
        kind = "sequence"
    if rollout.shadow and kind:
        message = f"shadow has no effect: requests of a {kind} model are not copied"
        found.append(Problem(message=message, path="shadow", expected="weight", severity="warning"))
    return rollout, [locate(problem, text, str(path)) for problem in found]


def _named(rollout: Rollout) -> list[tuple[str, int]]:
    canary = [] if rollout.canary is None else [("canary", rollout.canary)]
    aliases = [(f"aliases.{name}", version) for name, version in rollout.aliases.items()]
    return [("stable", rollout.stable), *canary, *aliases]
