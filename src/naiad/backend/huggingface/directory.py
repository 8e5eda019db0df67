"""A Hugging Face directory: what its files say of the model, and how its weights are loaded.

Nothing is downloaded, no pickle is read, and no code of the directory is executed.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from naiad.backend.api import ModelContext
from naiad.backend.framework import ModelFile, Parameters, reason
from naiad.core.errors import excerpt

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
MAX_LENGTH = 1 << 20
"""A longer `model_max_length` means that the tokenizer does not know one."""
_OFFSET_TYPES = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer"})
"""Model types whose first positions are unused: the numbers begin after that of padding."""
_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
"""sentence-transformers' names of poolings."""
_AGAIN = "copy the whole directory again, as save_pretrained writes it"


class Task(enum.StrEnum):
    """What a model computes from texts."""

    EMBEDDING = "embedding"
    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"


_ARCHITECTURES = {
    "ForSequenceClassification": Task.TEXT_CLASSIFICATION,
    "ForTokenClassification": Task.TOKEN_CLASSIFICATION,
    "Model": Task.EMBEDDING,
}
_LOADERS: Mapping[Task, Any] = {
    Task.EMBEDDING: transformers.AutoModel,
    Task.TEXT_CLASSIFICATION: transformers.AutoModelForSequenceClassification,
    Task.TOKEN_CLASSIFICATION: transformers.AutoModelForTokenClassification,
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """How the vectors of tokens become one."""

    mode: str
    """mean, cls or last."""
    normalizes: bool


class HuggingFaceDirectory(ModelFile):
    """The files of one model version."""

    def __init__(self, context: ModelContext, parameters: Parameters) -> None:
        """Read the configuration. Raises InferError(INVALID_ARG) for missing files and for unknown models."""
        super().__init__(context, context.version_dir)
        if not any((self.path / name).is_file() for name in WEIGHTS):
            raise self.error(
                f"has no {WEIGHTS[0]}; pickled weights (pytorch_model.bin) are not read: load them once with "
                "transformers and call save_pretrained"
            )
        if not (self.path / "tokenizer.json").is_file():
            raise self.error("has no tokenizer.json; save a fast tokenizer with tokenizer.save_pretrained")
        self.config = self._read_config()
        self.task = self._choose_task(parameters)

    def labels(self) -> list[str]:
        """Return the names of the classes in their order."""
        return [str(label) for _, label in sorted(self.config.id2label.items())]

    def pooling(self, parameters: Parameters) -> Pooling:
        """Return the pooling of the parameters, of sentence-transformers' files, or the mean, normalised."""
        modules = self._read_json("modules.json", [])
        types = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
        unknown = [name for name in types if name not in ("Transformer", "Pooling", "Normalize")]
        if unknown:
            raise self.error(
                f"has a module '{excerpt(unknown[0])}' in modules.json; this backend computes Transformer, Pooling "
                "and Normalize only: serve the model with sentence-transformers in a model.py"
            )
        mode = "mean"
        for module, name in zip(modules, types, strict=True):
            if name == "Pooling":
                mode = self._pooling_mode(f"{module.get('path', '')}/config.json")
        normalizes = "Normalize" in types or not modules
        return Pooling(
            parameters.choice("pooling", tuple(_POOLINGS.values()), mode),
            parameters.flag("normalize", default=normalizes),
        )

    def tokenizer(self, parameters: Parameters) -> Tokenizer:
        """Return the tokenizer, which truncates texts and pads a batch. Raises InferError(INVALID_ARG)."""
        try:
            tokenizer = Tokenizer.from_file(str(self.path / "tokenizer.json"))
        except Exception as error:  # the library raises Exception itself
            raise self.error(f"has a tokenizer.json that cannot be read: {excerpt(str(error))}; {_AGAIN}") from error
        token = (tokenizer.padding or {}).get("pad_token") or self._token("pad_token") or "[PAD]"
        number = tokenizer.token_to_id(token)
        if number is None:
            number = getattr(self.config, "pad_token_id", None) or 0
        tokenizer.enable_padding(pad_id=number, pad_token=token)
        tokenizer.enable_truncation(self._max_length(parameters))
        return tokenizer

    def load(self, device: str, dtype: str) -> Any:
        """Return the model on a device. Raises InferError(INVALID_ARG) for weights that do not fit."""
        try:
            model, report = _LOADERS[self.task].from_pretrained(
                self.path, config=self.config, local_files_only=True, trust_remote_code=False, use_safetensors=True,
                output_loading_info=True,
            )  # fmt: skip
        except Exception as error:  # safetensors and transformers raise classes of their own
            raise self.error(f"has weights that cannot be loaded: {reason(error)}; {_AGAIN}") from error
        # The pooler's result is not used.
        is_embedding = self.task is Task.EMBEDDING
        missing = sorted(name for name in report["missing_keys"] if not (is_embedding and "pooler" in name))
        if missing:
            raise self.error(
                f"has no weights for {len(missing)} parameters of the task '{self.task}' ({', '.join(missing[:3])}), "
                "which would be random numbers; choose another 'task', or train the model for it"
            )
        return model.to(device, getattr(torch, dtype)).eval()

    def _read_config(self) -> Any:
        raw = self._read_json("config.json", None)
        if not isinstance(raw, dict) or "model_type" not in raw:
            raise self.error(f"has no config.json with a 'model_type'; {_AGAIN}")
        if raw["model_type"] not in transformers.CONFIG_MAPPING:
            custom = " and its own code, which is never executed" if "auto_map" in raw else ""
            raise self.error(
                f"has the model type '{excerpt(str(raw['model_type']))}'{custom}; transformers "
                f"{transformers.__version__} does not know it: install a newer version, or serve it in a model.py"
            )
        try:
            return transformers.AutoConfig.from_pretrained(self.path, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise self.error(f"has a config.json that cannot be used: {excerpt(str(error))}; {_AGAIN}") from error

    def _choose_task(self, parameters: Parameters) -> Task:
        if "task" in parameters:
            return Task(parameters.choice("task", tuple(Task)))
        if (self.path / "modules.json").is_file():
            return Task.EMBEDDING
        architectures = [str(name) for name in self.config.architectures or ()]
        for name in architectures:
            for ending, task in _ARCHITECTURES.items():
                if name.endswith(ending):
                    return task
        shown = f"the architecture {excerpt(architectures[0])}" if architectures else "no architecture in config.json"
        raise self.error(
            f"has {shown}, from which no task follows; set the parameter 'task' to one of {', '.join(Task)}"
        )

    def _pooling_mode(self, name: str) -> str:
        settings = self._read_json(name, {})
        given = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
        modes = [_POOLINGS.get(key, key) for key in given] or [str(settings.get("pooling_mode", "mean"))]
        mode: str = modes[0].removesuffix("token")
        if len(modes) > 1 or mode not in _POOLINGS.values():
            raise self.error(
                f"has a pooling in {name} that this backend does not compute ({', '.join(modes)}); it computes one "
                "of mean, cls and last"
            )
        return mode

    def _max_length(self, parameters: Parameters) -> int:
        """Return the most tokens of a text that the model reads."""
        config = self.config
        positions = getattr(config, "max_position_embeddings", None) or MAX_LENGTH
        if config.model_type in _OFFSET_TYPES:
            positions -= (getattr(config, "pad_token_id", None) or 0) + 1
        limits = [
            positions,
            self._read_json("tokenizer_config.json", {}).get("model_max_length"),
            self._read_json("sentence_bert_config.json", {}).get("max_seq_length"),
        ]
        known = min(int(limit) for limit in limits if limit)
        wanted = parameters.count("max_length", known, maximum=MAX_LENGTH)
        if not 3 <= wanted <= positions:
            raise parameters.error("max_length", f"a number from 3 to {positions}, the positions of the model")
        return wanted

    def _token(self, name: str) -> str:
        token = self._read_json("tokenizer_config.json", {}).get(name)
        return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")

    def _read_json(self, name: str, default: Any) -> Any:
        """Return the content of a file, which is a list or a dictionary as `default` is."""
        path = self.path / name
        if not path.is_file():
            return default
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise self.error(f"has a {name} that is no JSON: {error}; {_AGAIN}") from error
        if default is not None and not isinstance(content, type(default)):
            raise self.error(f"has a {name} with a {type(content).__name__}; {_AGAIN}")
        return content
