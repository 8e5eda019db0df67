"""`naiad serve`: parse the flags and run the server."""

import gc
import os
import signal
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from naiad.cli.start.compiled_methods import compiled_methods
from naiad.cli.start.compiled_modules import compiled_modules
from naiad.options.flag import Flag
from naiad.options.flags import GROUPS
from naiad.options.options import ServerOptions
from naiad.options.sources.command_line import OptionError, parse_options
from naiad.telemetry.logs.console import COLUMNS, print_failure

_SYNOPSIS = """\
usage: naiad serve [MODEL | REPOSITORY | PACKAGE ...] [flags]

MODEL is a model file (resnet.onnx, model.py) or the directory of one model; REPOSITORY contains
models; PACKAGE is written by naiad optimize. Flags have Triton's names and formats: --flag value or
--flag=value; booleans are true or false. Defaults are in square brackets.

example: naiad serve resnet.onnx --http-port 9000
"""
_STATUS = """\
The exit status is 0 after SIGINT or SIGTERM, 1 when the server cannot start, for a wrong command
line too, or when requests in flight have not finished in time.
"""
_SUMMARY_COLUMN = 42


def run(arguments: Sequence[str]) -> int:
    """Serve until a signal and return the exit status; 1 for an invalid command line, as Triton."""
    # Objects from imports and start-up stay; the collector runs once the server is ready.
    gc.disable()
    if "--help-all" in arguments:
        print(format_help_all())
        return 0
    if any(argument in ("-h", "--help") for argument in arguments):
        print(format_help())
        return 0
    try:
        options = parse_options(arguments)
    except OptionError as error:
        print_failure(f"naiad serve: {error}")
        return 1
    try:
        options = _with_packages(options)
    except (ValueError, OSError) as error:
        print_failure(f"naiad serve: {error}")
        return 1
    # Nothing is served before the server's loop handles the signals, so a signal simply ends the process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    # The server's modules are imported only now, so that an invalid flag is reported at once.
    with compiled_modules("server"), compiled_methods("server"):
        serve = _import_server(options)
    return serve(options)


def _import_server(options: ServerOptions) -> Callable[[ServerOptions], int]:
    if options.process_count > 1:
        # Here, so that the forked processes have it.
        import naiad.cluster.member.process  # noqa: F401
        from naiad.cluster.supervisor.supervisor import serve as serve_processes
        from naiad.server.process.shared_imports import import_for_models

        return partial(serve_processes, is_forking=import_for_models(options))
    from naiad.server.app import serve
    from naiad.server.process.shared_imports import import_for_own_models

    import_for_own_models(options)
    return serve


def _with_packages(options: ServerOptions) -> ServerOptions:
    """Replace packages of `naiad optimize` by repositories of their models. Raises ValueError, OSError."""
    paths = options.repository.paths
    if not any(path.endswith(".zip") or Path(path, "evidence").is_dir() for path in paths):
        return options  # Most starts have no package.
    from naiad.tools.optimize.package.package_files import is_package
    from naiad.tools.optimize.package.package_serving import unpack

    unpacked = tuple(str(unpack(Path(path))) if is_package(Path(path)) else path for path in paths)
    return replace(options, repository=replace(options.repository, paths=unpacked))


def _exit(number: int, frame: FrameType | None) -> None:
    # An exception raised within an import could be mistaken for an import error.
    os._exit(0)


def format_help() -> str:
    """Return the text of `--help`: the usual flags by group, on one screen."""
    lines = [_SYNOPSIS]
    for group, flags in GROUPS:
        usual = [_summary_line(flag) for flag in flags if flag.summary]
        lines += [f"{group}:", *usual] if usual else []
    return "\n".join([*lines, "", "All flags: naiad serve --help-all. Tab completion: naiad completion --help."])


def _summary_line(flag: Flag) -> str:
    usage = f"  {flag.usage}".ljust(_SUMMARY_COLUMN - 1) + " "
    return textwrap.fill(flag.summary + _default(flag), COLUMNS, initial_indent=usage, subsequent_indent=" " * 8)


def format_help_all() -> str:
    """Return the text of `--help-all`: the flags with an effect, by group, then the other flags."""
    parts = [f"{_SYNOPSIS}{_STATUS}"]
    inert: list[str] = []
    for group, flags in GROUPS:
        inert += [flag.name for flag in flags if flag.no_effect]
        active = [_flag_help(flag) for flag in flags if flag.target]
        if active:
            parts.append("\n".join([f"{group}:", *active, ""]))
    parts.append(_paragraph("Accepted without effect, for launch scripts", [f"--{name}" for name in inert]))
    return "\n".join(parts)


def _flag_help(flag: Flag) -> str:
    text = textwrap.fill(flag.help + _default(flag), COLUMNS, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return f"  {flag.usage}\n{text}"


def _default(flag: Flag) -> str:
    return f" [{flag.shown_default}]" if flag.shown_default else ""


def _paragraph(title: str, items: Sequence[str]) -> str:
    text = textwrap.fill(
        ", ".join(items), width=COLUMNS, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return f"{title}:\n{text}\n"
