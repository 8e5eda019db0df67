"""Start-up report in the log: backends in use, models and their states, as tables."""

import logging
from collections.abc import Mapping, Sequence

from naiad.core.errors import InferError
from naiad.core.model import IndexEntry
from naiad.engine.inference import Engine
from naiad.options.options import RepositoryOptions
from naiad.telemetry.logs.log import log_table

_log = logging.getLogger(__name__)


def log_models(engine: Engine, options: RepositoryOptions) -> None:
    """Log the table of model versions: name, version, backend, instances, seconds to load, state and its reason.

    Warns if there is no model and clients cannot load one.
    """
    rows = engine.repository_index()
    if not rows and options.control_mode != "explicit":
        _log.warning(
            "there is no model in %s; a repository has a directory for each, as in model/1/model.onnx",
            " and ".join(options.paths),
        )
    headings = ["Model", "Version", "Backend", "Instances", "Load (s)", "Status"]
    log_table(_log, headings, [_model_row(engine, row) for row in rows])


def _model_row(engine: Engine, row: IndexEntry) -> Sequence[str]:
    try:
        served = engine.served(row.name, row.version)
    except InferError:
        loaded = ["-", "-", "-"]
    else:
        seconds = served.load_duration_ns / 1e9
        loaded = [served.config.backend or served.config.platform, str(len(served.instances)), f"{seconds:.2f}"]
    state = row.state.value if row.state is not None else "not loaded"
    # A reason may have several lines; a cell has one.
    status = f"{state}: {' '.join(row.reason.split())}" if row.reason else state
    return [row.name, row.version or "-", *loaded, status]


def log_backends(modules: Mapping[str, str], config: Mapping[str, Mapping[str, str]]) -> None:
    """Log the table of backends in use: name, module, settings."""
    rows = []
    for name in sorted(modules):
        settings = {**config.get("", {}), **config.get(name, {})}
        rows.append([name, modules[name], ", ".join(f"{key}={value}" for key, value in settings.items())])
    log_table(_log, ["Backend", "Module", "Config"], rows)
