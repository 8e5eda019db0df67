"""Checks of the values of flags."""


class FlagError(ValueError):
    """A flag whose value makes no sense; the message names flag, value and fix."""


def at_least(value: float, minimum: float, flag: str) -> float:
    """Return `value`. Raises FlagError if it is smaller."""
    if not value >= minimum:
        raise FlagError(f"{flag} is {value:g}; use {minimum:g} or more")
    return value


def count(value: int, minimum: int, flag: str) -> int:
    """Return `value`. Raises FlagError if it is smaller."""
    at_least(value, minimum, flag)
    return value


def positive(value: float, flag: str) -> float:
    """Return `value`. Raises FlagError unless it is above 0."""
    if not value > 0:
        raise FlagError(f"{flag} is {value:g}; use a number above 0")
    return value


def share(value: float, flag: str) -> float:
    """Return `value`. Raises FlagError unless it is 0 to 1."""
    if not 0 <= value <= 1:
        raise FlagError(f"{flag} is {value:g}; use 0 to 1")
    return value
