"""Instances of Hugging Face models: texts in, tokens through the model, outputs of the task."""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from naiad.backend.api import ModelContext
from naiad.backend.huggingface.tasks import TaskOutputs
from naiad.backend.tensor_instance import TensorInstance
from naiad.core.errors import internal, invalid_argument
from naiad.core.tensor import Array

TEXT = "text"


class HuggingFaceInstance(TensorInstance):
    """Runs batches of texts, padded to the longest; weights are shared with the other instances of its device."""

    runs_on_any_thread: ClassVar[bool] = False

    def __init__(
        self, context: ModelContext, model: Any, tokenizer: Any, outputs: TaskOutputs, thread_count: int
    ) -> None:
        super().__init__(context)
        self._model: Any = model
        self._tokenizer = tokenizer
        self._outputs = outputs
        self._thread_count = thread_count
        self._has_types = "token_type_ids" in inspect.signature(model.forward).parameters

    def close(self) -> None:
        """Release the model."""
        super().close()
        self._model = None

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the model; see `TensorInstance.run`."""
        texts = [self._decode(text) for text in inputs[TEXT].ravel().tolist()]
        encodings = self._tokenizer.encode_batch(texts)
        if not encodings[0].ids:
            raise invalid_argument(f"input '{TEXT}' of model '{self._model_name}' has no tokens; send a longer text")
        # PyTorch has the number for each thread that calls it.
        torch.set_num_threads(self._thread_count)
        device = self._model.device
        tokens = {
            "input_ids": torch.tensor([encoding.ids for encoding in encodings], device=device),
            "attention_mask": torch.tensor([encoding.attention_mask for encoding in encodings], device=device),
        }
        if self._has_types:
            tokens["token_type_ids"] = torch.tensor([encoding.type_ids for encoding in encodings], device=device)
        try:
            with torch.inference_mode():
                result = self._model(**tokens)
                found = self._outputs.compute(result, texts, encodings, tokens["attention_mask"])
        except Exception as error:  # PyTorch raises classes of several libraries
            shape = list(tokens["input_ids"].shape)
            raise internal(
                f"model '{self._model_name}' failed on tokens of shape {shape}: {str(error)[:500]}"
            ) from error
        return [found[name] for name in output_names]

    def _decode(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise invalid_argument(
                f"input '{TEXT}' of model '{self._model_name}' is not UTF-8: {error}; send text in UTF-8"
            ) from error
