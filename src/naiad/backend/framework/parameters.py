"""Parameters of a model, as its backend reads them: text in the configuration, typed and checked here."""

from collections.abc import Mapping, Sequence

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, invalid_argument

_FLAGS: Mapping[str, bool] = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


class Parameters:
    """The `parameters` of one configuration, over the `--backend-config` settings of its backend.

    Every method raises InferError(INVALID_ARG) with the model, the parameter, its value and what is expected.
    """

    def __init__(self, config: ModelConfig, settings: Mapping[str, str] | None = None) -> None:
        """`settings` apply where the configuration has no parameter of that name."""
        self._model = config.name
        own = {name: parameter.string_value for name, parameter in config.parameters.items()}
        self._texts = {**(settings or {}), **own}

    def __contains__(self, name: str) -> bool:
        """Whether the configuration or the settings have the parameter."""
        return name in self._texts

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter as it is written."""
        return self._texts.get(name, default)

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the parameters whose names begin with `prefix`, without it."""
        return {name[len(prefix) :]: text for name, text in self._texts.items() if name.startswith(prefix)}

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a truth value: true, 1, on, false, 0 or off."""
        text = self._texts.get(name)
        if text is None:
            return default
        value = _FLAGS.get(text.strip().lower())
        if value is None:
            raise self.error(name, "true or false")
        return value

    def count(self, name: str, default: int = 0, *, maximum: int = 4096) -> int:
        """Return a whole number from 0 to `maximum`."""
        text = self._texts.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and int(text[:20]) <= maximum):
            raise self.error(name, f"a whole number from 0 to {maximum}")
        return int(text)

    def number(self, name: str, default: float) -> float:
        """Return a finite number."""
        text = self._texts.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise self.error(name, "a number") from None
        if value != value or abs(value) == float("inf"):
            raise self.error(name, "a finite number")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        """Return one of `choices`, compared without case, or the default."""
        text = self._texts.get(name)
        if text is None:
            return default
        for known in choices:
            if known.lower() == text.strip().lower():
                return known
        raise self.error(name, f"one of {', '.join(choices)}")

    def error(self, name: str, expected: str) -> InferError:
        """Return the error for a parameter with a wrong value."""
        text = self._texts.get(name, "")[:200]
        return invalid_argument(f"model '{self._model}': parameter '{name}' is '{text}', expected {expected}")
