"""The code of modules is kept by the first start and found by the next one, as long as Python would find the same."""

import importlib
import importlib.machinery
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.cli.start import compiled_modules as kept
from naiad.cli.start.compiled_modules import CompiledModules, compiled_modules

PACKAGE = "package_of_compiled_modules"
MODULE = "module_of_compiled_modules"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    place = tmp_path / "code"
    monkeypatch.syspath_prepend(place)
    (place / PACKAGE / "inner").mkdir(parents=True)
    (place / PACKAGE / "__init__.py").write_text("")
    (place / PACKAGE / "inner" / "__init__.py").write_text("NAME = __name__\n")
    (place / PACKAGE / "inner" / "leaf.py").write_text("VALUE = 1\n")
    (place / PACKAGE / "other.py").write_text("VALUE = 'other'\n")
    (place / f"{MODULE}.py").write_text("VALUE = 'alone'\n")
    yield place
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in (PACKAGE, MODULE)]:
        del sys.modules[name]
    importlib.invalidate_caches()


def age(*folders: Path) -> None:
    """Let the folders have been changed a while ago, as folders of an installation."""
    for folder in folders:
        for each in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            os.utime(each, (1e9, 1e9))


def start(folder: Path, *names: str, is_old: bool = True) -> list[str]:
    """Import modules as a new process would; return the names of those that were loaded from kept code."""
    forget()
    if is_old:
        age(folder)
    with compiled_modules("test", str(folder.parent)):
        for name in names:
            importlib.import_module(name)
            if is_old:
                age(folder)  # the first import makes __pycache__
        found = {name: module for name, module in sys.modules.items() if name.startswith((PACKAGE, MODULE))}
    return sorted(name for name, module in found.items() if isinstance(module.__loader__, kept._KeptLoader))


def kept_file(folder: Path) -> Path:
    return next((folder.parent / "__pycache__").glob("modules_test.*.marshal"))


def test_next_start_loads_kept_code(folder: Path) -> None:
    names = [PACKAGE, f"{PACKAGE}.inner", f"{PACKAGE}.inner.leaf", MODULE]
    assert start(folder, *names) == []
    written = kept_file(folder).read_bytes()
    assert start(folder, *names) == sorted(names)
    assert kept_file(folder).read_bytes() == written
    inner, leaf = sys.modules[f"{PACKAGE}.inner"], sys.modules[f"{PACKAGE}.inner.leaf"]
    assert leaf.VALUE == 1
    assert inner.NAME.endswith(".inner")
    assert sys.modules[MODULE].VALUE == "alone"
    assert inner.__path__ == [str(folder / PACKAGE / "inner")]
    assert leaf.__file__ == str(folder / PACKAGE / "inner" / "leaf.py")
    assert leaf.__spec__.cached == importlib.util.cache_from_source(leaf.__file__)
    assert leaf.__spec__.loader.get_source(leaf.__name__) == "VALUE = 1\n"
    assert importlib.reload(leaf).VALUE == 1
    assert not [finder for finder in sys.meta_path if isinstance(finder, CompiledModules)]


def test_module_looked_for_is_loaded_later(folder: Path) -> None:
    start(folder, f"{PACKAGE}.other")
    forget()
    with compiled_modules("test", str(folder.parent)):
        spec = importlib.util.find_spec(f"{PACKAGE}.other")
        assert isinstance(spec.loader, kept._KeptLoader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.VALUE == "other"


def test_changed_source_is_imported(folder: Path) -> None:
    leaf, other = f"{PACKAGE}.inner.leaf", f"{PACKAGE}.other"
    start(folder, leaf, other)
    source = folder / PACKAGE / "inner" / "leaf.py"
    source.write_text("VALUE = 1234\n")
    assert start(folder, leaf, other) == [PACKAGE, f"{PACKAGE}.inner", other]
    assert sys.modules[leaf].VALUE == 1234
    assert leaf in start(folder, leaf)
    assert sys.modules[leaf].VALUE == 1234
    os.utime(source, (1, 1))  # of the same size
    assert leaf not in start(folder, leaf)
    source.unlink()
    with pytest.raises(ModuleNotFoundError):
        start(folder, leaf)


def test_package_beside_the_source_is_imported(folder: Path) -> None:
    start(folder, f"{PACKAGE}.other")
    (folder / PACKAGE / "other").mkdir()
    (folder / PACKAGE / "other" / "__init__.py").write_text("VALUE = 'package'\n")
    start(folder, f"{PACKAGE}.other", is_old=False)
    assert sys.modules[f"{PACKAGE}.other"].VALUE == "package"


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
def test_module_earlier_in_the_path_is_imported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """`is_known`: Python has looked into the folder before, so that the finder need not leave it to Python."""
    start(folder, MODULE)
    earlier = folder.parent / "earlier"
    earlier.mkdir()
    monkeypatch.syspath_prepend(earlier)
    if is_known:
        assert importlib.util.find_spec("module_that_is_nowhere") is None
        assert start(folder, MODULE) == [MODULE]
    (earlier / f"{MODULE}.py").write_text("VALUE = 'earlier'\n")
    start(folder, MODULE)
    assert sys.modules[MODULE].VALUE == "earlier"
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(folder)])
    (earlier / f"{MODULE}.py").unlink()
    with pytest.raises(ModuleNotFoundError):
        start(folder, MODULE)


def test_folder_that_changes_now_is_left_to_python(folder: Path) -> None:
    """What is added in the same second would not be noticed."""
    assert start(folder, MODULE, is_old=False) == []
    now = 4e9
    os.utime(folder, (now, now))
    assert start(folder, MODULE, is_old=False) == []
    assert start(folder, MODULE) == []
    assert start(folder, MODULE) == [MODULE]


def test_modules_of_another_start_stay_kept(folder: Path) -> None:
    start(folder, f"{PACKAGE}.inner.leaf")
    assert f"{PACKAGE}.other" not in start(folder, f"{PACKAGE}.other")
    assert len(start(folder, f"{PACKAGE}.inner.leaf", f"{PACKAGE}.other")) == 4


def test_module_of_another_folder_is_not_mixed_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two installations share the file: each gets its own modules, and both stay kept."""
    start(folder, f"{PACKAGE}.other")
    second = folder.parent / "second"
    (second / PACKAGE).mkdir(parents=True)
    (second / PACKAGE / "__init__.py").write_text("")
    (second / PACKAGE / "other.py").write_text("VALUE = 'OTHER'\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(second)
        age(second)
        assert start(folder, f"{PACKAGE}.other") == []
        assert sys.modules[f"{PACKAGE}.other"].VALUE == "OTHER"
        age(second)
        start(folder, f"{PACKAGE}.other")
        age(second)
        assert start(folder, f"{PACKAGE}.other") == [PACKAGE, f"{PACKAGE}.other"]
        assert sys.modules[f"{PACKAGE}.other"].VALUE == "OTHER"
    written = kept_file(folder).read_bytes()
    assert start(folder, f"{PACKAGE}.other") == [PACKAGE, f"{PACKAGE}.other"]
    assert sys.modules[f"{PACKAGE}.other"].VALUE == "other"
    assert kept_file(folder).read_bytes() == written


@pytest.mark.parametrize("damage", ["empty", "other", "short", "table", "length"])
def test_file_that_cannot_be_used_is_replaced(folder: Path, damage: str) -> None:
    start(folder, MODULE)
    path = kept_file(folder)
    whole = path.read_bytes()
    damaged = {
        "empty": b"",
        "other": b"other" * 100,
        "short": whole[:-1],
        "table": whole[:20] + bytes([whole[20] ^ 1]) + whole[21:],
        "length": whole[:8] + b"\xff\xff\xff\x7f" + whole[12:],
    }
    path.write_bytes(damaged[damage])
    assert start(folder, MODULE) == []
    assert start(folder, MODULE) == [MODULE]


def test_large_file_keeps_only_this_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(folder, f"{PACKAGE}.inner.leaf")
    monkeypatch.setattr(kept, "_MOST_BYTES", kept_file(folder).stat().st_size + 50)
    start(folder, MODULE)
    assert start(folder, MODULE) == [MODULE]
    assert f"{PACKAGE}.inner.leaf" not in start(folder, f"{PACKAGE}.inner.leaf")


@pytest.mark.parametrize("mode", ["TIMESTAMP", "UNCHECKED_HASH", "CHECKED_HASH"])
def test_each_kind_of_compiled_file(folder: Path, mode: str) -> None:
    """A source that Python reads for its hash is no case for a comparison of times."""
    import py_compile

    py_compile.compile(str(folder / f"{MODULE}.py"), invalidation_mode=py_compile.PycInvalidationMode[mode])
    start(folder, MODULE)
    assert start(folder, MODULE) == ([] if mode == "CHECKED_HASH" else [MODULE])
    assert sys.modules[MODULE].VALUE == "alone"


def test_nothing_is_written_where_python_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    start(folder, MODULE)
    assert not (folder.parent / "__pycache__").exists()


def test_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    (folder.parent / "__pycache__").write_text("a file")
    assert start(folder, MODULE) == []


def test_module_of_another_loader_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that instruments a module must see it at each start."""

    class Loader(importlib.machinery.SourceFileLoader):
        pass

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
            if name != MODULE:
                return None
            source = str(folder / f"{MODULE}.py")
            return importlib.util.spec_from_file_location(name, source, loader=Loader(name, source))

    with monkeypatch.context() as patch:
        patch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
        start(folder, MODULE, f"{PACKAGE}.other")
        assert start(folder, MODULE, f"{PACKAGE}.other") == [PACKAGE, f"{PACKAGE}.other"]
        assert type(sys.modules[MODULE].__loader__) is Loader
    assert start(folder, MODULE) == []


def test_second_start_reads_no_compiled_files(tmp_path: Path) -> None:
    program = (
        "import importlib.machinery, os, sys, time; from naiad.cli import main; read = []\n"
        "time.time = lambda: 4e9\n"  # the cache folders of this start are no new ones
        "Loader = importlib.machinery.SourceFileLoader; real = Loader.get_data\n"
        "Loader.get_data = lambda self, path: read.append(path) or real(self, path)\n"
        "main._import_verb('serve'); print(len([path for path in read if '/naiad/' in path or '/numpy/' in path]))"
    )
    command = [sys.executable, "-P", "-X", f"pycache_prefix={tmp_path}", "-c", program]
    counts = [
        int(subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert counts[0] > 100
    assert counts[1] == 0
