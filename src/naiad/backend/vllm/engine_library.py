"""What the backend uses of vLLM: its public interface, imported where the first engine starts."""

import os
import sys
from dataclasses import dataclass, fields
from typing import Any

from naiad.backend.framework import reason
from naiad.core.errors import internal


@dataclass(frozen=True, slots=True)
class EngineLibrary:
    """The classes of vLLM."""

    version: str
    AsyncEngineArgs: Any
    AsyncLLM: Any
    SamplingParams: Any
    RequestOutputKind: Any

    @property
    def argument_names(self) -> frozenset[str]:
        """The names of an engine's arguments."""
        return frozenset(each.name for each in fields(self.AsyncEngineArgs))


def import_library() -> EngineLibrary:
    """Import vLLM. Raises InferError(INTERNAL) with what to install."""
    # vLLM would report its use to its makers, unless the environment says otherwise.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.engine.async_llm import AsyncLLM
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("vllm."):
            raise internal(f"backend 'vllm' needs vLLM 0.10 or newer, and this one has no {error.name}") from error
        raise internal(
            f"backend 'vllm' needs the package '{error.name}', which is not installed for {sys.executable}: pip "
            "install vllm, or name an environment that has it with the parameter EXECUTION_ENV_PATH"
        ) from error
    except Exception as error:  # libraries of GPUs that do not fit raise many things
        raise internal(f"backend 'vllm' cannot import vLLM for {sys.executable}: {reason(error)}") from error
    version = str(getattr(vllm, "__version__", "of an unknown version"))
    return EngineLibrary(version, AsyncEngineArgs, AsyncLLM, SamplingParams, RequestOutputKind)


def lora_request(name: str, number: int, path: str) -> Any:
    """Return the argument of `AsyncLLM.generate` that names an adapter; `number` is from 1."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, number, path)


def structured_outputs(values: dict[str, Any]) -> Any:
    """Return the sampling parameter that holds a text to a form. Raises TypeError and ValueError."""
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(**values)
