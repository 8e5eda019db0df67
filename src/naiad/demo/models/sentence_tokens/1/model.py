"""The tokenizer of the sentence-embedding model."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    """Turns sentences into the three integer tensors that MiniLM takes."""

    def initialize(self, args):
        """Load the tokenizer beside this file."""
        self.tokenizer = Tokenizer.from_file(str(Path(__file__).parent / "tokenizer.json"))
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(256)

    def execute(self, requests):
        """Return the token ids of the sentences of every request."""
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel()
            encodings = self.tokenizer.encode_batch([text.decode() for text in texts])
            tensors = [
                pb_utils.Tensor(name, np.array([getattr(e, field) for e in encodings], np.int64))
                for name, field in (
                    ("input_ids", "ids"),
                    ("attention_mask", "attention_mask"),
                    ("token_type_ids", "type_ids"),
                )
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
