"""Arguments of `pb_utils`, as Triton's C++ module takes them: pybind11's rules for strings, integers, flags, lists.

Strings may be `bytes`, integers any object with `__index__` or `__int__`, flags any object with `__bool__`; an enum
is an enum, None is nothing of all that. Everything else raises TypeError, and so does a number out of its range.
"""

from __future__ import annotations

import contextlib
import enum
import operator
from typing import Any, Sequence, TypeVar

UINT32 = (0, (1 << 32) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
UINT64 = (0, (1 << 64) - 1)

_Kind = TypeVar("_Kind")


class NativeEnum(enum.IntEnum):
    """An enum of pybind11: its text is `Type.MEMBER`, also in formatted strings."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, specification: str) -> str:
        return format(str(self), specification)


def text(value: Any, what: str, errors: str = "strict") -> str:
    """Return a string, or the text of UTF-8 bytes. Raises TypeError, UnicodeDecodeError (unless `errors`).

    `what` is the callable and the argument, "Tensor: expected name".
    """
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", errors)
    raise _refusal(what, "a str or bytes", value)


def integer(value: Any, what: str, bounds: tuple[int, int] = INT64) -> int:
    """Return an integer within bounds. Raises TypeError."""
    if type(value) is not int:
        value = _as_integer(value, what)
    if not bounds[0] <= value <= bounds[1]:
        raise TypeError(f"{what} to be an int from {bounds[0]} to {bounds[1]}, found {value}")
    number: int = value
    return number


def _as_integer(value: Any, what: str) -> int:
    if not isinstance(value, float):
        with contextlib.suppress(TypeError):
            return operator.index(value)
        # Texts have no __int__, although int() parses them; arrays of texts do.
        if hasattr(type(value), "__int__"):
            with contextlib.suppress(TypeError, ValueError):
                return int(value)
    raise _refusal(what, "an int", value)


def number(value: Any, what: str) -> float:
    """Return a number. Raises TypeError."""
    if hasattr(type(value), "__float__") or hasattr(type(value), "__index__"):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return float(value)
    raise _refusal(what, "a number", value)


def flag(value: Any, what: str) -> bool:
    """Return a bool. Raises TypeError for objects whose truth is only their length, and for None."""
    if value is not None and hasattr(type(value), "__bool__"):
        return bool(value)
    raise _refusal(what, "a bool", value)


def sequence(value: Any, what: str) -> Sequence[Any]:
    """Return a sequence, as a list unless it is a list or tuple. Raises TypeError, also for texts and sets."""
    if isinstance(value, (list, tuple)):
        return value
    is_sequence = hasattr(type(value), "__getitem__") and hasattr(type(value), "__len__")
    if is_sequence and not isinstance(value, (str, bytes, bytearray, memoryview, dict)):
        with contextlib.suppress(TypeError):  # an array without dimensions
            return list(value)
    raise _refusal(what, "a list", value)


def instance(value: Any, kind: type[_Kind], what: str) -> _Kind:
    """Return `value`, an object of the class `kind`. Raises TypeError."""
    if isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise _refusal(what, f"{article} {kind.__name__}", value)


def _refusal(what: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{what} to be {expected}, found {type(value).__name__}")
