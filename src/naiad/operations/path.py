"""Templates of REST paths: `/v2/models/{model}[/versions/{version}]/infer`, in the notation of docs/endpoints.md."""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(r"\{(\w+)\}|([\[\]])|([^\[\]{}]+)")
_PARAMETERS = {"version": r"0*(?P<version>[0-9]+|[A-Za-z][A-Za-z0-9_.-]{0,63})"}
"""Triton: a version is a number, so 01 is 1. naiad: or a name, such as "stable". Others take any segment."""
_BRACKETS = {"[": "(?:", "]": ")?"}
_OPTIONAL = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class PathTemplate:
    """A path with parameters in braces and at most one optional part in brackets."""

    text: str
    pattern: str = field(init=False)
    """A regular expression with a named group for each parameter."""

    def __post_init__(self) -> None:
        """Raise ValueError for a text that is not a template."""
        tokens = list(_TOKEN.finditer(self.text))
        if "".join(token[0] for token in tokens) != self.text or not self.text.startswith("/"):
            raise ValueError(f"'{self.text}' is not the template of a path")
        object.__setattr__(self, "pattern", "".join(map(_part, tokens)))

    @property
    def variants(self) -> tuple[str, ...]:
        """The template without its optional part, and with it if there is one."""
        return tuple(dict.fromkeys([_OPTIONAL.sub("", self.text), _OPTIONAL.sub(r"\1", self.text)]))

    def fill(self, **values: str) -> str:
        """Return the path without its optional part, with values for its parameters."""
        return self.variants[0].format(**values)


def _part(token: re.Match[str]) -> str:
    name, bracket, literal = token.groups()
    if name is not None:
        return _PARAMETERS.get(name, rf"(?P<{name}>[^/]++)")
    return _BRACKETS[bracket] if bracket is not None else re.escape(literal)
