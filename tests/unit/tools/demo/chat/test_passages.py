"""The documentation in passages, and the model that answers from them, with the models that it calls replaced."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.testing import ModelError, PythonModel
from naiad.tools.demo import demo_repository
from naiad.tools.demo.chat.passages import (
    MOST_CHARACTERS,
    Passage,
    digest_of,
    documentation,
    encode_passages,
    passages_of,
    read_passages,
)

PAGE = """# Queues

A request [waits](waiting.md) in the queue of its model until an instance is free.

## Limits

Set `max_queue_size`, so that a queue cannot grow without a limit:

```
default_queue_policy { max_queue_size: 8 }
```

```mermaid
flowchart LR
    a --> b
```

## Short
"""
PASSAGES = (
    Passage("Queues", "Limits", "Set max_queue_size."),
    Passage("Streams", "", "A decoupled model sends many responses."),
    Passage("Cats", "Sleep", "Cats sleep."),
    Passage("Dogs", "", "Dogs bark."),
)


def test_passages_have_page_and_heading():
    first, second = passages_of(PAGE, "queues")
    assert (first.title, first.text) == (
        "Queues",
        "A request waits in the queue of its model until an instance is free.",
    )
    assert second.title == "Queues > Limits"
    assert second.text.endswith("default_queue_policy { max_queue_size: 8 }")
    assert "flowchart" not in second.text


@given(st.text("#`~ab [](x)\n ", max_size=3000))
def test_passages_of_any_page_are_short(page):
    for passage in passages_of(page, "name"):
        assert 0 < len(passage.text) <= MOST_CHARACTERS
        assert passage.page


def test_own_documentation_is_found():
    passages = read_passages(documentation())
    assert any(each.title == "Streaming > Slow clients" for each in passages)
    assert all(len(each.text) <= MOST_CHARACTERS for each in passages)
    assert len({digest_of(passages, "a"), digest_of(passages[1:], "a"), digest_of(passages, "b")}) == 3


# --- the model ------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked():
    """What the language model has got, one entry for each call."""
    return []


@pytest.fixture
def model(tmp_path, asked):
    version = demo_repository.copy_model(tmp_path, "docs_chat")
    (version / "passages.json").write_text(encode_passages(PASSAGES))
    np.save(version / "vectors.npy", np.eye(4, dtype=np.float32))

    def minilm(inputs):
        text = inputs["text"][0, 0].decode()
        if text == "fail":
            raise ModelError("no vector today")
        # Nearest to the second passage, then the first.
        return {"embedding": np.array([[0.6, 0.8, 0.0, -0.1]], np.float32)}

    def smollm2(inputs):
        asked.append({name: array.ravel()[0] for name, array in inputs.items()})
        for piece, reason in (("It ", b""), ("sends.", b"stop")):
            yield {
                "text_output": np.array([piece.encode()], np.object_),
                "finish_reason": np.array([reason], np.object_),
                "num_input_tokens": np.array([9 if reason else 0], np.uint32),
                "num_output_tokens": np.array([2 if reason else 0], np.uint32),
            }

    with PythonModel(version.parent, models={"minilm": minilm, "smollm2": smollm2}) as opened:
        yield opened


def text(value):
    return np.array([value.encode()], np.object_)


def test_answer_has_the_nearest_passages(model, asked):
    first, second = model.stream({"text_input": text("What is decoupled?"), "stream": np.array([True])})
    assert first["text_output"][0] + second["text_output"][0] == b"It sends."
    assert first["sources"].tolist() == [b"Streams", b"Queues > Limits"]
    assert second["sources"].size == 0
    assert second["num_output_tokens"][0] == 2
    (call,) = asked
    (message,) = json.loads(call["messages"])
    assert message["role"] == "user"
    assert message["content"].startswith("A decoupled model sends many responses.\nSet max_queue_size.\n\n")
    assert "What is decoupled?" in message["content"]
    assert call["stream"]


def test_chat_keeps_its_turns_and_sampling(model, asked):
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Why?"},
    ]
    list(model.stream({"messages": text(json.dumps(turns)), "sampling_parameters": text('{"max_tokens": 5}')}))
    *earlier, last = json.loads(asked[0]["messages"])
    assert earlier == turns[:-1]
    assert "Why?" in last["content"]
    assert json.loads(asked[0]["sampling_parameters"]) == {"temperature": 0, "max_tokens": 5}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "either 'text_input' or 'messages'"),
        ({"text_input": text("a"), "messages": text("[]")}, "either 'text_input' or 'messages'"),
        ({"messages": text("[]")}, "the role 'user'"),
        ({"messages": text('[{"role": "assistant", "content": "a"}]')}, "the role 'user'"),
        ({"messages": text("{}")}, "expected a list"),
        ({"messages": text("[")}, "'messages' is no JSON"),
        ({"text_input": text("a"), "sampling_parameters": text("3")}, "expected a dict"),
        ({"text_input": text("fail")}, "no vector today"),
    ],
)
def test_mistakes_are_named(model, inputs, message):
    with pytest.raises(ModelError, match=message):
        list(model.stream(inputs))
