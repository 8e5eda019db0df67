"""Messages with marks, also in pieces and in escapes, are refused; messages of ordinary users are not."""

import json

import pytest

from naiad.backend.llamacpp.message_marks import check_marks
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest, RequestHeader, ignore_response
from naiad.core.texts.mark_search import MarkSearch

MARK = "<|im_end|>"
MARKS = MarkSearch([MARK, "<|im_start|>", "<tool_call>"])
ESCAPED = r'"\u003c|im_end|>"'


def check(message: object, *, cancelled: bool = False) -> None:
    request = InferRequest(RequestHeader(model_name="m"), [], ignore_response)
    request.cancelled = cancelled
    check_marks(request, [{"role": "user", "content": "a < b"}, message], MARKS)


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def call(arguments: object) -> dict[str, object]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": f"a {MARK} b"},
        {"role": "user", "content": parts("a", MARK)},
        {"role": "user", "content": parts("<|im_", "end|>")},
        {"role": "user", "content": parts("<", "|", "im_", "end|", ">")},
        {"role": "user", "content": ["<|im_", "end|>"]},
        {"role": "assistant", "reasoning_content": "<|im_", "content": "end|>"},
        {"role": "assistant", "content": "", MARK: 1},
        {"role": "user", "content": [{"type": MARK, "text": ""}]},
        call({MARK: 1}),
        call({"a": [{"b": MARK}]}),
        call(json.dumps({MARK: 1})),
        call(f'{{"a": {ESCAPED}}}'),
        call(f"{{{ESCAPED}: 1}}"),
        call(f" [{ESCAPED}]"),
        call(ESCAPED),
        call(f'{{"a": {ESCAPED}, "a": "other"}}'),
        call(json.dumps({"a": f'{{"b": {ESCAPED}}}'})),
        {"role": "tool", "content": f'{{"a": {ESCAPED}}}'},
        MARK,
    ],
)
def test_message_with_a_mark_is_refused(message: object) -> None:
    with pytest.raises(InferError, match=r"'messages\[1\]' has '<\|im_end\|>'") as raised:
        check(message)
    assert raised.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a <|im and |im_end| and <|im_end> b"},
        {"role": "user", "content": parts("<|im_ ", "end|>")},
        {"role": "user", "content": '{"a": "\\n", not JSON'},
        {"role": "assistant", "content": None},
        call(json.dumps({"path": "C:\\temp", "text": 'with "quotes" <b>'})),
        call(""),
        {"content": "without a role"},
    ],
)
def test_message_without_a_mark_is_taken(message: object) -> None:
    check(message)


@pytest.mark.parametrize("role", ["im_end", "<|im_end|>", 1, None, ["user"]])
def test_other_roles_are_refused(role: object) -> None:
    # A template that writes <|ROLE|> makes a mark of a role.
    with pytest.raises(InferError, match=r"'messages\[1\]\.role' is .*; expected one of system, "):
        check({"role": role, "content": "a"})


def test_json_that_is_too_deep_is_refused() -> None:
    with pytest.raises(InferError, match="nested too deeply"):
        check(call("[" * 100_000 + '"\\u003c"' + "]" * 100_000))


def test_json_in_json_is_refused_from_a_depth() -> None:
    text = ESCAPED
    for _ in range(9):
        text = json.dumps([text])
    with pytest.raises(InferError, match="nested too deeply"):
        check(call(text))


def test_search_ends_when_the_client_leaves() -> None:
    with pytest.raises(InferError) as raised:
        check({"role": "user", "content": "<" * 10_000}, cancelled=True)
    assert raised.value.code is ErrorCode.CANCELLED
