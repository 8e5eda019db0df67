"""The files of a version in Triton's layout for vLLM: `model.json`, and `multi_lora.json` beside it."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.framework import ModelFile
from naiad.config.problem import nearest
from naiad.core.errors import excerpt

ARGUMENTS_FILE = "model.json"
LORA_FILE = "multi_lora.json"
_MAX_BYTES = 1 << 20
_GONE = frozenset({"disable_log_requests"})
"""Arguments of earlier releases of vLLM that only say what is now the default."""


class EngineDirectory(ModelFile):
    """The files of one version. All methods raise InferError(INVALID_ARG) with file, member and what is expected."""

    def __init__(self, context: ModelContext) -> None:
        super().__init__(context, context.version_dir)
        found = self._object(ARGUMENTS_FILE)
        if found is None:
            raise self.error(f"has no {ARGUMENTS_FILE}; write the arguments of vLLM's AsyncEngineArgs in it as JSON")
        model = found.get("model")
        if not isinstance(model, str) or not model:
            text = "has no 'model'" if model is None else f"has 'model' with {excerpt(repr(model))}"
            raise self.error(f"{text} in {ARGUMENTS_FILE}; expected a directory, or a name of the Hugging Face Hub")
        local = self.path / model
        self.arguments: Mapping[str, Any] = {**found, "model": str(local) if local.is_dir() else model}
        """The arguments of the engine."""
        self.adapters = self._adapters()
        """LoRA adapters: their directories by name, in the order of the file."""

    def _adapters(self) -> Mapping[str, str]:
        # Triton: a text or a boolean.
        if str(self.arguments.get("enable_lora", "")).lower() != "true":
            return {}
        found = self._object(LORA_FILE)
        if found is None:
            raise self.error(f"has 'enable_lora' in {ARGUMENTS_FILE} and no {LORA_FILE} with the adapters")
        for name, path in found.items():
            if not isinstance(path, str) or not path:
                raise self.error(
                    f"has '{excerpt(name)}' in {LORA_FILE} with {excerpt(repr(path))}; expected a directory"
                )
        return {name: str(self.path / path) if (self.path / path).is_dir() else path for name, path in found.items()}

    def known_arguments(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return the arguments of an engine that takes these names."""
        left = {name: value for name, value in self.arguments.items() if name in names or name not in _GONE}
        for name in left:
            if name not in names:
                meant = nearest(name, names)
                hint = f"; did you mean '{meant}'?" if meant else "; remove it, or use a release of vLLM that has it"
                raise self.error(
                    f"has '{excerpt(name)}' in {ARGUMENTS_FILE}, which is no argument of vLLM's engine{hint}"
                )
        if "enable_lora" in left:
            left["enable_lora"] = bool(self.adapters)
        return left

    def count(self, name: str) -> int:
        """Return an argument that is a number of processes; 1 without it."""
        value = self.arguments.get(name, 1)
        if type(value) is not int or value < 1:
            raise self.error(
                f"has '{name}' in {ARGUMENTS_FILE} with {excerpt(repr(value))}; expected a whole number from 1"
            )
        return value

    def _object(self, name: str) -> dict[str, Any] | None:
        """Return the content of a file; None without it."""
        path = self.path / name
        if not path.is_file():
            return None
        if path.stat().st_size > _MAX_BYTES:
            raise self.error(f"has a {name} of more than {_MAX_BYTES} bytes")
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise self.error(f"has a {name} that is no JSON: {error}") from error
        if not isinstance(content, dict):
            raise self.error(f"has a {name} with {excerpt(repr(content))}; expected a JSON object")
        return content
