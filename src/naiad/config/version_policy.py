"""Which versions of a model are served."""

from collections.abc import Sequence

from naiad.config.model_config_pb2 import ModelVersionPolicy

NO_VERSION = "at least one version must be available under the version policy of model '{model_name}'"
"""Triton's words for an empty selection."""


def select_versions(policy: ModelVersionPolicy, available: Sequence[int]) -> list[int]:
    """Return the versions among `available` that `policy` selects, lowest first.

    No policy means the newest one. Triton: a version that `specific` names but that is not there is left out, and
    `latest` with 0 versions selects none; an empty result is for the caller to refuse with `NO_VERSION`.
    """
    ordered = sorted(set(available))
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return ordered
    if choice == "specific":
        wanted = set(policy.specific.versions)
        return [version for version in ordered if version in wanted]
    count = policy.latest.num_versions if choice == "latest" else 1
    return ordered[-count:] if count else []
