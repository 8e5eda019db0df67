"""Writes an initial configuration for a model: short, with comments on possible changes."""

from collections.abc import Sequence

from naiad.config.backends import filenames_of
from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput


def format_commented(config: ModelConfig) -> str:
    """Return `config.pbtxt` text with the fields that most models need, and comments.

    Unknown inputs and outputs become an example in a comment.
    """
    parts = [
        f"# Configuration of model '{config.name}'. Fields that are not given here have their default.\n",
        f'name: "{config.name}"\n{_format_backend(config)}',
        _format_batching(config),
        _format_tensors("input", config.input),
        _format_tensors("output", config.output),
        _INSTANCES,
        _VERSIONS,
    ]
    return "\n".join(part for part in parts if part)


_INSTANCES = """\
# Instances execute batches in parallel; without this the backend decides.
# instance_group [ { kind: KIND_CPU count: 2 } ]
"""
_VERSIONS = """\
# The newest version is served; other choices: all {} or specific { versions: [ 1, 3 ] }.
# version_policy { latest { num_versions: 1 } }
"""
_SCHEDULING = """\
# Waiting requests are executed together. A delay makes batches larger and responses later.
dynamic_batching {
  # max_queue_delay_microseconds: 100
}
"""


def _format_backend(config: ModelConfig) -> str:
    lines = [f'backend: "{config.backend}"'] if config.backend else ['# backend: "python"']
    if config.default_model_filename and config.default_model_filename not in filenames_of(config.backend):
        lines.append(f'default_model_filename: "{config.default_model_filename}"')
    return "\n".join(lines) + "\n"


def _format_batching(config: ModelConfig) -> str:
    if config.max_batch_size > 0:
        text = (
            "# Largest batch. All tensors have a batch dimension first, which dims omit.\n"
            f"max_batch_size: {config.max_batch_size}\n"
        )
    else:
        text = "# 0: the model does not batch, and dims are the whole shape.\nmax_batch_size: 0\n"
    return text + ("\n" + _SCHEDULING if config.HasField("dynamic_batching") else "")


def _format_tensors(kind: str, tensors: Sequence[ModelInput | ModelOutput]) -> str:
    if not tensors:
        return (
            f"# The {kind}s are not known; leave them out where the backend or the model completes them.\n"
            f'# {kind} [ {{ name: "{kind.upper()}0" data_type: TYPE_FP32 dims: [ -1, 16 ] }} ]  # -1: any size\n'
        )
    return f"{kind} [\n" + ",\n".join(_format_tensor(tensor) for tensor in tensors) + "\n]\n"


def _format_tensor(tensor: ModelInput | ModelOutput) -> str:
    dims = ", ".join(str(size) for size in tensor.dims)
    lines = [
        f'    name: "{_escape(tensor.name)}"',
        f"    data_type: {DataType.Name(tensor.data_type)}",
        f"    dims: [ {dims} ]",
    ]
    if tensor.HasField("reshape"):
        shape = ", ".join(str(size) for size in tensor.reshape.shape)
        lines.append(f"    reshape {{ shape: [ {shape} ] }}")
    if isinstance(tensor, ModelInput) and tensor.optional:
        lines.append("    optional: true")
    return "\n".join(["  {", *lines, "  }"])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
