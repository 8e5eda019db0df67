"""What models that generate text read of a request: texts, JSON, and the sampling parameters in it."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.core.limits.value_limits import excess_of_values
from naiad.core.request import InferRequest

_MAX_STOPS = 16
_MAX_STOP_CHARACTERS = 1024
NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0, 100),
}
"""Sampling parameters that are numbers, with their limits."""
_KINDS: Mapping[type, str] = {list: "JSON list", dict: "JSON object"}


def tensors_of(request: InferRequest) -> dict[str, Any]:
    """Return the data of the inputs of a request by name."""
    return {spec.name: data for spec, data in zip(request.header.inputs, request.data, strict=True)}


def text_of(name: str, data: Any, max_bytes: int) -> str:
    """Return the one element of a BYTES tensor. Raises InferError(INVALID_ARG)."""
    size = max(0, memoryview(data).nbytes - 4)
    if size > max_bytes:
        raise invalid_argument(f"input '{name}' has {size} bytes; at most {max_bytes} are taken: send a shorter text")
    try:
        return bytes(memoryview(data)[4:]).decode()
    except UnicodeDecodeError as error:
        raise invalid_argument(f"input '{name}' is not UTF-8: {error}; send text in UTF-8") from error


def json_of(name: str, text: str, kind: type) -> Any:
    """Return the JSON of an input, a list or a dictionary as `kind` says. Raises InferError(INVALID_ARG)."""
    # Parsing millions of small objects would keep the interpreter, and so the event loop, for a tenth of a second.
    excess = excess_of_values(text.encode())
    if excess:
        raise invalid_argument(f"input '{name}' has {excess}: send several requests")
    try:
        found = json.loads(text)
        # Halves of surrogate pairs, which tokenizers do not take.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise invalid_argument(f"input '{name}' is no JSON: {excerpt(str(error))}") from error
    if not isinstance(found, kind):
        raise invalid_argument(f"input '{name}' is {excerpt(text)}; expected a {_KINDS[kind]}")
    return found


class SamplingRules:
    """The sampling parameters that models of one kind take."""

    def __init__(
        self,
        what: str,
        numbers: Mapping[str, tuple[float, float]],
        integers: Mapping[str, tuple[int, int]],
        flags: Collection[str] = (),
    ) -> None:
        """`what` names the models for errors; limits belong to the values. All of them also take `stop`."""
        self._what = what
        self._numbers = numbers
        self._integers = integers
        self._flags = flags

    def read(self, text: str) -> dict[str, Any]:
        """Return the parameters of a JSON object. Raises InferError(INVALID_ARG) with name, value and expectation."""
        found: dict[str, Any] = {}
        for name, value in json_of("sampling_parameters", text or "{}", dict).items():
            if value is not None:
                self._check(name, value)
                found[name] = value
        return found

    def _check(self, name: str, value: Any) -> None:
        if name in self._numbers:
            _check_number(name, value, self._numbers[name], (int, float))
        elif name in self._integers:
            _check_number(name, value, self._integers[name], (int,))
        elif name == "stop":
            _check_stops(value)
        elif name in self._flags:
            if not isinstance(value, bool):
                raise wrong_sampling(name, value, "true or false")
        else:
            known = ", ".join([*self._numbers, *self._integers, "stop", *self._flags])
            raise wrong_sampling(name, value, f"no such parameter; {self._what} take {known}")


def wrong_sampling(name: str, value: Any, expected: str) -> InferError:
    """Return the error for a sampling parameter."""
    return invalid_argument(f"'sampling_parameters' has '{excerpt(name)}': {shown_value(value)}; expected {expected}")


def shown_value(value: Any) -> str:
    """Return a value for an error; containers by their kind, since they may be large."""
    return f"a {_KINDS[type(value)]}" if type(value) in _KINDS else excerpt(repr(value))


def _check_number(name: str, value: Any, limits: tuple[float, float], kinds: tuple[type, ...]) -> None:
    if type(value) not in kinds or not limits[0] <= value <= limits[1]:
        what = "a whole number" if kinds == (int,) else "a number"
        raise wrong_sampling(name, value, f"{what} from {limits[0]} to {limits[1]}")


def _check_stops(value: Any) -> None:
    stops = [value] if isinstance(value, str) else value
    fits = isinstance(stops, list) and len(stops) <= _MAX_STOPS
    if not fits or not all(isinstance(each, str) and 0 < len(each) <= _MAX_STOP_CHARACTERS for each in stops):
        raise wrong_sampling("stop", value, f"at most {_MAX_STOPS} texts of 1 to {_MAX_STOP_CHARACTERS} characters")
