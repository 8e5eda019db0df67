"""`naiad completion`: scripts for tab completion, generated from the verbs and the declared flags."""

import argparse
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from naiad.cli.parser import Parser
from naiad.cli.verbs import VERBS
from naiad.options.flag import Flag, ValueKind
from naiad.options.flags import all_flags

_DESCRIPTION = """\
Print a script for tab completion of verbs, flags, values of flags and file names:

  bash   source <(naiad completion bash)      in ~/.bashrc
  zsh    source <(naiad completion zsh)       in ~/.zshrc, after compinit
  fish   naiad completion fish | source       in ~/.config/fish/config.fish
"""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a flag or a positional argument."""

    words: Sequence[str] = ()
    are_files: bool = False


@dataclass(slots=True)
class Verb:
    """One verb: its first arguments, and its flags with their values; None for a flag without a value."""

    text: str
    words: Sequence[str] = ()
    flags: dict[str, Values | None] = field(default_factory=dict)


def run(arguments: Sequence[str]) -> int:
    """Print the script and return the exit status."""
    options = make_parser().parse_args(arguments)
    print(_SCRIPTS[options.shell](verbs()))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad completion", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=list(_SCRIPTS), help="the shell that reads the script")
    return parser


# --- what can be completed ------------------------------------------------------------------------------------------


def verbs() -> dict[str, Verb]:
    """Return every verb with its arguments."""
    found: dict[str, Verb] = {}
    for name, (module, text) in VERBS.items():
        found[name] = verb = Verb(text)
        if name == "serve":
            verb.flags = {f"--{flag.name}": _values_of(flag) for flag in all_flags()}
            verb.flags |= {"--help": None, "--help-all": None}
        else:
            _add_arguments(verb, importlib.import_module(module).make_parser())
    return found


def _values_of(flag: Flag) -> Values | None:
    if flag.kind is ValueKind.SWITCH:
        return None
    if flag.kind is ValueKind.BOOLEAN:
        return Values(("true", "false"))
    return Values(tuple(flag.choices or flag.only or ()), are_files=flag.kind is ValueKind.STRING)


def _add_arguments(verb: Verb, parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _add_arguments(verb, inner)
        values = None if action.nargs == 0 else Values(choices, are_files=not choices)
        verb.flags |= dict.fromkeys(action.option_strings, values)
        if not action.option_strings and choices:
            verb.words = choices


# --- scripts --------------------------------------------------------------------------------------------------------

_BASH = """\
_naiad() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} opening="" words="" files=""
    # bash splits --flag=value at the equals sign, zsh does not.
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $prev == "=" ]]; then
        prev=${{COMP_WORDS[COMP_CWORD-2]}}
    elif [[ $cur == --*=* ]]; then
        prev=${{cur%%=*}} cur=${{cur#*=}} opening="$prev="
    fi
    if (( COMP_CWORD == 1 )); then
        words="{names}"
    else
        case "${{COMP_WORDS[1]}} $prev" in
{values}
            *)
                if [[ $cur == -* ]]; then
                    case "${{COMP_WORDS[1]}}" in
{flags}
                    esac
                else
                    files=1
                    if (( COMP_CWORD == 2 )); then
                        case "${{COMP_WORDS[1]}}" in
{words}
                        esac
                    fi
                fi ;;
        esac
    fi
    COMPREPLY=( $(compgen -P "$opening" -W "$words" -- "$cur") )
    if [[ $files ]]; then
        compopt -o filenames 2>/dev/null
        local IFS=$'\\n'
        COMPREPLY+=( $(compgen -P "$opening" -f -- "$cur") )
    fi
}}
complete -F _naiad naiad
"""


def _bash(found: Mapping[str, Verb]) -> str:
    values = [
        f'            "{name} {flag}") '
        + ("files=1" if values.are_files and not values.words else _words(values))
        + " ;;"
        for name, verb in found.items()
        for flag, values in verb.flags.items()
        if values is not None
    ]
    indent = " " * 24
    flags = [f'{indent}{name}) words="{" ".join(verb.flags)}" ;;' for name, verb in found.items()]
    words = [f'{indent}    {name}) words="{" ".join(verb.words)}" ;;' for name, verb in found.items() if verb.words]
    return _BASH.format(
        names=" ".join(found), values="\n".join(values), flags="\n".join(flags), words="\n".join(words)
    )


def _words(values: Values) -> str:
    return f'words="{" ".join(values.words)}"'


def _zsh(found: Mapping[str, Verb]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(found)}"


def _fish(found: Mapping[str, Verb]) -> str:
    return "\n".join(_fish_lines(found))


def _fish_lines(found: Mapping[str, Verb]) -> Iterator[str]:
    for name, verb in found.items():
        yield f"complete -c naiad -f -n __fish_use_subcommand -a {name} -d {_quoted(verb.text)}"
        opening = f"complete -c naiad -n '__fish_seen_subcommand_from {name}'"
        if verb.words:
            yield f"{opening} -a {_quoted(' '.join(verb.words))}"
        for flag, values in verb.flags.items():
            line = f"{opening} {'-l' if flag.startswith('--') else '-s'} {flag.lstrip('-')}"
            if values is None:
                yield line
            elif values.words:
                yield f"{line} -x -a {_quoted(' '.join(values.words))}"
            else:
                yield f"{line} {'-r' if values.are_files else '-x'}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
