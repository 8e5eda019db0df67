"""Pickles: the names that one would import, listed without loading it."""

import ast
import pickletools
import zlib
from collections.abc import Iterator
from pathlib import Path

from naiad.cli.inspect.report import Inspection

_MAX_BYTES = 256 << 20
_HARMLESS = ("sklearn.", "numpy.", "scipy.", "joblib.", "collections.", "copyreg.", "builtins.object")


def read_pickle(path: Path, found: Inspection) -> None:
    """List the globals of a pickle. Raises OSError."""
    data = path.read_bytes()[:_MAX_BYTES]
    if data[:1] == b"\x78":
        data = zlib.decompressobj().decompress(data, _MAX_BYTES)
    names: set[str] = set()
    try:
        for name in _globals(data):
            names.add(name)
    except Exception as error:  # joblib puts the bytes of arrays into the pickle; damaged ones fail with anything
        found.unread.append(f"the names after the first array or damage: {error}")
    found.operators.update(names)
    foreign = sorted(name for name in names if not name.startswith(_HARMLESS))
    found.problems.append(
        "loading a pickle executes its code; it names "
        + (", ".join(foreign) if foreign else "only scikit-learn, numpy, scipy and joblib as far as it is read")
        + "; serve it with --allow-pickle only if you trust it"
    )


def _globals(data: bytes) -> Iterator[str]:
    """Yield what a pickle imports: `module.name`."""
    memo: list[object] = []
    pushed: list[object] = []
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "GLOBAL":
            yield str(argument).replace(" ", ".")
        elif operation.name == "STACK_GLOBAL":
            yield ".".join(map(str, pushed[-2:]))
        elif operation.name in ("BINGET", "LONG_BINGET") and isinstance(argument, int) and argument < len(memo):
            pushed.append(memo[argument])
        if operation.name == "MEMOIZE":
            memo.append(pushed[-1] if pushed else None)
        elif operation.stack_after and not operation.name.endswith("GET"):
            pushed.append(argument)


def read_source(path: Path, found: Inspection) -> None:
    """Name the classes of a Python file. Raises OSError, ValueError."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from error
    found.details["classes"] = ", ".join(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    found.unread.append("inputs and outputs: they follow from executing the file")
