"""The tokenizer that the parameter `openai` names, for models of texts that do not count their tokens."""

from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.openai_mapping import read_tokenizer_file
from naiad.core.errors import excerpt, internal, invalid_argument
from naiad.engine.serving.served import TokenCounter


def read_token_counter(config: ModelConfig, version_dir: Path, model_dir: Path) -> TokenCounter | None:
    """Return what counts the tokens of a version's texts; None for a model that names no tokenizer.

    The file is that of the version, or that of the model. Raises InferError for one that is missing or damaged.
    """
    filename = read_tokenizer_file(config)
    if not filename:
        return None
    where = f"model '{config.name}': the tokenizer '{excerpt(filename)}' of the parameter 'openai'"
    path = next((each for each in (version_dir / filename, model_dir / filename) if each.is_file()), None)
    if path is None:
        raise invalid_argument(f"{where} is not there; searched in {version_dir} and {model_dir}")
    try:
        # The package is an extra, and most servers need no tokenizer.
        from naiad.backend.texts.file_tokenizer import FileTokenizer
    except ModuleNotFoundError as error:
        raise internal(
            f"{where} needs the package '{error.name}', which is not installed: pip install 'naiad[tokenizers]'"
        ) from error
    try:
        return FileTokenizer(path)
    except ValueError as error:
        raise invalid_argument(f"{where} cannot be read: {path}: {error}") from error
