"""Which versions of a model are loaded: selected by its version policy, or needed by its rollout."""

from collections.abc import Collection, Sequence

from naiad.config.autofill import select_versions
from naiad.config.model_config_pb2 import ModelVersionPolicy
from naiad.config.rollout.rollout_declaration import FILE_NAME
from naiad.config.rollout.rollout_record import FoundRollout
from naiad.config.rollout.state import RolloutState, allow_hint
from naiad.core.errors import invalid_argument
from naiad.engine.loading.load_configuration import read_rollout
from naiad.engine.rollout.rollouts import Rollouts
from naiad.repository.rollout_records import FoundRecord
from naiad.repository.stores.store import ModelEntry


class VersionChoice:
    """Chooses versions; a version that was refused is not chosen for being the latest one."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    def choose(
        self, entry: ModelEntry, policy: ModelVersionPolicy, record: FoundRecord
    ) -> tuple[Sequence[int], FoundRollout]:
        """Return the versions to load, and what was found about the rollout.

        Raises InferError(INVALID_ARG) for a wrong `rollout.toml`, and if a version that must be there does not exist.
        """
        existing = tuple(sorted(version for version in entry.version_dirs if version))
        found = FoundRollout(read_rollout(entry), record.state, record.problem, existing)
        return self._select(entry, found, policy), found

    def _select(self, entry: ModelEntry, found: FoundRollout, policy: ModelVersionPolicy) -> Sequence[int]:
        state = self._rollouts.after_load(entry.key, found)
        refused = {} if state is None else state.refused
        offered = list(entry.version_dirs)
        if refused and not (policy.HasField("all") or policy.HasField("specific")):
            offered = [version for version in offered if version not in refused] or offered
        selected: Collection[int] = select_versions(policy, offered)
        intended = self._rollouts.intended_versions(entry.key)
        if state is None or state.rollout is None:
            return list(selected)
        _check_stable(entry, found, state)
        if intended is None:
            needed = state.versions
        else:
            selected, needed = intended, state.needed
            _check_exist(entry, needed)
        return sorted({*selected, *needed}.intersection(entry.version_dirs))


def _check_stable(entry: ModelEntry, found: FoundRollout, state: RolloutState) -> None:
    assert state.rollout is not None
    stable = state.rollout.stable
    is_of_file = found.declared is not None and stable == found.declared.rollout.stable
    source = f"in {FILE_NAME}" if is_of_file else "as a client has set it"
    if stable not in entry.version_dirs:
        known = ", ".join(map(str, entry.version_dirs)) or "none"
        raise invalid_argument(
            f"model '{entry.name}': version {stable}, stable {source}, has no directory in {entry.model_dir}; "
            f"its versions: {known}; name one of them, or end the rollout"
        )
    if stable in state.refused:
        hint = f"add 'allow = [{stable}]' to {FILE_NAME}" if is_of_file else allow_hint(entry.name, stable)
        raise invalid_argument(
            f"model '{entry.name}': version {stable}, stable {source}, was refused "
            f"({state.refused[stable]}); name another version, or {hint}"
        )


def _check_exist(entry: ModelEntry, needed: Collection[int]) -> None:
    missing = sorted(set(needed).difference(entry.version_dirs))
    if missing:
        known = ", ".join(map(str, entry.version_dirs)) or "none"
        raise invalid_argument(
            f"rollout of model '{entry.name}': version {', '.join(map(str, missing))} has no directory in "
            f"{entry.model_dir}; its versions: {known}"
        )
