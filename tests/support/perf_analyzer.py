"""The real perf_analyzer: fetched once into a cache, run against a server, its report read.

The binary comes out of tritonclient's wheel of 2.50.0, the last that carries it. It needs a CUDA runtime library even
where there is no GPU, which is on PyPI, and Debian's libb64.
"""

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_WHEELS = ("tritonclient==2.50.0", "nvidia-cuda-runtime-cu12")
_MEMBERS = re.compile(r"(?:.*/)?(perf_analyzer|libcudart\.so\.12)$")
_B64 = "libb64.so.0d"
_B64_PACKAGE = "libb64-0d"
_SUMMARY = re.compile(r"^Concurrency: (\d+), throughput: ([\d.]+) infer/sec", re.MULTILINE)


class UnavailableError(Exception):
    """The program cannot be had on this machine; the text says why."""


class PerfAnalyzer:
    """The program and where its libraries are."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def throughputs(self, *arguments: str, timeout_s: float = 240) -> dict[int, float]:
        """Run it and return inferences per second by concurrency; fails unless it exits with 0."""
        done = subprocess.run(
            [self._directory / "perf_analyzer", *arguments],
            env={**os.environ, "LD_LIBRARY_PATH": str(self._directory)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"perf_analyzer exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return {int(concurrency): float(rate) for concurrency, rate in _SUMMARY.findall(done.stdout)}


def find_perf_analyzer() -> PerfAnalyzer:
    """Return the program from the cache (`NAIAD_TEST_CACHE`), fetching it if need be. Raises UnavailableError."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnavailableError("perf_analyzer is there for Linux on x86-64 only")
    cache = Path(os.environ.get("NAIAD_TEST_CACHE") or Path.home() / ".cache" / "naiad-test")
    directory = cache / "perf_analyzer-2.50.0"
    if not directory.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _fetch(Path(scratch))
            try:
                (Path(scratch) / "bin").rename(directory)
            except OSError:
                if not directory.is_dir():  # another run was faster
                    raise
    return PerfAnalyzer(directory)


def _fetch(scratch: Path) -> None:
    target = scratch / "bin"
    target.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(scratch), *_WHEELS])
    for wheel in scratch.glob("*.whl"):
        _extract(wheel, target)
    (target / "perf_analyzer").chmod(0o755)
    if not _is_installed(_B64):
        _fetch_b64(scratch, target)


def _extract(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            found = _MEMBERS.match(name)
            if found is not None:
                (target / found[1]).write_bytes(archive.read(name))


def _is_installed(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _fetch_b64(scratch: Path, target: Path) -> None:
    """Take the library out of Debian's package, which needs no root."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise UnavailableError(
            f"perf_analyzer needs {_B64}, which is not installed and cannot be had without apt-get"
        )
    _run(["apt-get", "download", "--quiet", _B64_PACKAGE], cwd=scratch)
    for package in scratch.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(scratch / "package")])
    found = next((scratch / "package").rglob(_B64), None)
    if found is None:
        raise UnavailableError(f"the package {_B64_PACKAGE} does not hold {_B64}")
    shutil.copy(found, target)


def _run(command: list[str], cwd: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=90, check=True)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:]
        raise UnavailableError(
            f"perf_analyzer cannot be fetched: {' '.join(command[:4])}: {' '.join(last)}"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"perf_analyzer cannot be fetched: {error}") from None
