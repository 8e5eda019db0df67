"""The model that the running code executes for: what decorators know of its configuration."""

import inspect
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from naiad.bind.exceptions import PyTritonValidationError
from naiad.bind.model_config.triton_model_config import TritonModelConfig


class ModelConfigDict(MutableMapping[Callable[..., Any], TritonModelConfig]):
    """Configurations by inference callable; a decorated callable and the one inside are the same key."""

    def __init__(self) -> None:
        self._entries: dict[object, tuple[Callable[..., Any], TritonModelConfig]] = {}

    def __getitem__(self, infer_callable: Callable[..., Any]) -> TritonModelConfig:
        return self._entries[_key(infer_callable)][1]

    def __setitem__(self, infer_callable: Callable[..., Any], config: TritonModelConfig) -> None:
        # The callable is kept: its identity must not pass to another one.
        self._entries[_key(infer_callable)] = infer_callable, config

    def __delitem__(self, infer_callable: Callable[..., Any]) -> None:
        del self._entries[_key(infer_callable)]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter([each for each, _ in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)


def _key(infer_callable: Callable[..., Any]) -> object:
    if inspect.ismethod(infer_callable):
        owner, function = infer_callable.__self__, inspect.unwrap(infer_callable.__func__)
        return id(owner) if function.__name__ == "__call__" else (id(owner), id(function))
    return id(inspect.unwrap(infer_callable))


@dataclass
class TritonContext:
    """The configurations of all models that a server has bound."""

    model_configs: ModelConfigDict = field(default_factory=ModelConfigDict)


@dataclass(frozen=True, slots=True)
class RunningModel:
    """A model version during the execution of its callable."""

    context: TritonContext
    config: TritonModelConfig


running: ContextVar[RunningModel] = ContextVar("naiad_bind_running")
"""Set around each execution, so that one function can be bound to several models."""


def get_triton_context(wrapped: object = None, instance: object = None) -> TritonContext:
    """Return the context of the model that executes; the arguments of PyTriton are accepted.

    Raises PyTritonValidationError outside an execution.
    """
    found = running.get(None)
    if found is not None:
        return found.context
    context = getattr(instance if instance is not None else wrapped, "__triton_context__", None)
    if not isinstance(context, TritonContext):
        raise PyTritonValidationError(
            "this decorator reads the configuration of its model, and the function is not executed by a server: bind "
            "it with Triton.bind"
        )
    return context


def get_model_config(wrapped: Callable[..., Any] | None = None, instance: object = None) -> TritonModelConfig:
    """Return the configuration of the model that executes. Raises PyTritonValidationError outside an execution."""
    found = running.get(None)
    if found is not None:
        return found.config
    context = get_triton_context(wrapped, instance)
    if wrapped is None or wrapped not in context.model_configs:
        raise PyTritonValidationError(f"{wrapped!r} is not bound to a model")
    return context.model_configs[wrapped]
