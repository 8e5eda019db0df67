"""The tokenizer of the sentence-embedding model: BERT's WordPiece for lower-case text."""

import json
import unicodedata
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

MAX_TOKENS = 256
MAX_WORD_CHARACTERS = 100


def words_of(text):
    """Split a text at white space and around each punctuation mark and ideograph, without case and accents."""
    text = unicodedata.normalize("NFD", text)
    kept = [c for c in text if c.isspace() or unicodedata.category(c) not in ("Mn", "Cc", "Cf")]
    return "".join(f" {c} " if stands_alone(c) else c for c in kept).lower().split()


def stands_alone(character):
    """Return whether a character is a word of its own."""
    is_ascii_mark = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    return is_ascii_mark or unicodedata.category(character)[0] == "P" or "\u4e00" <= character <= "\u9fff"


class TritonPythonModel:
    """Turns sentences into the three integer tensors that MiniLM takes."""

    def initialize(self, args):
        """Read the vocabulary beside this file."""
        tokenizer = json.loads((Path(__file__).parent / "tokenizer.json").read_text(encoding="utf-8"))
        self.ids = tokenizer["model"]["vocab"]

    def execute(self, requests):
        """Return the token ids of the sentences of every request."""
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel()
            rows = [self.encode(text.decode()) for text in texts]
            input_ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
            mask = np.zeros_like(input_ids)
            for number, row in enumerate(rows):
                input_ids[number, : len(row)] = row
                mask[number, : len(row)] = 1
            tensors = (("input_ids", input_ids), ("attention_mask", mask), ("token_type_ids", np.zeros_like(mask)))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors]))
        return responses

    def encode(self, text):
        """Return the ids of a text's pieces, between [CLS] and [SEP]."""
        pieces = [piece for word in words_of(text) for piece in self.pieces(word)]
        return [self.ids["[CLS]"], *pieces[: MAX_TOKENS - 2], self.ids["[SEP]"]]

    def pieces(self, word):
        """Return the ids of the longest known pieces of a word from its start; [UNK] if some part is unknown."""
        unknown = [self.ids["[UNK]"]]
        if len(word) > MAX_WORD_CHARACTERS:
            return unknown
        found, begin = [], 0
        while begin < len(word):
            candidates = (("##" * (begin > 0) + word[begin:end], end) for end in range(len(word), begin, -1))
            piece, begin = next(((piece, end) for piece, end in candidates if piece in self.ids), (None, 0))
            if piece is None:
                return unknown
            found.append(self.ids[piece])
        return found
