"""The worker's part of `template_guard`: renders the chat template of a model file, within a limit of memory.

It is an adapter (`backend.isolation.adapter` is another one): a worker calls it as it calls a `TritonPythonModel`.
"""

import json
import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from naiad.backend.framework import reason
from naiad.backend.llamacpp.template_model import CONTEXT_TOKENS, PROBLEM
from naiad.core.errors import excerpt
from naiad.worker.api.failure import LoadError
from naiad.worker.api.request import InferenceRequest
from naiad.worker.api.response import InferenceResponse
from naiad.worker.api.tensor import Tensor

MAX_BYTES = 2 << 30
"""Limit of the memory that a template may allocate, with the model that renders it."""
_STATM = Path("/proc/self/statm")
_RENDERED = "top_logprobs requires logprobs"
"""What llama.cpp says of a wrong member that it reads after it has rendered a chat, and before all else."""


class TemplateTrial:
    """Renders chats as llama.cpp does, and nothing else."""

    def __init__(self) -> None:
        self._server: Any = None
        self._timeout_s = 0

    def _allow_time(self) -> None:
        """Have the system end the process when it has computed for the time of one template from now on."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit_s = int(used.ru_utime + used.ru_stime) + 1 + self._timeout_s
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.getrlimit(resource.RLIMIT_CPU)[1]))

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model of a template, for which llama.cpp renders chats of its own. Raises LoadError."""
        self._timeout_s = int(args["template_timeout_s"])
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a build for GPUs would prepare them
        import xllamacpp

        # Of what is written to: libraries of large machines reserve far more addresses than they use.
        if _STATM.is_file():
            most_bytes = _data_bytes() + MAX_BYTES
            resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        path = args["template_model"]
        listener = Path(path).with_name("trial.sock")
        listener.unlink(missing_ok=True)  # of a process that was killed
        settings = xllamacpp.CommonParams()
        settings.model.path = path
        settings.n_parallel = settings.n_threads_http = 1
        settings.n_ctx = settings.n_batch = settings.n_ubatch = CONTEXT_TOKENS
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
        settings.cache_ram_mib = settings.verbosity = 0
        settings.warmup = settings.fit_params = settings.ui = settings.endpoint_slots = False
        settings.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
        settings.hostnames = [str(listener)]
        settings.api_keys = [os.urandom(16).hex()]
        self._allow_time()
        try:
            self._server = xllamacpp.Server(settings)
        except Exception as error:  # the library raises RuntimeError for everything
            raise LoadError(f"llama.cpp does not take it: {excerpt(str(error))}") from error

    def execute(self, requests: Sequence[InferenceRequest]) -> list[InferenceResponse]:
        """Render the chat of each request: an empty text, or what the template says of it."""
        return [_response(self._tried(request.inputs()[0].as_numpy().ravel()[0])) for request in requests]

    def _tried(self, body: bytes) -> str:
        found = json.loads(body)
        found.pop("logprobs", None)
        found |= {"top_logprobs": 1, "stream": True}
        answers: list[Any] = []
        self._allow_time()
        try:
            self._server.handle_chat_completions(found, answers.append)
        except ValueError as error:  # what the library raises for templates, before it takes a slot
            text = str(error).strip()
            return "" if _RENDERED in text else excerpt(text.rpartition("\n")[2])
        except Exception as error:
            return reason(error)
        return ""


def _data_bytes() -> int:
    """Return the bytes of private memory that this process may write to."""
    fields = _STATM.read_text(encoding="ascii").split()
    return int(fields[5]) * resource.getpagesize()


def _response(problem: str) -> InferenceResponse:
    return InferenceResponse([Tensor(PROBLEM, np.array([problem.encode("utf-8", "replace")], object))])
