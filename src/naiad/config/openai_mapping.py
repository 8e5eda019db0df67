"""How the OpenAI API sees a model: the parameter `openai`, or the names of tensors that language models have.

    parameters { key: "openai" value { string_value: "chat,template=chatml,input=PROMPT,output=REPLY" } }

The first word is the task. `protocol.openai` makes tensors of requests, and text of responses.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from naiad.config.forms.findings import Findings
from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput
from naiad.config.naiad_parameters import OPENAI
from naiad.core.errors import InferError, excerpt, invalid_argument

TASKS = ("chat", "completion", "embedding", "rerank")
TEMPLATES = ("chatml", "gemma", "json", "llama3", "mistral", "plain")
"""`json` passes the list of messages as a JSON text: the model applies its own template."""
EXPECTED = (
    "chat|completion|embedding|rerank[,template=NAME][,input=NAME][,messages=NAME][,documents=NAME][,output=NAME][,max_tokens=NUMBER]"
    "[,prompt_tokens=NAME|,tokenizer=FILE][,completion_tokens=NAME][,finish_reason=NAME][,rerank=cosine]"
)
TEXT_BACKENDS = frozenset({"huggingface", "onnx_text"})
"""Backends of encoders, whose tensors have known names."""
CHAT_BACKENDS = frozenset({"huggingface", "llamacpp", "onnx_decoder", "onnx_genai"})
"""Backends whose language models take the messages of a chat and apply its template themselves."""
MAX_TOKENS = 1 << 31
SAMPLING_TEXT = "sampling_parameters"
"""An input with this name takes all sampling members as one JSON text (vLLM)."""
RETURN_LOGPROBS = "return_logprobs"
"""An input with this name asks for log probabilities."""
SWITCHES: Mapping[str, bool] = {
    "exclude_input_in_output": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
    "return_finish_reason": True,
    RETURN_LOGPROBS: False,
}
"""Inputs with these names get these values; the last one true where a client wants log probabilities."""
NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "min_tokens": 0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": 0,
    "stop_words": [""],
    "bad_words": [""],
}
"""Sampling inputs, and what a required one gets if the request says nothing."""
OFFERS: Mapping[str, tuple[str, str]] = {
    "response_format": ("response_format", ""),
    "tools": ("tools", "tool_calls"),
    "logprobs": ("", "logprobs"),
}
"""Members that only some models can follow, and the input and the output of type STRING that such a model has."""
_EXTRA_TENSORS = frozenset({"messages", "tool_choice", *(name for pair in OFFERS.values() for name in pair)})
_FILLED = frozenset({"stream", "max_tokens", SAMPLING_TEXT, *SWITCHES, *NEUTRAL})
_KEYS = (
    *("template", "input", "messages", "documents", "output", "max_tokens"),
    *("prompt_tokens", "tokenizer", "completion_tokens", "finish_reason", "rerank"),
)
_COUNTS = {
    "prompt_tokens": "num_input_tokens",
    "completion_tokens": "num_output_tokens",
    "finish_reason": "finish_reason",
}
"""The outputs of vLLM models, which are used where the owner names none."""
_WHOLE = frozenset(
    DataType.Value(f"TYPE_{name}")
    for name in ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)
"""Types of outputs that count tokens. BOOL and others may be the mask of a tokenizer: its sum is the number."""


@dataclass(frozen=True, slots=True)
class OpenAiMapping:
    """What a model does for the OpenAI API, and the names of its tensors."""

    task: str
    """One of `TASKS`; a chat model also completes prompts."""
    input: str
    output: str
    template: str = ""
    """One of `TEMPLATES`; empty: the model takes prompts only."""
    max_tokens: int = 0
    """For requests that give no number; 0: the model decides."""
    prompt_tokens: str = ""
    """The output with the number of tokens of the prompt; empty without one."""
    completion_tokens: str = ""
    """The output with the number of new tokens in a response; empty without one."""
    finish_reason: str = ""
    """The output with `stop` or `length`; empty without one."""
    messages: str = ""
    """The input with the messages of a chat as JSON, where it is another one than that of prompts."""
    offers: frozenset[str] = frozenset()
    """Members of `OFFERS` that the model has tensors for."""
    documents: str = ""
    """Rerank: the input with the document, beside that with the query."""
    compares_vectors: bool = False
    """Whether a model of embeddings also reranks, by the cosine of the angle between two vectors."""
    tokenizer: str = ""
    """Embeddings and rerank: the file by which the server counts the tokens of texts; empty if the model does."""

    @property
    def generates(self) -> bool:
        """Whether the model returns text."""
        return self.task in ("chat", "completion")

    @property
    def reranks(self) -> bool:
        """Whether the model compares a query with documents."""
        return self.task == "rerank" or self.compares_vectors


@dataclass(frozen=True, slots=True)
class _Values:
    """The words of a parameter."""

    task: str
    values: Mapping[str, str] = field(default_factory=dict)


def read_openai_mapping(config: ModelConfig) -> OpenAiMapping | None:
    """Return how the OpenAI API sees a model; None if it does not. Raises InferError(INVALID_ARG)."""
    if OPENAI not in config.parameters:
        return _mapping_of_form(config)
    try:
        return _complete(_parse(config.parameters[OPENAI].string_value), config)
    except ValueError as error:
        raise _wrong_parameter(config, error) from None


def read_tokenizer_file(config: ModelConfig) -> str:
    """Return the tokenizer that a configuration names for counting; empty without one. Raises InferError."""
    if OPENAI not in config.parameters:
        return ""
    try:
        return _parse(config.parameters[OPENAI].string_value).values.get("tokenizer", "")
    except ValueError as error:
        raise _wrong_parameter(config, error) from None


def _wrong_parameter(config: ModelConfig, error: ValueError) -> InferError:
    return invalid_argument(f"model '{config.name}': parameter '{OPENAI}': {error}")


def check_openai(findings: Findings, *, complete: bool) -> None:
    """Check the parameter."""
    config = findings.config
    if OPENAI not in config.parameters:
        return
    text = config.parameters[OPENAI].string_value
    try:
        values = _parse(text)
        if complete:
            _complete(values, config)
    except ValueError as error:
        findings.parameter_error(OPENAI, str(error), text=text, expected=EXPECTED)


def _parse(text: str) -> _Values:
    task, *words = [word.strip() for word in text.split(",")]
    if task not in TASKS:
        raise ValueError(f"begins with '{excerpt(task)}'; expected a task: {', '.join(TASKS)}")
    values: dict[str, str] = {}
    for word in words:
        key, _, value = (part.strip() for part in word.partition("="))
        if key not in _KEYS or key in values or not value:
            raise ValueError(f"'{excerpt(word)}' is unknown, twice or without a value; expected {EXPECTED}")
        values[key] = value
    template = values.get("template", "")
    if template and template not in TEMPLATES:
        raise ValueError(
            f"template is '{excerpt(template)}'; expected one of {', '.join(TEMPLATES)}. With template=json the "
            "model gets the messages as JSON and applies its own template"
        )
    if (task == "chat") != bool(template):
        raise ValueError("a chat needs template=NAME, other tasks have none; names are " + ", ".join(TEMPLATES))
    if values.get("rerank", "cosine") != "cosine" or ("rerank" in values and task != "embedding"):
        raise ValueError("rerank is only for the task embedding, and the value is cosine")
    if "messages" in values and template != "json":
        raise ValueError("messages is only for template=json")
    if "documents" in values and task != "rerank":
        raise ValueError("documents is only for the task rerank")
    _check_tokenizer(task, values)
    number = values.get("max_tokens", "1")
    if not (number.isascii() and number.isdecimal() and 0 < int(number[:12]) < MAX_TOKENS):
        raise ValueError(f"max_tokens is '{excerpt(number)}'; expected a whole number from 1 to {MAX_TOKENS - 1}")
    return _Values(task, values)


def _check_tokenizer(task: str, values: Mapping[str, str]) -> None:
    if "tokenizer" not in values:
        return
    if task not in ("embedding", "rerank"):
        raise ValueError("tokenizer is only for the tasks embedding and rerank; other models count tokens in outputs")
    if "prompt_tokens" in values:
        raise ValueError("has prompt_tokens and tokenizer; name the one that counts the tokens of texts")
    path = PurePosixPath(values["tokenizer"])
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"tokenizer is '{excerpt(str(path))}'; expected a file in the directory of the model")


def _complete(words: _Values, config: ModelConfig) -> OpenAiMapping:
    """Return the mapping with the names that the owner has left out. Raises ValueError."""
    values = words.values
    inputs = {each.name: each for each in config.input}
    outputs = {each.name: each for each in config.output}
    strings = {name for name, each in inputs.items() if each.data_type == DataType.TYPE_STRING}
    texts = [name for name in inputs if name in strings and name not in _FILLED | _EXTRA_TENSORS]
    is_rerank = words.task == "rerank"
    text_input = _chosen("input", values, "text" if is_rerank else "text_input", texts)
    _check_text("input", text_input, inputs, texts)
    documents = ""
    if is_rerank:
        others = [name for name in texts if name != text_input]
        documents = _chosen("documents", values, "text_pair", others)
        _check_text("documents", documents, inputs, others)
    messages = values.get("messages", "")
    if messages:
        _check_text("messages", messages, inputs, sorted(strings))
    counts = {key: values.get(key, name if _is_fit(key, outputs.get(name)) else "") for key, name in _COUNTS.items()}
    if "tokenizer" in values:
        counts["prompt_tokens"] = ""
    others = [name for name in outputs if name not in counts.values() and name not in _EXTRA_TENSORS]
    output = _chosen("output", values, "scores" if is_rerank else "text_output", others)
    for key, name in {"output": output, **counts}.items():
        if name and name not in outputs:
            raise ValueError(f"{key} is '{excerpt(name)}'; the model has the outputs {_shown(outputs)}")
        if name and key in _COUNTS and not _is_fit(key, outputs[name]):
            wanted = "TYPE_STRING" if key == "finish_reason" else "a type of whole numbers"
            found = DataType.Name(outputs[name].data_type)
            raise ValueError(f"{key} is '{excerpt(name)}', which has {found}; expected an output with {wanted}")
    is_text = outputs[output].data_type == DataType.TYPE_STRING
    if is_text != (words.task in ("chat", "completion")):
        expected = "floating-point numbers" if is_text else "TYPE_STRING"
        raise ValueError(f"output '{excerpt(output)}' has the wrong type for {words.task}; expected {expected}")
    filled = {text_input, documents, messages, *_FILLED}
    missing = [name for name, each in inputs.items() if name not in filled and not each.optional]
    if missing:
        raise ValueError(f"no member of a request is for the required inputs {_shown(missing)}; make them optional")
    return OpenAiMapping(
        words.task,
        text_input,
        output,
        template=values.get("template", ""),
        max_tokens=int(values.get("max_tokens", "0")),
        prompt_tokens=counts["prompt_tokens"],
        completion_tokens=counts["completion_tokens"],
        finish_reason=counts["finish_reason"],
        messages=messages,
        offers=_offers(strings, outputs),
        documents=documents,
        compares_vectors="rerank" in values,
        tokenizer=values.get("tokenizer", ""),
    )


def _is_fit(key: str, output: ModelOutput | None) -> bool:
    """Return whether an output has the type of a count, or of the reason why a text has ended."""
    if output is None:
        return False
    is_text = output.data_type == DataType.TYPE_STRING
    return is_text if key == "finish_reason" else output.data_type in _WHOLE


def _offers(texts: Collection[str], outputs: Collection[str]) -> frozenset[str]:
    """Return the members of `OFFERS` for which a model has the tensors."""
    return frozenset(
        name
        for name, (taken, made) in OFFERS.items()
        if (not taken or taken in texts) and (not made or made in outputs)
    )


def _check_text(key: str, name: str, inputs: Mapping[str, ModelInput], candidates: Collection[str]) -> None:
    if name not in inputs or inputs[name].data_type != DataType.TYPE_STRING:
        raise ValueError(f"{key} is '{excerpt(name)}'; expected an input of TYPE_STRING: {_shown(candidates)}")


def _chosen(key: str, values: Mapping[str, str], usual: str, candidates: Collection[str]) -> str:
    if key in values:
        return values[key]
    if usual in candidates or len(candidates) != 1:
        if usual not in candidates:
            raise ValueError(f"has no {key}=NAME, and the model has {_shown(candidates)}; name one")
        return usual
    return next(iter(candidates))


def _shown(names: Collection[str]) -> str:
    return excerpt(", ".join(f"'{name}'" for name in names) or "none")


def _mapping_of_form(config: ModelConfig) -> OpenAiMapping | None:
    """Return the mapping of a model with the tensors of vLLM's or TensorRT-LLM's backend; None for others."""
    inputs = {each.name for each in config.input}
    if config.backend in CHAT_BACKENDS and "messages" in inputs:
        names = {"input": "text_input", "output": "text_output", "template": "json", "messages": "messages"}
        return _by_itself("chat", names, config)
    if config.backend in TEXT_BACKENDS:
        return _mapping_of_texts(config)
    if config.backend == "llamacpp" and any(each.name == "embedding" for each in config.output):
        return _by_itself("embedding", {"input": "text_input", "output": "embedding"}, config)
    is_vllm = {"text_input", "stream", SAMPLING_TEXT} <= inputs
    is_tensorrt_llm = {"text_input", "max_tokens"} <= inputs
    if not (is_vllm or is_tensorrt_llm):
        return None
    return _by_itself("completion", {"input": "text_input", "output": "text_output"}, config)


def _mapping_of_texts(config: ModelConfig) -> OpenAiMapping | None:
    """Return the mapping of an encoder of texts: its vectors, or the one score of a pair of texts."""
    outputs = {each.name: list(each.dims) for each in config.output}
    if "embedding" in outputs:
        return _by_itself("embedding", {"input": "text", "output": "embedding"}, config)
    if outputs.get("scores") == [1] and any(each.name == "text_pair" for each in config.input):
        return _by_itself("rerank", {"input": "text", "documents": "text_pair", "output": "scores"}, config)
    return None


def _by_itself(task: str, values: Mapping[str, str], config: ModelConfig) -> OpenAiMapping | None:
    try:
        return _complete(_Values(task, values), config)
    except ValueError:
        return None  # The names are a coincidence.
