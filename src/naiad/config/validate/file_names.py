"""File names in a configuration: they stay inside the model's directory, and every file system has them.

That holds for the owner's configuration too, which may come from elsewhere together with its model. What may be
anywhere on the machine is code and data that the owner installs for several models, in parameters: the environment of
workers (`EXECUTION_ENV_PATH`, as in Triton), a batching strategy, OpenVINO's extensions and cache. A client without
permission sets none of them (`config.override`).
"""

from collections.abc import Iterator

from naiad.config.forms.findings import Findings
from naiad.config.forms.pbtxt.lexer import map_path
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import excerpt

MAX_NAME_BYTES = 255
"""Of one file or directory, as Linux's file systems have it."""
MAX_LEVELS = 32
MAX_PATH_BYTES = 2048
"""Of a path in a model's directory: with the directory it has to fit in 4,096."""
_PARAMETERS = ("TF_INIT_OPS_FILE",)
"""Parameters that name a file of the model."""
ABSOLUTE_PARAMETERS = ("EXECUTION_ENV_PATH", "EXECUTION_ENV_PYTHON", "TRITON_BATCH_STRATEGY_PATH",
                       "CPU_EXTENSION_PATH", "CACHE_DIR")  # fmt: skip
"""Parameters with which the owner may name any file of the machine."""


def is_outside(path: str) -> bool:
    """Return whether a relative file name leaves its directory."""
    return path.startswith("/") or ".." in path.replace("\\", "/").split("/")


def name_problem(path: str) -> str:
    """Return why no file can have a name, empty if one can."""
    if not path.isprintable():
        return "has characters that cannot be printed"
    parts = path.split("/")
    longest = max(len(part.encode("utf-8", "replace")) for part in parts)
    if longest > MAX_NAME_BYTES:
        return f"has a part of {longest} bytes; the most is {MAX_NAME_BYTES}"
    if len(parts) > MAX_LEVELS:
        return f"has {len(parts)} levels; the most is {MAX_LEVELS}"
    size = len(path.encode("utf-8", "replace"))
    return f"has {size} bytes; the most is {MAX_PATH_BYTES}" if size > MAX_PATH_BYTES else ""


def check_files(findings: Findings) -> None:
    """Check every file name of a configuration."""
    for path, name, directory in file_names(findings.config):
        problem = name_problem(name)
        if problem:
            findings.error(f"file name '{excerpt(name)}' {problem}", path, text=excerpt(name))
        elif is_outside(name) and directory:
            findings.error_as_is(f"model file '{name}' must stay within the {directory} directory.", path)


def file_names(config: ModelConfig) -> Iterator[tuple[str, str, str]]:
    """Yield field, name, and the directory that it is confined to; empty if that is checked with its tensor."""
    yield "default_model_filename", config.default_model_filename, "version"
    for key, name in sorted(config.cc_model_filenames.items()):
        yield map_path("cc_model_filenames", key), name, "version"
    for index, name in enumerate(config.model_operations.op_library_filename):
        yield f"model_operations.op_library_filename[{index}]", name, "model"
    for key in (*_PARAMETERS, *ABSOLUTE_PARAMETERS):
        if key in config.parameters:
            directory = "version" if key in _PARAMETERS else ""
            yield map_path("parameters", key), config.parameters[key].string_value, directory
    for path, _, name in tensor_files(config):
        yield path, name, ""


def tensor_files(config: ModelConfig) -> Iterator[tuple[str, str, str]]:
    """Yield field, directory below the model's directory and name of the files of tensors."""
    for index, output in enumerate(config.output):
        yield f"output[{index}].label_filename", "", output.label_filename
    for index, sample in enumerate(config.model_warmup):
        for key in sorted(sample.inputs):
            path = map_path(f"model_warmup[{index}].inputs", key)
            yield f"{path}.input_data_file", "warmup", sample.inputs[key].input_data_file
    for index, state in enumerate(config.sequence_batching.state):
        for position, initial in enumerate(state.initial_state):
            path = f"sequence_batching.state[{index}].initial_state[{position}].data_file"
            yield path, "initial_state", initial.data_file
