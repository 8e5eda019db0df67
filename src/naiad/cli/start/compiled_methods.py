"""The methods of dataclasses, compiled once and not at each start.

`dataclasses` writes the methods of each class as a text, and the interpreter compiles it: 180 classes of a server
have 1,050 of them, a quarter of the time of its imports. What Python does for modules is done here for these texts:
their code is kept beside the compiled modules, with the same rules (`python -B`, PYTHONDONTWRITEBYTECODE and
PYTHONPYCACHEPREFIX). The text is the key, so the code of another version of a class is never used.
"""

import builtins
import contextlib
import dataclasses
import importlib.util
import marshal
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

_MOST_BYTES = 16 << 20
"""A larger file is not read."""


class CompiledMethods:
    """The code of the methods of the dataclasses that a program imports."""

    def __init__(self, path: Path) -> None:
        """Read the file that an earlier start has written; without one there is nothing yet."""
        self._path = path
        self._known = _read(path)
        self._new: dict[str, CodeType] = {}

    def execute(self, text: str, *namespaces: Any) -> None:
        """Do what `exec` does, with kept code if there is any."""
        code = self._known.get(text)
        if code is None:
            code = self._new[text] = compile(text, "<string>", "exec", dont_inherit=True)
        builtins.exec(code, *namespaces)

    def keep(self) -> None:
        """Write the code for the next start if there is more than before, where Python writes compiled modules."""
        if not self._new or sys.dont_write_bytecode:
            return
        from naiad.files.replacement import replace_file  # few starts write

        data = marshal.dumps({**self._known, **self._new})
        content = importlib.util.MAGIC_NUMBER + _checksum(data) + data
        with contextlib.suppress(OSError):  # an installation that this user cannot write
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, content, is_durable=False)


@contextlib.contextmanager
def compiled_methods(name: str, folder: str = os.path.dirname(__file__)) -> Iterator[None]:
    """Have the imports of the block use kept code; before other threads import. Each `name` has a file of its own."""
    module_file = importlib.util.cache_from_source(os.path.join(folder, f"dataclass_methods_{name}.py"))
    methods = CompiledMethods(Path(module_file).with_suffix(".marshal"))
    # The module calls the builtin by this name, which it then finds here first.
    vars(dataclasses)["exec"] = methods.execute
    try:
        yield
    finally:
        del vars(dataclasses)["exec"]
    methods.keep()


def _checksum(data: bytes) -> bytes:
    """Return what damaged data does not have: damaged code may end the interpreter, at each start."""
    return zlib.crc32(data).to_bytes(4, "little")


def _read(path: Path) -> dict[str, CodeType]:
    try:
        content = path.read_bytes() if path.stat().st_size <= _MOST_BYTES else b""
        magic = importlib.util.MAGIC_NUMBER
        data = content[len(magic) + 4 :]
        found = marshal.loads(data) if content.startswith(magic + _checksum(data)) else None
    except (OSError, EOFError, ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
