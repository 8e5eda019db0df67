"""What all processes of a server import alike: ONNX Runtime, imported once, before they are forked.

Its import describes a thousand operators in 8 MiB of memory that nothing writes to later, so forked processes share
it, and it takes as long as importing 150 modules. A library that starts threads, or that talks to a GPU, must be
imported by each process itself: a forked process has neither the threads nor the GPU's state. A server of one process
imports it at the same moment, while its modules come from kept code.
"""

import importlib.util
import itertools
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from naiad.backend.onnx.telemetry import VARIABLE, turn_off
from naiad.options.options import ServerOptions
from naiad.repository.stores.store import CONFIG_FILE

_log = logging.getLogger(__name__)

_FILE = "model.onnx"
_MOST_DIRECTORIES = 64
"""Most directories of each repository that a guess looks into."""
_MOST_CONFIG_BYTES = 1 << 20
_BACKEND = re.compile(rb"\b(?:backend|platform)\s*:")
_ACCELERATOR = re.compile(r"libonnxruntime_providers_(?!shared\b)\w+\.so")
"""The library of an accelerator in the package: importing it may make a connection to a device."""


def import_for_models(options: ServerOptions, environ: Mapping[str, str] = os.environ) -> bool:
    """Import ONNX Runtime if models at the start are probably its; return whether the process can still be forked.

    A model that cannot be loaded says why when it is loaded.
    """
    if not _loads_onnx(options) or not _is_forkable(environ):
        return True
    before = _thread_count()
    _import_onnx()
    return _thread_count() <= before


def import_for_own_models(options: ServerOptions) -> None:
    """Do the same for a server of one process, which uses any library."""
    if _loads_onnx(options):
        _import_onnx()


def _import_onnx() -> None:
    try:
        import naiad.backend.onnx.backend  # noqa: F401 - only here, most of what a server may need is not needed
    except KeyboardInterrupt:
        raise  # of the operator
    except BaseException as error:  # a library of another machine, a broken installation, one that ends its process
        _log.debug("ONNX Runtime is not imported before models are loaded: %s", error)


def _loads_onnx(options: ServerOptions) -> bool:
    """Return whether a model of the start seems to be an ONNX file; a wrong guess costs only time or memory."""
    repository = options.repository
    if options.on_demand.is_default or (repository.control_mode == "explicit" and not repository.load_models):
        return False
    return any(_has_onnx(path) for path in repository.paths)


def _has_onnx(path: str) -> bool:
    if path.endswith(".onnx"):
        return True
    # A URL is no directory. The last two levels are models and versions, or versions, or nothing.
    directories = itertools.islice(_directories(path, 2), _MOST_DIRECTORIES)
    return any(
        os.path.exists(os.path.join(directory, _FILE))
        and _may_load_here(os.path.dirname(directory))
        and _may_load_here(directory)
        for directory in directories
    )


def _may_load_here(directory: str) -> bool:
    """Return whether the configuration in a directory, if there is one, leaves an ONNX file to ONNX Runtime here.

    A model with `isolation` loads in a worker, and the server must not load what may crash it; other backends read
    ONNX files with libraries of their own.
    """
    try:
        with open(os.path.join(directory, CONFIG_FILE), "rb") as stream:
            text = stream.read(_MOST_CONFIG_BYTES)
    except OSError:
        return True
    return b"isolation" not in text and (b"onnxruntime" in text or not _BACKEND.search(text))


def _directories(path: str, depth: int) -> Iterator[str]:
    yield path
    if not depth:
        return
    try:
        with os.scandir(path) as entries:
            below = [entry.path for entry in itertools.islice(entries, _MOST_DIRECTORIES) if entry.is_dir()]
    except OSError:
        return
    for each in below:
        yield from _directories(each, depth - 1)


def _is_forkable(environ: Mapping[str, str]) -> bool:
    """Return whether the installed ONNX Runtime starts no threads and knows no device when it is imported."""
    settings = dict(environ)
    turn_off(settings)
    if settings[VARIABLE] != "1":
        return False  # its telemetry has a thread
    spec = importlib.util.find_spec("onnxruntime")
    folders: Sequence[str] = (spec.submodule_search_locations or ()) if spec is not None else ()
    libraries = [name for folder in folders for name in _names(Path(folder, "capi"))]
    return bool(libraries) and not any(map(_ACCELERATOR.match, libraries))


def _names(folder: Path) -> Sequence[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return ()


def _thread_count() -> int:
    return len(_names(Path("/proc/self/task")))
