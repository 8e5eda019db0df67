"""The backend of decoders in ONNX: an instance for each slot, one thread that computes for all of them."""

import logging
from dataclasses import replace
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import ModelFile, Parameters, cpu_instance_count
from naiad.backend.onnx.library import onnxruntime
from naiad.backend.onnx.session_options import export_path
from naiad.backend.onnx.sessions import OnnxSessions
from naiad.backend.onnx_decoder.decoder import Decoder, try_decoder
from naiad.backend.onnx_decoder.decoder_graph import DecoderGraph, DecoderTensors, read_decoder
from naiad.backend.onnx_decoder.decoder_row import DecoderRow
from naiad.backend.onnx_decoder.kv_cache import COPIES
from naiad.backend.onnx_decoder.step_engine import StepEngine
from naiad.backend.onnx_decoder.turns import TurnPlanner
from naiad.backend.signature import ModelSignature, SignatureCheck
from naiad.backend.texts.generation.answer_instance import GeneratingInstance
from naiad.backend.texts.generation.decoder_request import DecoderFacts, read_decoder_request
from naiad.backend.texts.generation.generation_directory import GenerationDirectory
from naiad.backend.texts.generation.text_generation import (
    DECODER_OUTPUTS,
    ResponseTensors,
    completed_generation,
    decoder_signature,
)
from naiad.backend.texts.generation.token_answer import Emit
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, invalid_argument
from naiad.core.request import InferRequest
from naiad.options.host_policy import policy_name

_log = logging.getLogger(__name__)

DEFAULT_SLOTS = 8
"""Instances of a model without an instance group: the requests that are generated at a time."""
_DEFAULT_WINDOW = 4096
"""The most tokens of a prompt and its answer, unless the model has fewer or the owner says otherwise."""
_MAX_WINDOW = 1 << 20
_LEAST_WINDOW = 16
_CACHE_MEGABYTES = 1024
_PROMPT_TOKENS = 512
_LOGIT_BYTES = 256 << 20
"""Most bytes of the logits of one turn: a graph returns logits for all positions."""
_SPINNING = "session.intra_op.allow_spinning"


def _signature(*, has_text: bool) -> ModelSignature:
    return decoder_signature("ONNX decoder", has_text=has_text)


class OnnxDecoderBackend(Backend):
    """Decoders with a cache, executed by ONNX Runtime."""

    name: ClassVar[str] = "onnx_decoder"

    def __init__(self) -> None:
        # Its default logger writes unwanted warnings about hardware.
        onnxruntime.set_default_logger_severity(4)

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in the tensors and the transaction policy. Raises InferError for a directory that cannot be read."""
        export_path(context)
        has_text = GenerationDirectory(context).tokenizer is not None
        return completed_generation(context, _signature(has_text=has_text))

    def default_instance_count(self, context: ModelContext) -> int:
        """Return the number of slots."""
        return DEFAULT_SLOTS

    def load(self, context: ModelContext) -> Model:
        """Check the configuration, open the session and try it. Raises InferError."""
        config = context.config
        if not config.model_transaction_policy.decoupled or config.max_batch_size:
            raise invalid_argument(
                f"model '{config.name}': the onnx_decoder backend needs model_transaction_policy "
                f"{{ decoupled: true }} and max_batch_size: 0, not {config.max_batch_size}; "
                "it batches by itself, over the instances"
            )
        return OnnxDecoderModel(context)


class _Sessions(OnnxSessions):
    """The session alone: the instances are the model's."""

    def create_instance(self, spec: InstanceSpec) -> Instance:
        raise NotImplementedError


def _with_one_instance(context: ModelContext) -> ModelContext:
    """Return a context for the session: one thread calls it, for all slots."""
    config = ModelConfig()
    config.CopyFrom(context.config)
    del config.instance_group[1:]
    for group in config.instance_group:
        group.count = 1
        group.kind = ModelInstanceGroup.KIND_CPU
        del group.gpus[:]
    if _SPINNING not in config.parameters:
        # A step is many short parts: threads that spin between them took twice the CPU time, and not less time.
        config.parameters[_SPINNING].string_value = "0"
    return replace(context, config=config)


class OnnxDecoderModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext) -> None:
        """Open the session. Raises InferError."""
        self._name = context.name
        file = ModelFile(context, export_path(context))
        parameters = Parameters(context.config, context.backend_config)
        directory = GenerationDirectory(context)
        SignatureCheck(context.config, _signature(has_text=directory.tokenizer is not None)).check()
        self._sessions = _Sessions(_with_one_instance(context), file.path, has_global_threads=False)
        try:
            tensors = read_decoder(file, self._sessions.signature, parameters, directory.settings)
            self._slots, window = _plan_cache(context, parameters, directory.window(), tensors.token_bytes)
            spec = InstanceSpec(context.name, 0, "KIND_CPU", host_policy=_host_policy(context))
            graph = DecoderGraph(self._sessions.find(spec), tensors)
            can_pad = try_decoder(graph, file)
            self.facts = DecoderFacts(
                directory.prompts(parameters),
                window,
                tensors.vocabulary,
                directory.end_tokens(parameters, tensors.vocabulary),
                directory.sampling_defaults(),
                parameters.count("max_tokens", window, maximum=window) or window,
            )
            planner: TurnPlanner[DecoderRow] = TurnPlanner(_prompt_tokens(parameters, tensors), can_pad=can_pad)
        except InferError:
            self._sessions.close()
            raise
        self.tensors = ResponseTensors(context.name, context.version, DECODER_OUTPUTS)
        self.engine = StepEngine(context.name, Decoder(graph, self._slots * window), planner)
        _log.info(
            "model '%s' version %d: a window of %d tokens for each of %d slots, %.0f MB of cache at most%s",
            context.name, context.version, window, self._slots,
            COPIES * self._slots * window * tensors.token_bytes / 1e6,
            "" if can_pad else "; rows of different lengths are not executed together, because padding changes them",
        )  # fmt: skip

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance, which uses a slot while it executes. Raises InferError for more than were loaded."""
        if spec.index >= self._slots:
            raise invalid_argument(
                f"model '{self._name}': {self._slots} slots have room in the cache since the load; load the model "
                f"again for {spec.index + 1}"
            )
        return OnnxDecoderInstance(self)

    def close(self) -> None:
        """End the thread and release the session."""
        self.engine.close()
        self._sessions.close()


def _host_policy(context: ModelContext) -> str:
    return next((policy_name(group, 0) for group in context.config.instance_group), "")


def _plan_cache(context: ModelContext, parameters: Parameters, known: int, token_bytes: int) -> tuple[int, int]:
    """Return the number of slots and the window of each. Raises InferError for caches above the limit."""
    known = min(known or _MAX_WINDOW, _MAX_WINDOW)
    slots = cpu_instance_count(context.config)
    megabytes = parameters.count("cache_megabytes", _CACHE_MEGABYTES, maximum=1 << 24)
    fitting = megabytes * 1_000_000 // (COPIES * slots * token_bytes)
    window = parameters.count("context_tokens", min(known, _DEFAULT_WINDOW, fitting), maximum=known)
    if window < _LEAST_WINDOW and "context_tokens" in parameters:
        raise parameters.error("context_tokens", f"a number from {_LEAST_WINDOW} to {known}")
    if window > fitting or window < _LEAST_WINDOW:
        needed = -(-COPIES * slots * max(window, _LEAST_WINDOW) * token_bytes // 1_000_000)
        raise invalid_argument(
            f"model '{context.name}': the caches of {slots} slots with {max(window, _LEAST_WINDOW)} tokens each need "
            f"{needed} MB, and cache_megabytes is {megabytes}; raise it, or lower context_tokens or the instances"
        )
    return slots, window


def _prompt_tokens(parameters: Parameters, tensors: DecoderTensors) -> int:
    """Return the most positions of a turn with prompts."""
    datatype = tensors.logits.datatype or DataType.FP32
    fitting = max(1, _LOGIT_BYTES // (tensors.vocabulary * datatype.numpy.itemsize))
    wanted = parameters.count("prompt_tokens", min(_PROMPT_TOKENS, fitting), maximum=_MAX_WINDOW)
    if not 1 <= wanted <= fitting:
        raise parameters.error("prompt_tokens", f"a number from 1 to {fitting}: each has logits for all tokens")
    return wanted


class OnnxDecoderInstance(GeneratingInstance):
    """Generates for one request at a time, together with the other instances."""

    def __init__(self, model: OnnxDecoderModel) -> None:
        super().__init__("onnx_decoder", model.tensors.empty)
        self._model = model
        self._row: DecoderRow | None = None

    def _generate(self, request: InferRequest, emit: Emit) -> None:
        model = self._model
        asked = read_decoder_request(request, model.facts)
        self._row = row = DecoderRow(request, asked, model.facts, model.tensors, emit)
        if self._is_interrupted:
            row.interrupt()
        try:
            model.engine.generate(row)
        finally:
            self._row = None

    def interrupt(self) -> None:
        """End the generation before its next token."""
        self._is_interrupted = True
        row = self._row
        if row is not None:
            row.interrupt()
