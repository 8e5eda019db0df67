from pathlib import Path

import pytest

from naiad.backend.texts.file_tokenizer import FileTokenizer
from support.text_models import word_tokenizer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    tokenizer = word_tokenizer()
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(path))
    return path


def test_special_tokens_count_and_padding_does_not(path: Path) -> None:
    assert FileTokenizer(path).count(["cats purr", "dogs", ""]) == 4 + 3 + 2


def test_many_texts_all_count(path: Path) -> None:
    assert FileTokenizer(path).count(["cats"] * 100) == 300


def test_pairs_have_one_mark_in_the_middle(path: Path) -> None:
    assert FileTokenizer(path).count(["cats purr"] * 40, ["dogs"] * 40) == 40 * 6


@pytest.mark.parametrize("text", ["", "[]", "{}", "\0"])
def test_other_files_are_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ValueError, match=r"."):
        FileTokenizer(path)
