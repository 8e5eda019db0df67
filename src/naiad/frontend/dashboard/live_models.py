"""The models of the repository for the live stream, as rows of the event `models`."""

from collections.abc import Mapping, Sequence
from typing import Any

from naiad.config.rollout.rollout_declaration import FULL_PERCENT
from naiad.core.model import IndexEntry, ModelKey, ModelState
from naiad.core.slices import Slices
from naiad.engine.engine import Engine
from naiad.engine.serving.served import Served
from naiad.protocol.json.management.live import printable

MAX_MODELS = 2000
_SLICE_MODELS = 64
_MAX_REASON_CHARACTERS = 1000
_UNLOADED: Mapping[str, Served] = {}


def shown_name(engine: Engine, key: str) -> str:
    """Return the name of a model by which clients find it: with namespaces its plain name only if that is unique."""
    if not isinstance(key, ModelKey):
        return key
    row = engine.models.named.get(key.name)
    return key.name if row is not None and row is engine.models.rows.get(key) else str(key)


def ready_index(index: Sequence[IndexEntry]) -> list[IndexEntry]:
    """Return the rows of ready versions: what a client without access to the repository may see."""
    return [row for row in index if row.state is ModelState.READY]


def model_rows(engine: Engine, index: Sequence[IndexEntry]) -> Slices[tuple[list[dict[str, Any]], int]]:
    """Return a row for each model of an index, and the number of models that are left out."""
    by_key: dict[str, list[IndexEntry]] = {}
    for entry in index:
        by_key.setdefault(entry.name, []).append(entry)
    rows: list[dict[str, Any]] = []
    for number, (key, entries) in enumerate(by_key.items(), start=1):
        if len(rows) >= MAX_MODELS:
            break
        rows.append(_model_row(engine, key, entries))
        if number % _SLICE_MODELS == 0:
            yield
    return rows, len(by_key) - len(rows)


def _model_row(engine: Engine, key: str, entries: Sequence[IndexEntry]) -> dict[str, Any]:
    served = engine.models.rows.get(key, _UNLOADED)
    config = next((each.config for version, each in served.items() if version.isdigit()), None)
    row: dict[str, Any] = {
        "name": printable(shown_name(engine, key)),
        "backend": "" if config is None else _backend(config),
        "versions": [
            {
                "version": entry.version,
                "state": ModelState.UNKNOWN.value if entry.state is None else entry.state.value,
                "reason": printable(entry.reason[:_MAX_REASON_CHARACTERS]),
            }
            for entry in entries
            if entry.version or entry.reason
        ],
    }
    rollout = _rollout(engine, key)
    if rollout is not None:
        row["rollout"] = rollout
    if config is not None and config.HasField("ensemble_scheduling"):
        row["steps"] = list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))
    return row


def _backend(config: Any) -> str:
    return "ensemble" if config.HasField("ensemble_scheduling") else config.backend or config.platform


def _rollout(engine: Engine, key: str) -> dict[str, Any] | None:
    state = engine.rollouts.state(key)
    if state is None or state.rollout is None:
        return None
    rollout = state.rollout
    split = {str(rollout.stable): FULL_PERCENT - rollout.weight}
    if rollout.canary is not None:
        split[str(rollout.canary)] = rollout.weight
    stage = "manual" if state.step is None else f"step {state.step + 1}"
    return {"stage": stage, "split": split}
