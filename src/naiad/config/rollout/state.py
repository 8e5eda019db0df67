"""The state of a rollout, and the changes of it.

A state is a value: all processes of a server get the same one, and apply the one with the highest revision. A change
of the file begins again with revision 0, see `RolloutState.base`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from naiad.config.problem import nearest
from naiad.config.rollout.declaration import CANARY, FULL_PERCENT, STABLE, Rollout, parse_tree
from naiad.core.errors import ErrorCode, InferError, excerpt, invalid_argument, not_found

ACTIONS = ("promote", "rollback")
_ACTION, _TO = "action", "to"


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The declaration as it applies now, with the progress of its steps."""

    rollout: Rollout | None
    """None: the rollout has ended, and the newest version serves requests without a version."""
    base: str = ""
    """Digest of the `rollout.toml` that it began with; "" without a file."""
    revision: int = 0
    """Number of changes since then."""
    step: int | None = None
    """Position of the current step; None if the weight does not change by itself."""
    previous: int | None = None
    """The version that was stable before the last switch or promotion, for a rollback."""
    note: str = ""
    """Why the last change was made."""

    @property
    def era(self) -> tuple[str, int]:
        """Identifies the state among the states of a model."""
        return self.base, self.revision

    @property
    def versions(self) -> frozenset[int]:
        """Every version that it needs."""
        named = frozenset[int]() if self.rollout is None else self.rollout.versions
        return named if self.previous is None else named | {self.previous}

    @property
    def names(self) -> dict[str, int]:
        """The names of versions, except `latest`."""
        rollout = self.rollout
        if rollout is None:
            return {}
        canary = rollout.stable if rollout.canary is None else rollout.canary
        return {**rollout.aliases, STABLE: rollout.stable, CANARY: canary}


def started(rollout: Rollout, base: str = "", note: str = "declared") -> RolloutState:
    """Return the first state of a declaration: with steps, the first one."""
    return _with_steps(RolloutState(rollout, base, note=note))


def _with_steps(state: RolloutState) -> RolloutState:
    rollout = state.rollout
    if rollout is None or rollout.steps is None:
        return replace(state, step=None)
    return replace(state, rollout=replace(rollout, weight=rollout.steps.weights[0]), step=0)


def _next(state: RolloutState, rollout: Rollout | None, note: str, **values: Any) -> RolloutState:
    return replace(state, rollout=rollout, revision=state.revision + 1, note=note, **values)


# --- changes --------------------------------------------------------------------------------------------------------


def changed(state: RolloutState | None, tree: Mapping[str, Any], ready: Collection[int], model: str) -> RolloutState:
    """Return the state after a change of a client: an action, `to`, or fields to set, where None removes one.

    `ready` are the versions of the model that can serve. Raises InferError: INVALID_ARG for a wrong change.
    """
    if _ACTION in tree or _TO in tree:
        after = _acted(state, tree, ready, model)
    else:
        after = _with_fields(state, tree, ready, model)
    _check_ready(after, ready, model)
    return after


def _acted(state: RolloutState | None, tree: Mapping[str, Any], ready: Collection[int], model: str) -> RolloutState:
    if len(tree) > 1:
        given = ", ".join(sorted(map(str, tree)))[:200]
        raise _wrong(model, f"{given} together; expected '{_ACTION}' or '{_TO}' alone, or fields of the declaration")
    if _TO in tree:
        version = tree[_TO]
        if type(version) is not int or version < 1:
            raise _wrong(model, f"'{_TO}' is {version!r:.64}; expected the number of a version, from 1")
        return switched(_serving(state, ready, model), version)
    action = tree[_ACTION]
    if action not in ACTIONS:
        near = nearest(action, ACTIONS) if isinstance(action, str) else ""
        hint = f"; did you mean '{near}'?" if near else ""
        raise _wrong(model, f"'{_ACTION}' is {action!r:.64}; expected one of {', '.join(ACTIONS)}{hint}")
    if state is None or state.rollout is None:
        raise not_found(_missing(model))
    return promoted(state, model) if action == "promote" else rolled_back(state, model)


def _with_fields(
    state: RolloutState | None, tree: Mapping[str, Any], ready: Collection[int], model: str
) -> RolloutState:
    before = None if state is None else state.rollout
    merged: dict[str, Any] = {} if before is None else before.as_tree()
    for name, value in tree.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    if "stable" not in merged:
        merged["stable"] = _default_stable(ready, merged.get("canary"), model)
    if tree.get("steps") is None and "weight" in tree:
        merged.pop("steps", None)  # a weight set by hand stays
    if "canary" not in merged:
        for name in ("weight", "shadow", "steps"):
            if name not in tree:
                merged.pop(name, None)
    rollout, problems = parse_tree(merged)
    if rollout is None:
        raise invalid_argument(
            "; ".join(f"rollout of model '{model}': {problem.description}" for problem in problems)
        )
    known = state or RolloutState(None, revision=-1)
    begins = "steps" in tree or ("canary" in tree and before is not None and before.canary != rollout.canary)
    previous = known.previous
    if before is not None and before.stable != rollout.stable:
        previous = before.stable
    after = _next(known, rollout, "changed by a client", previous=previous)
    return _with_steps(after) if begins else replace(after, step=None if rollout.steps is None else known.step)


def _serving(state: RolloutState | None, ready: Collection[int], model: str) -> RolloutState:
    """Return the state; without a rollout one with the newest version, which then serves."""
    state = state or RolloutState(None, revision=-1)
    if state.rollout is not None:
        return state
    return replace(state, rollout=Rollout(_default_stable(ready, None, model)))


def _default_stable(ready: Collection[int], canary: object, model: str) -> int:
    """Return the version that a rollout without `stable` means: the newest other one."""
    others = [version for version in ready if version != canary]
    if not others:
        raise _wrong(model, "'stable' is missing, and no other version of the model is ready; load one first")
    return max(others)


def _check_ready(state: RolloutState, ready: Collection[int], model: str) -> None:
    if state.rollout is None:
        return
    missing = sorted(state.rollout.versions - set(ready))
    if missing:
        shown = ", ".join(map(str, missing))
        known = ", ".join(map(str, sorted(ready))) or "none"
        raise invalid_argument(
            f"rollout of model '{model}': version {shown} is not ready, ready: {known}; load it first: select it "
            "with version_policy in config.pbtxt, or name it in rollout.toml"
        )


def promoted(state: RolloutState, model: str, note: str = "promoted by a client") -> RolloutState:
    """Return the state in which the canary is stable. Raises InferError(INVALID_ARG) without a canary."""
    rollout = state.rollout
    if rollout is None or rollout.canary is None:
        raise _wrong(model, "there is no canary to promote; set one with {'canary': VERSION, 'weight': PERCENT}")
    return switched(state, rollout.canary, note)


def switched(state: RolloutState, version: int, note: str = "switched by a client") -> RolloutState:
    """Return the state in which `version` serves all requests, and a rollback returns to the present one."""
    rollout = state.rollout
    previous = state.previous
    if rollout is not None and rollout.stable != version:
        previous = rollout.stable
    after = Rollout(version) if rollout is None else _without_canary(replace(rollout, stable=version))
    return _next(state, after, note, step=None, previous=previous)


def rolled_back(state: RolloutState, model: str, note: str = "rolled back by a client") -> RolloutState:
    """Return the state without traffic for the canary; without such traffic, with the previous stable version.

    The canary stays declared, so that its name still leads to it. A rollback cannot be rolled back: its repetition
    must not return to the version that was left. Raises InferError(INVALID_ARG) if there is nothing to leave.
    """
    rollout = state.rollout
    if rollout is not None and rollout.canary is not None and (rollout.weight or rollout.shadow):
        rest = replace(_without_guard(rollout), weight=0.0, shadow=0.0, steps=None)
        return _next(state, rest, note, step=None, previous=None)
    if rollout is None or state.previous is None:
        raise _wrong(model, "there is nothing to roll back: no canary has traffic, and no version was stable before")
    return replace(switched(state, state.previous, note), previous=None)


def stepped(state: RolloutState, note: str) -> RolloutState:
    """Return the state with the weight of the next step, which must exist."""
    rollout, step = state.rollout, state.step
    assert rollout is not None
    assert rollout.steps is not None
    assert step is not None
    after = replace(rollout, weight=rollout.steps.weights[step + 1])
    return _next(state, after, note, step=step + 1)


def ended(state: RolloutState, note: str = "ended by a client") -> RolloutState:
    """Return the state without a rollout."""
    return _next(state, None, note, step=None, previous=None)


def weights_left(state: RolloutState) -> Sequence[float]:
    """Return the weights of the steps that follow."""
    if state.rollout is None or state.rollout.steps is None or state.step is None:
        return ()
    return state.rollout.steps.weights[state.step + 1 :]


def is_last_step(state: RolloutState) -> bool:
    """Return whether the current step gives all requests to the canary, so that its end promotes it."""
    rollout = state.rollout
    return (
        rollout is not None
        and rollout.steps is not None
        and state.step == len(rollout.steps.weights) - 1
        and rollout.weight == FULL_PERCENT
    )


def _without_canary(rollout: Rollout) -> Rollout:
    # Aliases and stickiness stay: they apply to the next canary.
    return replace(_without_guard(rollout), canary=None, weight=0.0, shadow=0.0, steps=None)


def _without_guard(rollout: Rollout) -> Rollout:
    """Return a rollout without limits about shadow copies, which there are none of any more."""
    guard = rollout.guard
    if guard is None or not guard.needs_shadow:
        return rollout
    rest = replace(guard, max_different_share=None)
    has_limit = any(limit is not None for limit in (rest.max_error_rate, rest.max_p99_ms, rest.max_p99_ratio))
    return replace(rollout, guard=rest if has_limit else None)


def _missing(model: str) -> str:
    return (
        f"model '{model}' has no rollout; declare one in rollout.toml of its directory, or with POST and fields such "
        'as {"canary": 2, "weight": 10}'
    )


def undeclared(model: str) -> InferError:
    """Return the error of a change of a rollout that clients may not begin."""
    return invalid_argument(
        f"a rollout of model '{excerpt(model)}' is not allowed without a rollout.toml in its directory; add one, or "
        "start the server with --model-control-mode=explicit"
    )


def no_rollout(model: str) -> InferError:
    """Return the error of a query or a change that needs a rollout."""
    return not_found(_missing(model))


def conflict(model: str) -> InferError:
    """Return the error of a change that another one has overtaken."""
    return InferError(
        ErrorCode.UNAVAILABLE, f"the rollout of model '{model}' was changed at the same time; send the change again"
    )


def _wrong(model: str, reason: str) -> InferError:
    return invalid_argument(f"rollout of model '{model}': {reason}")
