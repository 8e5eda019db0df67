"""The code of modules is kept by the first start and found by the next one, as long as the sources are the same."""

import importlib
import importlib.machinery
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.cli import compiled_modules as kept
from naiad.cli.compiled_modules import CompiledModules, compiled_modules

PACKAGE = "package_of_compiled_modules"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / PACKAGE / "inner").mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").write_text("")
    (tmp_path / PACKAGE / "inner" / "__init__.py").write_text("NAME = __name__\n")
    (tmp_path / PACKAGE / "inner" / "leaf.py").write_text("VALUE = 1\n")
    (tmp_path / PACKAGE / "other.py").write_text("VALUE = 'other'\n")
    yield tmp_path
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    importlib.invalidate_caches()


def start(folder: Path, *names: str) -> list[object]:
    """Import modules of the package as a new process would; return those that were loaded from kept code."""
    forget()
    with compiled_modules("test", str(folder)):
        loaded = [importlib.import_module(f"{PACKAGE}.{name}") for name in names]
    return [module for module in loaded if isinstance(module.__loader__, kept._KeptLoader)]


def kept_file(folder: Path) -> Path:
    return next((folder / "__pycache__").glob("modules_test.*.marshal"))


def test_next_start_loads_kept_code(folder: Path) -> None:
    assert start(folder, "inner", "inner.leaf") == []
    written = kept_file(folder).read_bytes()
    inner, leaf = start(folder, "inner", "inner.leaf")
    assert kept_file(folder).read_bytes() == written
    assert leaf.VALUE == 1
    assert inner.NAME.endswith("inner")
    assert inner.__path__ == [str(folder / PACKAGE / "inner")]
    assert leaf.__file__ == str(folder / PACKAGE / "inner" / "leaf.py")
    assert leaf.__spec__.cached == importlib.util.cache_from_source(leaf.__file__)
    assert leaf.__spec__.loader.get_source(leaf.__name__) == "VALUE = 1\n"
    assert importlib.reload(leaf).VALUE == 1
    assert not [finder for finder in sys.meta_path if isinstance(finder, CompiledModules)]


def test_module_looked_for_is_loaded_later(folder: Path) -> None:
    start(folder, "other")
    forget()
    with compiled_modules("test", str(folder)):
        spec = importlib.util.find_spec(f"{PACKAGE}.other")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.VALUE == "other"


def test_changed_source_is_imported(folder: Path) -> None:
    start(folder, "inner.leaf", "other")
    source = folder / PACKAGE / "inner" / "leaf.py"
    source.write_text("VALUE = 1234\n")
    kept_ones = start(folder, "inner.leaf", "other")
    assert sys.modules[f"{PACKAGE}.inner.leaf"].VALUE == 1234
    assert [module.__name__ for module in kept_ones] == [f"{PACKAGE}.other"]
    assert start(folder, "inner.leaf")[0].VALUE == 1234
    os.utime(source, (1, 1))  # of the same size
    assert start(folder, "inner.leaf") == []
    source.unlink()
    with pytest.raises(ModuleNotFoundError):
        start(folder, "inner.leaf")


def test_modules_of_another_start_stay_kept(folder: Path) -> None:
    start(folder, "inner.leaf")
    assert start(folder, "other") == []
    assert len(start(folder, "inner.leaf", "other")) == 2


def test_module_of_another_folder_is_not_mixed_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two installations share the file: each gets its own modules."""
    start(folder, "other")
    second = folder / "second"
    (second / PACKAGE).mkdir(parents=True)
    (second / PACKAGE / "__init__.py").write_text("")
    (second / PACKAGE / "other.py").write_text("VALUE = 'OTHER'\n")
    monkeypatch.syspath_prepend(second)
    assert start(folder, "other") == []
    assert sys.modules[f"{PACKAGE}.other"].VALUE == "OTHER"
    assert start(folder, "other")[0].VALUE == "OTHER"


@pytest.mark.parametrize("damage", ["empty", "other", "short", "table", "length"])
def test_file_that_cannot_be_used_is_replaced(folder: Path, damage: str) -> None:
    start(folder, "inner.leaf")
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
    assert start(folder, "inner.leaf") == []
    assert len(start(folder, "inner.leaf")) == 1


def test_large_file_keeps_only_this_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(folder, "inner.leaf")
    monkeypatch.setattr(kept, "_MOST_BYTES", kept_file(folder).stat().st_size + 50)
    start(folder, "other")
    assert start(folder, "inner.leaf", "other")[0].VALUE == "other"


def test_nothing_is_written_where_python_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    start(folder, "other")
    assert not (folder / "__pycache__").exists()


def test_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    (folder / "__pycache__").write_text("a file")
    assert start(folder, "other") == []


def test_module_of_another_loader_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that instruments a module must see it at each start."""

    class Loader(importlib.machinery.SourceFileLoader):
        pass

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
            if name != f"{PACKAGE}.other":
                return None
            source = str(folder / PACKAGE / "other.py")
            return importlib.util.spec_from_file_location(name, source, loader=Loader(name, source))

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    start(folder, "other", "inner.leaf")
    start(folder, "other", "inner.leaf")
    assert type(sys.modules[f"{PACKAGE}.other"].__loader__) is Loader


def test_second_start_reads_no_compiled_files(tmp_path: Path) -> None:
    program = (
        "import importlib.machinery, sys; from naiad.cli import main; read = []\n"
        "Loader = importlib.machinery.SourceFileLoader; real = Loader.get_data\n"
        "Loader.get_data = lambda self, path: read.append(path) or real(self, path)\n"
        "main._import_verb('serve'); print(len([path for path in read if '/naiad/' in path]))"
    )
    command = [sys.executable, "-X", f"pycache_prefix={tmp_path}", "-c", program]
    counts = [
        int(subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert counts[0] > 30
    assert counts[1] == 0
