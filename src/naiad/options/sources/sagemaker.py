"""The start in a SageMaker container: `naiad serve` without arguments, configured by SAGEMAKER_* variables.

Triton's container has a script `serve` that turns these variables into flags. SageMaker starts any image with the one
argument `serve`.
"""

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from naiad.options.flag import OptionError
from naiad.options.network.cloud_options import SageMakerOptions

_FLAGS = (
    ("SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING", "--model-namespacing={}", "true"),  # Triton: the value as it is
    ("SAGEMAKER_BIND_TO_PORT", "--sagemaker-port={}", ""),
    ("SAGEMAKER_SAFE_PORT_RANGE", "--sagemaker-safe-port-range={}", ""),
    ("SAGEMAKER_TRITON_THREAD_COUNT", "--sagemaker-thread-count={}", ""),
    ("SAGEMAKER_TRITON_OVERRIDE_PING_MODE", "--sagemaker-ping-mode={}", ""),
    ("SAGEMAKER_TRITON_ALLOW_GRPC", "--allow-grpc={}", "false"),
    ("SAGEMAKER_TRITON_GRPC_PORT", "--grpc-port={}", ""),
    ("SAGEMAKER_TRITON_ALLOW_METRICS", "--allow-metrics={}", "false"),
    ("SAGEMAKER_TRITON_METRICS_PORT", "--metrics-port={}", ""),
    ("SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT", "--buffer-manager-thread-count={}", ""),
    ("SAGEMAKER_TRITON_LOG_VERBOSE", "--log-verbose={}", ""),
    ("SAGEMAKER_TRITON_LOG_INFO", "--log-info={}", ""),
    ("SAGEMAKER_TRITON_LOG_WARNING", "--log-warning={}", ""),
    ("SAGEMAKER_TRITON_LOG_ERROR", "--log-error={}", ""),
    ("SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE", "--backend-config=python,shm-default-byte-size={}", ""),
    ("SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE", "--backend-config=python,shm-growth-byte-size={}", ""),
    ("SAGEMAKER_TRITON_TENSORFLOW_VERSION", "--backend-config=tensorflow,version={}", ""),
    ("SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT", "--model-load-gpu-limit=0:{}", ""),
)
"""Variable, argument, and the value without the variable; empty: no argument."""
_CONTAINER = "SageMaker"
"""The source of settings that no variable gives."""
_DEFAULT_MODEL = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
_PING_MODE = "SAGEMAKER_TRITON_OVERRIDE_PING_MODE"
_MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"
_ADDITIONAL = "SAGEMAKER_TRITON_ADDITIONAL_ARGS"


def is_started_by_sagemaker(environ: Mapping[str, str]) -> bool:
    """Return whether `naiad serve` without arguments means SageMaker: it has variables or a directory of it."""
    return any(name.startswith("SAGEMAKER_") for name in environ) or _model_directory(environ).is_dir()


def sagemaker_arguments(environ: Mapping[str, str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the arguments of `naiad serve` in a SageMaker container, each with its source. Raises OptionError."""
    yield _CONTAINER, ["--allow-sagemaker=true", "--allow-http=false", "--model-control-mode=explicit"]
    for variable, argument, default in _FLAGS:
        value = environ.get(variable) or default
        if variable.endswith("LOG_VERBOSE") and value in ("true", "false"):
            value = str(int(value == "true"))  # Triton: a boolean or a level
        if value:
            yield variable if environ.get(variable) else _CONTAINER, [argument.format(value)]
    if environ.get(_MULTI_MODEL) == "true":
        # Each load names the directory of its model; the repository of the start is empty.
        empty = Path(tempfile.gettempdir()) / "sagemaker"
        empty.mkdir(exist_ok=True)
        yield _MULTI_MODEL, [f"--model-repository={empty}"]
        if not environ.get(_PING_MODE):
            yield _MULTI_MODEL, ["--sagemaker-ping-mode=live"]
    else:
        yield from _single_model(environ)
    yield _ADDITIONAL, shlex.split(environ.get(_ADDITIONAL, ""))


def _single_model(environ: Mapping[str, str]) -> Iterator[tuple[str, Sequence[str]]]:
    directory = _model_directory(environ)
    yield _CONTAINER, [f"--model-repository={directory}"]
    model = environ.get(_DEFAULT_MODEL) or _only_model(directory)
    if not (directory / model).is_dir():
        raise OptionError(
            f"Directory with provided {_DEFAULT_MODEL} {model} does not exist in {directory}; the model's archive "
            f"needs the directory {model}/"
        )
    yield _DEFAULT_MODEL, [f"--sagemaker-default-model={model}", f"--load-model={model}"]


def _only_model(directory: Path) -> str:
    if (directory / "config.pbtxt").exists():
        raise OptionError(
            f"{directory} is a model, not a repository: put its files into a directory NAME/ of the archive, and set "
            f"{_DEFAULT_MODEL}=NAME"
        )
    names = sorted(child.name for child in directory.iterdir() if child.is_dir()) if directory.is_dir() else []
    if len(names) == 1:
        return names[0]
    if not names:
        raise OptionError(
            f"{directory} has no model; the archive of the model needs a directory for it, as in NAME/1/"
        )
    raise OptionError(
        f"{directory} has {len(names)} models ({', '.join(names)}); set {_DEFAULT_MODEL} to the name of the one that "
        "/invocations serves"
    )


def _model_directory(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("SAGEMAKER_BASE_DIR") or SageMakerOptions().base_directory) / "model"
