"""`naiad demo`: arguments that a demonstration does not take, and packages that are missing."""

import importlib.util

import pytest

from naiad.cli.demo import run
from naiad.tools.demo.chat import chat_repository, show_chat


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "x"], "only `naiad demo ocr`"),
        (["chat", " "], "the question is empty"),
        (["voice", "/no/such.wav"], "/no/such.wav is not a file"),
    ],
)
def test_wrong_argument_is_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as raised:
        run(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_missing_framework_names_the_command(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else found(name))
    with pytest.raises(SystemExit) as raised:
        run(["chat"])
    assert raised.value.code == 1
    assert "naiad demo needs xllamacpp: pip install 'naiad[demo,llamacpp,tokenizers]'" in capsys.readouterr().err


def test_question_and_keep_running_are_passed_on(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(chat_repository, "check_frameworks", lambda: None)
    monkeypatch.setattr(show_chat, "run", lambda settings, console, question: asked.append((settings, question)) or 0)
    assert run(["chat", "Why?", "--keep-running", "--repository", str(tmp_path)]) == 0
    ((settings, question),) = asked
    assert (settings.keep_running, settings.repository, question) == (True, tmp_path, "Why?")
