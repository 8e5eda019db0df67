"""The record of a rollout: its state as it is stored beside the repository, and how two states become one.

Servers of one repository write the same record. Each reads it, merges it with what it knows, and writes the result.
The order does not matter: `merge` is commutative, associative and idempotent. The later of two decisions counts, and
the more cautious one of two that were made at the same time. What one server has refused is refused for all of them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from naiad.config.rollout.rollout_declaration import FULL_PERCENT, DeclaredRollout, Rollout, parse_tree
from naiad.config.rollout.state import MAX_REFUSALS, Refusal, RolloutState, bounded

MAX_RECORD_BYTES = 1 << 18
"""Limit of a record; a declaration with 64 verdicts needs less than half of it."""
_FORMAT = "naiad rollout"
_SCHEMA = 1
_MAX_NOTE_CHARACTERS = 500
_MAX_NUMBER = (1 << 63) - 1


class RecordError(ValueError):
    """A record that cannot be used; the message says why."""


class NewerRecordError(RecordError):
    """A record of a later version of naiad."""


@dataclass(frozen=True, slots=True)
class FoundRollout:
    """What is found about the rollout of a model when it is loaded."""

    declared: DeclaredRollout | None = None
    """By its `rollout.toml`."""
    stored: RolloutState | None = None
    """By its record."""
    problem: str = ""
    """Why the record cannot be used; empty if it can, or if there is none."""
    versions: tuple[int, ...] = ()
    """The versions in the repository, ascending."""


def merge(one: RolloutState | None, other: RolloutState | None) -> RolloutState | None:
    """Return what follows from two states of the same model; None only without any."""
    if one is None or other is None:
        return one or other
    later = max(one, other, key=_rank)
    return replace(later, refusals=_joined(one.refusals, other.refusals))


def merge_refusals(state: RolloutState | None, other: RolloutState) -> RolloutState:
    """Return a state with the verdicts of another one, whose rollout belongs to another file."""
    known = state or RolloutState(None, revision=-1)
    return replace(known, refusals=_joined(known.refusals, other.refusals))


def _joined(one: Mapping[int, Refusal], other: Mapping[int, Refusal]) -> Mapping[int, Refusal]:
    joined = dict(one)
    for version, verdict in other.items():
        joined[version] = max(verdict, joined.get(version, verdict))
    return bounded(joined)


def _rank(state: RolloutState) -> tuple[int, float, str]:
    rollout = state.rollout
    # Without a rollout the newest version gets everything.
    exposure = 2 * FULL_PERCENT if rollout is None else max(rollout.weight, rollout.shadow / 2)
    return state.revision, -exposure, json.dumps(_tree(replace(state, refusals={})), sort_keys=True)


def is_news(state: RolloutState) -> bool:
    """Return whether a state says more than its file does."""
    has_changed = state.revision > 0 if state.base else state.revision >= 0
    return has_changed or bool(state.refusals)


def held_back(found: FoundRollout) -> RolloutState | None:
    """Return the state of a model whose record cannot be used: no version gets requests that may be unproven.

    The newest version counts as unproven, and so does the canary of a file. None if there is no other version.
    """
    declared, note = found.declared, f"held back, because {found.problem}"[:_MAX_NOTE_CHARACTERS]
    if declared is not None:
        rollout = replace(Rollout(declared.rollout.stable), sticky=declared.rollout.sticky)
        rollout = replace(rollout, canary=declared.rollout.canary, aliases=declared.rollout.aliases)
        return RolloutState(rollout, declared.digest, note=note)
    return RolloutState(Rollout(found.versions[-2]), note=note) if len(found.versions) > 1 else None


# --- as bytes -------------------------------------------------------------------------------------------------------


def encode_record(state: RolloutState) -> bytes:
    """Return the record of a state: JSON, for people to read."""
    text = json.dumps({"format": _FORMAT, "schema": _SCHEMA, **_tree(state)}, indent=1, ensure_ascii=False)
    return f"{text}\n".encode(errors="replace")


def _tree(state: RolloutState) -> dict[str, Any]:
    return {
        "base": state.base,
        "revision": state.revision,
        "step": state.step,
        "previous": state.previous,
        "note": state.note[:_MAX_NOTE_CHARACTERS],
        "rollout": None if state.rollout is None else state.rollout.as_tree(),
        "refusals": [
            {"version": version, "revision": each.revision, "refused": each.is_refused, "reason": each.reason}
            for version, each in sorted(state.refusals.items())
        ],
    }


def decode_record(content: bytes) -> RolloutState:
    """Return the state of a record. Raises RecordError for anything that `encode_record` does not write."""
    if len(content) > MAX_RECORD_BYTES:
        raise RecordError(f"it has {len(content)} bytes; the most is {MAX_RECORD_BYTES}")
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"it is not JSON: {error}"[:200]) from None
    if not isinstance(tree, dict) or tree.get("format") != _FORMAT:
        raise RecordError(f"it is no record of a rollout: 'format' is not '{_FORMAT}'")
    schema = tree.get("schema")
    if schema != _SCHEMA:
        kind = NewerRecordError if isinstance(schema, int) and schema > _SCHEMA else RecordError
        raise kind(f"'schema' is {schema!r:.32}; this server knows {_SCHEMA}")
    rollout = _rollout_of(tree.get("rollout"))
    step = _optional_number(tree, "step", least=0)
    if step is not None and (rollout is None or rollout.steps is None or step >= len(rollout.steps.weights)):
        raise RecordError(f"'step' is {step}, which the rollout does not have")
    return RolloutState(
        rollout,
        _text(tree, "base"),
        _number(tree, "revision", least=-1),
        step,
        _optional_number(tree, "previous", least=1),
        _text(tree, "note"),
        dict(map(_refusal_of, _list(tree, "refusals"))),
    )


def _rollout_of(value: Any) -> Rollout | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RecordError("'rollout' is no object")
    rollout, problems = parse_tree(value)
    if rollout is None:
        raise RecordError("; ".join(problem.description for problem in problems)[:500])
    return rollout


def _refusal_of(value: Any) -> tuple[int, Refusal]:
    if not isinstance(value, dict) or type(value.get("refused")) is not bool:
        raise RecordError("an item of 'refusals' is no verdict")
    refusal = Refusal(_number(value, "revision", least=-1), value["refused"], _text(value, "reason"))
    return _number(value, "version", least=1), refusal


def _list(tree: Mapping[str, Any], name: str) -> list[Any]:
    value = tree.get(name)
    if not isinstance(value, list) or len(value) > MAX_REFUSALS:
        raise RecordError(f"'{name}' is no list of at most {MAX_REFUSALS} items")
    return value


def _text(tree: Mapping[str, Any], name: str) -> str:
    value = tree.get(name)
    if not isinstance(value, str):
        raise RecordError(f"'{name}' is no text")
    return value[:_MAX_NOTE_CHARACTERS]


def _optional_number(tree: Mapping[str, Any], name: str, *, least: int) -> int | None:
    return None if tree.get(name) is None else _number(tree, name, least=least)


def _number(tree: Mapping[str, Any], name: str, *, least: int) -> int:
    value = tree.get(name)
    if type(value) is not int or not least <= value <= _MAX_NUMBER:
        raise RecordError(f"'{name}' is {value!r:.32}, no number from {least}")
    return value
