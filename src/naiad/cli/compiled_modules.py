"""The compiled modules of a start in one file, so that the next start opens one file and not six hundred.

Python looks for each module in its folder, compares the times of two files and reads one: a third of the time of a
start's imports. Here one file has the code of all modules inside packages, with the time and size of each source,
which are compared as Python does, so a changed source is never overlooked. Python itself finds everything else: the
packages, extension modules, and modules that have changed or are new. The file is written where Python writes
compiled modules, with the same rules (`python -B`, PYTHONDONTWRITEBYTECODE and PYTHONPYCACHEPREFIX).
"""

import contextlib
import functools
import importlib.util
import marshal
import mmap
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

_MOST_BYTES = 64 << 20
"""A larger file is neither written nor read."""
_HEAD_BYTES = len(importlib.util.MAGIC_NUMBER) + 8
"""In front of the table: version of the interpreter's code, checksum and length of the table."""


class _Kept(NamedTuple):
    """Where the code of a source is, and of which state of the source it is."""

    begin: int
    """Its first byte behind the table."""
    end: int
    modified_s: int
    size: int
    compiled: str
    """The file with the code that Python would read."""


class CompiledModules:
    """Finds modules whose code is kept: an entry of `sys.meta_path`, in front of Python's own for files."""

    def __init__(self, path: Path) -> None:
        """Open the file that an earlier start has written; without one there is nothing yet."""
        self._path = path
        self._file, self._table, self._begin = _open(path)
        self._before = frozenset(sys.modules)

    def find_spec(
        self, name: str, folders: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module of a package, None for those that Python has to find."""
        if folders is None or len(folders) != 1 or self._file is None:
            return None
        place = os.path.join(folders[0], name.rpartition(".")[2])
        for source, is_package in ((os.path.join(place, "__init__.py"), True), (f"{place}.py", False)):
            kept = self._table.get(source)
            if kept is not None and _state(source) == (kept.modified_s, kept.size):
                loader = _KeptLoader(name, source, functools.partial(self._code, kept))
                spec = ModuleSpec(name, loader, origin=source, is_package=is_package)
                spec.has_location = True
                spec.cached = kept.compiled
                if is_package:
                    spec.submodule_search_locations = [place]
                return spec
        return None

    def keep(self) -> None:
        """Write the code for the next start if this one had to look for any, where Python writes compiled modules."""
        new = {} if sys.dont_write_bytecode else dict(self._new_codes())
        codes = {source: (kept, self._code(kept)) for source, kept in self._table.items()} if new else {}
        if self._file is not None:
            self._file.close()
        self._file, self._table = None, {}
        if not new:
            return
        from naiad.files.replacement import replace_file  # few starts write

        content = _content({**codes, **new})
        if len(content) > _MOST_BYTES:
            content = _content(new)  # of other installations, or of sources that have gone
        with contextlib.suppress(OSError):  # an installation that this user cannot write
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, content, is_durable=False)

    def _code(self, kept: _Kept) -> bytes:
        """Return kept code, nothing when the file is closed."""
        return b"" if self._file is None else self._file[self._begin + kept.begin : self._begin + kept.end]

    def _new_codes(self) -> Iterator[tuple[str, tuple[_Kept, bytes]]]:
        """Yield the code of the modules that Python has found meanwhile."""
        for name in sys.modules.keys() - self._before:
            spec = getattr(sys.modules[name], "__spec__", None)
            # The exact class: another loader may change what it loads.
            if spec is None or type(spec.loader) is not SourceFileLoader or "." not in spec.name:
                continue
            source, compiled = spec.loader.path, spec.cached
            state = _state(source)
            code = None if state is None or not compiled else _code_of(spec.loader, spec.name)
            if code is not None and state is not None:
                yield source, (_Kept(0, 0, *state, compiled), marshal.dumps(code))


class _KeptLoader(SourceFileLoader):
    """Loads a module from kept code; when the start is over, each caller gets what Python would read."""

    def __init__(self, name: str, source: str, read_kept: Callable[[], bytes]) -> None:
        super().__init__(name, source)
        self._read_kept = read_kept

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module."""
        content = self._read_kept()
        if not content:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(content)
        return code


@contextlib.contextmanager
def compiled_modules(name: str, folder: str = os.path.dirname(__file__)) -> Iterator[None]:
    """Have the imports of the block use kept code. Each `name` has a file of its own."""
    module_file = importlib.util.cache_from_source(os.path.join(folder, f"modules_{name}.py"))
    finder = CompiledModules(Path(module_file).with_suffix(".marshal"))
    # Tools that watch imports stand in front of Python's finders, and find what they look for through these.
    place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    sys.meta_path.insert(place, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
    finder.keep()


def _state(source: str) -> tuple[int, int] | None:
    """Return what Python compares: the time of the last change in seconds, and the size; None without the file."""
    try:
        found = os.stat(source)
    except OSError:
        return None
    return int(found.st_mtime), found.st_size


def _code_of(loader: SourceFileLoader, name: str) -> CodeType | None:
    try:
        return loader.get_code(name)
    except (ImportError, OSError, SyntaxError):  # it has been changed since it was imported
        return None


def _content(codes: Mapping[str, tuple[_Kept, bytes]]) -> bytes:
    """Return the file: its head, the table, and the codes one after the other."""
    table: dict[str, tuple[Any, ...]] = {}
    end = 0
    for source, (kept, code) in codes.items():
        begin, end = end, end + len(code)
        table[source] = (begin, end, *kept[2:])
    listed = marshal.dumps((table, end))
    head = importlib.util.MAGIC_NUMBER + zlib.crc32(listed).to_bytes(4, "little") + len(listed).to_bytes(4, "little")
    return b"".join([head, listed, *(code for _, code in codes.values())])


def _open(path: Path) -> tuple[mmap.mmap | None, dict[str, _Kept], int]:
    """Return the file, its table, and where the codes begin; no file if there is none that can be used."""
    try:
        with path.open("rb") as stream:
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None, {}, 0
    magic = importlib.util.MAGIC_NUMBER
    begin = _HEAD_BYTES + int.from_bytes(content[_HEAD_BYTES - 4 : _HEAD_BYTES], "little")
    listed = content[_HEAD_BYTES:begin]
    is_whole = content[: len(magic) + 4] == magic + zlib.crc32(listed).to_bytes(4, "little")
    if is_whole and len(content) <= _MOST_BYTES:
        table, code_bytes = marshal.loads(listed)
        if begin + code_bytes == len(content):
            return content, {source: _Kept(*row) for source, row in table.items()}, begin
    content.close()
    return None, {}, 0
