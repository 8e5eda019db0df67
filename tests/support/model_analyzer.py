"""NVIDIA's Model Analyzer in an environment of its own, installed once into a cache."""

import os
import subprocess
import sys
from pathlib import Path

_PACKAGE = "triton-model-analyzer==1.58.0"


class UnavailableError(Exception):
    """The package cannot be installed on this machine; the text says why."""


def find_model_analyzer() -> Path:
    """Return the program from the cache (`NAIAD_TEST_CACHE`), installing it if need be. Raises UnavailableError."""
    cache = Path(os.environ.get("NAIAD_TEST_CACHE") or Path.home() / ".cache" / "naiad-test")
    directory = cache / _PACKAGE.replace("==", "-")
    program = directory / "bin" / "model-analyzer"
    if program.exists():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    # Scripts have the path of their environment in them: it is made where it stays, and the program comes last.
    environment = str(directory)
    try:
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", environment)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", f"{environment}/bin/python")
        # Python compiles the part of it that is imported.
        _run(*pip, "install", "--quiet", "--no-compile", "--only-binary=:all:", _PACKAGE)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout or "").strip().splitlines()[-1:]
        raise UnavailableError(f"{_PACKAGE} cannot be installed: {' '.join(last)}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{_PACKAGE} cannot be installed: {error}") from None
    return program


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
