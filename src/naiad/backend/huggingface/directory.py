"""A Hugging Face directory with weights: how they are loaded.

Nothing is downloaded, no pickle is read, and no code of the directory is executed.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.framework import ModelFile, Parameters, reason
from naiad.backend.pytorch.library import release
from naiad.backend.texts.json_directory import AGAIN
from naiad.backend.texts.text_directory import Task, TextDirectory
from naiad.core.errors import excerpt

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_LOADERS: Mapping[Task, Any] = {
    Task.EMBEDDING: transformers.AutoModel,
    Task.TEXT_CLASSIFICATION: transformers.AutoModelForSequenceClassification,
    Task.TOKEN_CLASSIFICATION: transformers.AutoModelForTokenClassification,
    Task.TEXT_GENERATION: transformers.AutoModelForCausalLM,
}
_DTYPES = ("float32", "float16", "bfloat16")
_log = logging.getLogger(__name__)


class HuggingFaceDirectory(TextDirectory):
    """The files of one model version."""

    def __init__(self, context: ModelContext, parameters: Parameters) -> None:
        """Read the configuration. Raises InferError(INVALID_ARG) for missing files and for unknown models."""
        if not any((context.version_dir / name).is_file() for name in WEIGHTS):
            raise ModelFile(context, context.version_dir).error(
                f"has no {WEIGHTS[0]}; pickled weights (pytorch_model.bin) are not read: load them once with "
                "transformers and call save_pretrained"
            )
        super().__init__(context)
        self.config = self._read_config()
        self.task = self.choose_task(parameters)

    def setting(self, name: str) -> Any:
        """Return a member of the configuration, with the defaults of its model type; None without it."""
        return getattr(self.config, name, None)

    def text_setting(self, name: str) -> Any:
        """Return a member of the configuration, of its part for texts in models that also see; None without it."""
        return getattr(self.config.get_text_config(), name, None)

    def load(self, device: str, dtype: str) -> Any:
        """Return the model on a device. Raises InferError(INVALID_ARG) for weights that do not fit."""
        try:
            model, report = _LOADERS[self.task].from_pretrained(
                self.path, config=self.config, local_files_only=True, trust_remote_code=False, use_safetensors=True,
                output_loading_info=True,
            )  # fmt: skip
        except Exception as error:  # safetensors and transformers raise classes of their own
            raise self.error(f"has weights that cannot be loaded: {reason(error)}; {AGAIN}") from error
        # The pooler's result is not used.
        is_embedding = self.task is Task.EMBEDDING
        missing = sorted(name for name in report["missing_keys"] if not (is_embedding and "pooler" in name))
        if missing:
            raise self.error(
                f"has no weights for {len(missing)} parameters of the task '{self.task}' ({', '.join(missing[:3])}), "
                "which would be random numbers; choose another 'task', or train the model for it"
            )
        if self.task is Task.TEXT_GENERATION:
            # The server applies what the files say of sampling and ends; transformers would do it again.
            model.generation_config = transformers.GenerationConfig()
        return model.to(device, getattr(torch, dtype)).eval()

    def _read_config(self) -> Any:
        raw = self.settings
        if raw["model_type"] not in transformers.CONFIG_MAPPING:
            custom = " and its own code, which is never executed" if "auto_map" in raw else ""
            raise self.error(
                f"has the model type '{excerpt(str(raw['model_type']))}'{custom}; transformers "
                f"{transformers.__version__} does not know it: install a newer version, or serve it in a model.py"
            )
        try:
            return transformers.AutoConfig.from_pretrained(self.path, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise self.error(f"has a config.json that cannot be used: {excerpt(str(error))}; {AGAIN}") from error


class SharedWeights:
    """The weights of one version, loaded with the first instance of a device and shared by its instances."""

    def __init__(self, context: ModelContext, directory: HuggingFaceDirectory, parameters: Parameters) -> None:
        """Raises InferError(INVALID_ARG) for a parameter `dtype` that does not exist."""
        self._name = f"model '{context.name}' version {context.version}"
        self._directory = directory
        self._dtype = parameters.choice("dtype", _DTYPES, "float32")
        self._loading = threading.Lock()
        self._models: dict[str, Any] = {}
        """By device."""

    def on_device_of(self, spec: InstanceSpec) -> Any:
        """Return the model on the device of an instance. Raises InferError."""
        device = f"cuda:{spec.device_id}" if spec.kind == "KIND_GPU" else "cpu"
        with self._loading:
            model = self._models.get(device)
            if model is None:
                model = self._models[device] = self._directory.load(device, self._dtype)
                task = self._directory.task
                _log.info("%s: %s, task %s, on %s", self._name, type(model).__name__, task, device)
        return model

    def close(self) -> None:
        """Release the weights."""
        for model in self._models.values():
            release([*model.parameters(), *model.buffers()])
        self._models.clear()
