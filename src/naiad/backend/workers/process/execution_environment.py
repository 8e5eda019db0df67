"""The interpreter of a Python model: the server's own, or one of an environment that the model names.

An environment is prepared once and kept below the cache directory under a name derived from its sources, so that
several models, and every later start, share it. Server processes that need it wait for the one that prepares it.

`unpack` unpacks the archive of an execution environment, and writes only inside its directory: regular files and
directories are created first, in the order of the archive, while the directory has no links. Hard links to these
files follow, and symbolic links come last. Of a file that occurs twice the last content counts, as for tar: venv-pack
writes `pyvenv.cfg` twice. An archive is rejected if a member is below a link, if a path is a file and something else,
and if a link leads outside. The archives of conda-pack, venv-pack and venv have none of these, except for the
interpreter in `bin`, which a virtual environment links to its base interpreter.
"""

import gzip
import hashlib
import json
import logging
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from naiad.backend.load_stop import LoadStop
from naiad.core.errors import invalid_argument
from naiad.files.held import alone
from naiad.files.private_folder import make_private_folder

_MODE = 0o755
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
"""What reading an archive raises whose bytes have changed; bz2 raises OSError."""


class UnusableError(Exception):
    """An environment, or its archive, cannot be used; the text has the reason.

    `output` is what a tool has printed. It may hold lines of any file that the tool has read, so it goes to the log
    and never to a client.
    """

    def __init__(self, text: str, output: str = "") -> None:
        super().__init__(text)
        self.output = output


def unpack(archive: Path, home: Path) -> None:
    """Unpack `archive` into the new directory `home`. Raises UnusableError, and OSError."""
    home.mkdir(parents=True)
    links: list[tuple[PurePosixPath, tarfile.TarInfo]] = []
    try:
        with tarfile.open(archive) as opened:
            plan = _Plan()
            for member in opened:
                path = plan.admit(member)
                if member.islnk() or member.issym():
                    links.append((path, member))
                elif member.isdir():
                    (home / path).mkdir(parents=True, exist_ok=True)
                else:
                    _write(opened, member, home / path)
            _read_to_the_end(opened)
    except _DAMAGED as error:
        raise UnusableError(f"the archive is damaged: {error}") from error
    for path, member in sorted(links, key=lambda link: link[1].issym()):
        target = home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if member.islnk():
            os.link(home / plan.file_of(member), target, follow_symlinks=False)
        else:
            target.symlink_to(member.linkname)
    _check_targets(home, [path for path, member in links if member.issym()])


def _read_to_the_end(opened: tarfile.TarFile) -> None:
    """Read what follows the last member: the checksum of a compressed archive is at its very end."""
    while opened.fileobj.read(_CHUNK_BYTES):
        pass


class _Plan:
    """The paths of the members so far, and their kinds."""

    def __init__(self) -> None:
        self._files: set[PurePosixPath] = set()
        self._links: set[PurePosixPath] = set()
        self._directories: set[PurePosixPath] = {PurePosixPath(".")}

    def admit(self, member: tarfile.TarInfo) -> PurePosixPath:
        """Return the path of a member in the environment. Raises UnusableError for a rejected one."""
        path = _path_of(member.name, member)
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise UnusableError(f"{_shown(member.name)} is no file, directory or link")
        if any(parent in self._links or parent in self._files for parent in path.parents):
            raise UnusableError(f"{_shown(member.name)} lies below a member that is no directory")
        same = [kind for kind in (self._files, self._links, self._directories) if path in kind]
        if same and same != [self._directories if member.isdir() else self._files if member.isreg() else None]:
            raise UnusableError(f"{_shown(member.name)} is in the archive twice, as different things")
        self._directories.update(path.parents)
        kind = self._directories if member.isdir() else self._files if member.isreg() else self._links
        kind.add(path)
        return path

    def file_of(self, member: tarfile.TarInfo) -> PurePosixPath:
        """Return the target of a hard link. Raises UnusableError if it is not a file."""
        path = _path_of(member.linkname, member)
        if path not in self._files:
            raise UnusableError(
                f"{_shown(member.name)} is a hard link to {_shown(member.linkname)}, which is no file of the archive"
            )
        return path


def _path_of(name: str, member: tarfile.TarInfo) -> PurePosixPath:
    path = PurePosixPath(os.path.normpath(name))
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise UnusableError(f"{_shown(member.name)} would be written elsewhere, or leads there")
    return path


def _write(opened: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = opened.extractfile(member)
    if source is None:
        raise UnusableError(f"{_shown(member.name)} has no content")
    path.unlink(missing_ok=True)  # a former member of this name
    with source, path.open("xb") as file:
        shutil.copyfileobj(source, file)
        os.fchmod(file.fileno(), (member.mode & _MODE) | 0o600)
    # Compiled modules are valid only with the modification time of their source.
    os.utime(path, (member.mtime, member.mtime))


def _check_targets(home: Path, links: list[PurePosixPath]) -> None:
    """Raise UnusableError for a symbolic link that leads out of `home`, also through other links."""
    inside = Path(os.path.realpath(home))
    for link in links:
        target = Path(os.path.realpath(home / link))
        if target == inside or inside in target.parents:
            continue
        # The interpreter of a virtual environment: no member is below a file.
        is_interpreter = link.parent == PurePosixPath("bin") and link.name.startswith("python")
        if not is_interpreter or target.is_dir():
            raise UnusableError(f"{_shown(str(link))} leads elsewhere, to {_shown(str(target))}")


def _shown(text: str) -> str:
    return f"'{text[:200]}'"


_log = logging.getLogger(__name__)

PARAMETER = "EXECUTION_ENV_PATH"
BASE_PARAMETER = "EXECUTION_ENV_PYTHON"
"""naiad only: the base interpreter for an environment of a requirements file."""
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_COMPLETE = ".naiad-complete"
_PREPARE_S = 3600.0
_PROBE_S = 60.0
_OLDEST = (3, 8)
_PROBE = "import json,sys,numpy; print(json.dumps([list(sys.version_info[:3]), numpy.__version__, sys.prefix]))"
_CHUNK_BYTES = 1 << 20
_MOST_LINES = 20
_MOST_CHARACTERS = 2000
"""Of a tool's output in the log."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The interpreter of workers."""

    executable: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to the server's; an empty value removes one."""
    description: str = ""
    """Its versions of Python and numpy and its source; empty for the server's own."""

    def environ(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a worker."""
        merged = {**environment, **self.variables}
        return {name: value for name, value in merged.items() if value or name not in self.variables}


_OWN = Interpreter()
_prepared: dict[tuple[str, str], Interpreter] = {}
_lock = threading.Lock()
_locks: dict[tuple[str, str], threading.Lock] = {}


def find_interpreter(
    model: str,
    parameters: Mapping[str, str],
    model_dir: Path,
    wheels_dir: str = "",
    needs: Sequence[str] = (),
    *,
    stop: LoadStop | None = None,
) -> Interpreter:
    """Return the interpreter of a model, prepared if necessary; blocks meanwhile.

    `parameters` come from the configuration. `wheels_dir` has the wheels for requirements files of a server
    without a network; `needs` are requirements in addition to the file. `stop` ends the preparation: another model
    that needs the same environment begins it again.

    Raises InferError(INVALID_ARG) for an unusable environment, with the reason.
    """
    text = parameters.get(PARAMETER, "")
    if not text:
        return _OWN
    path = Path(text.replace(_MODEL_DIRECTORY, str(model_dir)))
    if not path.is_absolute():
        path = model_dir / path
    base = parameters.get(BASE_PARAMETER, "") or sys.executable
    opening = f"model '{model}': parameter '{PARAMETER}' is '{text}'"
    if not path.exists():
        raise invalid_argument(f"{opening}: {path} does not exist")
    try:
        key = (_key_of(path, base, wheels_dir, needs), base)
        with _lock:
            guard = _locks.setdefault(key, threading.Lock())
        with guard:
            found = _prepared.get(key)
            if found is None:
                found = _prepared[key] = _prepare(model, path, key[0], base, wheels_dir, needs, stop or LoadStop())
    except UnusableError as error:
        if not error.output:
            raise invalid_argument(f"{opening}: {error}") from None
        _log.error("%s: %s:\n%s", opening, error, error.output)
        raise invalid_argument(f"{opening}: {error}; the log of the server has its output") from None
    except OSError as error:
        raise invalid_argument(f"{opening}: {error}") from error
    _log.info("model '%s' runs on %s", model, found.description)
    return found


def cache_dir() -> Path:
    """Return the directory of environments: below `$NAIAD_CACHE`, or `naiad` in the user's cache directory."""
    chosen = os.environ.get("NAIAD_CACHE")
    home = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "naiad"
    return home / "environments"


def _key_of(path: Path, base: str, wheels_dir: str, needs: Sequence[str]) -> str:
    """Return the name of an environment: equal for equal contents."""
    digest = hashlib.blake2b(digest_size=12)
    if path.is_dir():
        digest.update(f"directory\0{path.resolve()}".encode())
        return digest.hexdigest()
    if path.suffix == ".txt":
        wheels = sorted(os.listdir(wheels_dir)) if wheels_dir else []
        version = _run([base, "-c", "import sys; print(sys.version, sys.prefix)"], _PROBE_S)
        digest.update("\0".join(["requirements", version, wheels_dir, *wheels, *needs, ""]).encode())
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _prepare(
    model: str, path: Path, key: str, base: str, wheels_dir: str, needs: Sequence[str], stop: LoadStop
) -> Interpreter:
    if path.is_dir():
        return _probe(path, path)
    home = cache_dir() / key
    try:
        make_private_folder(home.parent)
    except OSError as error:
        raise UnusableError(
            f"{home.parent} cannot be used: {error.strerror}; set NAIAD_CACHE to a writable directory"
        ) from error
    with alone(home.with_name(home.name + ".lock")):  # other processes may prepare the same environment
        if not (home / _COMPLETE).exists():
            shutil.rmtree(home, ignore_errors=True)
            _log.info("model '%s': preparing the environment of %s in %s", model, path, home)
            try:
                if path.suffix == ".txt":
                    _install(model, path, home, base, wheels_dir, needs, stop)
                else:
                    _unpack(path, home)
                stop.check()
                interpreter = _probe(home, path)
            except BaseException:
                shutil.rmtree(home, ignore_errors=True)
                raise
            (home / _COMPLETE).touch()
            return interpreter
    return _probe(home, path)


def _install(
    model: str, requirements: Path, home: Path, base: str, wheels_dir: str, needs: Sequence[str], stop: LoadStop
) -> None:
    """Create a virtual environment from a requirements file."""
    _run([base, "-m", "venv", str(home)], _PREPARE_S)
    command = [str(home / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if wheels_dir:
        command += ["--no-index", "--find-links", wheels_dir]
    process = subprocess.Popen(
        [*command, "-r", str(requirements), *needs],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=_clean(os.environ),
        cwd=requirements.parent,
        process_group=0,
    )

    def end() -> None:
        # With the compilers and downloads that it has started.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    last: list[str] = []
    timer = threading.Timer(_PREPARE_S, end)
    timer.start()
    try:
        assert process.stdout is not None  # it is a pipe
        with stop.calling(end):
            for line in process.stdout:
                text = line.rstrip()
                last = [*last[-9:], text]
                if text.startswith(("Collecting", "Installing", "Successfully", "ERROR", "Downloading")):
                    _log.info("model '%s': pip: %s", model, text)
            status = process.wait()
        stop.check()
        if status:
            raise UnusableError(f"pip could not install {requirements}", "\n".join(last))
    finally:
        timer.cancel()
        if process.poll() is None:
            end()
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]  # it is a pipe


def _unpack(archive: Path, home: Path) -> None:
    """Unpack an archive of conda-pack or of a whole virtual environment."""
    try:
        unpack(archive, home)
    except UnusableError as error:
        raise UnusableError(f"{archive} cannot be unpacked: {error}") from error
    conda_unpack = home / "bin" / "conda-unpack"
    if conda_unpack.exists():
        _run([str(home / "bin" / "python"), str(conda_unpack)], _PREPARE_S)


def _probe(home: Path, source: Path) -> Interpreter:
    """Check an environment's interpreter, and whether workers can run on it."""
    executable = home / "bin" / "python"
    if not executable.exists():
        raise UnusableError(f"{home} has no bin/python; give a virtual environment or a packed conda environment")
    variables = {
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "VIRTUAL_ENV": str(home),
        # The server's modules must not be visible to the model.
        "PYTHONPATH": "",
        "PYTHONHOME": "",
    }
    output = _run([str(executable), "-c", _PROBE], _PROBE_S)
    try:
        version, numpy, _ = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError, TypeError):
        raise UnusableError(
            f"{executable} does not answer like Python", output[-_MOST_CHARACTERS:] or "nothing"
        ) from None
    if tuple(version[:2]) < _OLDEST:
        raise UnusableError(f"its Python is {'.'.join(map(str, version))}; workers need 3.8 or newer")
    text = f"Python {'.'.join(map(str, version))} with numpy {numpy} of {source}"
    return Interpreter(str(executable), variables, text)


def _run(command: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_clean(os.environ),
        )
    except subprocess.TimeoutExpired:
        raise UnusableError(f"{command[0]} did not end within {timeout_s:g} s") from None
    except OSError as error:
        raise UnusableError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        hint = "; add numpy to the environment" if lines and "numpy" in lines[-1] else ""
        raise UnusableError(
            f"{command[0]} failed with exit status {done.returncode}{hint}",
            "\n".join([*command, *lines[-_MOST_LINES:]]),
        )
    return done.stdout


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
