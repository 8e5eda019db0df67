"""Values of scalar fields in protobuf text format."""

import struct

from google.protobuf.descriptor import FieldDescriptor

from naiad.config.forms.pbtxt.lexer import Token, TokenKind, shorten, unquote
from naiad.config.forms.schema import FLOAT_TYPES, INT_RANGES, EnumSchema, Field, type_in_words
from naiad.config.problem import nearest

Scalar = bool | int | float | str

_BOOLS = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
_MEANT_BOOLS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_FLOAT_NAMES = {"inf": float("inf"), "infinity": float("inf"), "nan": float("nan")}
_DATATYPE_ALIASES = {
    "FLOAT": "FP32", "FLOAT16": "FP16", "FLOAT32": "FP32", "FLOAT64": "FP64", "HALF": "FP16", "DOUBLE": "FP64",
    "BFLOAT16": "BF16", "INT": "INT32", "LONG": "INT64", "BYTE": "UINT8", "BYTES": "STRING", "STR": "STRING",
    "BOOLEAN": "BOOL",
}  # fmt: skip
"""Datatype names of other frameworks."""


class ScalarError(ValueError):
    """A value that is not valid for its field: the error, the expected value, a suggestion."""

    def __init__(self, message: str, *, expected: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.suggestion = suggestion


def parse_scalar(field: Field, token: Token, *, negative: bool) -> Scalar:
    """Return the value of `token` (after a `-` if `negative`) for `field`. Raises ScalarError."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _parse_enum(field, token, negative)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _parse_bool(field, token, negative)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _parse_string(field, token)
    if field.cpp_type in FLOAT_TYPES:
        return _parse_float(field, token, negative)
    return _parse_int(field, token, negative)


def _misfit(field: Field, token: Token, suggestion: str = "") -> ScalarError:
    kind = "" if token.kind is TokenKind.MARK or token.kind is TokenKind.END else f"{token.kind.value} "
    shown = shorten(token.text) if token.kind is TokenKind.STRING else f"'{shorten(token.text)}'"
    return ScalarError(
        f"{kind}{shown} is not a value for '{field.name}'", expected=type_in_words(field), suggestion=suggestion
    )


def _parse_int(field: Field, token: Token, negative: bool) -> int:
    if token.kind is not TokenKind.NUMBER:
        inner = token.text.strip("\"'")
        suggestion = inner if token.kind is TokenKind.STRING and inner.lstrip("-").isdigit() else ""
        raise _misfit(field, token, suggestion)
    value = _int_of(token.text)
    if value is None:
        raise _misfit(field, token)
    value = -value if negative else value
    low, high = INT_RANGES[field.cpp_type]
    if not low <= value <= high:
        raise ScalarError(f"{value} is out of range for '{field.name}'", expected=type_in_words(field))
    return value


def _int_of(text: str) -> int | None:
    try:
        if text[:2] in ("0x", "0X"):
            return int(text, 16)
        return int(text, 8 if text[0] == "0" and len(text) > 1 else 10)
    except ValueError:
        return None


def _parse_float(field: Field, token: Token, negative: bool) -> float:
    value: float | None = None
    if token.kind is TokenKind.NAME:
        value = _FLOAT_NAMES.get(token.text.lower())
    elif token.kind is TokenKind.NUMBER and token.text[:2] not in ("0x", "0X"):
        value = float(token.text.rstrip("fF"))
    if value is None:
        raise _misfit(field, token)
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        value = _single(value)
    return -value if negative else value


def _single(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf")  # C++ text format reads a number beyond the range of float this way


def _parse_bool(field: Field, token: Token, negative: bool) -> bool:
    if token.kind in (TokenKind.NAME, TokenKind.NUMBER) and not negative and token.text in _BOOLS:
        return _BOOLS[token.text]
    meant = token.text.strip("\"'").lower()
    suggestion = meant if meant in ("true", "false") else _MEANT_BOOLS.get(meant) or nearest(meant, ("true", "false"))
    raise _misfit(field, token, suggestion)


def _parse_string(field: Field, token: Token) -> str:
    if token.kind is not TokenKind.STRING:
        quotable = token.kind in (TokenKind.NAME, TokenKind.NUMBER)
        raise _misfit(field, token, f'"{token.text}"' if quotable else "")
    return string_of(token)


def string_of(token: Token) -> str:
    """Return the text of a string token. Raises ScalarError for bad escapes and for bytes that are not UTF-8."""
    try:
        return unquote(token.text).decode()
    except UnicodeDecodeError:
        raise ScalarError(f"string {shorten(token.text)} is not UTF-8", expected="UTF-8 text") from None
    except ValueError as error:
        raise ScalarError(
            f"{error} in string {shorten(token.text)}", expected="one of \\n \\t \\\\ \\\" \\' \\x41 \\101 \\u0041"
        ) from None


def _parse_enum(field: Field, token: Token, negative: bool) -> int:
    enum = field.enum_type
    if token.kind is TokenKind.NAME and token.text in enum.values_by_name and not negative:
        return int(enum.values_by_name[token.text].number)
    if token.kind is TokenKind.NUMBER and not negative:
        number = _int_of(token.text)
        if number in enum.values_by_number:
            return int(enum.values_by_number[number].number)
    raise _misfit(field, token, meant_enum(enum, token.text.strip("\"'")))


def meant_enum(enum: EnumSchema, text: str) -> str:
    """Return the enum name that `text` is probably a typo of, or ""."""
    names = list(enum.values_by_name)
    upper = text.upper()
    prefix = names[-1].split("_")[0] + "_"
    bare = upper.removeprefix(prefix)
    if enum.name == "DataType":
        bare = _DATATYPE_ALIASES.get(bare, bare)
    for candidate in (upper, bare, prefix + bare):
        if candidate in enum.values_by_name:
            return candidate
    return nearest(upper, names) or nearest(prefix + bare, names)
