"""The configuration of a model during a load: read, completed, checked, in Triton's order.

Before the backend inspects the model: the file, the names of its version files, defaults, a check. Afterwards: the
backend's completion, defaults again, instance groups, and the final check. `read_labels` reads label files, which
have the names of an output's classes, one per line.
"""

import hashlib
import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from naiad.config.autofill import autofill, is_ensemble, merge_auto_completed, normalize
from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.model_profile import MAX_PROFILE_BYTES, PROFILE_FILE, ModelProfile, parse_profile
from naiad.config.naiad_parameters import read_adaptive_batching
from naiad.config.problem import errors_of, problems_error, raise_problems
from naiad.config.rollout.rollout_declaration import FILE_NAME as ROLLOUT_FILE
from naiad.config.rollout.rollout_declaration import MAX_BYTES as MAX_ROLLOUT_BYTES
from naiad.config.rollout.rollout_declaration import DeclaredRollout, parse_toml
from naiad.config.validate.model import validate
from naiad.core.errors import InferError, invalid_argument
from naiad.repository.stores.known_texts import known_texts
from naiad.repository.stores.store import CONFIG_FILE, ModelEntry, read_file_text

_log = logging.getLogger(__name__)
_MAX_BYTES = 64 * 1024 * 1024


def read_labels(config: ModelConfig, model_dir: Path) -> dict[str, Sequence[str]]:
    """Return the labels of every output with a `label_filename`.

    Raises InferError(INVALID_ARG) for a file that is missing, not text, or outside the model's directory.
    """
    labels: dict[str, Sequence[str]] = {}
    for output in config.output:
        if output.label_filename:
            labels[output.name] = _read(config.name, output.name, output.label_filename, model_dir)
    return labels


def read_profile(config: ModelConfig, model_dir: Path) -> ModelProfile | None:
    """Return what an analysis has learned about a model with adaptive batching; None if there is nothing usable."""
    if read_adaptive_batching(config) is None:
        return None
    path = model_dir / PROFILE_FILE
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MAX_PROFILE_BYTES:
            raise invalid_argument(f"{PROFILE_FILE} is larger than {MAX_PROFILE_BYTES} bytes")
        return parse_profile(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = f"{PROFILE_FILE} cannot be read: {error}"
    except InferError as error:
        reason = error.message
    _log.warning("model '%s' learns from the beginning: %s", config.name, reason)
    return None


def read_rollout(entry: ModelEntry) -> DeclaredRollout | None:
    """Return what the `rollout.toml` of a model declares; None without the file, and for a bare model file.

    Raises InferError(INVALID_ARG) with every mistake in it, and if the model has no directory of the stable version.
    """
    # Not with pathlib: hardly any model has the file.
    if entry.preset.default_model_filename or not os.path.exists(f"{entry.model_dir}/{ROLLOUT_FILE}"):
        return None
    path = entry.model_dir / ROLLOUT_FILE
    try:
        if path.stat().st_size > MAX_ROLLOUT_BYTES:
            raise invalid_argument(f"{path} is larger than {MAX_ROLLOUT_BYTES} bytes")
        text = read_file_text(path)
    except OSError as error:
        raise invalid_argument(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise invalid_argument(f"{path} is not UTF-8 text: {error}") from error
    rollout, problems = parse_toml(text, str(path))
    raise_problems(problems)
    if rollout is None:
        return None
    return DeclaredRollout(rollout, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def _read(model: str, output: str, filename: str, model_dir: Path) -> Sequence[str]:
    where = f"label_filename '{filename}' of output '{output}' of model '{model}'"
    path = model_dir / filename
    # The name must stay inside the directory as written; a link in the directory is the operator's own choice.
    if Path(filename).is_absolute() or ".." in Path(filename).parts:
        raise invalid_argument(f"{where} must be inside the model's directory {model_dir}")
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise invalid_argument(f"{where} is larger than {_MAX_BYTES} bytes: is it a label file?")
        text = read_file_text(path)
    except OSError as error:
        raise invalid_argument(f"{where} cannot be read: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise invalid_argument(f"{where} is not UTF-8 text: {error}") from error
    # Not splitlines(), which also splits at other characters that a label may contain.
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


_IN_ANY_CASE_WHILE_LOADING = ("model_warmup[", "backend")
_WHILE_LOADING = ("input[", "output[", "batch_input[", "batch_output[", *_IN_ANY_CASE_WHILE_LOADING)
"""Triton reports errors in these fields when it loads the model, not when it reads the configuration."""


def read_config(entry: ModelEntry, *, required: bool) -> ParsedConfig:
    """Return the parsed configuration file, or the known fields without one.

    Raises InferError(INVALID_ARG): for every mistake of the file at once, for an unreadable file, and for a missing
    file that is `required`.
    """
    path = entry.config_path
    if path is None:
        if required and not entry.preset.name:
            raise invalid_argument(
                f"model '{entry.name}' has no {CONFIG_FILE} in {entry.model_dir}, which is needed because "
                f"--disable-auto-complete-config was given"
            )
        parsed = ParsedConfig(str(entry.model_dir))
        parsed.config.CopyFrom(entry.preset)
        return parsed
    try:
        text = read_file_text(path)
    except OSError as error:
        raise invalid_argument(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise invalid_argument(f"{path} is not UTF-8 text: {error}") from error
    parsed = known_texts.parse(text, str(path))
    mistakes = errors_of(parsed.problems)
    if mistakes:
        raise invalid_argument("\n".join([f"failed to read text proto from {path}", *map(str, mistakes)]))
    for problem in parsed.problems:
        _log.warning("model '%s': %s", entry.name, problem)
    if entry.is_renamed:
        parsed.config.name = entry.name
    return parsed


def inspected_files(entry: ModelEntry, versions: Sequence[int]) -> list[str]:
    """Return the names in the directory that the backend inspects: the first version's; none without a directory.

    Triton: without a version to serve, it is another directory of the model, of any name. Raises InferError.
    """
    candidates = [*versions, *entry.version_dirs]
    if candidates:
        directory = entry.version_dirs[candidates[0]]
    else:
        found = min((child for child in entry.model_dir.iterdir() if child.is_dir()), default=None)
        if found is None:
            return []
        directory = found
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise invalid_argument(f"version directory {directory} cannot be read: {error.strerror}") from error


class PreparedConfig(NamedTuple):
    """A configuration with file names and defaults filled in."""

    config: ModelConfig
    unsupported_reason: InferError | None
    """The error of its versions, which Triton finds only when it loads them."""
    has_warnings: bool
    """Whether the log has something about it."""


def prepare_config(
    parsed: ParsedConfig,
    entry: ModelEntry,
    version_files: Sequence[str],
    known_backends: Collection[str],
    *,
    auto_complete: bool = True,
) -> PreparedConfig:
    """Return the configuration with file names and defaults filled in, and the error of its versions.

    With `auto_complete`, inputs and outputs may still be missing, and mistakes in the tensors of a model that is
    not an ensemble are errors of each version. Raises InferError(INVALID_ARG) with every mistake.
    """
    config = normalize(autofill(parsed.config, model_name=entry.name, version_files=version_files))
    problems = validate(
        config, model_name=entry.name, parsed=parsed, known_backends=known_backends, complete=not auto_complete
    )
    errors = errors_of(problems)
    late = () if is_ensemble(config) else _WHILE_LOADING if auto_complete else _IN_ANY_CASE_WHILE_LOADING
    if errors and all(problem.path.startswith(late) for problem in errors):
        return PreparedConfig(config, problems_error(problems), has_warnings=False)
    raise_problems(problems)
    for problem in problems:
        _log.warning("model '%s': %s", entry.name, problem)
    return PreparedConfig(config, None, has_warnings=bool(problems))


def check_declared(parsed: ParsedConfig, entry: ModelEntry, completed: ModelConfig) -> None:
    """Raise InferError(INVALID_ARG) if neither a configuration nor the model itself says what its tensors are.

    Triton: serves it without any, which hides that a configuration was lost. A file with `backend` gives it.
    """
    is_empty = all(field.name == "name" for field, _ in parsed.config.ListFields())
    if is_empty and not entry.preset.name and not completed.input and not completed.output:
        raise invalid_argument(
            f"model '{entry.name}' has neither inputs nor outputs: {entry.model_dir} has no {CONFIG_FILE}, or an "
            "empty one, and the model does not declare them: write the file, or auto_complete_config in model.py"
        )


def finish_config(
    config: ModelConfig,
    completed: ModelConfig,
    parsed: ParsedConfig | None,
    default_instance_count: int,
    gpu_count: int = 0,
) -> ModelConfig:
    """Return `config` with the backend's completion and with instance groups. Raises InferError as above.

    Without GPUs a group of KIND_GPU is rejected, and a group of KIND_AUTO gets the CPU.
    """
    merged = merge_auto_completed(config, completed) if completed is not config else config
    final = normalize(merged, gpu_count=gpu_count, default_cpu_instances=default_instance_count)
    raise_problems(validate(final, model_name=config.name, parsed=parsed, gpu_count=gpu_count, complete=True))
    return final
