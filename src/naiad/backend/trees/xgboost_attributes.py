"""What an XGBoost file says besides its trees: the round where training stopped early, and what the wrapper keeps.

`XGBClassifier` and its relatives predict with the best round when training stopped early; `Booster` uses all rounds
of the same file. A file of a wrapper has the attribute `scikit_learn`, so naiad predicts as the class that wrote the
file. Wrappers before XGBoost 1.7 also store their labels and the value that means missing there.
"""

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from naiad.backend.trees.forest_file import ForestFile

_log = logging.getLogger(__name__)

BEST_ITERATION = "best_iteration"
"""The parameter, with the name of the attribute."""
BEST_CHOICES = ("auto", "true", "false")
_WRAPPER = "scikit_learn"
_STORED = {
    "xgboost_ubj": re.compile(rb"(best_iteration|scikit_learn)S(?:L(.{8})|l(.{4})|[iU](.))", re.DOTALL),
    "xgboost": re.compile(rb"(best_iteration|scikit_learn)(.{8})", re.DOTALL),
}
"""Key and length of an attribute; UBJSON has big-endian numbers, the old binary format little-endian ones."""


@dataclass(frozen=True, slots=True)
class XGBoostAttributes:
    """The attributes of one file that change what it predicts."""

    rounds: int = 0
    """Rounds of boosting that predict; 0 for all."""
    labels: tuple[object, ...] = ()
    """Labels of the classes if they are others than 0, 1, 2, and so on."""
    missing: float | None = None
    """A value besides NaN that means missing."""


def read_attributes(file: ForestFile, attributes: Mapping[str, str], wanted: str) -> XGBoostAttributes:
    """Return what the attributes of a file mean, with the parameter `best_iteration`.

    Raises InferError(INVALID_ARG) for `true` and a file without a best round, and for a value that is no number.
    """
    best = attributes.get(BEST_ITERATION)
    if best is not None and not best.isdecimal():
        raise file.error(f"has the attribute {BEST_ITERATION} '{best[:40]}', expected a whole number")
    if best is None and wanted == "true":
        raise file.error(
            f"has no attribute {BEST_ITERATION}, but parameter '{BEST_ITERATION}' is true; remove the parameter: "
            "training did not stop early, or the file has only the best rounds"
        )
    is_wrapper = _WRAPPER in attributes
    rounds = int(best) + 1 if best is not None and (wanted == "true" or (wanted == "auto" and is_wrapper)) else 0
    if best is not None:
        _log.info(
            "model '%s': training stopped early, round %s is the best one; %s (parameter '%s': %s)",
            file.model, best, f"the first {rounds} rounds predict" if rounds else "all rounds predict",
            BEST_ITERATION, "as XGBoost's scikit-learn classes do" if is_wrapper else "as Booster.predict does",
        )  # fmt: skip
    kept = _wrapper_state(attributes.get(_WRAPPER, ""))
    return XGBoostAttributes(rounds, _labels(kept), _missing(kept))


def check_rounds(file: ForestFile, attributes: XGBoostAttributes, available: int) -> None:
    """Refuse a file that has fewer rounds than its best one: a slice of a model keeps the attributes of the whole.

    Raises InferError(INVALID_ARG).
    """
    if attributes.rounds > available:
        raise file.error(
            f"has the attribute {BEST_ITERATION} {attributes.rounds - 1}, but only {available} rounds: it is part of "
            f"a model; save the whole one, or set parameter '{BEST_ITERATION}' to false to predict with all rounds "
            "of the file"
        )


def stored_attributes(file: ForestFile) -> dict[str, str]:
    """Return the attributes that matter from a file of XGBoost, without its library."""
    data = file.path.read_bytes()
    if file.model_type == "xgboost_json":
        found = json.loads(data).get("learner", {}).get("attributes", {})
        return {str(name): str(text) for name, text in found.items()}
    pattern = _STORED.get(file.model_type)
    order: Any = "little" if file.model_type == "xgboost" else "big"
    result: dict[str, str] = {}
    for match in pattern.finditer(data) if pattern else ():
        length = int.from_bytes(next(part for part in match.groups()[1:] if part), order)
        result.setdefault(match[1].decode(), data[match.end() : match.end() + length].decode("utf-8", "replace"))
    return result


def _wrapper_state(text: str) -> Mapping[str, Any]:
    try:
        state = json.loads(text)
    except ValueError:
        return {}
    return state if isinstance(state, dict) else {}


def _labels(state: Mapping[str, Any]) -> tuple[object, ...]:
    encoder = state.get("_le")
    labels = (encoder.get("classes_") if isinstance(encoder, dict) else None) or state.get("classes_")
    if not isinstance(labels, list) or labels == list(range(len(labels))):
        return ()
    return tuple(labels)


def _missing(state: Mapping[str, Any]) -> float | None:
    value = state.get("missing")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return float(value)
