"""The state of a rollout, and the changes of it.

A state is a value: all processes of a server, and all servers of a repository, get the same one, and apply the one
with the highest revision, see `record.merge`. A changed file begins again, with the next revision, see
`RolloutState.base`. A version that was rolled back is refused: it gets no request without a version until it is
allowed again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from naiad.config.problem import nearest
from naiad.config.rollout.rollout_declaration import CANARY, FULL_PERCENT, STABLE, Rollout, parse_tree
from naiad.core.errors import ErrorCode, InferError, excerpt, invalid_argument, not_found

ACTIONS = ("promote", "rollback")
_ACTION, _TO, _ALLOW = "action", "to", "allow"
MAX_REFUSALS = 64
"""Versions of a model with a verdict; the oldest ones are forgotten: a repository gets new versions for years."""
_MAX_REASON_CHARACTERS = 500


@dataclass(frozen=True, slots=True, order=True)
class Refusal:
    """The verdict about a version; the greatest one of a version counts."""

    revision: int
    """Of the state that it was made with."""
    is_refused: bool
    """False: it was refused, and is allowed again."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The declaration as it applies now, with the progress of its steps."""

    rollout: Rollout | None
    """None: the rollout has ended, and the newest version serves requests without a version."""
    base: str = ""
    """Digest of the `rollout.toml` that it began with; "" without a file."""
    revision: int = 0
    """Number of changes so far, also with earlier files."""
    step: int | None = None
    """Position of the current step; None if the weight does not change by itself."""
    previous: int | None = None
    """The version that was stable before the last switch or promotion, for a rollback."""
    note: str = ""
    """Why the last change was made."""
    refusals: Mapping[int, Refusal] = field(default_factory=dict)
    """Verdicts about versions; they outlive the rollout."""

    @property
    def refused(self) -> dict[int, str]:
        """The refused versions with the reason."""
        return {version: each.reason for version, each in self.refusals.items() if each.is_refused}

    @property
    def era(self) -> tuple[str, int]:
        """Identifies the state among the states of a model."""
        return self.base, self.revision

    @property
    def versions(self) -> frozenset[int]:
        """Every version that it needs. A refused one is needed only where a name of a version leads to it."""
        rollout = self.rollout
        if rollout is None:
            return frozenset()
        needed = rollout.versions if self.previous is None else rollout.versions | {self.previous}
        return needed - (self.refused.keys() - {rollout.stable, *rollout.aliases.values()})

    @property
    def needed(self) -> frozenset[int]:
        """The versions without which it cannot apply: not the one to return to."""
        return replace(self, previous=None).versions

    @property
    def names(self) -> dict[str, int]:
        """The names of versions, except `latest`."""
        rollout = self.rollout
        if rollout is None:
            return {}
        canary = rollout.stable if rollout.canary is None else rollout.canary
        return {**rollout.aliases, STABLE: rollout.stable, CANARY: canary}


def started(
    rollout: Rollout | None, base: str = "", before: RolloutState | None = None, note: str = "declared"
) -> RolloutState:
    """Return the first state of a declaration, None if there is none any more: with steps, the first one.

    It follows `before`, the state of another file: what was refused stays so, unless the declaration allows it.
    """
    known = before or RolloutState(None, revision=-1)
    first = _next(replace(known, base=base), rollout, note, previous=None)
    return _with_steps(first if rollout is None else allowed(first, rollout.allow))


def _with_steps(state: RolloutState) -> RolloutState:
    rollout = state.rollout
    if rollout is None or rollout.steps is None:
        return replace(state, step=None)
    return replace(state, rollout=replace(rollout, weight=rollout.steps.weights[0]), step=0)


def _next(state: RolloutState, rollout: Rollout | None, note: str, **values: Any) -> RolloutState:
    # A verdict of another file's state may be later than this state; what follows is later than both.
    revision = max([state.revision, *(each.revision for each in state.refusals.values())]) + 1
    return replace(state, rollout=rollout, revision=revision, note=note, **values)


# --- changes --------------------------------------------------------------------------------------------------------


def changed(state: RolloutState | None, tree: Mapping[str, Any], ready: Collection[int], model: str) -> RolloutState:
    """Return the state after a change of a client: an action, `to`, or fields to set, where None removes one.

    `ready` are the versions of the model that can serve now. Raises InferError: INVALID_ARG for a wrong change, and
    if a refused version would get requests.
    """
    if _ALLOW in tree:
        state = _next(state or RolloutState(None, revision=-1), None if state is None else state.rollout, "")
        versions = _versions_of(tree[_ALLOW], model)
        state = replace(allowed(state, versions), note=f"version {_listed(versions)} allowed by a client")
        tree = {name: value for name, value in tree.items() if name != _ALLOW}
        if not tree:
            return state
    if _ACTION in tree or _TO in tree:
        after = _acted(state, tree, ready, model)
    else:
        after = _with_fields(state, tree, ready, model)
    _check_refused(after, model)
    return after


def _versions_of(value: Any, model: str) -> Sequence[int]:
    versions = value if isinstance(value, list) else [value]
    if not versions or len(versions) > MAX_REFUSALS or any(type(each) is not int or each < 1 for each in versions):
        raise _wrong(
            model, f"'{_ALLOW}' is {value!r:.64}; expected the number of a version, from 1, or a list of them"
        )
    return versions


def _listed(versions: Collection[int]) -> str:
    return ", ".join(map(str, sorted(versions)))


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
        refused = {} if state is None else state.refused
        merged["stable"] = _default_stable(ready, (merged.get("canary"), *refused), model)
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
    if not set(ready) - state.refused.keys():
        return state
    return replace(state, rollout=Rollout(_default_stable(ready, tuple(state.refused), model)))


def _default_stable(ready: Collection[int], others: Collection[object], model: str) -> int:
    """Return the version that a rollout without `stable` means: the newest one but the canary and refused ones."""
    left = [version for version in ready if version not in others]
    if not left:
        raise _wrong(model, "'stable' is missing, and no other version of the model is ready; give 'stable' as well")
    return max(left)


def _check_refused(state: RolloutState, model: str) -> None:
    """Raise InferError(INVALID_ARG) if a refused version would get requests."""
    rollout, refused = state.rollout, state.refused
    if rollout is None:
        return
    for version in (rollout.stable, rollout.canary if _has_traffic(rollout) else None):
        if version in refused:
            raise _wrong(model, f"version {version} was refused ({refused[version]}); {allow_hint(model, version)}")


def allow_hint(model: str, version: int) -> str:
    """Return what makes a refused version usable again."""
    field = f'{{"allow": {version}}}'
    return f"allow it again with naiad rollout {excerpt(model)} --allow {version}, or with {field} in the request"


def _has_traffic(rollout: Rollout) -> bool:
    return rollout.canary is not None and bool(rollout.weight or rollout.shadow or rollout.steps)


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

    The canary stays declared, so that its name still leads to it. The version that was left is refused from then on,
    and a rollback cannot be rolled back: its repetition must not return to it. Raises InferError(INVALID_ARG) if
    there is nothing to leave.
    """
    rollout = state.rollout
    if rollout is not None and rollout.canary is not None and (rollout.weight or rollout.shadow):
        after = _next(state, _without_traffic(rollout), note, step=None, previous=None)
        return _refusing(after, rollout.canary, note)
    if rollout is None or state.previous is None:
        raise _wrong(model, "there is nothing to roll back: no canary has traffic, and no version was stable before")
    return _refusing(replace(switched(state, state.previous, note), previous=None), rollout.stable, note)


def _without_traffic(rollout: Rollout) -> Rollout:
    return replace(_without_guard(rollout), weight=0.0, shadow=0.0, steps=None)


def _refusing(state: RolloutState, version: int, reason: str) -> RolloutState:
    refusal = Refusal(state.revision, True, reason[:_MAX_REASON_CHARACTERS])
    return replace(state, refusals=bounded({**state.refusals, version: refusal}))


def allowed(state: RolloutState, versions: Collection[int]) -> RolloutState:
    """Return the state in which versions that were refused may get requests again."""
    lifted = {version: Refusal(state.revision, False) for version in versions if version in state.refusals}
    return replace(state, refusals={**state.refusals, **lifted}) if lifted else state


def bounded(refusals: Mapping[int, Refusal]) -> Mapping[int, Refusal]:
    """Return the verdicts that are kept: those in force first, then the newest versions."""
    if len(refusals) <= MAX_REFUSALS:
        return refusals
    kept = sorted(refusals, key=lambda version: (refusals[version].is_refused, version))[-MAX_REFUSALS:]
    return {version: refusals[version] for version in kept}


def effective(state: RolloutState) -> RolloutState:
    """Return the state as it applies: a version that another server has refused gets no requests here either."""
    rollout, refused = state.rollout, state.refused
    if rollout is None or not refused:
        return state
    if rollout.stable in refused and state.previous is not None and state.previous not in refused:
        note = f"version {rollout.stable} was refused: {refused[rollout.stable]}"
        rollout = _without_canary(replace(rollout, stable=state.previous))
        return replace(state, rollout=rollout, step=None, previous=None, note=note[:_MAX_REASON_CHARACTERS])
    if rollout.canary in refused and _has_traffic(rollout):
        note = f"version {rollout.canary} was refused: {refused[rollout.canary]}"
        note = note[:_MAX_REASON_CHARACTERS]
        return replace(state, rollout=_without_traffic(rollout), step=None, previous=None, note=note)
    return state


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


def not_ready(model: str, versions: Collection[int], ready: Collection[int]) -> InferError:
    """Return the error of versions that nothing can load."""
    return _wrong(
        model, f"version {_listed(versions)} is not ready, ready: {_listed(ready) or 'none'}; load it first"
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
