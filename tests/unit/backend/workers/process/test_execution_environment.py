"""Archives of environments: links inside are kept, and nothing is written outside of the directory."""

import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from naiad.backend.load_stop import LoadStop
from naiad.backend.workers.process.execution_environment import UnusableError, find_interpreter, unpack
from naiad.core.errors import InferError
from support.waiting import wait_until

Member = tuple[str, object]
"""Path, and content (bytes), symbolic link (str), hard link ("=target") or a directory (None)."""


def write_archive(path: Path, *members: Member) -> Path:
    with tarfile.open(path, "w:gz") as opened:
        for name, value in members:
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = 1_000_000_000, 0o7777
            if isinstance(value, bytes):
                info.size = len(value)
                opened.addfile(info, io.BytesIO(value))
                continue
            if value is None:
                info.type = tarfile.DIRTYPE
            elif str(value).startswith("="):
                info.type, info.linkname = tarfile.LNKTYPE, str(value)[1:]
            else:
                info.type, info.linkname = tarfile.SYMTYPE, str(value)
            opened.addfile(info)
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    victim = tmp_path / "outside"
    victim.mkdir()
    (victim / "file").write_bytes(b"mine")
    return victim


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[..., Path]:
    def make(*members: Member) -> Path:
        home = tmp_path / "cache" / "home"
        home.parent.mkdir()
        unpack(write_archive(tmp_path / "packed.tar.gz", *members), home)
        return home

    return make


def test_links_of_an_environment_are_kept(unpacked: Callable[..., Path]) -> None:
    home = unpacked(
        (".", None),
        ("lib64", "lib"),
        ("lib", None),
        ("lib/libz.so", "libz.so.1"),
        ("lib/libz.so.1", b"code"),
        ("share/again", "=lib/libz.so.1"),
        ("bin/python", "python3"),
        ("bin/python3", os.path.realpath("/bin/sh")),
    )
    assert (home / "lib64" / "libz.so").read_bytes() == b"code"
    assert (home / "share" / "again").stat().st_ino == (home / "lib" / "libz.so.1").stat().st_ino
    assert (home / "bin" / "python").resolve() == Path("/bin/sh").resolve()
    status = (home / "lib" / "libz.so.1").stat()
    assert (status.st_mtime, status.st_mode & 0o7777) == (1_000_000_000, 0o755)


def test_last_content_of_a_file_counts(unpacked: Callable[..., Path]) -> None:
    """venv-pack writes the pyvenv.cfg of the environment, and later its own one without a path of this machine."""
    home = unpacked(
        ("pyvenv.cfg", b"home = /usr/bin\ncommand = python -m venv\n"),
        ("bin", None),
        ("bin/activate", b"first"),
        ("share/same", "=bin/activate"),
        ("bin", None),
        ("pyvenv.cfg", b"home = /usr/bin\n"),
        ("bin/activate", b"second"),
    )
    assert (home / "pyvenv.cfg").read_bytes() == b"home = /usr/bin\n"
    assert (home / "share" / "same").read_bytes() == b"second"


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("../file", b"x")], "would be written elsewhere"),
        ([("/OUTSIDE/file", b"x")], "would be written elsewhere"),
        ([("bin/python3", "/OUTSIDE"), ("bin/python3/file", b"x")], "lies below"),
        ([("bin/python3", "/OUTSIDE")], "leads elsewhere"),
        ([("bin/python3", "/OUTSIDE/file"), ("bin/python3", b"x")], "twice"),
        ([("bin/python3", "/OUTSIDE/file"), ("x", "=bin/python3"), ("x", b"x")], "twice"),
        ([("bin/python3", "/OUTSIDE/file"), ("x", "=bin/python3")], "no file of the archive"),
        ([("x", "=../../outside/file")], "leads there"),
        ([("x", "=/OUTSIDE/file")], "leads there"),
        ([("a", "."), ("b", "a/.."), ("c", "b/../../outside"), ("c/file", b"x")], "lies below"),
        ([("a", "."), ("b", "a/.."), ("c", "b/../outside")], "leads elsewhere"),
        ([("lib", "/OUTSIDE"), ("lib/file", b"x")], "lies below"),
        ([("lib/file", b"x"), ("lib", "/OUTSIDE")], "twice"),
        ([("lib", "/OUTSIDE")], "leads elsewhere"),
        ([("lib", b"x"), ("lib/file", b"x")], "lies below"),
    ],
)
def test_nothing_is_written_outside(
    unpacked: Callable[..., Path], outside: Path, members: list[Member], reason: str
) -> None:
    placed = [
        (name.replace("/OUTSIDE", str(outside)), value.replace("/OUTSIDE", str(outside)))
        if isinstance(value, str)
        else (name.replace("/OUTSIDE", str(outside)), value)
        for name, value in members
    ]
    with pytest.raises(UnusableError, match=reason):
        unpacked(*placed)
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_bytes() == b"mine"
    assert (outside / "file").stat().st_nlink == 1


def test_device_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("null")
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3
    with tarfile.open(tmp_path / "packed.tar", "w") as opened:
        opened.addfile(info)
    with pytest.raises(UnusableError, match="is no file, directory or link"):
        unpack(tmp_path / "packed.tar", tmp_path / "home")


def test_cache_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "requirements.txt").touch()
    monkeypatch.setenv("NAIAD_CACHE", str(tmp_path / "file"))
    with pytest.raises(InferError, match=r"file/environments cannot be used: .*; set NAIAD_CACHE"):
        find_interpreter("m", {"EXECUTION_ENV_PATH": "requirements.txt"}, tmp_path)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_archive_with_a_changed_bit_is_refused(tmp_path: Path, mode: str) -> None:
    """A bit of the header that says nothing about the contents, such as a time, may be another."""
    packed = tmp_path / "packed"
    with tarfile.open(packed, mode) as opened:  # type: ignore[call-overload]  # one of its modes
        info = tarfile.TarInfo("bin/python")
        info.size = 64
        opened.addfile(info, io.BytesIO(os.urandom(64)))
    intact = packed.read_bytes()
    unpack(packed, tmp_path / "home")
    content = (tmp_path / "home" / "bin" / "python").read_bytes()
    accepted = 0
    for bit in range(0, len(intact) * 8, 7):
        changed = bytearray(intact)
        changed[bit // 8] ^= 1 << bit % 8
        packed.write_bytes(changed)
        home = tmp_path / f"home{bit}"
        try:
            unpack(packed, home)
        except (UnusableError, OSError):
            continue
        accepted += 1
        assert (home / "bin" / "python").read_bytes() == content
    assert accepted < 20, "13 bytes of the header (time, system, name) have no checksum"


def test_output_of_tools_stays_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = tmp_path / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    for script in ("echo 'the secret' >&2; exit 3", "echo 'the secret'", "echo '[[3, 8, 1], \"the secret\"]'"):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        with pytest.raises(InferError) as caught:
            find_interpreter("m", {"EXECUTION_ENV_PATH": str(tmp_path / "env")}, tmp_path)
        assert "the secret" not in caught.value.message
        assert "the log of the server has its output" in caught.value.message
        assert "the secret" in caplog.text
        caplog.clear()


def test_end_of_a_load_ends_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAIAD_CACHE", str(tmp_path / "cache"))
    started, base = tmp_path / "started", tmp_path / "base"
    pip = f"#!/bin/sh\\nsleep 1000 & echo $! > {started}.new; mv {started}.new {started}; wait\\n"
    base.write_text(
        "#!/bin/sh\n"
        'if [ "$2" = venv ]; then\n'
        f'mkdir -p "$3/bin"; printf \'{pip}\' > "$3/bin/python"; chmod +x "$3/bin/python"\n'
        "fi\n"
    )
    base.chmod(0o755)
    (tmp_path / "requirements.txt").touch()
    stop = LoadStop()

    def end() -> None:
        wait_until(started.exists)
        stop.request("it was unloaded")

    ending = threading.Thread(target=end)
    ending.start()
    parameters = {"EXECUTION_ENV_PATH": "requirements.txt", "EXECUTION_ENV_PYTHON": str(base)}
    with pytest.raises(InferError, match="it was unloaded"):
        find_interpreter("m", parameters, tmp_path, stop=stop)
    ending.join()
    wait_until(lambda: not is_alive(int(started.read_text())))
    assert [path.name for path in (tmp_path / "cache" / "environments").iterdir() if path.is_dir()] == []


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
