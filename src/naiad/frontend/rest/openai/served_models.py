"""The models that the OpenAI API sees, by the names that clients give."""

from collections.abc import Sequence
from dataclasses import dataclass

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.openai_mapping import OpenAiMapping, read_openai_mapping
from naiad.core.errors import ErrorCode, InferError, excerpt
from naiad.core.model import name_of
from naiad.engine.engine import Engine
from naiad.protocol.generate import Inputs, inputs_of
from naiad.protocol.openai.members import model_reference
from naiad.protocol.openai.openai_error import OpenAiError

_CACHED_MODELS = 1024


@dataclass(frozen=True, slots=True)
class OpenAiModel:
    """A model as the OpenAI API calls it."""

    name: str
    version: str
    config: ModelConfig
    mapping: OpenAiMapping
    inputs: Inputs
    optional: frozenset[str]


class OpenAiModels:
    """Finds models; what follows from a configuration is derived once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._found: dict[tuple[str, str], tuple[ModelConfig, OpenAiModel | None]] = {}

    def find(self, reference: str) -> OpenAiModel:
        """Return the model of a `model` member. Raises InferError if it is not ready or has no task."""
        name, version = model_reference(reference, self._engine.models.knows(reference))
        try:
            found = self._model(name, version)
        except InferError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            raise OpenAiError(error.message, param="model", code="model_not_found", is_missing=True) from None
        if found is None:
            raise OpenAiError(
                f"model '{excerpt(reference)}' has no task for the OpenAI API: its owner names one with the "
                'parameter "openai", such as "completion" or "embedding"; /v2/models has all models',
                param="model",
                code="model_not_found",
                is_missing=True,
            )
        return found

    def names(self) -> Sequence[str]:
        """Return the names of all ready models that have a task.

        Of a thousand text models that takes 50 ms and more: not for the event loop. It keeps nothing, so that it may
        run on any thread.
        """
        names = sorted({name_of(row.name) for row in self._engine.views.repository_index(ready_only=True)})
        return [name for name in names if self._has_task(name)]

    def _has_task(self, name: str) -> bool:
        try:
            return read_openai_mapping(self._engine.views.model_config(name)) is not None
        except InferError:
            return False  # It has been unloaded meanwhile, or two models share the name.

    def _model(self, name: str, version: str) -> OpenAiModel | None:
        config = self._engine.views.model_config(name, version)
        known = self._found.get((name, version))
        if known is not None and known[0] is config:
            return known[1]
        mapping = read_openai_mapping(config)
        optional = frozenset(each.name for each in config.input if each.optional)
        model = None
        if mapping is not None:
            model = OpenAiModel(name, version, config, mapping, inputs_of(config), optional)
        if len(self._found) >= _CACHED_MODELS:
            del self._found[next(iter(self._found))]
        self._found[(name, version)] = (config, model)
        return model
