"""Checks of a model configuration: all of Triton's errors, in its words, and warnings about settings without effect.

All problems are reported together, each at its position if the configuration was read from a file.
"""

import math
import re
from collections.abc import Collection

from naiad.config.autofill import ENSEMBLE_PLATFORM, NO_VERSION, instance_group_problems
from naiad.config.backends import BUILT_IN, PLATFORM_BACKENDS, SERVABLE_FILENAMES
from naiad.config.execution_tensors import sequence_inputs
from naiad.config.forms.findings import Findings
from naiad.config.forms.pbtxt.lexer import ParsedConfig, map_path
from naiad.config.load_policy import check_load_policy
from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup, ModelQueuePolicy, ModelWarmup
from naiad.config.naiad_parameters import (
    OPENAI,
    PICTURES,
    check_adaptive_batching,
    check_isolation,
    check_response_cache,
)
from naiad.config.problem import Problem, nearest
from naiad.config.remote_settings import check_remote
from naiad.config.tensors.padding import check_padding
from naiad.config.validate.ensemble import check_ensemble
from naiad.config.validate.file_names import check_files, is_outside
from naiad.config.validate.sequence import check_preferred_sizes, check_sequence_batching
from naiad.config.validate.tensor import check_batch_tensors, check_tensors
from naiad.core.errors import excerpt

_LONGEST_TAG = 256
_TAG = re.compile(rf"[a-zA-Z_][a-zA-Z0-9_]{{0,{_LONGEST_TAG - 1}}}")
_NOT_IN_TAG = re.compile(r"^[^a-zA-Z]+|[^a-zA-Z0-9_]")


def validate(
    config: ModelConfig,
    *,
    model_name: str = "",
    parsed: ParsedConfig | None = None,
    known_backends: Collection[str] | None = None,
    gpu_count: int | None = None,
    complete: bool = True,
) -> list[Problem]:
    """Return the problems of `config`; the first error is the one that Triton would report, or close to it.

    `model_name` is the name of the model's directory. `parsed` adds positions to problems, `known_backends` enables
    the check for unknown ones, `gpu_count` the check of instance groups. Without `complete`, inputs and outputs may
    lack the fields that the backend will fill in.
    """
    findings = Findings(config, parsed)
    _check_name(findings, model_name)
    _check_backend(findings, known_backends, model_name)
    if config.max_batch_size < 0:
        findings.error(
            "'max_batch_size' must be non-negative value",
            "max_batch_size",
            text=config.max_batch_size,
            expected="0 for no batching, or the largest batch",
        )
    _check_version_policy(findings)
    check_files(findings)
    if config.HasField("dynamic_batching"):
        _check_dynamic_batching(findings)
    check_adaptive_batching(findings)
    if config.HasField("sequence_batching"):
        check_sequence_batching(findings)
    if config.HasField("ensemble_scheduling"):
        check_ensemble(findings)
    check_response_cache(findings)
    check_isolation(findings)
    check_load_policy(findings)
    check_tensors(findings, complete=complete)
    check_batch_tensors(findings)
    check_padding(findings, complete=complete)
    _check_rare_parameters(findings, complete=complete)
    check_remote(findings)
    _check_instance_groups(findings, gpu_count)
    _check_warmup(findings)
    _check_metric_tags(findings)
    _check_metrics(findings)
    return findings.problems


def _check_rare_parameters(findings: Findings, *, complete: bool) -> None:
    parameters = findings.config.parameters
    if PICTURES in parameters:
        from naiad.config.tensors.pictures import check_pictures

        check_pictures(findings, complete=complete)
    if OPENAI in parameters:
        from naiad.config.openai_mapping import check_openai

        check_openai(findings, complete=complete)


def _check_name(findings: Findings, model_name: str) -> None:
    name = findings.config.name
    if not name:
        findings.error_as_is("model configuration must specify 'name'", "name", expected="the name of the directory")
    elif model_name and name != model_name:
        findings.error_as_is(
            f"unexpected directory name '{model_name}' for model '{name}', directory name must equal model name",
            "name",
            expected=f"'{model_name}', or no 'name' at all",
        )


def _check_backend(findings: Findings, known_backends: Collection[str] | None, model_name: str) -> None:
    config = findings.config
    if config.platform == ENSEMBLE_PLATFORM or config.HasField("ensemble_scheduling"):
        _check_ensemble_platform(findings)
        return
    if not config.backend:
        _check_no_backend(findings, known_backends or (), model_name)
        return
    platforms = [platform for platform, backend in PLATFORM_BACKENDS.items() if backend == config.backend]
    if config.platform and platforms and config.platform not in platforms:
        findings.error_as_is(
            f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}",
            "platform",
            expected=" or ".join(platforms),
        )
    if known_backends is not None and config.backend not in known_backends and not config.runtime:
        _report_missing_backend(findings, known_backends)


def _report_missing_backend(findings: Findings, known_backends: Collection[str]) -> None:
    backend = findings.config.backend
    follows = findings.is_written("platform") and not findings.is_written("backend")
    suggestion = nearest(backend, known_backends)
    others = "another that is installed as a package; any framework runs in the model.py of the python backend"
    findings.error_as_is(
        f"unable to find backend library for backend '{excerpt(backend)}', try specifying runtime on the model "
        "configuration.",
        "platform" if follows else "backend",
        expected=f"one of {', '.join(sorted(known_backends))}" + ("" if suggestion else f", or {others}"),
        suggestion=suggestion,
    )


def _check_no_backend(findings: Findings, known_backends: Collection[str], model_name: str) -> None:
    platform = findings.config.platform
    choices = ", ".join(sorted(known_backends or BUILT_IN))
    if platform:
        findings.error(
            f"unexpected platform type '{platform}'",
            "platform",
            text=platform,
            expected=f"'backend' with one of {choices}, or a known platform",
            suggestion=nearest(platform, [*PLATFORM_BACKENDS, ENSEMBLE_PLATFORM]),
        )
    elif findings.config.default_model_filename:
        findings.error(
            "unexpected platform type ''",
            "default_model_filename",
            expected=f"'backend' with one of {choices}, or a known file name ({', '.join(SERVABLE_FILENAMES)})",
        )
    else:
        name = model_name or findings.config.name
        findings.error_as_is(
            f"Invalid model name: Could not determine backend for model '{name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'.",
            "name",
            expected=f"'backend' with one of {choices}, or a model file with a known name "
            f"({', '.join(SERVABLE_FILENAMES)})",
        )


def _check_ensemble_platform(findings: Findings) -> None:
    config = findings.config
    if config.platform == ENSEMBLE_PLATFORM and config.backend:
        findings.error_as_is(
            f"Ensemble model '{config.name}' must have platform type 'ensemble' and empty backend type", "backend"
        )
    elif not config.HasField("ensemble_scheduling"):
        findings.error_as_is(
            f"ensemble scheduling must be set for ensemble {config.name} whose platform is ensemble",
            "platform",
            expected="'ensemble_scheduling' with the steps",
        )
    elif config.platform != ENSEMBLE_PLATFORM:
        findings.error_as_is(
            f"ensemble scheduling cannot be set for model '{config.name}' whose platform is not ensemble",
            "platform" if config.platform else "ensemble_scheduling",
            expected="'platform: \"ensemble\"' and no 'backend'",
        )


def _check_version_policy(findings: Findings) -> None:
    policy = findings.config.version_policy
    choice = policy.WhichOneof("policy_choice")
    message = NO_VERSION.format(model_name=findings.config.name)
    if choice == "latest" and policy.latest.num_versions == 0:
        findings.error_as_is(message, "version_policy.latest.num_versions", expected="num_versions of 1 or more")
    if choice == "specific" and not policy.specific.versions:
        findings.error_as_is(message, "version_policy.specific", expected="versions, for example [ 1 ]")


def _check_dynamic_batching(findings: Findings) -> None:
    config = findings.config
    batching = config.dynamic_batching
    if config.max_batch_size == 0:
        findings.warning(
            "'dynamic_batching' has no effect while 'max_batch_size' is 0",
            "dynamic_batching",
            expected="max_batch_size above 0",
        )
    sizes = batching.preferred_batch_size
    check_preferred_sizes(findings, sizes, "dynamic batching preferred size", "dynamic_batching")
    _check_priorities(findings)
    if batching.preserve_ordering:
        _check_preserve_ordering(findings)


def _check_priorities(findings: Findings) -> None:
    batching = findings.config.dynamic_batching
    levels = batching.priority_levels
    if not levels:
        if batching.priority_queue_policy or batching.default_priority_level:
            findings.warning(
                "priorities have no effect while 'priority_levels' is 0",
                "dynamic_batching.priority_queue_policy",
                expected="'priority_levels'",
            )
        return
    if not 1 <= batching.default_priority_level <= levels:
        findings.error(
            f"default priority level must be in range [1, {levels}]",
            "dynamic_batching.default_priority_level",
            text=batching.default_priority_level,
            expected=f"'default_priority_level' from 1 to {levels}",
        )
    for level in sorted(batching.priority_queue_policy):
        if not 1 <= level <= levels:
            findings.error(
                f"priority queue policy must have priority level in range [1, {levels}]",
                map_path("dynamic_batching.priority_queue_policy", level),
                text=level,
            )


def _check_preserve_ordering(findings: Findings) -> None:
    batching = findings.config.dynamic_batching
    if batching.priority_levels > 1:
        findings.error(
            "Only one priority level is allowed when 'preserve_ordering' is true",
            "dynamic_batching.priority_levels",
            text=batching.priority_levels,
            expected="1, or no 'preserve_ordering'",
        )
    policies = {"dynamic_batching.default_queue_policy": batching.default_queue_policy}
    for level in sorted(batching.priority_queue_policy):
        path = map_path("dynamic_batching.priority_queue_policy", level)
        policies[path] = batching.priority_queue_policy[level]
    for path, policy in policies.items():
        if policy.default_timeout_microseconds and policy.timeout_action == ModelQueuePolicy.DELAY:
            findings.error(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true",
                f"{path}.timeout_action",
                text="DELAY",
                expected="REJECT",
            )


def _check_instance_groups(findings: Findings, gpu_count: int | None) -> None:
    config = findings.config
    # Groups of an ensemble are rejected elsewhere.
    if config.HasField("ensemble_scheduling"):
        return
    if config.instance_group and all(group.passive for group in config.instance_group):
        findings.error(
            "all instances are passive, so none executes requests",
            "instance_group[0].passive",
            expected="a group without 'passive'",
        )
    for index, group in enumerate(config.instance_group):
        if group.count < 0:
            findings.warning(
                f"instance group {index} has count {group.count}, which is read as the default",
                f"instance_group[{index}].count",
                text=group.count,
                expected="1 or more",
            )
        for position, resource in enumerate(group.rate_limiter.resources):
            if not resource.name:
                findings.error(
                    f"resource {position} of instance group {index} must specify 'name'",
                    f"instance_group[{index}].rate_limiter.resources[{position}]",
                    expected="'name'",
                )
    if gpu_count is not None:
        for problem in instance_group_problems(config, gpu_count=gpu_count):
            findings.take(problem)
        _check_gpu_accelerators(findings, gpu_count)


def _check_gpu_accelerators(findings: Findings, gpu_count: int) -> None:
    """Warn of accelerators for GPUs that no instance is on; Triton ignores them too."""
    config = findings.config
    wanted = config.optimization.execution_accelerators.gpu_execution_accelerator
    if wanted and not any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group):
        groups = ", ".join(f"'{group.name}'" for group in config.instance_group) or "of the model"
        findings.warning(
            f"gpu_execution_accelerator has no effect: instance group {groups} is not on GPUs, and {gpu_count} GPUs "
            "were found",
            "optimization.execution_accelerators.gpu_execution_accelerator[0]",
            text=wanted[0].name,
            expected="cpu_execution_accelerator, or a group of KIND_GPU on a machine with GPUs",
        )


def _check_warmup(findings: Findings) -> None:
    config = findings.config
    if config.HasField("ensemble_scheduling"):
        return
    known = [tensor.name for tensor in config.input]
    controls = sorted(sequence_inputs(config))
    for index, sample in enumerate(config.model_warmup):
        path = f"model_warmup[{index}]"
        if sample.batch_size > max(config.max_batch_size, 1):
            findings.error(
                f"warmup sample '{sample.name}' has batch size {sample.batch_size}, which the model does not accept",
                f"{path}.batch_size",
                text=sample.batch_size,
                expected=f"at most {max(config.max_batch_size, 1)}",
            )
        for name in sorted(sample.inputs):
            input_path = map_path(f"{path}.inputs", name)
            if known and name not in known and name not in controls:
                findings.error(
                    f"warmup sample '{sample.name}' has data for '{name}', which is not an input",
                    input_path,
                    expected="one of " + ", ".join([*known, *controls]),
                    suggestion=nearest(name, [*known, *controls]),
                )
            _check_warmup_input(findings, sample.inputs[name], f"warmup input '{name}'", input_path)


def _check_warmup_input(findings: Findings, sample: ModelWarmup.Input, title: str, path: str) -> None:
    if sample.data_type == DataType.TYPE_INVALID:
        findings.error(f"{title} must specify 'data_type'", path)
    if any(size < 0 for size in sample.dims):
        findings.error(f"{title} must have fixed dims", f"{path}.dims", text=list(sample.dims))
    if sample.WhichOneof("input_data_type") is None:
        findings.error(f"{title} must specify its data", path, expected="zero_data, random_data or input_data_file")
    if sample.HasField("input_data_file") and not sample.input_data_file:
        findings.error(f"{title} must name its file", f"{path}.input_data_file", expected="a file of warmup/")
    if is_outside(sample.input_data_file):
        findings.error_as_is(
            f"warmup data file '{sample.input_data_file}' must stay within model directory.",
            f"{path}.input_data_file",
        )


def _check_metric_tags(findings: Findings) -> None:
    """Check the keys of `metric_tags`: each becomes a label's name, where nothing can be escaped."""
    for key in findings.config.metric_tags:
        path = map_path("metric_tags", key)
        if not _TAG.fullmatch(key):
            findings.error(
                f"metric_tags key '{excerpt(key)}' is not a name of a Prometheus label",
                path,
                text=excerpt(key),
                expected="letters, digits and _, no digit first",
                suggestion=_NOT_IN_TAG.sub("_", key)[:_LONGEST_TAG] if key else "",
            )
        elif key.startswith("_"):
            findings.error(
                f"metric_tags key '{key}' would become the label '_{key}'; Prometheus reserves names in __",
                path,
                text=key,
                expected="a letter first",
                suggestion=key.strip("_"),
            )


def _check_metrics(findings: Findings) -> None:
    for index, control in enumerate(findings.config.model_metrics.metric_control):
        path = f"model_metrics.metric_control[{index}]"
        if not control.metric_identifier.family:
            findings.error(
                "metric control must specify 'family'", path, expected="'metric_identifier { family: ... }'"
            )
        buckets = list(control.histogram_options.buckets)
        if not all(map(math.isfinite, buckets)):
            findings.error(
                "Bucket Boundaries must be finite",
                f"{path}.histogram_options.buckets",
                text=buckets,
                expected="numbers; every histogram has a bucket +Inf",
            )
        elif buckets != sorted(set(buckets)):
            findings.error(
                "Bucket Boundaries must be strictly sorted",
                f"{path}.histogram_options.buckets",
                text=buckets,
                expected="every boundary above the one before it",
            )
