import functools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from naiad.backend.texts.generation.token_text import TokenText


@functools.cache
def byte_tokenizer():
    """Return a tokenizer with a token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@functools.cache
def word_tokenizer():
    """Return a tokenizer whose words begin with their space, which the first word of a text loses."""
    words = ["<unk>", "▁good", "▁day", "s"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return tokenizer


def pieces_of(tokenizer, tokens, prompt=()):
    text = TokenText(tokenizer, prompt)
    return [*(text.add(token) for token in tokens), text.end()]


@given(text=st.text(max_size=40))
@example(text="a€😀b")
def test_pieces_are_the_text(text):
    tokens = byte_tokenizer().encode(text).ids
    pieces = pieces_of(byte_tokenizer(), tokens)
    assert "".join(pieces) == text
    assert pieces[-1] == ""
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text


@given(tokens=st.lists(st.integers(0, 255), max_size=60))
def test_bytes_that_are_no_text_are_not_lost(tokens):
    tokenizer = byte_tokenizer()
    assert "".join(pieces_of(tokenizer, tokens)) == tokenizer.decode(tokens)


def test_endless_bytes_are_not_held_forever():
    tokenizer = byte_tokenizer()
    half = tokenizer.encode("€").ids[:2]
    text = TokenText(tokenizer, ())
    pieces = [text.add(token) for token in half * 500]
    assert any(pieces[:70])
    assert len(text._ids) < 200


@pytest.mark.parametrize(("prompt", "pieces"), [((1,), [" day", "s", ""]), ((), ["day", "s", ""])])
def test_space_before_the_first_word(prompt, pieces):
    assert pieces_of(word_tokenizer(), [2, 3], prompt) == pieces


def test_a_special_token_between_words_keeps_the_space():
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens(["<s>"])
    special = tokenizer.token_to_id("<s>")
    tokens = [2, special, special, 2, special, 1]
    assert pieces_of(tokenizer, tokens, (1,)) == [" day", "", "", " day", "", " good", ""]
