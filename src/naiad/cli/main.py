"""The `naiad` command: one verb, one module, imported only when it is asked for."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence

_VERBS = {
    "serve": ("naiad.cli.serve", "serve models over HTTP and gRPC"),
    "check": ("naiad.cli.check", "say what a server would say about a model repository, without starting one"),
    "graph": ("naiad.cli.graph", "draw the pipeline of an ensemble, in the terminal or as SVG"),
    "explain": ("naiad.cli.explain", "say how requests of a model are scheduled and why its last batches went"),
    "config": ("naiad.cli.config_init", "write a config.pbtxt for a model"),
    "demo": ("naiad.cli.demo", "build a repository of real models, serve it and send real inputs"),
    "key": ("naiad.cli.key", "make an API key for --api-key-file"),
    "version": ("naiad.cli.version", "print the version"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb with its arguments and return the exit status."""
    rest = list(sys.argv[1:] if arguments is None else arguments)
    if not rest or rest[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if rest else 1
    verb = rest.pop(0)
    if verb == "--version":
        verb = "version"
    if verb not in _VERBS or importlib.util.find_spec(_VERBS[verb][0]) is None:
        print(f"naiad: unknown verb '{verb}'\n\n{_usage()}", file=sys.stderr)
        return 2
    status = importlib.import_module(_VERBS[verb][0]).run(rest)
    return int(status)


def _usage() -> str:
    present = {verb: text for verb, (module, text) in _VERBS.items() if importlib.util.find_spec(module) is not None}
    lines = [f"  {verb:<9}{text}" for verb, text in present.items()]
    return "\n".join(["usage: naiad VERB [arguments]", "", *lines, "", "naiad VERB --help tells more."])
