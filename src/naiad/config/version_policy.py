"""Selects which versions of a model are served."""

from collections.abc import Sequence

from naiad.config.model_config_pb2 import ModelVersionPolicy

NO_VERSION = "at least one version must be available under the version policy of model '{model_name}'"
"""Triton's words for an empty selection."""


def select_versions(policy: ModelVersionPolicy, available: Sequence[int]) -> list[int]:
    """Return the versions in `available` that `policy` selects, lowest first.

    No policy means the newest one. Triton: a missing version of `specific` is ignored, and `latest` with 0 versions
    selects none; the caller rejects an empty result with `NO_VERSION`.
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
