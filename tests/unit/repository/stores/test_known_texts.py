"""Texts of configurations that are parsed once: what comes of it is what parsing each of them gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.repository.stores import known_texts as known_texts_module
from naiad.repository.stores.known_texts import KnownTexts

BODY = """backend: "identity"
name: "NAME"
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "k" value { string_value: "v" } }
"""


def parts(parsed: ParsedConfig) -> tuple[object, ...]:
    return parsed.filename, parsed.config, parsed.problems, parsed.positions, parsed.is_unread


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        BODY.replace('name: "NAME"', ""),
        BODY.replace('name: "NAME"', '  name: "NAME"'),
        BODY.replace('name: "NAME"', "name: 'NAME'"),
        BODY.replace("\n", "\r\n"),
        BODY.replace('{ name: "A"', '{\nname: "NAME"\n'),
        'input {\nname: "NAME"\n}\n' + BODY,
        'input {\nname: "NAME"\n}\nname: "other"\n',
        BODY.replace('"NAME"', '"NAME" version_policy { all { } }'),
        BODY + 'name: "NAME"\n',
        BODY + "max_batch_sise: 4\n",
        BODY + '# name: "NAME"\n',
        'metric_tags {\nkey: "t"\nvalue: "NAME"\n}\n' + BODY,
    ],
)
def test_equal_texts_with_other_names_are_parsed_alike(text: str) -> None:
    texts = KnownTexts()
    for name in ("first", "second", "a.b-c_1", "first", 'quo\\"ted', "\x07bell"):
        own = text.replace("NAME", name)
        assert parts(texts.parse(own, f"{name}.pbtxt")) == parts(parse_pbtxt(own, f"{name}.pbtxt"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["first", "second"]), min_size=2, max_size=4), st.permutations(BODY.splitlines()))
def test_any_order_of_lines(names: list[str], lines: list[str]) -> None:
    texts = KnownTexts()
    for name in names:
        own = "\n".join(lines).replace("NAME", name)
        assert parts(texts.parse(own, "f")) == parts(parse_pbtxt(own, "f"))


def test_known_text_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = KnownTexts()
    first = texts.parse(BODY.replace("NAME", "first"), "f")
    monkeypatch.delattr(known_texts_module, "parse_pbtxt")
    second = texts.parse(BODY.replace("NAME", "second"), "g")
    assert (first.config.name, second.config.name) == ("first", "second")
    second.config.max_batch_size = 99
    assert texts.parse(BODY.replace("NAME", "third"), "h").config.max_batch_size == 8


def test_number_of_kept_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_texts_module, "_MOST_TEXTS", 3)
    monkeypatch.setattr(known_texts_module, "_MOST_TEXT_BYTES", 200 * known_texts_module._SHARE_BYTES)
    texts = KnownTexts()
    for rows in range(8):
        assert texts.parse(f"max_batch_size: {rows}", "f").config.max_batch_size == rows
    long = "max_batch_size: 9" + " " * 200
    texts.parse(long, "f")
    assert len(texts._texts) == 3
    assert (long,) not in texts._texts
