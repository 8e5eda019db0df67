"""Completes a model configuration: from the file names in a version directory, and with Triton's defaults.

It also selects the versions that a policy means.

Pure: the caller lists the directory, counts the GPUs and asks the backend for its default number of instances. A
loader uses these in the order `autofill`, `normalize`, `validation.validate`, the backend's `auto_complete`,
`merge_auto_completed`, `normalize` again (it may have added a scheduler), `validate` with `complete=True`,
`normalize_instance_groups`.
"""

from collections.abc import Sequence

from naiad.config.backends import FORMATS, PLATFORM_BACKENDS, RUNTIMES, ModelFormat, canonical_name
from naiad.config.forms.schema import is_message, is_repeated
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup, ModelVersionPolicy
from naiad.config.problem import Problem
from naiad.config.tensors.features import keep_features

ENSEMBLE_PLATFORM = "ensemble"
_MIN_COMPUTE_CAPABILITY = "6.000000"
_NO_GPU = "0 GPUs were found"
"""Triton: the default of --min-supported-compute-capability, as its messages show it."""
SEQUENCE_IDLE_US = 1_000_000
"""Idle time after which a sequence ends if the configuration has none."""


def autofill(config: ModelConfig, *, model_name: str, version_files: Sequence[str] = ()) -> ModelConfig:
    """Return a copy with name, backend, platform and default_model_filename filled in where possible.

    `version_files` are the names in one version directory. Values in the configuration are never changed. If it has
    none and there is no known file, a model named `x.<backend>` has that backend (Triton: a custom backend) and the
    file `model.<backend>`.
    """
    filled = ModelConfig()
    filled.CopyFrom(config)
    if not filled.name:
        filled.name = model_name
    if is_ensemble(filled):
        if not filled.backend and not filled.platform:
            filled.platform = ENSEMBLE_PLATFORM
        return filled
    found = _find_format(filled, version_files)
    if not filled.backend:
        filled.backend = PLATFORM_BACKENDS.get(filled.platform, "") or (found.backend if found else "")
    if not (filled.backend or filled.platform or filled.default_model_filename):
        # Triton: the text after the first dot.
        filled.backend = model_name.partition(".")[2]
        if filled.backend:
            filled.default_model_filename = f"model.{filled.backend}"
    _fill_from_format(filled, found)
    return filled


def _find_format(config: ModelConfig, version_files: Sequence[str]) -> ModelFormat | None:
    """Return the first known file that exists and does not contradict the configuration."""
    names = set(version_files)
    backend = canonical_name(config.backend)
    for known in FORMATS:
        fits = (not backend or backend == known.backend) and (
            not config.platform or config.platform == known.platform
        )
        if known.filename in names and fits:
            return known
    return None


def _fill_from_format(config: ModelConfig, found: ModelFormat | None) -> None:
    """Fill in platform and file name: from the existing file, otherwise the backend's usual ones."""
    backend = canonical_name(config.backend)
    usual = [known for known in FORMATS if known.backend == backend]
    chosen = found or next(
        (known for known in usual if not config.platform or known.platform == config.platform), None
    )
    if chosen is None or chosen.backend != backend:
        return
    # For a backend with two platforms only the file determines the platform.
    if not config.platform and (found or len(usual) == 1):
        config.platform = chosen.platform
    if config.runtime in RUNTIMES.get(backend, ()):
        # Triton 2.73: such a model is its `model.py`; a file of weights beside it is named only where it is chosen.
        return
    if not config.default_model_filename and (found or len(usual) == 1 or config.platform):
        config.default_model_filename = chosen.filename


def is_ensemble(config: ModelConfig) -> bool:
    """Return whether a configuration is meant for an ensemble."""
    return config.platform == ENSEMBLE_PLATFORM or config.HasField("ensemble_scheduling")


def merge_auto_completed(base: ModelConfig, completed: ModelConfig) -> ModelConfig:
    """Return `base` with the fields that a backend may complete taken from `completed`.

    Triton: inputs, outputs, max_batch_size, dynamic_batching and the transaction policy; other edits are dropped. A
    scheduler in `base` stays.
    """
    merged = ModelConfig()
    merged.CopyFrom(base)
    for name in ("input", "output"):
        merged.ClearField(name)
        getattr(merged, name).extend(getattr(completed, name))
    merged.max_batch_size = completed.max_batch_size
    if completed.HasField("dynamic_batching") and base.WhichOneof("scheduling_choice") in (None, "dynamic_batching"):
        merged.dynamic_batching.CopyFrom(completed.dynamic_batching)
    if completed.HasField("model_transaction_policy"):
        merged.model_transaction_policy.CopyFrom(completed.model_transaction_policy)
    keep_features(merged, completed)
    return merged


def completed_fields(written: ModelConfig, complete: ModelConfig) -> list[str]:
    """Return the names of the fields of `complete` that are not in `written`.

    Fields of a single message are named one by one, as in `dynamic_batching.preferred_batch_size`, and repeated
    fields as a whole.
    """
    found = []
    known = {field.name: value for field, value in written.ListFields()}
    for field, value in complete.ListFields():
        if field.name not in known:
            found.append(field.name)
        elif is_message(field) and not is_repeated(field):
            parts = {part.name for part, _ in known[field.name].ListFields()}
            found += [f"{field.name}.{part.name}" for part, _ in value.ListFields() if part.name not in parts]
    return found


def normalize(
    config: ModelConfig, *, gpu_count: int | None = None, default_cpu_instances: int | None = None
) -> ModelConfig:
    """Return a copy with Triton's defaults written out.

    These are version policy, preferred batch sizes, sequence idle time and pinned memory; and the instance groups if
    `default_cpu_instances`, the backend's number for a group of KIND_CPU without a count, is given (`gpu_count`
    defaults to 0). Ensembles get neither pinned memory nor instance groups.
    """
    normal = ModelConfig()
    normal.CopyFrom(config)
    if normal.version_policy.WhichOneof("policy_choice") is None:
        normal.version_policy.latest.num_versions = 1
    _normalize_batching(normal)
    if not is_ensemble(normal):
        for memory in ("input_pinned_memory", "output_pinned_memory"):
            if not normal.optimization.HasField(memory):
                getattr(normal.optimization, memory).enable = True
        if default_cpu_instances is not None:
            _normalize_groups(normal, gpu_count or 0, default_cpu_instances)
    return normal


def _normalize_batching(config: ModelConfig) -> None:
    size = config.max_batch_size
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        if not batching.preferred_batch_size and size > 0:
            batching.preferred_batch_size.append(size)
    if config.HasField("sequence_batching"):
        sequences = config.sequence_batching
        sequences.max_sequence_idle_microseconds = sequences.max_sequence_idle_microseconds or SEQUENCE_IDLE_US
        if sequences.HasField("oldest") and not sequences.oldest.preferred_batch_size and size > 0:
            sequences.oldest.preferred_batch_size.append(size)


def _normalize_groups(config: ModelConfig, gpu_count: int, default_cpu_instances: int) -> None:
    """Set name, kind other than KIND_AUTO, count and GPUs of every group."""
    if not config.instance_group:
        # Triton: a default group has the name of the model.
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        if not group.name:
            group.name = f"{config.name}_{index}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            group.kind = _resolve_kind(group, gpu_count)
        if group.count < 1:
            group.count = default_cpu_instances if group.kind == ModelInstanceGroup.KIND_CPU else 1
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(range(gpu_count))


def _resolve_kind(group: ModelInstanceGroup, gpu_count: int) -> ModelInstanceGroup.Kind:
    """Return KIND_GPU if there are GPUs and the group names none that is missing, otherwise KIND_CPU."""
    if gpu_count and all(0 <= gpu < gpu_count for gpu in group.gpus):
        return ModelInstanceGroup.KIND_GPU
    return ModelInstanceGroup.KIND_CPU


def instance_group_problems(config: ModelConfig, *, gpu_count: int) -> list[Problem]:
    """Return the errors in normalised instance groups, in Triton's words.

    A machine without GPUs rejects KIND_GPU, as Triton does on a host with CPUs only.
    """
    problems: list[Problem] = []
    for index, group in enumerate(config.instance_group):
        opening = f"instance group {group.name or f'{config.name}_{index}'} of model {config.name} "
        path = f"instance_group[{index}]"
        if group.kind == ModelInstanceGroup.KIND_GPU:
            problems += _gpu_problems(group, opening, path, gpu_count)
        elif group.gpus and not (group.kind == ModelInstanceGroup.KIND_AUTO and gpu_count):
            kind = "KIND_MODEL" if group.kind == ModelInstanceGroup.KIND_MODEL else "KIND_CPU"
            problems.append(
                Problem(
                    message=f"{opening}has kind {kind} but specifies one or more GPUs",
                    path=f"{path}.gpus",
                    text=str(list(group.gpus)),
                    expected="no 'gpus'" + (", or 'kind: KIND_GPU'" if gpu_count else f": {_NO_GPU}"),
                )
            )
    return problems


def _gpu_problems(group: ModelInstanceGroup, opening: str, path: str, gpu_count: int) -> list[Problem]:
    if not gpu_count and not group.gpus:
        return [
            Problem(
                message=f"{opening}has kind KIND_GPU but no GPUs are available",
                path=f"{path}.kind",
                text="KIND_GPU",
                expected=f"KIND_CPU or KIND_AUTO: {_NO_GPU}",
            )
        ]
    present = ", ".join(str(gpu) for gpu in range(gpu_count))
    no_gpus = f"no 'gpus', and KIND_CPU or KIND_AUTO: {_NO_GPU}"
    return [
        Problem(
            message=(
                f"{opening}specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                f"CUDA compute compatibility of {_MIN_COMPUTE_CAPABILITY} are: {present}"
            ),
            path=f"{path}.gpus[{position}]",
            text=str(gpu),
            expected=f"a number below {gpu_count}, as many GPUs were found" if gpu_count else no_gpus,
        )
        for position, gpu in enumerate(group.gpus)
        if not 0 <= gpu < gpu_count
    ]


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
