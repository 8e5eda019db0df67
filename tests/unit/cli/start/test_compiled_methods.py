"""Methods of dataclasses are compiled by the first start and read by the next one."""

import contextlib
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.cli.start.compiled_methods import CompiledMethods, compiled_methods


def make_class(default: int = 3) -> type:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = default

    return Point


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return tmp_path


def kept_file(folder: Path) -> Path:
    (found,) = (folder / "__pycache__").iterdir()
    return found


def test_next_start_compiles_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with compiled_methods("serve", str(folder)):
        first = make_class()
    assert "exec" not in vars(dataclasses)
    written = kept_file(folder).read_bytes()
    methods = CompiledMethods(kept_file(folder))
    monkeypatch.setitem(vars(dataclasses), "exec", methods.execute)
    monkeypatch.setattr("builtins.compile", None)
    second = make_class()
    monkeypatch.undo()
    methods.keep()
    assert kept_file(folder).read_bytes() == written
    for cls in (first, second):
        assert cls(1) == cls(1, 3)
        assert hash(cls(1)) == hash(cls(1, 3))
        assert repr(cls(1)).endswith("Point(x=1, y=3)")
        with pytest.raises(dataclasses.FrozenInstanceError):
            cls(1).x = 2


def test_new_classes_are_added_to_the_file(folder: Path) -> None:
    with compiled_methods("serve", str(folder)):
        make_class()
    before = kept_file(folder).stat().st_size

    with compiled_methods("serve", str(folder)):
        make_class()

        @dataclasses.dataclass
        class Other:
            name: str

    assert kept_file(folder).stat().st_size > before
    assert Other("a") == Other("a")


@pytest.mark.parametrize("content", [b"", b"other", b"\x00" * 64, None])
def test_file_that_cannot_be_used_is_replaced(folder: Path, content: bytes | None) -> None:
    with compiled_methods("serve", str(folder)):
        make_class()
    path = kept_file(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7] if content is None else content)
    with compiled_methods("serve", str(folder)):
        point = make_class()
    assert point(1) == point(1, 3)
    assert path.read_bytes() == whole


def test_nothing_is_written_where_python_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with compiled_methods("serve", str(folder)):
        make_class()
    assert list(folder.iterdir()) == []


def test_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    (folder / "__pycache__").write_text("a file")
    with compiled_methods("serve", str(folder)):
        point = make_class()
    assert point(1) == point(1, 3)


def test_failed_import_keeps_nothing(folder: Path) -> None:
    with contextlib.suppress(ImportError), compiled_methods("serve", str(folder)):
        make_class()
        raise ImportError
    assert "exec" not in vars(dataclasses)
    assert list(folder.iterdir()) == []


def test_second_start_of_the_command_compiles_no_methods(folder: Path) -> None:
    program = (
        "import builtins, sys; from naiad.cli import main; compiled = []; real = builtins.compile\n"
        "def count(text, *rest, **named):\n"
        "    compiled.append('__create_fn__' in str(text) or '__dataclass' in str(text))\n"
        "    return real(text, *rest, **named)\n"
        "builtins.compile = count\n"
        "main._import_verb('serve'); print(sum(compiled))"
    )
    command = [sys.executable, "-X", f"pycache_prefix={folder}", "-c", program]
    environment = {"PATH": ""}
    counts = [
        int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert counts[0] > 100
    assert counts[1] == 0


def test_damaged_code_is_not_executed(folder: Path) -> None:
    with compiled_methods("serve", str(folder)):
        make_class()
    path = kept_file(folder)
    whole = path.read_bytes()
    place = whole.index(b"Point") if b"Point" in whole else len(whole) // 2
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert CompiledMethods(path)._known == {}
    with compiled_methods("serve", str(folder)):
        make_class()
    assert path.read_bytes() == whole
