"""The models that the Model Context Protocol shows as tools: all that are ready."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.openai_mapping import OpenAiMapping, read_openai_mapping
from naiad.core.errors import InferError
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.model import name_of
from naiad.engine.engine import Engine
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.protocol.mcp.model_tool import describe_model
from naiad.protocol.mcp.openai_tool import describe_openai_model
from naiad.protocol.mcp.tool_names import page_after, tool_name

_CACHED_MODELS = 1024
_CACHED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Tool:
    """A model as a tool."""

    model: str
    config: ModelConfig
    mapping: OpenAiMapping | None
    """How the OpenAI API sees it; None for a model that takes tensors."""
    is_decoupled: bool
    definition: orjson.Fragment


class ServedTools:
    """Finds tools; what follows from a configuration is derived once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: BoundedCache[str, Tool] = BoundedCache(
            max_entries=_CACHED_MODELS, max_bytes=_CACHED_BYTES, max_entry_bytes=_CACHED_BYTES // 16
        )

    def page(self, cursor: str | None) -> tuple[Sequence[orjson.Fragment], str | None]:
        """Return the definitions of a page and the cursor of the next one. Raises ValueError for a wrong cursor."""
        names, following = page_after(self._names(), cursor)
        found = [self._ready_tool(name) for name in names]
        return [tool.definition for tool in found if tool is not None], following

    def find(self, name: str) -> Tool | None:
        """Return a tool by its name; None if no model has it. Raises ColdModelError for one that is not loaded."""
        tool = self._tool(name) if tool_name(name) == name else None
        if tool is None:  # a model whose name is not allowed for tools
            models = [model for model in self._names() if model != name and tool_name(model) == name]
            tool = self._tool(models[0]) if models else None
        return tool

    def _names(self) -> Sequence[str]:
        return sorted({name_of(row.name) for row in self._engine.views.repository_index(ready_only=True)})

    def _ready_tool(self, model: str) -> Tool | None:
        try:
            return self._tool(model)
        except ColdModelError:
            return None  # It was evicted meanwhile: a list loads nothing.

    def _tool(self, model: str) -> Tool | None:
        try:
            config = self._engine.views.model_config(model)
            is_decoupled = self._engine.inference.is_decoupled(model)
        except ColdModelError:
            raise
        except InferError:
            return None  # It has been unloaded meanwhile, or two models share the name.
        known = self._known.get(model)
        if known is not None and known.config is config:
            return known
        tool = _make_tool(model, config, is_decoupled=is_decoupled)
        self._known.remember(model, tool, len(orjson.dumps(tool.definition)))
        return tool


def _make_tool(model: str, config: ModelConfig, *, is_decoupled: bool) -> Tool:
    try:
        mapping = read_openai_mapping(config)
    except InferError:
        mapping = None
    if mapping is None:
        definition: Mapping[str, Any] = describe_model(model, config, is_decoupled=is_decoupled)
    else:
        definition = describe_openai_model(model, config, mapping)
    return Tool(model, config, mapping, is_decoupled, orjson.Fragment(orjson.dumps(definition)))
