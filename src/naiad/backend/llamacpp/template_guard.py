"""Chat templates, tried in a process of their own before llama.cpp executes them in the server.

A template is a program of the model file. One that does not end would hold the library's load, or a slot, without
limit; one without end in its recursion would end the server. The process has limits of computing time and memory,
and is replaced when it has exceeded them. A chat takes it a millisecond.
"""

import json
import struct
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from naiad.backend.api import InstanceDiedError, InstanceSpec, ModelContext
from naiad.backend.framework import ModelFile
from naiad.backend.llamacpp.gguf_header import GgufHeader
from naiad.backend.llamacpp.template_model import PROBLEM, template_model
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.backend.workers.worker_instance import WorkerInstance
from naiad.backend.workers.worker_settings import WorkerSettings, WorkerSource, read_settings
from naiad.config.backends import TEMPLATE_TRIAL
from naiad.config.model_config_pb2 import DataType as ConfigType
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, invalid_argument, unavailable
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.core.version import PACKAGE_DIR

DEFAULT_TIMEOUT_S = 10
_INPUT = "chat"
_MOST_WAIT = 6
_LEAST_WAIT_S = 60
"""The limit is computing time, which a busy machine does not use up. The server waits longer: a process may hang."""
_OUT_OF_TIME = "SIGXCPU"
_RESTART_INTERVAL_S = 1.0
_NO_LIMIT = 1 << 30
_POLL_S = 0.02


class TemplateGuard:
    """Tries chats of one model version; its methods may be called from several threads."""

    def __init__(
        self, context: ModelContext, file: ModelFile, header: GgufHeader, timeout_s: int, directory: Path
    ) -> None:
        """Have llama.cpp load the template alone, out of a file in `directory`, which belongs to the caller.

        Raises InferError if that fails, or computes for longer than `timeout_s`.
        """
        self._where = f"model '{context.name}' version {context.version}: the chat template of {file.path}"
        self._timeout_s = timeout_s
        self._wait_s = max(_LEAST_WAIT_S, _MOST_WAIT * timeout_s)
        self._lock = threading.Lock()
        path = directory / "template.gguf"
        path.write_bytes(template_model(header.entries, header.bos_token, header.eos_token))
        own = _context(context)
        settings = _settings(own, self._wait_s)
        rules = TensorRules(own.config, version=str(own.version))
        spec = InstanceSpec(f"{context.name}_template", 0, "KIND_CPU")
        self._instance = WorkerInstance(own, _TrialSource(str(path), timeout_s), settings, rules, spec)
        self._input = RequestHeader(model_name=own.name, inputs=[TensorSpec(_INPUT, DataType.BYTES, (1,))])
        start_s = time.monotonic()
        try:
            with context.stop.calling(self._instance.interrupt):
                self._instance.start()
        except InferError as error:
            context.stop.check()
            raise invalid_argument(self._problem(error, start_s)) from error

    def check(self, body: Mapping[str, Any]) -> None:
        """Render a chat, the body of a request to llama.cpp. Raises InferError if that fails or takes too long."""
        data = json.dumps(body).encode()
        start_s = time.monotonic()
        if not self._lock.acquire(timeout=self._wait_s):
            raise unavailable(f"{self._where} is busy with other chats; send the request again")
        try:
            self._await_worker()
            start_s = time.monotonic()
            request = InferRequest(self._input, [struct.pack("<I", len(data)) + data], lambda *_: None)
            response = self._instance.execute(Batch([request], 1))[0]
        except InstanceDiedError as error:
            raise invalid_argument(self._problem(error, start_s)) from error
        finally:
            self._lock.release()
        if response.error is not None:
            raise response.error
        problem = bytes(response.data[0])[4:].decode("utf-8", "replace")
        if problem:
            raise invalid_argument(f"the chat template of the model file fails for these messages: {problem}")

    def _await_worker(self) -> None:
        """Wait for a worker that takes the place of a killed one. Raises InferError(UNAVAILABLE) if none is ready."""
        deadline_s = time.monotonic() + self._wait_s
        while health := self._instance.health:
            if time.monotonic() > deadline_s:
                raise unavailable(f"{self._where} cannot be tried now: {health}")
            time.sleep(_POLL_S)

    def _problem(self, error: InferError, start_s: float) -> str:
        if _OUT_OF_TIME in error.message or time.monotonic() - start_s >= self._wait_s:
            return (
                f"{self._where} does not end within {self._timeout_s} s (parameter 'template_timeout_s'): it loops, "
                "or is too slow for these messages"
            )
        return f"{self._where} fails in llama.cpp: {error.message}"

    def close(self) -> None:
        """End the process."""
        self._instance.close()


class _TrialSource(WorkerSource):
    """The code of the process."""

    def __init__(self, path: str, timeout_s: int) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def notes(self, context: ModelContext) -> dict[str, Any]:
        """See `WorkerSource.notes`."""
        return {
            "adapter": TEMPLATE_TRIAL,
            "import_paths": tuple(sys.path),
            "package_dir": str(PACKAGE_DIR),
            "version_dir": str(context.version_dir),
        }

    def args(self, context: ModelContext, spec: InstanceSpec) -> Mapping[str, str]:
        """See `WorkerSource.args`."""
        return {"template_model": self._path, "template_timeout_s": str(self._timeout_s)}


def _context(context: ModelContext) -> ModelContext:
    """Return the context of a model that takes a chat and returns its problem, without parameters."""
    config = ModelConfig(name=context.name)
    config.input.add(name=_INPUT, data_type=ConfigType.TYPE_STRING, dims=[1])
    config.output.add(name=PROBLEM, data_type=ConfigType.TYPE_STRING, dims=[1])
    return replace(context, config=config, port=None, metrics=None)


def _settings(context: ModelContext, wait_s: int) -> WorkerSettings:
    return replace(
        read_settings(context, context.worker_config),
        initialize_timeout_s=float(wait_s),
        execute_timeout_s=float(wait_s),
        hang_timeout_s=0.0,
        finalize_timeout_s=1.0,
        restart_limit=_NO_LIMIT,
        restart_interval_s=_RESTART_INTERVAL_S,
    )
