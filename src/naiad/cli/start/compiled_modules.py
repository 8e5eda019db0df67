"""The compiled modules of a start in one file, so that a start opens one file and not seven hundred.

Python looks for each module in the folders of its path, compares the times of two files and reads one: a third of the
time of a start's imports. Here one file has the code of all modules that a start imports: of this package, of other
packages and of Python itself. What Python would find is never overlooked: the time and size of each source are
compared as Python does; folders that stand earlier in the path are searched; and a module whose folder has another
time is left to Python, because a module of another kind may stand beside it now. Python itself also finds everything
else: extension modules, and modules that are new. The file is written where Python writes compiled modules, with the
same rules (`python -B`, PYTHONDONTWRITEBYTECODE and PYTHONPYCACHEPREFIX).
"""

import contextlib
import importlib.util
import marshal
import mmap
import os
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

_MOST_BYTES = 64 << 20
"""A larger file is neither written nor read."""
_MAGIC = importlib.util.MAGIC_NUMBER
_HEAD_BYTES = len(_MAGIC) + 8
"""In front of the table: version of the interpreter's code, checksum and length of the table."""
_COMPILED_HEAD_BYTES = len(_MAGIC) + 12
"""In front of the code in a file of Python: version, kind, and two numbers that depend on the kind."""
_BY_TIME, _UNCHECKED = 0, 1
"""Kinds of compiled files: valid for a time and a size of the source; valid for any source."""

_Key = tuple[str, str]
"""The entry of the path in which a module is found, and the name of the module."""
_State = tuple[int, int]
"""What Python compares of a file: the second of its last change, and its size."""
_Kept = tuple[int, int, str, _State, str, str, int]
"""First and last byte of a code; its source and the state of that; the file that Python would read; the source's
folder and the second of the folder's last change."""


class CompiledModules:
    """Finds modules whose code is kept: an entry of `sys.meta_path`, in front of Python's own for files."""

    def __init__(self, path: str) -> None:
        """Open the file that an earlier start has written; without one there is nothing yet."""
        self._path = path
        self._codes, self._table = _open(path)
        self._names = {name for _, name in self._table}
        self._folder_times: dict[str, int] = {}
        self._before = frozenset(sys.modules)

    def find_spec(
        self, name: str, folders: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module, None for those that Python has to find."""
        if name not in self._names:
            return None
        for folder in sys.path if folders is None else folders:
            kept = self._table.get((folder, name))
            if kept is not None:
                return self._spec(name, kept) if self._is_current(kept) else None
            if folder not in sys.path_importer_cache:
                return None
            finder = sys.path_importer_cache[folder]
            if finder is not None and finder.find_spec(name) is not None:
                return None
        return None

    def keep(self) -> None:
        """Write the code for the next start if Python had to look for any, where Python writes compiled modules."""
        new = {} if sys.dont_write_bytecode else dict(self._new_codes())
        if new:
            known = {key: (kept, bytes(self.code(kept))) for key, kept in self._table.items() if _is_unchanged(kept)}
            content = _content({**known, **new})
            if len(content) > _MOST_BYTES:
                content = _content(new)  # the rest is of other installations
            self._write(content)
        self._codes.release()  # with it goes the file, whose pages would count as memory of the process
        self._codes, self._table, self._names = memoryview(b""), {}, set()

    def _write(self, content: bytes) -> None:
        from pathlib import Path

        from naiad.files.replacement import replace_file  # few starts write

        with contextlib.suppress(OSError):  # an installation that this user cannot write
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            replace_file(Path(self._path), content, is_durable=False)

    def _is_current(self, kept: _Kept) -> bool:
        _, _, source, state, _, folder, folder_s = kept
        found_s = self._folder_times.get(folder)
        if found_s is None:
            found_s = self._folder_times[folder] = _changed_s(folder)
        return found_s == folder_s and _state(source) == state

    def _spec(self, name: str, kept: _Kept) -> ModuleSpec:
        _, _, source, _, compiled, folder, _ = kept
        spec = ModuleSpec(name, _KeptLoader(name, source, self, kept), origin=source)
        spec.has_location = True
        spec.cached = compiled
        if _is_package(source):
            spec.submodule_search_locations = [folder]
        return spec

    def code(self, kept: _Kept) -> memoryview:
        """Return kept code, nothing when the file is closed."""
        return self._codes[kept[0] : kept[1]]

    def _new_codes(self) -> Iterator[tuple[_Key, tuple[_Kept, bytes]]]:
        """Yield the code of the modules that Python has found meanwhile."""
        now_s = int(time.time())
        for name in sys.modules.keys() - self._before:
            spec = getattr(sys.modules[name], "__spec__", None)
            # The exact class: another loader may change what it loads.
            if spec is None or type(spec.loader) is not SourceFileLoader or spec.name != name or not spec.cached:
                continue
            source = spec.loader.path
            folder = os.path.dirname(source)
            key = (os.path.dirname(folder) if _is_package(source) else folder, name)
            folder_s, state = _changed_s(folder), _state(source)
            # A folder that changes in this second may change again in it.
            if folder_s >= now_s or state is None or (key in self._table and self._is_current(self._table[key])):
                continue
            code = _compiled_code(spec.cached, state)
            if code:
                yield key, ((0, 0, source, state, spec.cached, folder, folder_s), code)


class _KeptLoader(SourceFileLoader):
    """Loads a module from kept code once; later, or when the start is over, callers get what Python would read."""

    def __init__(self, name: str, source: str, modules: CompiledModules, kept: _Kept) -> None:
        super().__init__(name, source)
        self._modules = modules
        self._kept: _Kept | None = kept

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module."""
        kept, self._kept = self._kept, None
        if kept is not None and (content := self._modules.code(kept)):
            code: CodeType = marshal.loads(content)
            return code
        return super().get_code(fullname)


@contextlib.contextmanager
def compiled_modules(name: str, folder: str = os.path.dirname(__file__)) -> Iterator[None]:
    """Have the imports of the block use kept code. Each `name` has a file of its own."""
    module_file = importlib.util.cache_from_source(os.path.join(folder, f"modules_{name}.py"))
    finder = CompiledModules(f"{os.path.splitext(module_file)[0]}.marshal")
    # Tools that watch imports stand in front of Python's finders, and find what they look for through these.
    place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    sys.meta_path.insert(place, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
    finder.keep()


def _is_package(source: str) -> bool:
    return os.path.basename(source) == "__init__.py"


def _state(source: str) -> _State | None:
    """Return the state of a source, None if there is none."""
    try:
        found = os.stat(source)
    except OSError:
        return None
    return int(found.st_mtime), found.st_size


def _changed_s(folder: str) -> int:
    """Return the second of a folder's last change, -1 if there is no such folder."""
    try:
        return int(os.stat(folder).st_mtime)
    except OSError:
        return -1


def _is_unchanged(kept: _Kept) -> bool:
    """Return whether kept code may be of use to a later start."""
    return _state(kept[2]) == kept[3]


def _compiled_code(path: str, state: _State) -> bytes:
    """Return the code in a compiled file if Python would use it for a source in this state, else nothing."""
    try:
        with open(path, "rb") as stream:
            content = stream.read()
    except OSError:
        return b""
    numbers = [int.from_bytes(content[begin : begin + 4], "little") for begin in (4, 8, 12)]
    is_valid = numbers[0] == _UNCHECKED or numbers == [_BY_TIME, *(number & 0xFFFFFFFF for number in state)]
    return content[_COMPILED_HEAD_BYTES:] if content.startswith(_MAGIC) and is_valid else b""


def _content(codes: Mapping[_Key, tuple[_Kept, bytes]]) -> bytes:
    """Return the file: its head, the table, and the codes one after the other."""
    table: dict[_Key, _Kept] = {}
    end = 0
    for key, (kept, code) in codes.items():
        begin, end = end, end + len(code)
        table[key] = (begin, end, *kept[2:])
    listed = marshal.dumps((table, end))
    head = _MAGIC + zlib.crc32(listed).to_bytes(4, "little") + len(listed).to_bytes(4, "little")
    return b"".join([head, listed, *(code for _, code in codes.values())])


def _open(path: str) -> tuple[memoryview, dict[_Key, _Kept]]:
    """Return the codes in a file and its table; nothing if there is no file that can be used."""
    try:
        with open(path, "rb") as stream:
            content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):  # an empty file cannot be mapped
        return memoryview(b""), {}
    begin = _HEAD_BYTES + int.from_bytes(content[_HEAD_BYTES - 4 : _HEAD_BYTES], "little")
    listed = content[_HEAD_BYTES:begin]
    is_whole = content[: len(_MAGIC) + 4] == _MAGIC + zlib.crc32(listed).to_bytes(4, "little")
    if is_whole and len(content) <= _MOST_BYTES:
        table, code_bytes = marshal.loads(listed)
        if begin + code_bytes == len(content):
            return content[begin:], table
    return memoryview(b""), {}
