"""Trace settings of the server and of single models, and their changes at run time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from naiad.core.errors import InferError, excerpt, invalid_argument, unsupported
from naiad.options.trace import TraceOptions, parse_count, parse_level, parse_log_frequency, parse_rate

Changes = Mapping[str, Sequence[str] | None]
"""Name of a setting to its new values; None resets it to the initial or the server's value."""

_PARSERS: Mapping[str, tuple[str, Any]] = {
    "trace_level": ("level", lambda values, mode: parse_level(values)),
    "trace_rate": ("rate", lambda values, mode: parse_rate(values[0], mode)),
    "trace_count": ("count", lambda values, mode: parse_count(values[0])),
    "log_frequency": ("log_frequency", lambda values, mode: parse_log_frequency(values[0])),
}


class TraceSettings:
    """The current settings. Used on the event loop only."""

    def __init__(self, start: TraceOptions) -> None:
        self._start = start
        self._server: dict[str, Any] = {}
        self._models: dict[str, dict[str, Any]] = {}

    def of_server(self) -> TraceOptions:
        """Return the settings of models without their own."""
        return replace(self._start, **self._server)

    def of_model(self, model: str) -> TraceOptions:
        """Return the settings of a model."""
        return replace(self._start, **{**self._server, **self._models.get(model, {})})

    def own(self) -> Mapping[str, TraceOptions]:
        """Return the settings of models that have their own."""
        return {model: self.of_model(model) for model in self._models}

    def note_count(self, model: str, left: int) -> None:
        """Note how many traces are left of a count that was set for a model, or for the server with "".

        Triton: other changes keep this number, while a count from the start of the server begins again.
        """
        table = self._models.get(model, {}) if model else self._server
        if "count" in table:
            table["count"] = left

    def change(self, model: str, changes: Changes) -> None:
        """Change settings of a model, or of the server with "". Raises InferError without any change."""
        table = dict(self._models.get(model, {}) if model else self._server)
        for name, values in changes.items():
            if name == "trace_file":
                raise unsupported("trace file location can not be updated through network protocol")
            if name not in _PARSERS:
                continue  # Triton: also trace_mode, which cannot be changed
            field, parse = _PARSERS[name]
            if values is None:
                table.pop(field, None)
            elif values:
                table[field] = _parsed(parse, values, self._start.mode)
        self._check(replace(self._start, **({**self._server, **table} if model else table)))
        if not model:
            self._server = table
        elif table:
            self._models[model] = table
        else:
            self._models.pop(model, None)

    def _check(self, options: TraceOptions) -> None:
        if options.lacks_file:
            raise invalid_argument(
                f"trace_level {options.level[0]} needs a trace file; start the server with --trace-config "
                "triton,file=<path>"
            )


def _parsed(parse: Any, values: Sequence[str], mode: str) -> Any:
    try:
        return parse(values, mode)
    except ValueError as error:
        raise invalid_argument(str(error)) from None


def unknown_model(name: str) -> InferError:
    """Return Triton's error for trace settings of an unknown model."""
    return invalid_argument(f"Request for unknown model : {excerpt(name)}")
