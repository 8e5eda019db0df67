"""The backend of text encoders in ONNX: tokenizer, session and pooling in one step."""

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Parameters
from naiad.backend.onnx.library import onnxruntime
from naiad.backend.onnx.session_options import export_path
from naiad.backend.onnx.sessions import OnnxSession, OnnxSessions, inspect_model, ort_message
from naiad.backend.onnx_text.text_outputs import TextOutputs, text_outputs_of
from naiad.backend.signature import ModelSignature, SignatureCheck
from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.texts.text_directory import Task, TextDirectory
from naiad.backend.texts.text_tensors import completed_texts, encoded, text_signature, texts_of
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import internal
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)

_ENCODING_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""The inputs of an export, and the fields of the tokenizer's encodings."""


class OnnxTextBackend(Backend):
    """Encoders with tokenizer, executed by ONNX Runtime."""

    name: ClassVar[str] = "onnx_text"

    def __init__(self) -> None:
        # Its default logger writes unwanted warnings about hardware.
        onnxruntime.set_default_logger_severity(4)

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, input and outputs from the directory. Raises InferError."""
        return completed_texts(context, lambda: _TextExport(context, _inspected(context)).signature)

    def load(self, context: ModelContext) -> Model:
        """Read the directory, open the session, hold the configuration against both. Raises InferError."""
        model = OnnxTextModel(context)
        SignatureCheck(execution_config(context.config), model.signature).check()
        return model


def _inspected(context: ModelContext) -> ModelSignature:
    return inspect_model(context, export_path(context), 1)


class _TextExport:
    """What the files of a directory say together: task, outputs, signature."""

    def __init__(self, context: ModelContext, graph: ModelSignature) -> None:
        """`graph` is the signature of the ONNX file. Raises InferError(INVALID_ARG)."""
        self.parameters = Parameters(context.config, context.backend_config)
        self.directory = TextDirectory(context)
        self.task = self.directory.choose_task(self.parameters)
        unknown = [name for name in graph.inputs if name not in _ENCODING_FIELDS]
        if unknown or "input_ids" not in graph.inputs:
            raise self.directory.error(
                f"has an ONNX model with the inputs {', '.join(graph.inputs)}; an encoder has input_ids, "
                "attention_mask and token_type_ids. The backend 'onnx_decoder' serves decoders with a cache, and "
                "'onnxruntime' all other models, with their tensors"
            )
        self.outputs = text_outputs_of(self.directory, self.task, self.parameters, graph)
        is_classifier = self.task is Task.TEXT_CLASSIFICATION
        self.signature = text_signature("text", self.outputs.signatures, takes_pairs=is_classifier)
        self.labels = {"scores": self.directory.labels()} if is_classifier else {}


class OnnxTextModel(Model):
    """One loaded version; its instances share the session."""

    def __init__(self, context: ModelContext) -> None:
        """Read the directory and open the session. Raises InferError."""
        self._context = context
        self._sessions = _Sessions(context, export_path(context), has_global_threads=False)
        self._export = _TextExport(context, self._sessions.signature)
        self.signature = self._export.signature
        self.labels = self._export.labels
        _log.info("model '%s' version %d: task %s", context.name, context.version, self._export.task)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with a tokenizer of its own. Raises InferError."""
        tokenizer = self._export.directory.tokenizer(self._export.parameters)
        return OnnxTextInstance(self._context, self._sessions.find(spec), tokenizer, self._export.outputs)

    def update_config(self, config: ModelConfig) -> None:
        """Take note of other instance groups."""
        self._sessions.update_config(config)

    def close(self) -> None:
        """Release the sessions."""
        self._sessions.close()


class _Sessions(OnnxSessions):
    """The sessions alone: the instances are the model's."""

    def create_instance(self, spec: InstanceSpec) -> Instance:
        raise NotImplementedError


class OnnxTextInstance(TensorInstance):
    """Runs batches of texts, padded to the longest."""

    def __init__(self, context: ModelContext, session: OnnxSession, tokenizer: Any, outputs: TextOutputs) -> None:
        super().__init__(context)
        self.executable = session
        self._tokenizer = tokenizer
        self._outputs = outputs
        self._fields = [
            (name, _ENCODING_FIELDS[name], tensor.datatype.numpy)
            for name, tensor in session.signature.inputs.items()
            if tensor.datatype is not None
        ]

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the model; see `TensorInstance.run`."""
        texts = texts_of(inputs, self._model_name)
        encodings = encoded(self._tokenizer, texts, self._model_name)
        tokens = {
            name: np.array([getattr(encoding, field) for encoding in encodings], dtype)
            for name, field, dtype in self._fields
        }
        session: OnnxSession = self.executable
        try:
            (result,) = session.run([self._outputs.tensor], tokens, session.run_options)
        except Exception as error:  # ONNX Runtime raises a different class for each status
            raise internal(f"model '{self._model_name}' failed on its tokens: {ort_message(error)}") from error
        mask = tokens.get("attention_mask")
        if mask is None:
            mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        found = self._outputs.compute(result, mask, encodings)
        return [found[name] for name in output_names]
