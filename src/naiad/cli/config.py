"""`naiad config`: `init` writes a short config.pbtxt for a model, `show` prints the values of `naiad serve`."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from naiad.backend.api import ModelContext
from naiad.backend.registry import BackendRegistry
from naiad.backend.signature import DEFAULT_MAX_BATCH_SIZE_SETTING
from naiad.cli.parser import FAILED, Parser, fail
from naiad.config.autofill import autofill, merge_auto_completed
from naiad.config.forms.template import format_commented
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, invalid_argument
from naiad.options.flag import Flag, Given, ValueKind
from naiad.options.flags import CONFIG, GROUPS
from naiad.options.sources.command_line import OptionError, parse_options, read_settings
from naiad.repository.open_repository import open_path
from naiad.repository.stores.store import ModelEntry
from naiad.telemetry.logs.console import print_failure

_DESCRIPTION = """\
Print a config.pbtxt for MODEL, a model file (model.onnx, model.py) or the directory of a model. Inputs, outputs and
batching are read from the model itself if its backend supports that.
The exit status is 1 if there is no model or it cannot be read, 2 for an invalid command line.
"""
INSTALL = "pip install"
"""What a note of `build_config` contains if only a package is missing."""


def run(argv: Sequence[str]) -> int:
    """Print or write the configuration and return the exit status: 1 without a model, 2 for a bad command."""
    if argv[:1] == ["show"] and not {"-h", "--help"}.intersection(argv):
        return show(argv[1:])
    options = make_parser().parse_args(argv)
    try:
        config, note = build_config(options.model)
        text = format_commented(config)
        if options.output is not None:
            _write(options.output, text, force=options.force)
    except InferError as error:
        return fail("naiad config init", error.message)
    if note:
        print(f"naiad config init: {note}", file=sys.stderr)
    if options.output is None:
        print(text, end="")
    return FAILED if note and INSTALL not in note else 0


def build_config(path: Path) -> tuple[ModelConfig, str]:
    """Return the configuration derived from the model at `path`, and a note on missing parts.

    Ignores an existing `config.pbtxt`. Raises InferError if there is no model, or if there are several.
    """
    store = open_path(path)
    names = store.list_models()
    if len(names) != 1:
        raise invalid_argument(f"{path} contains {len(names)} models; name one of: {', '.join(names)}")
    entry = store.open_model(names[0])
    if not entry.version_dirs:
        raise invalid_argument(f"{path} has no version directory, as {path / '1'}, with a model file")
    version = max(entry.version_dirs)
    files = sorted(child.name for child in entry.version_dirs[version].iterdir())
    config = autofill(entry.preset, model_name=entry.name, version_files=files)
    return _ask_model(entry, version, config)


def _ask_model(entry: ModelEntry, version: int, config: ModelConfig) -> tuple[ModelConfig, str]:
    """Let the backend complete the configuration; on failure, return a note with the reason."""
    size = entry.default_max_batch_size  # of bare model files
    context = ModelContext(
        name=entry.name,
        version=version,
        config=config,
        model_dir=entry.model_dir,
        version_dir=entry.version_dirs[version],
        usable_cores=os.cpu_count() or 1,
        backend_config={} if size is None else {DEFAULT_MAX_BATCH_SIZE_SETTING: str(size)},
    )
    try:
        completed = BackendRegistry().get(config.backend).auto_complete(context)
    except InferError as error:
        return config, f"inputs and outputs could not be read from the model: {error.message}"
    return merge_auto_completed(config, completed), ""


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise invalid_argument(f"{path} exists; --force replaces it") from None
    except OSError as error:
        raise invalid_argument(f"{path} cannot be written: {error.strerror}") from error


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(prog="naiad config", description="Work with configurations.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    init = verbs.add_parser("init", help="print a config.pbtxt for a model", description=_DESCRIPTION)
    init.epilog = "example: naiad config init model.onnx --output config.pbtxt"
    show = verbs.add_parser(
        "show",
        help="print the effective values of naiad serve, and where each is from",
        description="Print the values that 'naiad serve' with these flags would have, as a file for --config, and "
        "where each is from: default, FILE:LINE, command line, or the name of a variable. The exit status is 1 if "
        "the server would not start with them; MODEL or --model-repository may be left out.",
    )
    show.epilog = "example: naiad config show --http-port 9000 > naiad.toml"
    show.add_argument("flags", nargs="*", metavar="FLAG", help="the arguments of naiad serve")
    init.add_argument("model", type=Path, metavar="MODEL", help="a model file or the directory of a model")
    init.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of printing")
    init.add_argument("--force", action="store_true", help="replace FILE when it exists")
    return parser


_VALUE_COLUMNS = 50
_REPOSITORY = "model-repository"


def show(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Print the values as a file for --config; return 1 if a server would not start with them."""
    try:
        settings = read_settings(arguments, environ)
        print("\n".join(_lines(settings)))
        sys.stdout.flush()
        has_repository = any(each.flag.name == _REPOSITORY for each in settings)
        parse_options(arguments if has_repository else [*arguments, f"--{_REPOSITORY}=."], environ)
    except OptionError as error:
        print_failure(f"naiad config show: {error}")
        return 1
    return 0


def _lines(settings: Sequence[Given]) -> Iterator[str]:
    given: dict[str, list[Given]] = {}
    for each in settings:
        given.setdefault(each.flag.name, []).append(each)
    shown: set[str] = {each.flag.target for each in settings}
    for group, flags in GROUPS:
        lines = []
        for flag in flags:
            if flag.name in given and flag.name != CONFIG:
                lines.append(_given_line(flag, given[flag.name]))
            elif flag.target not in shown and flag.target and flag.default is not None:
                lines.append(_default_line(flag))
                shown.add(flag.target)
        if lines:
            yield from ("", f"# {group}", *lines)


def _given_line(flag: Flag, given: Sequence[Given]) -> str:
    texts = [_literal(flag, each.text) for each in given]
    sources = ", ".join(dict.fromkeys(each.source for each in given))
    value = f"[{', '.join(texts)}]" if flag.repeat else texts[-1]
    return _aligned(f"{flag.name} = {value}", sources)


def _default_line(flag: Flag) -> str:
    if flag.kind is ValueKind.SWITCH:
        return _aligned(f"{flag.name} = false", "default")
    if flag.default_text or not isinstance(flag.default, (bool, int, float, str)) or flag.default == "":
        return _aligned(f"# {flag.name}", f"default: {flag.default_text or 'none'}")
    return _aligned(f"{flag.name} = {_literal(flag, flag.shown_default)}", "default")


def _aligned(text: str, source: str) -> str:
    return f"{text.ljust(_VALUE_COLUMNS)}  # {source}"


def _literal(flag: Flag, text: str) -> str:
    """Return a value as TOML; the secrets of restrictions are hidden."""
    if flag.kind is ValueKind.SWITCH:
        return "true"
    if flag.kind is ValueKind.BOOLEAN:
        return "true" if text.lower() in ("true", "on", "1") else "false"
    if flag.kind in (ValueKind.INTEGER, ValueKind.FLOAT):
        return text
    return json.dumps(
        f"{text.partition('=')[0]}=***" if flag.kind is ValueKind.RESTRICTION else text, ensure_ascii=False
    )
