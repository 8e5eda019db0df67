"""How a model is opened in its prepared form, and when that is written.

ONNX Runtime reads a model into memory, makes tensors of it, optimises the graph and packs weights: of 60 MB it
touches 215. Its optimised graph with the large weights in a file beside it is opened without all this: the weights
are mapped, their pages are shared by all sessions and processes, and the system gets them back at once.
"""

import functools
import hashlib
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.onnx.accelerators import CPU_PROVIDER
from naiad.backend.onnx.library import onnxruntime
from naiad.backend.onnx.prepared.known_digests import KnownDigests
from naiad.backend.onnx.prepared.prepared_folder import PreparedFolder, PreparedForm
from naiad.backend.onnx.session_options import SessionPlan, read_parameters
from naiad.core.errors import InferError, invalid_argument
from naiad.files.below import files_below
from naiad.options.on_demand_options import budget_bytes

_log = logging.getLogger(__name__)

SETTING = "prepared-models-bytes"
"""The setting of the backend: how many bytes all forms together may have."""
_FORMAT = "1"
"""Forms of other versions of this module are other ones."""
_LEAST_BYTES = 1 << 20
"""A smaller model opens in milliseconds anyway."""
_MAPPED_BYTES = (1 << 20) + 1
"""ONNX Runtime aligns tensors of more than 1 MiB in the file: smaller ones stay in the graph."""
_MODEL, _WEIGHTS = "model.onnx", "weights.bin"
_OWN_FORMAT = ("session.load_", "session.save_", "session.use_ort_", "session.optimized_")
"""Beginnings of parameters by which an owner chooses what ONNX Runtime reads and writes."""


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session of a model or of its prepared form."""

    session: Any
    labels: Mapping[str, Sequence[str]]
    """By output."""
    mapped_bytes: int = 0
    """Of the weights of a form: they count as memory of the process, one page after the other as they are used."""


OpenPlain = Callable[[], tuple[Any, Mapping[str, Sequence[str]]]]
"""Opens the model itself; returns the session and its labels by output. Raises InferError."""

_digests = KnownDigests()
_unwritable: set[str] = set()
"""Keys of models for which no form could be written."""


def open_prepared(context: ModelContext, path: Path, plan: SessionPlan, open_plain: OpenPlain) -> OpenedSession:
    """Open the prepared form of a model if there is one, otherwise the model itself, whose form is then written.

    Without the setting it is `open_plain`. Raises InferError as that does.
    """
    folder = _folder(context)
    if folder is None or not _may_be_prepared(context, path, plan):
        return OpenedSession(*open_plain())
    try:
        key = _key(context, path)
    except OSError:
        return OpenedSession(*open_plain())  # which reports what is missing
    form = folder.find(key)
    if form is not None:
        opened = _opened(form, plan)
        if opened is not None:
            return opened
        _give_up(folder, key)
    if key in _unwritable:
        return OpenedSession(*open_plain())
    try:
        return _open_and_write(folder, key, plan, open_plain, lambda: _key(context, path))
    except OSError as error:
        _log.warning("model '%s': no prepared form can be written: %s", context.name, error)
        _unwritable.add(key)
        return OpenedSession(*open_plain())


def _folder(context: ModelContext) -> PreparedFolder | None:
    text = context.backend_config.get(SETTING, "")
    if not text:
        return None
    try:
        most_bytes = budget_bytes(text, 0) if "%" not in text else -1
    except ValueError:
        most_bytes = -1
    if most_bytes < 0:
        raise invalid_argument(
            f"--backend-config=onnxruntime,{SETTING}={text[:200]}: expected a number of bytes such as 10GiB"
        )
    return _open_folder(_root(os.environ), most_bytes) if most_bytes else None


@functools.cache
def _open_folder(root: Path, most_bytes: int) -> PreparedFolder:
    return PreparedFolder(root, most_bytes, _digests)


def _root(environ: Mapping[str, str]) -> Path:
    home = environ.get("NAIAD_CACHE", "")
    cache = Path(home) if home else Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "naiad"
    return cache.absolute() / "onnx"


def _may_be_prepared(context: ModelContext, path: Path, plan: SessionPlan) -> bool:
    config = context.config
    if [name for name, _ in plan.providers] != [CPU_PROVIDER] or config.model_operations.op_library_filename:
        return False
    if path.suffix != ".onnx" or any(name.startswith(_OWN_FORMAT) for name in config.parameters):
        return False
    try:
        sizes = {file: file.stat().st_size for file in files_below(path.parent)}
        has_linked_folder = any(each.is_symlink() and each.is_dir() for each in path.parent.rglob("*"))
    except OSError:
        return False
    if has_linked_folder:
        return False  # there may be weights behind it that `files_below` does not find
    # A folder of several models does not say which of the other files belong to this one.
    return sum(file.suffix == ".onnx" for file in sizes) == 1 and sum(sizes.values()) >= _LEAST_BYTES


def _key(context: ModelContext, path: Path) -> str:
    """Return the name of a model's form: of all that its content depends on. Raises OSError."""
    parameters = read_parameters(context.config)
    parts = [
        *(_FORMAT, onnxruntime.__version__, _processor(), str(context.config.optimization.graph.level)),
        *(f"{name}={value}" for name, value in sorted(parameters.items()) if name.startswith("session.")),
    ]
    for file in files_below(path.parent):
        parts += [str(file.relative_to(path.parent)), _digests.digest(file)]
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


@functools.cache
def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return what the machine can execute: an optimised graph may be of use for this kind of processor only."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), *(line for line in lines if line.startswith(wanted))])


def _open_form(form: PreparedForm, plan: SessionPlan) -> Any:
    """Return a session of a form; None if it cannot be opened or is not what the model is."""
    level = plan.options.graph_optimization_level
    plan.options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(form.folder / _MODEL, plan.options, providers=[CPU_PROVIDER])
    except Exception as error:  # ONNX Runtime raises a different class for each status
        _log.warning("the prepared model %s cannot be opened: %s", form.folder, error)
        return None
    finally:
        plan.options.graph_optimization_level = level
    if _tensors(session) != form.notes:
        _log.warning("the prepared model %s has other inputs or outputs than the model", form.folder)
        return None
    return session


def _open_and_write(
    folder: PreparedFolder, key: str, plan: SessionPlan, open_plain: OpenPlain, key_now: Callable[[], str]
) -> OpenedSession:
    """Open the model itself, keep its form and open that. Raises InferError as `open_plain`.

    The session that has written a form has its weights twice, for as long as it is open. `key_now` returns the key
    again: the files may have changed since `key` was made of them. Raises OSError if no form can be written.
    """
    options = plan.options
    with folder.writing() as place:
        options.optimized_model_filepath = str(place / _MODEL)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_MAPPED_BYTES)
        )
        try:
            session, labels = open_plain()
        except InferError as error:
            # The model itself, or the writing: the next attempt says which.
            options.optimized_model_filepath = ""
            session, labels = open_plain()
            _log.warning("no prepared form can be written: %s", error.message)
            _unwritable.add(key)
            return OpenedSession(session, labels)
        finally:
            options.optimized_model_filepath = ""
        if labels:  # the model was opened again, without its last nodes
            _unwritable.add(key)
            return OpenedSession(session, labels)
        form = _keep(folder, key, place, session, key_now)
    if form is None:
        return OpenedSession(session, labels)
    del session  # before the form takes memory of its own
    opened = _opened(form, plan)
    if opened is not None:
        return opened
    _give_up(folder, key)
    return OpenedSession(*open_plain())


def _opened(form: PreparedForm, plan: SessionPlan) -> OpenedSession | None:
    session = _open_form(form, plan)
    if session is None:
        return None
    try:
        mapped_bytes = (form.folder / _WEIGHTS).stat().st_size
    except OSError:
        mapped_bytes = 0  # no weight is large; or it has just been removed
    return OpenedSession(session, {}, mapped_bytes)


def _give_up(folder: PreparedFolder, key: str) -> None:
    """Remove a form that cannot be opened, and write it no more; not if another process has just made room."""
    if folder.find(key) is not None:
        folder.remove(key)
        _unwritable.add(key)


def _keep(
    folder: PreparedFolder, key: str, place: Path, session: Any, key_now: Callable[[], str]
) -> PreparedForm | None:
    """Keep a form that was written and return it; None for one that may be of other files than the key."""
    try:
        if key_now() != key:
            _log.warning("the files of a model have changed while it was loaded: its prepared form is not kept")
        elif folder.keep(key, place, _tensors(session)):
            return folder.find(key)
        else:
            _log.warning("a prepared form has more bytes than %s: it is not kept", SETTING)
            _unwritable.add(key)
    except OSError as error:
        _log.warning("no prepared form can be kept: %s", error)
        _unwritable.add(key)
    return None


def _tensors(session: Any) -> list[list[Any]]:
    """Return the signature of a session in a form that JSON has."""
    groups = session.get_inputs(), session.get_outputs(), session.get_overridable_initializers()
    return [[[each.name, each.type, list(each.shape)] for each in group] for group in groups]
