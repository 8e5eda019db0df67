"""Changes values of a `config.pbtxt` where they stand: comments, order and everything else stay as they are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from naiad.config.forms.pbtxt.lexer import TokenKind, tokenize, unquote
from naiad.config.forms.pbtxt.text_format import format_config, format_message, parse_pbtxt
from naiad.config.forms.schema import Field, is_map, is_message, is_repeated
from naiad.config.model_config_pb2 import ModelConfig

_CLOSERS = {"{": "}", "<": ">"}
_INDENT = "  "


def with_changes(own: ModelConfig, before: ModelConfig, after: ModelConfig) -> ModelConfig:
    """Return a user's configuration with what differs between two complete ones; what was completed stays out."""
    changed = ModelConfig()
    changed.CopyFrom(own)
    _take_changes(changed, before, after)
    is_completed = before.HasField("dynamic_batching") and not own.HasField("dynamic_batching")
    if is_completed and after.HasField("dynamic_batching") and changed.max_batch_size != own.max_batch_size:
        # A server completes the batcher only beside a batch size that it has completed, too.
        changed.dynamic_batching.SetInParent()
    return changed


def edited(text: str, wanted: ModelConfig) -> str:
    """Return a text with the least changes that make it the configuration `wanted`.

    A text with errors, or one whose form is not understood, is replaced.
    """
    parsed = parse_pbtxt(text)
    if any(each.is_error for each in parsed.problems):
        return format_config(wanted)
    edits: list[tuple[int, int, str]] = []
    _edit(text, _read(text), parsed.config, wanted, edits)
    for begin, end, replacement in sorted(edits, reverse=True):
        text = text[:begin] + replacement + text[end:]
    again = parse_pbtxt(text)
    is_right = again.config == wanted and not any(each.is_error for each in again.problems)
    return text if is_right else format_config(wanted)


# --- what changes -------------------------------------------------------------------------------------------------


def _take_changes(own: Message, before: Message, after: Message) -> None:
    for each in own.DESCRIPTOR.fields:
        if _content(before, each) == _content(after, each):
            continue
        mine, old, new = (getattr(message, each.name) for message in (own, before, after))
        if is_map(each):
            _take_entries(each, mine, old, new)
        elif is_repeated(each):
            if is_message(each) and len(old) == len(new) and len(mine) in (0, len(new)):
                for index, (one, other) in enumerate(zip(old, new, strict=True)):
                    _take_changes(mine[index] if index < len(mine) else mine.add(), one, other)
            else:
                own.ClearField(each.name)
                getattr(own, each.name).extend(new)
        elif is_message(each) and after.HasField(each.name):
            mine.SetInParent()
            _take_changes(mine, old, new)
        elif is_message(each):
            own.ClearField(each.name)
        else:
            setattr(own, each.name, new)


def _take_entries(of: Field, mine: Any, old: Any, new: Any) -> None:
    has_messages = is_message(of.message_type.fields_by_name["value"])
    for key in {*old, *new}:
        if key not in new:
            mine.pop(key, None)
        elif key not in old or old[key] != new[key]:
            if has_messages:
                mine[key].CopyFrom(new[key])
            else:
                mine[key] = new[key]


def _content(message: Message, of: Field) -> Any:
    if is_map(of):
        return dict(getattr(message, of.name))
    if is_repeated(of):
        return list(getattr(message, of.name))
    if is_message(of) and not message.HasField(of.name):
        return None
    return getattr(message, of.name)


# --- where things stand -------------------------------------------------------------------------------------------


@dataclass
class _Value:
    begin: int
    end: int
    block: "_Block | None" = None


@dataclass
class _Entry:
    name: str
    begin: int
    end: int = 0
    values: list[_Value] = field(default_factory=list)
    is_list: bool = False


@dataclass
class _Block:
    begin: int
    end: int = 0
    """Of the closing mark, or of the text."""
    entries: list[_Entry] = field(default_factory=list)

    def of(self, name: str) -> list[_Entry]:
        return [each for each in self.entries if each.name == name]


@dataclass(frozen=True)
class _Span:
    kind: TokenKind
    text: str
    begin: int
    end: int


def _spans(text: str) -> Iterator[_Span]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    mark = len(text) - len(text.removeprefix("\ufeff"))
    for token in tokenize(text[mark:]):
        begin = min(len(text), starts[token.line - 1] + token.column - 1 + (mark if token.line == 1 else 0))
        end = len(text) if token.kind is TokenKind.END else begin + len(token.text)
        yield _Span(token.kind, token.text, begin, end)


def _read(text: str) -> _Block:
    return _Reader(list(_spans(text))).block(0, "")


class _Reader:
    def __init__(self, spans: Sequence[_Span]) -> None:
        self._spans = spans
        self._index = 0

    @property
    def _next(self) -> _Span:
        return self._spans[self._index]

    def _advance(self) -> _Span:
        span = self._spans[self._index]
        self._index = min(self._index + 1, len(self._spans) - 1)
        return span

    def block(self, begin: int, closer: str) -> _Block:
        block = _Block(begin)
        while self._next.kind is not TokenKind.END and self._next.text != closer:
            if self._next.text in (",", ";"):
                block.entries[-1].end = self._advance().end
                continue
            block.entries.append(self._entry())
        block.end = self._next.begin
        return block

    def _entry(self) -> _Entry:
        name = self._advance()
        entry = _Entry(name.text.strip("\"'"), name.begin)
        if self._next.text in (":", "="):
            self._advance()
        if self._next.text == "[":
            entry.is_list = True
            self._advance()
            while self._next.text != "]" and self._next.kind is not TokenKind.END:
                if self._next.text == ",":
                    self._advance()
                else:
                    entry.values.append(self._value())
            entry.end = self._advance().end
        else:
            entry.values.append(self._value())
            entry.end = entry.values[-1].end
        return entry

    def _value(self) -> _Value:
        first = self._advance()
        if first.text in _CLOSERS and first.kind is TokenKind.MARK:
            block = self.block(first.end, _CLOSERS[first.text])
            return _Value(first.begin, self._advance().end, block)
        last = self._advance() if first.text == "-" else first
        while last.kind is TokenKind.STRING and self._next.kind is TokenKind.STRING:
            last = self._advance()
        return _Value(first.begin, last.end)


# --- the edits ----------------------------------------------------------------------------------------------------

_Edits = list[tuple[int, int, str]]


def _edit(text: str, block: _Block, have: Message, wanted: Message, edits: _Edits) -> None:
    added: list[str] = []
    for each in have.DESCRIPTOR.fields:
        if _content(have, each) == _content(wanted, each):
            continue
        entries = block.of(each.name)
        values = [value for entry in entries for value in entry.values]
        if is_map(each) and not any(entry.is_list for entry in entries):
            added += _edit_map(text, entries, each, have, wanted, edits)
        elif _edit_inside(text, values, each, have, wanted, edits):
            continue
        else:
            for entry in entries:
                _remove(text, entry, edits)
            added += _formatted(wanted, each)
    if added:
        edits.append(_appended(text, block, added))


def _edit_inside(
    text: str, values: Sequence[_Value], of: Field, have: Message, wanted: Message, edits: _Edits
) -> bool:
    """Edit the values of a field where they stand; return whether that is possible."""
    if is_map(of):
        return False
    if is_message(of):
        mine, theirs = _elements(have, of), _elements(wanted, of)
        blocks = [each.block for each in values]
        if not len(mine) == len(theirs) == len(blocks) or None in blocks:
            return False
        for inner, one, other in zip(blocks, mine, theirs, strict=True):
            if inner is not None and one != other:
                _edit(text, inner, one, other, edits)
        return True
    formatted = _formatted(wanted, of)
    if is_repeated(of) or len(values) != 1 or len(formatted) != 1:
        return False
    edits.append((values[0].begin, values[0].end, formatted[0].partition(":")[2].strip()))
    return True


def _edit_map(
    text: str, entries: Sequence[_Entry], of: Field, have: Message, wanted: Message, edits: _Edits
) -> list[str]:
    """Edit the entries of a map; return those that are new, as text."""
    mine, theirs = getattr(have, of.name), getattr(wanted, of.name)
    for entry in entries:
        key = _key(text, entry)
        name = next((each for each in mine if str(each) == key), None)
        if name is None or (name in theirs and theirs[name] == mine[name]):
            continue
        value = next((found for found in _inner(entry).of("value")), None) if name in theirs else None
        inner = value.values[0].block if value is not None else None
        if inner is not None:
            _edit(text, inner, mine[name], theirs[name], edits)
        else:
            _remove(text, entry, edits)
    fresh = type(wanted)()
    for key in theirs:
        if key not in mine:
            if is_message(of.message_type.fields_by_name["value"]):
                getattr(fresh, of.name)[key].CopyFrom(theirs[key])
            else:
                getattr(fresh, of.name)[key] = theirs[key]
    return format_message(fresh).splitlines()


def _inner(entry: _Entry) -> _Block:
    return entry.values[0].block or _Block(entry.begin)


def _key(text: str, entry: _Entry) -> str:
    found = [value for each in _inner(entry).of("key") for value in each.values]
    raw = text[found[0].begin : found[0].end] if found else ""
    return unquote(raw).decode(errors="replace") if raw[:1] in ("'", '"') else raw


def _elements(message: Message, of: Field) -> list[Message]:
    if is_repeated(of):
        return list(getattr(message, of.name))
    return [getattr(message, of.name)] if message.HasField(of.name) else []


def _formatted(message: Message, of: Field) -> list[str]:
    """Return the lines of one field."""
    alone = type(message)()
    if is_map(of) or is_repeated(of):
        getattr(alone, of.name).MergeFrom(getattr(message, of.name))
    elif is_message(of):
        if message.HasField(of.name):
            getattr(alone, of.name).CopyFrom(getattr(message, of.name))
    else:
        setattr(alone, of.name, getattr(message, of.name))
    return format_message(alone).splitlines()


def _remove(text: str, entry: _Entry, edits: _Edits) -> None:
    """Remove an entry, and its lines where nothing else is on them."""
    begin, end = entry.begin, entry.end
    line = text.rfind("\n", 0, begin) + 1
    rest = text.find("\n", end)
    rest = len(text) if rest < 0 else rest
    if not text[line:begin].strip() and not text[end:rest].strip():
        begin, end = line, min(len(text), rest + 1)
    edits.append((begin, end, ""))


def _appended(text: str, block: _Block, lines: Sequence[str]) -> tuple[int, int, str]:
    """Return the edit that adds lines to the end of a block."""
    if block.end == len(text):
        gap = "" if not text or text.endswith("\n") else "\n"
        return len(text), len(text), gap + "".join(f"{line}\n" for line in lines)
    line = text.rfind("\n", 0, block.end) + 1
    margin = text[line : block.end]
    if "\n" in text[block.begin : block.end] and not margin.strip():
        return line, line, "".join(f"{margin}{_INDENT}{each}\n" for each in lines)
    gap = "" if text[block.end - 1 : block.end].isspace() else " "
    return block.end, block.end, gap + " ".join(each.strip() for each in lines) + " "
