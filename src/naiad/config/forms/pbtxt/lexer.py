"""Tokens of protobuf text format with their positions and errors, and the parsed configuration with its fields'
positions.
"""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import Position, Problem


class TokenKind(enum.Enum):
    """Kind of a token."""

    NAME = "name"
    NUMBER = "number"
    STRING = "string"
    MARK = "mark"
    """One of `{ } [ ] < > : , ; -` and `=`, which is always a typo for `:`."""
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One token; line and column count from 1, in characters."""

    kind: TokenKind
    text: str
    line: int
    column: int
    fault: str = ""
    """Error in the token, which is still used as its intended kind."""
    expected: str = ""


_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+)
  | (?P<newline>\n)
  | (?P<comment>\#[^\n]*)
  | (?P<foreign_comment>//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>(?:0[xX][0-9A-Fa-f]+
     |(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)(?P<tail>[A-Za-z0-9_.]*))
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<open_string>["'][^\n]*)
  | (?P<curly_string>[“”„][^“”„\n]*[“”„]?)
  | (?P<mark>[{}\[\]<>:,;\-=])
  | (?P<other>.)
    """,
    re.VERBOSE,
)

_KINDS = {
    "name": TokenKind.NAME,
    "number": TokenKind.NUMBER,
    "string": TokenKind.STRING,
    "open_string": TokenKind.STRING,
    "curly_string": TokenKind.STRING,
    "mark": TokenKind.MARK,
}
_FAULTS = {
    "open_string": ("string {text} is not closed on its line", "a closing quote"),
    "curly_string": ("typographic quotes in {text}", "straight quotes"),
    "foreign_comment": ("{text} is not a comment in this format", "a comment that starts with '#'"),
    "other": ("unexpected character {text}", ""),
}
_SHOWN = 60
"""Number of characters of the text that a message repeats."""


def shorten(text: str) -> str:
    """Return `text` on one line and short enough for a message."""
    line = text.split("\n", 1)[0]
    return line if line == text and len(line) <= _SHOWN else line[:_SHOWN] + "..."


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of `text`, the last of kind END. Never raises: a malformed token has a `fault`."""
    line, line_start = 1, 0
    for match in _TOKEN.finditer(text):
        group = match.lastgroup if match.lastgroup != "tail" else "number"
        if group == "newline":
            line, line_start = line + 1, match.end()
            continue
        if group in ("space", "comment"):
            continue
        token_text = match.group()
        yield _token(str(group), match, line, match.start() - line_start + 1)
        # Only comments of other languages span lines.
        if "\n" in token_text:
            line += token_text.count("\n")
            line_start = match.start() + token_text.rindex("\n") + 1
    yield Token(TokenKind.END, "end of file", line, len(text) - line_start + 1)


def _token(group: str, match: "re.Match[str]", line: int, column: int) -> Token:
    text = match.group()
    fault, expected = _FAULTS.get(group, ("", ""))
    if group == "number" and match.group("tail"):
        fault, expected = "{text} is not a number", "a number"
        text, shown = text.removesuffix(match.group("tail")), text
        return Token(TokenKind.NUMBER, text, line, column, fault.format(text=f"'{shown}'"), expected)
    quoted = text if group in ("open_string", "curly_string") else f"'{shorten(text)}'"
    # The parser skips a fault without a kind of its own once it is reported.
    kind = _KINDS.get(group, TokenKind.MARK)
    return Token(kind, text if group in _KINDS else "", line, column, fault.format(text=shorten(quoted)), expected)


_SIMPLE_ESCAPES = {
    "n": b"\n", "r": b"\r", "t": b"\t", "a": b"\a", "b": b"\b", "f": b"\f", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"', "?": b"?",
}  # fmt: skip
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.?))")


def unquote(text: str) -> bytes:
    """Return the bytes of a quoted string. Raises ValueError for an unknown or invalid escape."""
    body = text[1:-1] if len(text) > 1 and text[-1] in "\"'“”„" else text[1:]
    parts: list[bytes] = []
    position = 0
    for match in _ESCAPE.finditer(body):
        parts.append(body[position : match.start()].encode())
        parts.append(_unescape(match))
        position = match.end()
    parts.append(body[position:].encode())
    return b"".join(parts)


def _unescape(match: "re.Match[str]") -> bytes:
    octal, hexadecimal, short, long, simple = match.groups()
    if octal:
        if int(octal, 8) > 0xFF:
            raise ValueError(f"escape '{match.group()}' is above \\377")
        return bytes([int(octal, 8)])
    if hexadecimal:
        return bytes([int(hexadecimal, 16)])
    if short or long:
        code_point = int(short or long, 16)
        if code_point > 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
            raise ValueError(f"escape '{match.group()}' is not a Unicode character")
        return chr(code_point).encode()
    if simple not in _SIMPLE_ESCAPES:
        raise ValueError(f"escape '{match.group()}' does not exist")
    return _SIMPLE_ESCAPES[simple]


class ParsedConfig:
    """The content of a text: the configuration, as far as it could be read, and all errors."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.config = ModelConfig()
        self.problems: list[Problem] = []
        self.is_unread = False
        """Whether nothing of the text was read: what the configuration lacks is then no mistake of its author."""
        self.positions: dict[str, Position] = {}
        """Field path to position: of the value for plain fields, of the name or the block for others."""

    def position(self, path: str) -> Position | None:
        """Return the position of the field at `path` (`input[0].dims`), or of the nearest message around it."""
        while path and path not in self.positions:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[: max(cut, 0)]
        return self.positions.get(path)

    def mark(self, path: str, token: Token) -> None:
        """Store the position of `token` for the field at `path`, unless it has one."""
        self.positions.setdefault(path, Position(token.line, token.column))


def map_path(path: str, key: object) -> str:
    """Return the path of a map's value: `parameters["size"]`, `priority_queue_policy[2]`."""
    return f'{path}["{key}"]' if isinstance(key, str) else f"{path}[{key}]"
