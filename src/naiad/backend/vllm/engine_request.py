"""From the tensors of a request, Triton's for vLLM, to what an engine is to generate."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from naiad.backend.texts.generation.generation_request import json_of, tensors_of, text_of, wrong_sampling
from naiad.backend.vllm.engine_library import EngineLibrary, structured_outputs
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.request import InferRequest

_MAX_TEXT_BYTES = 4 << 20
_MAX_SAMPLING_BYTES = 64 << 10
_OWN = frozenset({"output_kind", "skip_clone", "extra_args", "detokenize"})
"""Parameters of vLLM that are the backend's own business."""
_TEXTS = frozenset({"stop", "bad_words"})
"""Parameters that may be texts."""
SWITCHES: Mapping[str, str] = {
    f"return_{name}": name
    for name in ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
}
"""Inputs with which a client asks for a further output, and these outputs."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation."""

    prompt: str
    streams: bool
    repeats_prompt: bool
    """Whether the text begins with the prompt."""
    outputs: frozenset[str]
    """Names of the outputs beside `text_output`."""
    sampling: Mapping[str, Any]
    """The parameters that are given; without `lora_name`."""
    lora_name: str


def read_engine_request(request: InferRequest, adapters: Collection[str]) -> EngineRequest:
    """Return what a request asks for. Raises InferError(INVALID_ARG) with input, value and what is expected."""
    tensors = tensors_of(request)
    if "text_input" not in tensors:
        raise invalid_argument("a request has the input 'text_input' with the prompt")
    prompt = text_of("text_input", tensors["text_input"], _MAX_TEXT_BYTES)
    if not prompt:
        raise invalid_argument("input 'text_input' is empty; send a prompt")
    streams = _flag(tensors, "stream")
    # Triton: without the input a whole text begins with its prompt, and a stream does not.
    excludes = _flag(tensors, "exclude_input_in_output") if "exclude_input_in_output" in tensors else streams
    if streams and not excludes:
        raise invalid_argument("'exclude_input_in_output' is false; a stream never begins with its prompt")
    sampling = _sampling(request, tensors)
    lora_name = sampling.pop("lora_name", "")
    if lora_name and lora_name not in adapters:
        known = ", ".join(adapters) or "none: 'enable_lora' is not in model.json"
        raise wrong_sampling("lora_name", lora_name, f"one of the model's adapters: {excerpt(known)}")
    if streams and sampling.get("n", 1) != 1:
        raise wrong_sampling("n", sampling["n"], "1: a stream has one text; send a request for each")
    outputs = frozenset(output for name, output in SWITCHES.items() if _flag(tensors, name))
    return EngineRequest(prompt, streams, not excludes, outputs, sampling, lora_name)


def _flag(tensors: Mapping[str, Any], name: str) -> bool:
    return bool(tensors[name][0]) if name in tensors else False


def _sampling(request: InferRequest, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters: of the input, or the parameters of the request, as Triton has it."""
    if "sampling_parameters" in tensors:
        text = text_of("sampling_parameters", tensors["sampling_parameters"], _MAX_SAMPLING_BYTES)
        found: dict[str, Any] = json_of("sampling_parameters", text or "{}", dict)
    else:
        found = {name: _parsed(name, value) for name, value in request.header.parameters.items()}
    given = {name: value for name, value in found.items() if value is not None}
    for name in given:
        if name in _OWN or name.startswith("_"):
            raise wrong_sampling(name, given[name], "no such parameter")
    if not isinstance(given.get("lora_name", ""), str):
        raise wrong_sampling("lora_name", given["lora_name"], "the name of an adapter")
    return given


def _parsed(name: str, value: Any) -> Any:
    """Return a parameter of a request, which may be a number or a list in a text."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, list) or name not in _TEXTS else value


def sampling_params(library: EngineLibrary, asked: EngineRequest) -> Any:
    """Return vLLM's object for the parameters. Raises InferError(INVALID_ARG) with vLLM's words."""
    values = dict(asked.sampling)
    kinds = library.RequestOutputKind
    try:
        form = values.get("structured_outputs")
        if form is not None:
            # Triton: a JSON text.
            values["structured_outputs"] = structured_outputs(
                json.loads(form) if isinstance(form, str) else dict(form)
            )
        return library.SamplingParams(**values, output_kind=kinds.DELTA if asked.streams else kinds.FINAL_ONLY)
    except Exception as error:  # vLLM's own classes, and classes of its checks
        text = excerpt(str(error))
        raise invalid_argument(f"'sampling_parameters' do not fit vLLM {library.version}: {text}") from error
