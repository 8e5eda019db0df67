"""A converted model as a repository of one model, so that a server's code executes it."""

from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.optimize.candidate import Conversion


def write_repository(conversion: Conversion, home: Path, config: str = "") -> Path:
    """Write a repository with the candidate's name as the model's, and return it; the files are linked, not copied.

    `config` are further lines of `config.pbtxt`: batching, inputs and outputs that the files do not say.
    """
    candidate = conversion.candidate
    model = home / candidate.name
    model.mkdir(parents=True)
    (model / "1").symlink_to(conversion.folder.absolute(), target_is_directory=True)
    settings = ModelConfig(name=candidate.name, backend=candidate.backend)
    for name, value in conversion.backend_parameters.items():
        settings.parameters[name].string_value = value
    (model / "config.pbtxt").write_text(f"{settings}{config}\n", encoding="utf-8")
    return home
