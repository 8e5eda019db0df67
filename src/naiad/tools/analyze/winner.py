"""The models of the winner as files: a user's `config.pbtxt` with the values that the winner changes."""

import shutil
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from pathlib import Path

from naiad.config.forms.json_form import config_from_json
from naiad.config.forms.pbtxt.edit import edited, with_changes
from naiad.config.forms.pbtxt.text_format import format_config, parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.model_profile import PROFILE_FILE, ModelProfile, format_profile
from naiad.tools.analyze.settings.analysis_settings import AnalysisSettings
from naiad.tools.analyze.settings.values import SettingsError
from naiad.tools.analyze.space import Variant

_FILE = "config.pbtxt"


def config_texts(settings: AnalysisSettings, variant: Variant, before: ModelConfig) -> tuple[str, str]:
    """Return the `config.pbtxt` of a model as it is, and with what a variant changes.

    `before` is the complete configuration that the server has. Where the model has no file here, both are complete.
    Raises OSError.
    """
    after = config_from_json(variant.config_json) if variant.config_json else before
    path = Path(settings.server.repository) / variant.model / _FILE if settings.server.repository else None
    if path is None or not path.is_file():
        return format_config(before), format_config(after)
    text = path.read_text(encoding="utf-8")
    own = parse_pbtxt(text).config
    wanted = with_changes(own, before, after)
    return text, text if wanted == own else edited(text, wanted)


def differences(
    settings: AnalysisSettings, variants: Sequence[Variant], configs: Mapping[str, ModelConfig]
) -> dict[str, str]:
    """Return by model what the winner changes in its `config.pbtxt`, as a unified diff. Raises OSError."""
    found: dict[str, str] = {}
    for variant in variants:
        if variant.config_json:
            before, after = config_texts(settings, variant, configs[variant.model])
            name = f"{variant.model}/{_FILE}"
            lines = unified_diff(
                before.splitlines(), after.splitlines(), f"{name} (now)", f"{name} (winner)", lineterm="", n=1
            )
            found[variant.model] = "\n".join(lines)
    return found


def write_winner(
    settings: AnalysisSettings,
    variants: Sequence[Variant],
    configs: Mapping[str, ModelConfig],
    profiles: Mapping[str, ModelProfile],
) -> list[Path]:
    """Write the models of the winner to the output repository, with their files where the repository is here.

    Only the values that the winner changes differ from the `config.pbtxt` of the repository. What was learned about
    each model is in a file beside its configuration. Raises SettingsError for a model that is there already, unless
    it may be replaced; OSError.
    """
    written: list[Path] = []
    for variant in variants:
        check_output(settings, variant.model)
        _, text = config_texts(settings, variant, configs[variant.model])
        folder = Path(settings.output_repository) / variant.model
        source = Path(settings.server.repository) / variant.model if settings.server.repository else None
        if source is not None and source.is_dir():
            shutil.copytree(source, folder, dirs_exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _FILE
        path.write_text(text, encoding="utf-8")
        written.append(path)
        if variant.model in profiles:
            (folder / PROFILE_FILE).write_text(format_profile(profiles[variant.model]))
            written.append(folder / PROFILE_FILE)
    return written


def check_output(settings: AnalysisSettings, model: str) -> None:
    """Raise SettingsError for a model that the output repository has already, unless it may be replaced."""
    folder = Path(settings.output_repository) / model
    if settings.output_repository and folder.exists() and not settings.overwrites_output:
        raise SettingsError(
            f"{folder} exists; remove it, choose another repository (--output), "
            "or set override_output_model_repository"
        )
