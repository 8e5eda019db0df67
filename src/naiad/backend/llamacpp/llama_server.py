"""One llama.cpp server of a version, in this process: its slots are the instances, which it batches step by step.

The library opens a listener of its own. It gets a Unix socket in a private directory, and a random key.
"""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xllamacpp

from naiad.backend.api import ModelContext
from naiad.backend.framework import ModelFile, Parameters, cpu_instance_count, find_model_file, reason
from naiad.backend.llamacpp.gguf_header import GgufHeader, read_gguf_header, read_marks
from naiad.backend.llamacpp.template_guard import DEFAULT_TIMEOUT_S, TemplateGuard
from naiad.core.errors import InferError, excerpt, internal, invalid_argument
from naiad.core.texts.mark_search import MarkSearch
from naiad.files.temporary import OwnDirectory

DEFAULT_CONTEXT_TOKENS = 4096
"""The most tokens of a prompt and its answer, unless the model has fewer or the owner says otherwise."""
MAX_CONTEXT_TOKENS = 1 << 20
_CACHE_MEGABYTES = 256
_MAX_TIMEOUT_S = 3600
_SOCKET = "listener.sock"
_MAX_SOCKET_BYTES = 107
Take = Callable[[Mapping[str, Any]], bool]


_POOLINGS = {
    "mean": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN,
    "cls": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_CLS,
    "last": xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST,
}
TASKS = ("text", "embedding")
SPECIAL_TOKENS = ("all", "prompts")
"""Where marks in the text of clients count. llama.cpp cannot make text of them: a message with one is refused."""


class GgufFile(ModelFile):
    """The model file of a version, and what its beginning says."""

    def __init__(self, context: ModelContext) -> None:
        """Raises InferError(INVALID_ARG) for a file that is missing, damaged or of another format."""
        super().__init__(context, find_model_file(context, ("model.gguf",)))
        try:
            self.header: GgufHeader = read_gguf_header(self.path)
        except (ValueError, OSError) as error:
            raise self.error(str(error)) from error
        self.parameters = Parameters(context.config, context.backend_config)
        task = self.parameters.choice("task", TASKS, "embedding" if self.header.makes_vectors else "text")
        self.makes_vectors = task == "embedding"
        if self.makes_vectors and self.header.embedding_length < 1:
            raise self.error("says nowhere how long its vectors are; its task is text")

    def marks(self) -> Sequence[str]:
        """Return the marks that messages of users may not have, as the parameter says. Raises InferError."""
        if self.parameters.choice("special_tokens", SPECIAL_TOKENS, "all") == "all":
            return []
        try:
            return read_marks(self.path, self.header)
        except (ValueError, OSError) as error:
            raise self.error(str(error)) from error


class LlamaServer:
    """Loads the weights once and generates for all instances at a time."""

    def __init__(self, context: ModelContext, file: GgufFile) -> None:
        """Raises InferError for parameters and files that cannot be used."""
        parameters = file.parameters
        known = file.header.context_length or MAX_CONTEXT_TOKENS
        window = parameters.count("context_tokens", min(known, DEFAULT_CONTEXT_TOKENS), maximum=known)
        if window < 16:
            raise parameters.error("context_tokens", f"a number from 16 to {known}")
        self.has_template = file.header.has_chat_template
        self.window = window
        self.marks = MarkSearch(file.marks())
        """What the messages of chats may not have in them."""
        self.default_max_tokens = parameters.count("max_tokens", 0, maximum=known)
        self._server: Any = None
        self._guard: TemplateGuard | None = None
        self._directory = OwnDirectory("llamacpp")
        try:
            settings = self._settings(context, file)
            self._guard = self._new_guard(context, file)
            self._server = xllamacpp.Server(settings)
        except InferError:
            self.close()
            raise
        except Exception as error:  # the library raises RuntimeError for everything
            self.close()
            raise file.error(
                f"cannot be loaded by llama.cpp: {reason(error)}. The file may be damaged, its architecture "
                f"'{file.header.architecture}' unknown to xllamacpp {xllamacpp.__version__}, or the memory too small",
                internal,
            ) from error

    def _new_guard(self, context: ModelContext, file: GgufFile) -> TemplateGuard | None:
        """Try the chat template; return what tries chats with it, None where there are none."""
        limit_s = file.parameters.count("template_timeout_s", DEFAULT_TIMEOUT_S, maximum=_MAX_TIMEOUT_S)
        if not limit_s:
            raise file.parameters.error("template_timeout_s", f"seconds from 1 to {_MAX_TIMEOUT_S}")
        if not self.has_template:
            return None
        guard = TemplateGuard(context, file, file.header, limit_s, self._directory.path)
        if file.makes_vectors:  # the library executes the template only while it loads the file
            guard.close()
            return None
        return guard

    def _settings(self, context: ModelContext, file: GgufFile) -> Any:
        parameters = file.parameters
        slots = cpu_instance_count(context.config)
        settings = xllamacpp.CommonParams()
        settings.model.path = str(file.path)
        settings.n_parallel = slots
        settings.n_ctx = self.window * slots
        # Threads of llama.cpp spin at barriers: with as many as cores, one that waits for its core stops all.
        threads = parameters.count("num_threads") or max(1, context.usable_cores - 1)
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
        settings.n_gpu_layers = parameters.count("gpu_layers", 0)
        settings.cache_ram_mib = parameters.count("cache_megabytes", _CACHE_MEGABYTES, maximum=1 << 20)
        if file.makes_vectors:
            settings.embedding = True
            # A text is read at once: each of its tokens may depend on later ones.
            settings.n_batch = settings.n_ubatch = self.window
            default = "" if file.header.makes_vectors else "mean"
            pooling = parameters.choice("pooling", tuple(_POOLINGS), default)
            if pooling:
                settings.pooling_type = _POOLINGS[pooling]
        # What a model writes while it reasons is part of its text: no output holds it apart.
        settings.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
        settings.fit_params = False  # the owner's numbers hold
        settings.ctx_shift = False
        settings.warmup = False
        settings.verbosity = 0
        settings.ui = settings.endpoint_slots = False
        settings.n_threads_http = 1
        settings.hostnames = [self._socket()]
        settings.api_keys = [secrets.token_urlsafe(32)]
        return settings

    def _socket(self) -> str:
        path = self._directory.path / _SOCKET
        if len(os.fsencode(path)) > _MAX_SOCKET_BYTES:
            raise internal(f"{path} is too long for a Unix socket of llama.cpp; set TMPDIR to a shorter directory")
        return str(path)

    def generate(self, body: Mapping[str, Any], take: Take, *, is_chat: bool) -> None:
        """Generate, and call `take` with each chunk until it returns True. Blocks until the slot is free again.

        Raises InferError(INVALID_ARG) if the template of the file takes no such chat, or takes too long for it.
        """
        if not is_chat:
            self._server.handle_completions(dict(body), take)
            return
        if self._guard is not None:
            self._guard.check(body)
        try:
            self._server.handle_chat_completions(dict(body), take)
        except ValueError as error:  # what the library raises for templates, before it takes a slot
            last = str(error).strip().rpartition("\n")[2]
            text = f"the chat template of the model file fails for these messages: {excerpt(last)}"
            raise invalid_argument(text) from error

    def embed(self, text: str) -> Any:
        """Return llama.cpp's answer with the vector of a text, of length 1."""
        return self._server.handle_embeddings({"input": text})

    def close(self) -> None:
        """Release weights, threads and the listener."""
        self._server = None
        if self._guard is not None:
            self._guard.close()
        self._directory.remove()
