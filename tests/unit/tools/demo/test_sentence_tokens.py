"""The tokenizer of the sentence model agrees with the `tokenizers` package."""

import string
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from naiad.testing import PythonModel
from naiad.tools.demo import demo_repository

LETTERS = string.ascii_lowercase[:20] + string.digits + "€é"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *"!?,.-_'"]
PIECES += ["ab", "cab", "un", "##able", "##ba", "水"]
ALPHABET = LETTERS + "ABCzyÉ !?,._\t\n水\x00\u200b\u0301"


@pytest.fixture(scope="module")
def reference() -> Tokenizer:
    """BERT's tokenizer, with a small vocabulary."""
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(piece, PIECES.index(piece)) for piece in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    return tokenizer


@pytest.fixture(scope="module")
def model(reference: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonModel]:
    version = demo_repository.copy_model(tmp_path_factory.mktemp("models"), "sentence_tokens")
    reference.save(str(version / "tokenizer.json"))
    with PythonModel(version.parent) as model:
        yield model


def encoded(model: PythonModel, *texts: str) -> dict[str, np.ndarray]:
    return model.infer({"text": np.array([[text.encode()] for text in texts], dtype=object)})


@given(text=st.text(ALPHABET, max_size=40))
@example("unable, CABBA!")
@example("a" * 101)
@example("ab " * 300)
@example("")
def test_ids_are_equal_to_the_reference(model: PythonModel, reference: Tokenizer, text: str) -> None:
    assert encoded(model, text)["input_ids"][0].tolist() == reference.encode(text).ids


def test_rows_are_padded_to_the_longest(model: PythonModel, reference: Tokenizer) -> None:
    tensors = encoded(model, "cab", "un able!")
    expected = reference.encode_batch(["cab", "un able!"])
    assert tensors["input_ids"].tolist() == [each.ids for each in expected]
    assert tensors["attention_mask"].tolist() == [each.attention_mask for each in expected]
    assert not tensors["token_type_ids"].any()
