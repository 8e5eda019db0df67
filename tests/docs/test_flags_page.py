"""docs/flags.md is generated from the flags: `PYTHONPATH=src python tests/docs/test_flags_page.py`."""

from collections.abc import Iterator
from pathlib import Path

from naiad.options.flag import Flag
from naiad.options.flags import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "flags.md"

_OURS = "naiad: "
"""How the help of a flag begins that Triton does not have."""
_OPENING = """\
# Flags

All flags of `naiad serve`, as in `naiad serve --help-all`, with the default in parentheses. Names and formats are
Triton's: `--flag value` or `--flag=value`. Booleans are `true` or `false` (also `on`, `off`, `1`, `0`). † marks flags
that Triton does not have. An unknown flag or an unsupported value is an error with exit status 1.

```sh
naiad serve --model-repository models --http-port 9000 --log-verbose=1
```
"""


def _default(flag: Flag) -> str:
    shown = flag.shown_default
    return shown if " " in shown or shown == "required" else f"`{shown}`" if shown else ""


def _text(flag: Flag) -> str:
    text = flag.help.removeprefix(_OURS)
    text = text[0].upper() + text[1:]
    if not all(choice in text for choice in flag.choices):
        text += f" One of {', '.join(f'`{choice}`' for choice in flag.choices)}."
    if flag.repeat and "repeatable" not in text and not text.startswith("Deprecated"):
        text += " Repeatable."
    return text.replace("<", "&lt;").replace("*: a", "\\*: a").replace(", * ", ", `*` ")


def _line(flag: Flag) -> str:
    default = _default(flag)
    mark = "†" if flag.help.startswith(_OURS) else ""
    return f"- `{flag.usage}`{mark}{f' ({default})' if default else ''}: {_text(flag)}\n"


def page() -> str:
    """Return the text of docs/flags.md."""
    return "".join(_parts())


def _parts() -> Iterator[str]:
    yield _OPENING
    for group, flags in GROUPS:
        lines = [_line(flag) for flag in flags if not flag.no_effect]
        yield f"\n## {group}\n\n" + "".join(lines)
    yield "\n## Flags without effect\n\n"
    yield "These flags of Triton tune parts that naiad does not have. The server accepts them and logs their names:\n"
    yield ",\n".join(f"`--{flag.name}`" for _, flags in GROUPS for flag in flags if flag.no_effect) + ".\n"


def test_the_page_is_that_of_the_flags() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "generate the page with the command above"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
