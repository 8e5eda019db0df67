"""Reads and writes `config.pbtxt`: protobuf text format, with every error of a file reported at its position.

The reader does not stop at an error: it reports it, finds the next valid position, and continues. A mistyped field
name is read as the most similar field, so that its content is checked too. Nesting is bounded by the schema, which
has no recursive message: blocks of unknown fields are skipped without recursion.
"""

import re
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message

from naiad.config.forms.pbtxt.lexer import ParsedConfig, Token, TokenKind, map_path, shorten
from naiad.config.forms.pbtxt.scalar import Scalar, ScalarError, parse_scalar, string_of
from naiad.config.forms.pbtxt.token_cursor import CLOSERS, TokenCursor, TooManyProblemsError
from naiad.config.forms.schema import (
    Field,
    Schema,
    field_list,
    is_map,
    is_map_entry,
    is_message,
    is_repeated,
    owners_of,
    title_of,
    type_in_words,
)
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import Position, Problem, nearest

MAX_CHARACTERS = 1 << 20
"""Maximum length of a file; the largest configurations in use have a few hundred lines."""


def parse_pbtxt(text: str, filename: str = "config.pbtxt") -> ParsedConfig:
    """Read `text`. Never raises: check `problems` before using `config`."""
    parsed = ParsedConfig(filename)
    if len(text) > MAX_CHARACTERS:
        parsed.is_unread = True
        parsed.problems.append(
            Problem(
                message=f"the file has {len(text)} characters, which no model configuration needs",
                filename=filename,
                expected=f"at most {MAX_CHARACTERS}",
            )
        )
        return parsed
    if problem := _template_problem(text, filename):
        parsed.is_unread = True
        parsed.problems.append(problem)
        return parsed
    _Parser(parsed, text.removeprefix("\ufeff")).run()
    return parsed


_STRING_OR_COMMENT = re.compile(r"""\"(?:\\.|[^"\\\n])*\"|'(?:\\.|[^'\\\n])*'|#[^\n]*""")
_PLACEHOLDER = re.compile(r"\$\{\w+\}|\{\{[^{}\n]*\}\}|\{%[^\n]*?%\}|\$[A-Za-z_]\w*")
_MAX_PLACEHOLDERS = 5


def _template_problem(text: str, filename: str) -> Problem | None:
    """Return one problem for a template whose placeholders have no values yet, instead of several for each."""
    code = _STRING_OR_COMMENT.sub(lambda found: " " * len(found[0]), text)
    first = _PLACEHOLDER.search(code)
    if first is None:
        return None
    names = list(dict.fromkeys(found[0] for found in _PLACEHOLDER.finditer(code)))
    more = len(names) - _MAX_PLACEHOLDERS
    shown = ", ".join(shorten(name) for name in names[:_MAX_PLACEHOLDERS]) + (f" and {more} more" if more > 0 else "")
    return Problem(
        message=f"the file is a template without values for {shown}",
        filename=filename,
        line=code.count("\n", 0, first.start()) + 1,
        column=first.start() - code.rfind("\n", 0, first.start()),
        text=first[0],
        expected="a value in the place of each: run the tool that fills the template, such as fill_template.py",
    )


def format_config(config: ModelConfig) -> str:
    """Return `config` as text that `parse_pbtxt` reads back to an equal message."""
    return format_message(config)


def format_message(message: Message) -> str:
    """Return a configuration, or a message of one, as text."""
    # Only for writing, and slow to import.
    from google.protobuf import text_format

    return str(text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True))


class _Parser(TokenCursor):
    def __init__(self, parsed: ParsedConfig, text: str) -> None:
        super().__init__(parsed, text)
        self._openers: list[Token] = []

    def run(self) -> None:
        try:
            self._take_faults()
            self._message(self._parsed.config, "")
        except TooManyProblemsError:
            self._parsed.problems.append(
                Problem(
                    message="too many problems, the rest of the file was not read", filename=self._parsed.filename
                )
            )

    # --- messages ---------------------------------------------------------------------------------------------------

    def _message(self, message: Message, path: str, closer: str = "") -> None:
        """Read fields up to `closer`, or to the end of the file for the outermost message."""
        while True:
            token = self._token
            if token.kind is TokenKind.END:
                if closer:
                    self._unclosed(closer)
                return
            if closer and self._accept(closer):
                return
            if self._at("}", ">", "]"):
                if self._belongs_outside(token):
                    self._unclosed(closer)
                    return
                self._problem(f"'{token.text}' closes no block", token, path=path)
                self._advance()
                continue
            self._field(message, path)

    def _belongs_outside(self, token: Token) -> bool:
        """Return whether a closing token belongs to an outer block, so that the inner one was left open."""
        return any(CLOSERS.get(opener.text, "]") == token.text for opener in self._openers[:-1])

    def _unclosed(self, closer: str) -> None:
        opener = self._openers[-1]
        self._problem(f"'{opener.text}' is never closed", opener, expected=f"'{closer}'")

    def _field(self, message: Message, path: str) -> None:
        name_token = self._field_name(message.DESCRIPTOR)
        if name_token is None:
            return
        name = name_token.text
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            field = self._unknown_field(message, name_token, path)
        if field is None:
            self._accept(":", "=")
            self._skip_value()
        else:
            field_path = f"{path}.{field.name}" if path else field.name
            self._check_unset(message, field, field_path, name_token)
            self._parsed.mark(field_path, name_token)
            self._colon(field, field_path)
            self._value(message, field, field_path)
        self._accept(",", ";")

    def _field_name(self, descriptor: Schema) -> Token | None:
        """Read the name of a field; report and skip anything else."""
        token = self._advance()
        expected = f"a field of {title_of(descriptor)}"
        if token.kind is TokenKind.NAME:
            return token
        if token.kind is TokenKind.STRING and self._at(":", "="):
            inner = token.text.strip("\"'")
            self._problem(
                f"the field name {shorten(token.text)} is quoted", token, expected=f"{inner} without quotes"
            )
            return Token(TokenKind.NAME, inner, token.line, token.column)
        self._problem(f"unexpected '{shorten(token.text)}'", token, expected=expected)
        if token.text in ("{", "<", "["):
            self._skip_block(token)
        else:
            self._skip_to_field()
        return None

    def _unknown_field(self, message: Message, token: Token, path: str) -> Field | None:
        descriptor = message.DESCRIPTOR
        meant = nearest(token.text, descriptor.fields_by_name)
        owners = "" if meant else owners_of(token.text)
        expected = f"a field of {title_of(descriptor)}" if meant else field_list(descriptor)
        self._problem(
            f"unknown field '{token.text}' in {title_of(descriptor)}"
            + (f" (it belongs in {owners})" if owners else ""),
            token,
            path=f"{path}.{token.text}" if path else token.text,
            expected=expected,
            suggestion=meant,
        )
        return descriptor.fields_by_name[meant] if meant else None

    def _check_unset(self, message: Message, field: Field, path: str, token: Token) -> None:
        """Report a repeated field, and a second member of a oneof."""
        if is_repeated(field):
            return
        known = self._parsed.position(path) if not is_map_entry(message.DESCRIPTOR) else None
        if path in self._parsed.positions and known:
            self._problem(f"'{field.name}' is given twice, first on line {known.line}", token, path=path)
            return
        oneof = field.containing_oneof
        other = message.WhichOneof(oneof.name) if oneof else None
        if other and other != field.name:
            choices = ", ".join(member.name for member in oneof.fields)
            self._problem(
                f"'{field.name}' cannot be given along with '{other}'", token, path=path, expected=f"one of {choices}"
            )

    def _colon(self, field: Field, path: str) -> None:
        token = self._token
        if self._at("="):
            self._problem(f"'=' after '{field.name}'", token, path=path, expected="':'")
            self._advance()
        elif not self._accept(":") and not is_message(field):
            self._problem(f"missing ':' after '{field.name}'", token, path=path, expected="':'")

    # --- values -----------------------------------------------------------------------------------------------------

    def _value(self, message: Message, field: Field, path: str) -> None:
        if self._at("["):
            self._list(message, field, path)
        elif is_message(field):
            self._block(message, field, path)
        else:
            self._scalar(message, field, path)

    def _list(self, message: Message, field: Field, path: str) -> None:
        opener = self._advance()
        if not is_repeated(field):
            self._problem(
                f"'{field.name}' takes one value, not a list", opener, path=path, expected=type_in_words(field)
            )
        self._openers.append(opener)
        if not self._accept("]"):
            self._elements(message, field, path)
        self._openers.pop()

    def _elements(self, message: Message, field: Field, path: str) -> None:
        """Read list elements and the closing bracket."""
        while True:
            if not self._starts_element(field):
                self._bad_element(field, path)
                return
            if is_message(field):
                self._block(message, field, path)
            else:
                self._scalar(message, field, path)
            if self._accept("]"):
                return
            token = self._token
            if self._accept(","):
                if self._at("]"):
                    self._problem("',' before the end of the list", token, path=path, expected="an element after it")
                    self._advance()
                    return
            elif self._starts_element(field) and not self._starts_field():
                self._problem(
                    f"missing ',' before '{shorten(token.text)}' in the list '{field.name}'",
                    token,
                    path=path,
                    expected="',' between elements",
                )
            else:
                self._bad_element(field, path)
                return

    def _starts_element(self, field: Field) -> bool:
        if is_message(field):
            return self._at("{", "<")
        return self._token.kind in (TokenKind.NAME, TokenKind.NUMBER, TokenKind.STRING) or self._at("-")

    def _starts_field(self) -> bool:
        """Return whether the next token is a field name of ModelConfig or of one of its parts, as after a missing
        `]`.
        """
        return self._token.kind is TokenKind.NAME and bool(owners_of(self._token.text))

    def _bad_element(self, field: Field, path: str) -> None:
        """Report an invalid list element and leave the list: at its end, or where fields continue."""
        token = self._token
        opener = self._openers[-1]
        if self._at("}", ">") or token.kind is TokenKind.END or (self._starts_field() and not is_message(field)):
            self._problem("'[' is never closed", opener, path=path, expected="']'")
            return
        self._problem(
            f"unexpected '{shorten(token.text)}' in the list '{field.name}'",
            token,
            path=path,
            expected=type_in_words(field) if is_message(field) else "',' or ']'",
        )
        self._skip_block(opener)

    def _block(self, message: Message, field: Field, path: str) -> None:
        token = self._token
        if not self._at("{", "<"):
            self._problem(
                f"'{field.name}' needs a block, not '{shorten(token.text)}'",
                token,
                path=path,
                expected=type_in_words(field),
            )
            self._skip_value()
            return
        opener = self._advance()
        self._openers.append(opener)
        if is_map(field):
            self._map_entry(message, field, path, opener)
        else:
            inner, inner_path = _sub_message(message, field, path)
            self._parsed.mark(inner_path, opener)
            self._message(inner, inner_path, CLOSERS[opener.text])
        self._openers.pop()

    def _map_entry(self, message: Message, field: Field, path: str, opener: Token) -> None:
        entry: Any = message_factory.GetMessageClass(field.message_type)()
        # The path of an entry contains its key, which is only known at its end.
        scratch = f"{path}[?{opener.line}:{opener.column}]"
        self._message(entry, scratch, CLOSERS[opener.text])
        if f"{scratch}.key" not in self._parsed.positions:
            # protobuf reads the default key, which only its own writer produces intentionally.
            self._problem(
                f"an entry of '{field.name}' without 'key'", opener, path=path, expected="'key'", severity="warning"
            )
        target = getattr(message, field.name)
        if entry.key in target:
            # protobuf: the last one is used.
            self._problem(
                f"key '{entry.key}' is given twice in '{field.name}', the last one is used",
                opener,
                path=path,
                severity="warning",
            )
        if is_message(field.message_type.fields_by_name["value"]):
            target[entry.key].CopyFrom(entry.value)
        else:
            target[entry.key] = entry.value
        self._adopt(scratch, map_path(path, entry.key))

    def _adopt(self, scratch: str, path: str) -> None:
        """Move the positions noted below `scratch` to their final path."""
        positions = self._parsed.positions
        # They are the newest entries: a scan of all would be quadratic in the number of entries.
        noted: list[tuple[str, Position]] = []
        while positions and next(reversed(positions)).startswith(scratch):
            noted.append(positions.popitem())
        for known, place in reversed(noted):
            rest = known.removeprefix(scratch)
            positions.setdefault(path + rest.removeprefix(".value"), place)
            if rest == ".key":
                positions.setdefault(path, place)

    def _scalar(self, message: Message, field: Field, path: str) -> None:
        if is_repeated(field):
            path = f"{path}[{len(getattr(message, field.name))}]"
        first = self._token
        negative = self._accept("-")
        token = self._token
        if token.kind is TokenKind.END or self._at("}", ">", "]", ",", ";", ":"):
            self._problem(f"'{field.name}' has no value", token, path=path, expected=type_in_words(field))
            return
        if self._at("{", "<", "["):
            self._problem(
                f"'{field.name}' takes a plain value, not a block", token, path=path, expected=type_in_words(field)
            )
            self._skip_value()
            return
        self._advance()
        value = self._convert(field, token, path, negative)
        if value is None:
            return
        # The position of a plain value is that of the value, not of its field name.
        self._parsed.positions[path] = Position(first.line, first.column)
        if is_repeated(field):
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)

    def _convert(self, field: Field, token: Token, path: str, negative: bool) -> Scalar | None:
        try:
            value = parse_scalar(field, token, negative=negative)
            # Adjacent strings are one string.
            while isinstance(value, str) and self._token.kind is TokenKind.STRING and not self._is_quoted_name():
                value += string_of(self._advance())
        except ScalarError as error:
            self._problem(error.message, token, path=path, expected=error.expected, suggestion=error.suggestion)
            return None
        return value


def _sub_message(message: Message, field: Field, path: str) -> tuple[Message, str]:
    """Return the message for a block of `field`, and its path."""
    holder: Any = getattr(message, field.name)
    if is_repeated(field):
        return holder.add(), f"{path}[{len(holder) - 1}]"
    holder.SetInParent()
    return holder, path
