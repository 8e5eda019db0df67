"""A directory in Hugging Face's layout: what its JSON files say of task, pooling, labels and tokenizer.

It needs the package tokenizers only. Nothing is downloaded, and no code of the directory is executed.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tokenizers import Tokenizer

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters
from naiad.backend.texts.json_directory import AGAIN, JsonDirectory
from naiad.core.errors import excerpt

MAX_LENGTH = 1 << 20
"""A longer `model_max_length` means that the tokenizer does not know one."""
_OFFSET_TYPES = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer"})
"""Model types whose first positions are unused: the numbers begin after that of padding."""
_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
"""sentence-transformers' names of poolings."""
_LENGTH = "max_seq_length"
_DEFAULT_LABELS = 2
"""transformers: the number of labels of a classifier whose `config.json` has none."""


class Task(enum.StrEnum):
    """What a model computes from texts."""

    EMBEDDING = "embedding"
    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"
    TEXT_GENERATION = "text-generation"


_ARCHITECTURES = {
    "ForSequenceClassification": Task.TEXT_CLASSIFICATION,
    "ForTokenClassification": Task.TOKEN_CLASSIFICATION,
    "ForCausalLM": Task.TEXT_GENERATION,
    "LMHeadModel": Task.TEXT_GENERATION,
    "Model": Task.EMBEDDING,  # last: the ending of names above
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """How the vectors of tokens become one."""

    mode: str
    """mean, cls or last."""
    normalizes: bool


class TextDirectory(JsonDirectory):
    """The files of one model version beside its weights."""

    def __init__(self, context: ModelContext) -> None:
        """Raises InferError(INVALID_ARG) for missing files."""
        super().__init__(context, context.version_dir)
        if not (self.path / "tokenizer.json").is_file():
            raise self.error("has no tokenizer.json; save a fast tokenizer with tokenizer.save_pretrained")
        self.settings: dict[str, Any] = self.read_json("config.json", {})
        """The content of `config.json`."""
        if not isinstance(self.settings.get("model_type"), str):
            raise self.error(f"has no config.json with a 'model_type'; {AGAIN}")

    def setting(self, name: str) -> Any:
        """Return a member of `config.json`; None without it."""
        return self.settings.get(name)

    def labels(self) -> list[str]:
        """Return the names of the classes in their order."""
        found = self.setting("id2label")
        if not isinstance(found, dict) or not found:
            return [f"LABEL_{number}" for number in range(_DEFAULT_LABELS)]
        try:
            numbered = {int(number): str(label) for number, label in found.items()}
        except ValueError:
            raise self.error(f"has an 'id2label' in config.json whose keys are no numbers; {AGAIN}") from None
        return [label for _, label in sorted(numbered.items())]

    def pooling(self, parameters: Parameters) -> Pooling:
        """Return the pooling of the parameters, of sentence-transformers' files, or the mean, normalised."""
        modules = self.read_json("modules.json", [])
        if not all(isinstance(module, dict) for module in modules):
            raise self.error(f"has a module in modules.json that is no object; {AGAIN}")
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
                mode = self._pooling_mode(f"{self._folder_of(module)}/config.json")
        normalizes = "Normalize" in types or not modules
        return Pooling(
            parameters.choice("pooling", tuple(_POOLINGS.values()), mode),
            parameters.flag("normalize", default=normalizes),
        )

    def tokenizer(self, parameters: Parameters) -> Tokenizer:
        """Return the tokenizer, which truncates texts and pads a batch. Raises InferError(INVALID_ARG)."""
        tokenizer = self.plain_tokenizer()
        token = (tokenizer.padding or {}).get("pad_token") or self.special_token("pad_token") or "[PAD]"
        number = tokenizer.token_to_id(token)
        if number is None:
            number = self.whole("config.json", self.settings, "pad_token_id")
        tokenizer.enable_padding(pad_id=number, pad_token=token)
        tokenizer.enable_truncation(self._max_length(parameters))
        return tokenizer

    def choose_task(self, parameters: Parameters) -> Task:
        """Return the task of the parameter, or the one that the files say. Raises InferError(INVALID_ARG)."""
        if "task" in parameters:
            return Task(parameters.choice("task", tuple(Task)))
        if (self.path / "modules.json").is_file():
            return Task.EMBEDDING
        found = self.setting("architectures") or []
        if not isinstance(found, list):
            raise self.error(f"has 'architectures' in config.json that are no list; {AGAIN}")
        architectures = [str(name) for name in found]
        for name in architectures:
            for ending, task in _ARCHITECTURES.items():
                if name.endswith(ending):
                    return task
        shown = f"the architecture {excerpt(architectures[0])}" if architectures else "no architecture in config.json"
        raise self.error(
            f"has {shown}, from which no task follows; set the parameter 'task' to one of {', '.join(Task)}"
        )

    def _folder_of(self, module: Mapping[str, Any]) -> str:
        """Return the folder of a module, which is below the directory."""
        path = module.get("path", "")
        parts = PurePosixPath(path).parts if isinstance(path, str) else ("..",)
        fits = not {"/", ".."} & {*parts} and "\0" not in path
        # The files themselves may be links: a cache of Hugging Face has its contents elsewhere.
        if not fits or not (self.path / path).resolve().is_relative_to(self.path.resolve()):
            raise self.error(
                f"has a module in modules.json with the 'path' {excerpt(repr(path))}; expected a folder in the "
                "directory"
            )
        return str(path)

    def _pooling_mode(self, name: str) -> str:
        settings = self.read_json(name, {})
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
        positions = self.whole("config.json", self.settings, "max_position_embeddings") or MAX_LENGTH
        if self.setting("model_type") in _OFFSET_TYPES:
            positions -= self.whole("config.json", self.settings, "pad_token_id") + 1
        limits = [positions]
        for name, member in (("tokenizer_config.json", "model_max_length"), ("sentence_bert_config.json", _LENGTH)):
            limits.append(self.whole(name, self.read_json(name, {}), member))
        known = min(limit for limit in limits if limit)
        wanted = parameters.count("max_length", known, maximum=MAX_LENGTH)
        if not 3 <= wanted <= positions:
            raise parameters.error("max_length", f"a number from 3 to {positions}, the positions of the model")
        return wanted
