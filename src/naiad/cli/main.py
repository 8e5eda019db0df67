"""The `naiad` command: one verb, one module, imported only when it is used."""

import contextlib
import errno
import gc
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from naiad.cli.start.blas_waits import short_blas_waits
from naiad.cli.start.compiled_methods import compiled_methods
from naiad.cli.start.compiled_modules import compiled_modules
from naiad.cli.start.protobuf_in_python import delay_protobuf_in_python
from naiad.cli.start.standard_streams import open_standard_streams
from naiad.cli.verbs import VERBS

_WRONG_COMMAND = 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write without the name of a file: standard output goes to a full disk."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb with its arguments and return the exit status."""
    rest = list(sys.argv[1:] if arguments is None else arguments)
    open_standard_streams()
    try:
        status = _run(rest)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("naiad: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of the output (`| head`) has closed the pipe. The interpreter would flush the rest once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"naiad: the output could not be written: {error.strerror}", file=sys.stderr)
        return 1
    return status


def tritonserver() -> int:
    """Run `naiad serve` with the arguments of the command line: the flags of a `tritonserver` command."""
    return main(["serve", *sys.argv[1:]])


def _run(rest: list[str]) -> int:
    if not rest:
        print(_usage(), file=sys.stderr)
        return _WRONG_COMMAND
    verb = {"--version": "version", "-h": "help", "--help": "help"}.get(rest[0], rest[0])
    rest = rest[1:]
    if verb == "help":
        if not rest:
            print(_usage())
            return 0
        verb, rest = rest[0], ["--help"]
    if not _is_present(verb):
        near = _suggestion(verb)
        print(f"naiad: unknown verb '{verb}'{near}", file=sys.stderr)
        print("naiad --help lists the verbs." if near else f"\n{_usage()}", file=sys.stderr)
        return _WRONG_COMMAND
    return int(_import_verb(verb).run(rest))


def _import_verb(verb: str) -> ModuleType:
    collects = gc.isenabled()
    gc.disable()  # What is imported stays, so a collection meanwhile finds nothing.
    try:
        # Only servers are started so often that a second copy of the code on the disk is worth its place.
        kept_modules = compiled_modules(verb) if verb == "serve" else contextlib.nullcontext()
        with short_blas_waits(), kept_modules, compiled_methods(verb):
            if verb == "serve":
                delay_protobuf_in_python()
            return importlib.import_module(VERBS[verb][0])
    finally:
        if collects:
            gc.enable()


def _is_present(verb: str) -> bool:
    return verb in VERBS and importlib.util.find_spec(VERBS[verb][0]) is not None


def _present_verbs() -> dict[str, str]:
    return {verb: text for verb, (_, text) in VERBS.items() if _is_present(verb)}


def _suggestion(verb: str) -> str:
    from naiad.config.problem import nearest

    near = nearest(verb.lstrip("-"), VERBS)
    return f"; did you mean {near}?" if near else ""


def _usage() -> str:
    width = max(map(len, VERBS)) + 1
    lines = [f"  {verb:<{width}}{text}" for verb, text in _present_verbs().items()]
    return "\n".join(["usage: naiad VERB [arguments]", "", *lines, "", "naiad VERB --help shows details."])
