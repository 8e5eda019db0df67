"""The files of a directory of onnxruntime-genai's model builder: `genai_config.json` and a tokenizer."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from naiad.backend.framework import Parameters
from naiad.backend.texts.generation.decoder_request import DecoderFacts
from naiad.backend.texts.generation.generation_directory import GenerationDirectory
from naiad.core.errors import excerpt

CONFIG_FILE = "genai_config.json"
_OTHER_PARTS = ("encoder", "embedding", "vision", "speech")
"""Members of the model beside its decoder: without pictures or sound their prompts are no plain tokens."""
_THREADS = "intra_op_num_threads"
_SPINNING = "session.intra_op.allow_spinning"


class GenaiDirectory(GenerationDirectory):
    """The files of one version. All methods raise InferError(INVALID_ARG)."""

    settings_file: ClassVar[str] = CONFIG_FILE
    defaults_file: ClassVar[str] = CONFIG_FILE
    again: ClassVar[str] = "write the directory again with onnxruntime-genai's model builder"

    def read_settings(self) -> Mapping[str, Any]:
        """Return what the file says of the model. Raises for models with more parts than a decoder."""
        if not (self.path / CONFIG_FILE).is_file():
            raise self.error(f"has no {CONFIG_FILE}; {self.again}")
        model = self._part("model")
        others = [name for name in _OTHER_PARTS if name in model]
        if others or "decoder" not in model:
            has = f"has '{others[0]}' beside the decoder" if others else "has no 'decoder'"
            raise self.error(f"{has} in {CONFIG_FILE}; only models of a decoder alone are served")
        return model

    def read_defaults(self) -> Mapping[str, Any]:
        """Return what the file says of sampling."""
        return self._part("search")

    def _part(self, name: str) -> Mapping[str, Any]:
        return self._object(self.read_json(CONFIG_FILE, {}), name)

    def _session_options(self) -> Mapping[str, Any]:
        return self._object(self._object(self.settings, "decoder"), "session_options")

    def _object(self, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        found = content.get(name, {})
        if not isinstance(found, dict):
            raise self.error(f"has '{name}' in {CONFIG_FILE} with {excerpt(repr(found))}; {self.again}")
        return found

    def model_facts(self, parameters: Parameters) -> DecoderFacts:
        """Return what holds for all requests."""
        self._session_options()
        vocabulary = self.whole(CONFIG_FILE, self.settings, "vocab_size")
        if vocabulary < 1:
            raise self.error(f"says nowhere how many tokens it knows; write 'vocab_size' in {CONFIG_FILE}")
        return self.facts(parameters, vocabulary)

    def session_overlay(self, thread_count: int) -> str:
        """Return the JSON that is laid over the file: threads that do not spin, unless the file has its own."""
        own = self._session_options()
        wanted = {_THREADS: thread_count, _SPINNING: "0"}
        left = {name: value for name, value in wanted.items() if name not in own}
        return json.dumps({"model": {"decoder": {"session_options": left}}})
