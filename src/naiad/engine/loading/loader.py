"""Loading: from a model's files to a served version."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.custom_metrics import CustomMetrics
from naiad.backend.registry import BackendRegistry
from naiad.backend.signature import DEFAULT_MAX_BATCH_SIZE_SETTING
from naiad.config.backends import canonical_name
from naiad.config.changes.configuration_changes import renewed
from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.config.naiad_parameters import LIMIT, OPENAI, read_cache_limit_bytes
from naiad.config.problem import errors_of, problems_error
from naiad.config.remote_settings import is_remote
from naiad.config.scheduling_rules import batching_hints
from naiad.config.tensors.features import ensemble_features, write_features
from naiad.config.validate.ensemble import cycle_message, ensemble_member_problems, has_decoupled_member
from naiad.core.environment.ports import InferencePort, Loop
from naiad.core.errors import ErrorCode, InferError, MisfitError, invalid_argument, unsupported
from naiad.core.model import IndexEntry
from naiad.engine.admission import BARE_BATCH_SIZE, CONFIGURED_BATCH_SIZE
from naiad.engine.cache.response_store import ResponseStore
from naiad.engine.custom_batching import read_strategy
from naiad.engine.instances.instance_resources import ModelResources, Resources, needs_resources
from naiad.engine.instances.instances import create_instances, instance_specs
from naiad.engine.loading.budget import LoadBudget
from naiad.engine.loading.instance_update import InstanceUpdate, kept_instances
from naiad.engine.loading.load_configuration import (
    check_declared,
    finish_config,
    read_config,
    read_labels,
    read_profile,
)
from naiad.engine.loading.model_kinds import ModelKinds
from naiad.engine.loading.version_choice import VersionChoice
from naiad.engine.remote.remote_port import RemotePort
from naiad.engine.rollout.rollouts import Rollouts
from naiad.engine.serving.served import ModelRouter, Served, ServedProxy, TokenCounter
from naiad.engine.serving.served_model import ServedModel
from naiad.options.artificial_delays import ArtificialDelays
from naiad.options.execution_limits import DEFAULT_EXECUTE_TIMEOUT_S, read_execute_timeout_s, read_refuse_after_deaths
from naiad.options.load_limits import LoadLimitOptions
from naiad.options.options import OverloadOptions
from naiad.repository.agents.chain import AgentChain, AgentRegistry
from naiad.repository.model_plan import ModelPlan, Update
from naiad.repository.rollout_records import FoundRecord, RolloutRecords
from naiad.repository.stores.model_file import model_file_problem
from naiad.repository.stores.store import ModelEntry
from naiad.scheduler.dynamic import BatchStrategy
from naiad.scheduler.factory import create_scheduler
from naiad.scheduler.overload import OverloadPolicy
from naiad.telemetry.statistics.model_statistics import ModelStatistics

if TYPE_CHECKING:
    from naiad.engine.transforms.sequence_tensors import SequenceTensors

_log = logging.getLogger(__name__)
_UNKNOWN_MEMORY_BYTES = 4 << 30


class ModelLoader:
    """Loads versions of models; its methods are called from several loading threads."""

    def __init__(  # noqa: PLR0913 - what versions are made of
        self,
        *,
        loop: Loop,
        backends: BackendRegistry,
        usable_cores: int,
        auto_complete: bool = True,
        backend_config: Mapping[str, Mapping[str, str]] | None = None,
        router: ModelRouter | None = None,
        index: Callable[[], Sequence[IndexEntry]] = tuple,
        wrap: Callable[[ModelPlan, Served], Served] | None = None,
        response_store: ResponseStore | None = None,
        port: InferencePort | None = None,
        resources: Resources | None = None,
        metrics: CustomMetrics | None = None,
        gpu_count: int = 0,
        host_policies: Mapping[str, frozenset[int]] | None = None,
        delays: ArtificialDelays | None = None,
        execute_timeout_s: float = DEFAULT_EXECUTE_TIMEOUT_S,
        overload: OverloadOptions | None = None,
        rollouts: Rollouts | None = None,
        limits: LoadLimitOptions | None = None,
        records: RolloutRecords | None = None,
        remote: RemotePort | None = None,
    ) -> None:
        """`router` connects ensembles to their members; without one they cannot be loaded.

        `index` returns the rows of the repository index, for the reason of a missing member. `wrap` returns what
        serves in place of a loaded version.

        `port` connects executing models to other models, `metrics` shows their own metrics.

        `response_store` is the cache of models with `response_cache`, `resources` are shared by their instances,
        `host_policies` are the cores for instances, by the name of the policy. `delays` is for tests.
        `execute_timeout_s` is the time after which an execution counts as hung, unless the model has its own.
        `overload` is for the queues of models without a queue policy. `rollouts` need versions that the version
        policy may not select; `records` has what is stored about them. `limits` are the budget of each load.
        `remote` reaches models of other servers.
        """
        limits = limits or LoadLimitOptions().resolved(memory_bytes=_UNKNOWN_MEMORY_BYTES, cores=usable_cores)
        self._loop = loop
        self._backends = backends
        self._usable_cores = usable_cores
        self._auto_complete = auto_complete
        self._backend_config = backend_config or {}
        self._model_kinds = ModelKinds(backends, LoadBudget(limits), self._settings, auto_complete=auto_complete)
        self._router = router
        self._index = index
        self._wrap = wrap
        self._response_store = response_store
        self._agents = AgentRegistry()
        self._port = port
        self._remote = remote
        self._metrics = metrics
        self._gpu_count = gpu_count
        self._host_policies = host_policies or {}
        self._resources = resources
        self._records = records or RolloutRecords()
        self._choice = VersionChoice(rollouts or Rollouts())
        self._delays = delays or ArtificialDelays()
        self._execute_timeout_s = execute_timeout_s
        self._overload = None if overload is None else OverloadPolicy.from_options(overload)

    def plan(self, entry: ModelEntry) -> ModelPlan:
        """Read and check the configuration, and select the versions of its policy. Raises InferError."""
        parsed = read_config(entry, required=not self._auto_complete)
        if not parsed.config.model_repository_agents.agents:
            return self._plan(entry, parsed, self._records.find(entry))
        agents = AgentChain(self._agents, entry, parsed.config)
        try:
            if agents.entry is not entry:
                parsed = read_config(agents.entry, required=not self._auto_complete)
            return replace(self._plan(agents.entry, parsed, self._records.find(entry)), agents=agents)
        except BaseException:
            agents.load_failed()
            raise

    def _plan(self, entry: ModelEntry, parsed: ParsedConfig, record: FoundRecord) -> ModelPlan:
        versions, rollout = self._choice.choose(entry, parsed.config.version_policy, record)
        config, unsupported_reason = self._model_kinds.prepare(parsed, entry, versions)
        return ModelPlan(entry, config, versions, parsed, unsupported_reason=unsupported_reason, rollout=rollout)

    def load(self, plan: ModelPlan, version: int) -> Served:
        """Load one version: complete its configuration, load the model, create its instances, start their threads.

        Raises InferError; all resources are released then.
        """
        if plan.unsupported_reason is not None:
            raise plan.unsupported_reason
        start_ns = time.monotonic_ns()
        is_ensemble = plan.config.HasField("ensemble_scheduling")
        token_counter = _token_counter(plan, version)
        try:
            if is_ensemble:
                served = self._load_ensemble(plan, version)
            elif is_remote(plan.config):
                served = self._load_remote(plan, version)
            else:
                served = self._load_model(plan, version)
        except InferError as error:
            raise _explained(error, plan, version) from error
        served.count_tokens_with(token_counter)
        if served.config.response_cache.enable:
            served = self._cached(served)
        if self._wrap is not None:
            served = self._wrap(plan, served)
        served.written_config = _written(plan)
        served.load_duration_ns = time.monotonic_ns() - start_ns
        return served

    def config_of(self, loaded: Served) -> ModelConfig:
        """Return the complete configuration of a loaded version."""
        return loaded.config

    def update(self, plan: ModelPlan, version: int, loaded: Served) -> Update | None:
        """Prepare to serve `plan` with the loaded version; None if it must be reloaded.

        Raises InferError; all resources are released then.
        """
        model = loaded
        while isinstance(model, ServedProxy):  # of a cache, or of the processes that share sequences
            model = model.served
        if not isinstance(model, ServedModel) or model.lost_reason:
            return None
        config = renewed(model.config, plan.config)
        backend = self._backends.get_for(config, plan.entry.name, self._settings(config))
        context = self._context(plan, version, config, backend)
        count = backend.default_instance_count(context)
        config = self._finish(plan, config, config, count, self._usable_gpus(backend, config))
        # The resources of instances are fixed when a version is loaded.
        is_limited = self._resources is not None and needs_resources(config)
        kept = None if is_limited else kept_instances(model, config)
        if kept is None:
            return None
        update = InstanceUpdate(loaded, model, config, kept)
        update.written_config = _written(plan)
        update.create(_warm_up(replace(context, config=config)), self._host_policies, plan.stop)
        return update

    def _cached(self, served: Served) -> Served:
        if self._response_store is not None:
            limit_bytes = read_cache_limit_bytes(served.config)
            if limit_bytes and self._response_store.is_shared:
                _log.warning(
                    "model '%s': '%s' has no effect, a cache that servers share sets its own bounds",
                    served.name,
                    LIMIT,
                )
            from naiad.engine.cache.cached_model import CachedModel

            return CachedModel(served, self._response_store, limit_bytes)
        _log.warning(
            "model '%s' has 'response_cache { enable: true }', but the server has no cache: start it with "
            "--cache-config local,size=BYTES",
            served.name,
        )
        return served

    def _load_model(self, plan: ModelPlan, version: int) -> Served:
        backend = self._backends.get_for(plan.config, plan.entry.name, self._settings(plan.config))
        context = self._configure(plan, version, backend)
        self._warn_about_policies(context.config)
        labels = read_labels(context.config, context.model_dir)
        strategy = read_strategy(context)
        resources = self._register(context.config)
        model: Model | None = None
        instances: list[Instance] = []
        passive: list[Instance] = []
        try:
            model = backend.load(context)
            labels = {**model.labels, **labels}
            write_features(context.config, model.features)
            passive_specs = instance_specs(context.config, passive=True)
            context.stop.check()
            passive = create_instances(model, passive_specs, None, self._host_policies, context.stop)
            specs = instance_specs(context.config)
            instances = create_instances(model, specs, _warm_up(context), self._host_policies, context.stop)
            if strategy is not None:
                strategy.start(context.config)
            origin = self._batch_size_origin(plan, backend)
            served = self._serve(context, backend, model, instances, labels, resources, strategy, origin)
        except BaseException:
            _close([*instances, *passive], model, resources)
            raise
        served.passive_instances = passive
        return served

    def _register(self, config: ModelConfig) -> ModelResources | None:
        """Register the resources of the instances. Raises InferError if one of them could never execute."""
        if not needs_resources(config):
            return None
        if self._resources is not None:
            return self._resources.register(config)
        _log.warning(
            "model '%s' has 'rate_limiter' in its configuration, but the rate limiter is off: start the server with "
            "--rate-limit=execution_count",
            config.name,
        )
        return None

    def _warn_about_policies(self, config: ModelConfig) -> None:
        """Warn about unknown host policies; Triton ignores them silently."""
        for name in {group.host_policy for group in config.instance_group} - {"", *self._host_policies}:
            _log.warning(
                "model '%s' has 'host_policy: \"%s\"', but the server has no policy of that name: start it with "
                "--host-policy=%s,cpu-cores=...",
                config.name,
                name,
                name,
            )

    def _load_ensemble(self, plan: ModelPlan, version: int) -> Served:
        """Check an ensemble against its loaded members. Raises InferError."""
        # Most servers have none.
        from naiad.engine.ensemble.ensemble_graph import find_device_steps, find_members
        from naiad.engine.ensemble.ensemble_model import EnsembleModel

        router, config = self._router, finish_config(plan.config, plan.config, plan.source, 0)
        if router is None:
            raise unsupported(f"ensemble '{config.name}' cannot be loaded without the other models of a server")
        if plan.circle:
            raise invalid_argument(f"{cycle_message(plan.circle)}; an ensemble cannot contain itself")
        members = find_members(config, router, self._index)
        problems = ensemble_member_problems(config, members, plan.source)
        if errors_of(problems):
            raise MisfitError(ErrorCode.INVALID_ARG, problems_error(problems).message)
        # Triton: regardless of its own policy.
        config.model_transaction_policy.decoupled = has_decoupled_member(config, members)
        config = finish_config(config, config, plan.source, 0)
        write_features(config, ensemble_features(config, members))
        return EnsembleModel(
            name=config.name,
            version=version,
            config=config,
            members=members,
            router=router,
            statistics=ModelStatistics(config.name, str(version), namespace=plan.entry.namespace),
            loop=self._loop,
            labels=read_labels(config, plan.entry.model_dir),
            device_steps=find_device_steps(config, router),
        )

    def _load_remote(self, plan: ModelPlan, version: int) -> Served:
        """Ask the other servers for the model. Raises InferError."""
        from naiad.engine.remote.remote_loading import load_remote  # most servers have none

        def finish(config: ModelConfig) -> ModelConfig:
            return finish_config(plan.config, config, plan.source, 1)

        return load_remote(plan.config, version, finish, self._remote, self._loop, plan.entry.namespace)

    def _configure(self, plan: ModelPlan, version: int, backend: Backend) -> ModelContext:
        context = self._context(plan, version, plan.config, backend)
        completed = backend.auto_complete(context) if self._auto_complete else plan.config
        if plan.source is not None:
            check_declared(plan.source, plan.entry, completed)
        count = backend.default_instance_count(replace(context, config=completed))
        gpus = self._usable_gpus(backend, plan.config)
        return replace(context, config=self._finish(plan, plan.config, completed, count, gpus))

    def _finish(
        self, plan: ModelPlan, config: ModelConfig, completed: ModelConfig, instance_count: int, gpu_count: int
    ) -> ModelConfig:
        return self._model_kinds.finish(
            config,
            completed,
            plan.source,
            instance_count=instance_count,
            gpu_count=gpu_count,
            version_count=len(plan.versions),
        )

    def _usable_gpus(self, backend: Backend, config: ModelConfig) -> int:
        """Return the number of usable GPUs. Raises InferError if instances require one and none is usable."""
        if not self._gpu_count:
            return 0
        unsupported_reason = backend.gpu_unsupported_reason()
        for index, group in enumerate(config.instance_group):
            if unsupported_reason and group.kind == ModelInstanceGroup.KIND_GPU:
                raise unsupported(
                    f"instance group {group.name or f'{config.name}_{index}'} of model '{config.name}' has kind "
                    f"KIND_GPU, but {unsupported_reason} (GPUs found: {self._gpu_count}); or use KIND_CPU or "
                    "KIND_AUTO"
                )
        return 0 if unsupported_reason else self._gpu_count

    def _settings(self, config: ModelConfig) -> Mapping[str, str]:
        """Return the settings of a model's backend alone, under its name or the alias in the configuration."""
        if not self._backend_config:
            return {}
        names = (canonical_name(config.backend), config.backend)
        return {key: text for name in names for key, text in self._backend_config.get(name, {}).items()}

    def _context(self, plan: ModelPlan, version: int, config: ModelConfig, backend: Backend) -> ModelContext:
        size = plan.entry.default_max_batch_size
        default = {} if size is None else {DEFAULT_MAX_BATCH_SIZE_SETTING: str(size)}
        return ModelContext(
            name=plan.entry.name,
            namespace=plan.entry.namespace,
            version=version,
            config=config,
            model_dir=plan.entry.model_dir,
            version_dir=plan.entry.version_dirs[version],
            usable_cores=self._usable_cores,
            backend_config={**default, **self._flag_settings(config, backend)},
            worker_config=self._backend_config.get("python", {}),
            port=self._port,
            metrics=self._metrics,
            host_policies=self._host_policies,
            execute_timeout_s=self._execute_timeout_s,
            stop=plan.stop,
        )

    def _flag_settings(self, config: ModelConfig, backend: Backend) -> dict[str, str]:
        """Return the settings that `backend` has on the command line, for a model with this configuration."""
        alias = self._settings(config) if canonical_name(config.backend) == backend.name else {}
        return {**self._backend_config.get("", {}), **self._backend_config.get(backend.name, {}), **alias}

    def _batch_size_origin(self, plan: ModelPlan, backend: Backend) -> str:
        """Return where max_batch_size comes from and how to change it, for errors about too large batches."""
        is_bare = plan.entry.default_max_batch_size is not None and plan.entry.config_path is None
        if plan.config.max_batch_size > 0:
            if is_bare and plan.config.max_batch_size == plan.entry.preset.max_batch_size:
                return BARE_BATCH_SIZE
            return CONFIGURED_BATCH_SIZE
        if backend.name == "python":
            return "auto_complete_config in model.py: raise it there, or send smaller batches"
        if DEFAULT_MAX_BATCH_SIZE_SETTING in self._flag_settings(plan.config, backend):
            return f"--backend-config={backend.name},{DEFAULT_MAX_BATCH_SIZE_SETTING}: start with a larger one"
        if plan.entry.default_max_batch_size is not None:
            return BARE_BATCH_SIZE
        return "the default of models without max_batch_size: write max_batch_size: N in config.pbtxt"

    def _serve(
        self,
        context: ModelContext,
        backend: Backend,
        model: Model,
        instances: Sequence[Instance],
        labels: dict[str, Sequence[str]],
        resources: ModelResources | None,
        strategy: BatchStrategy | None,
        batch_size_origin: str,
    ) -> ServedModel:
        config = context.config
        for hint in batching_hints(config):
            _log.info("model '%s': %s", context.name, hint)
        return ServedModel(
            name=context.name,
            version=context.version,
            config=config,
            backend_model=model,
            instances=instances,
            scheduler=create_scheduler(
                config,
                instance_count=len(instances),
                delays=self._delays,
                strategy=strategy,
                overload=self._overload,
                profile=read_profile(config, context.model_dir),
            ),
            sequence_tensors=_sequence_tensors(context),
            statistics=ModelStatistics(
                context.name,
                str(context.version),
                namespace=context.namespace,
                # Triton: its Python backend counts an error response of the model as a success.
                answered_is_success=backend.name == "python",
                called=context.called,
            ),
            loop=self._loop,
            labels=labels,
            resources=resources,
            execute_timeout_s=read_execute_timeout_s(config, self._execute_timeout_s),
            refuse_after_deaths=read_refuse_after_deaths(config),
            batch_size_origin=batch_size_origin,
            splits_requests=batch_size_origin == BARE_BATCH_SIZE,
        )


def _explained(error: InferError, plan: ModelPlan, version: int) -> InferError:
    """Return the error of a failed load; if the model file is not a model, an error that says what it is."""
    path, problem = model_file_problem(plan.config, plan.entry.version_dirs[version])
    if not problem:
        return error
    text = f"model '{plan.config.name}' version {version}: {path} cannot be loaded: {problem}"
    return InferError(error.code, text, detail=error.message)


def _written(plan: ModelPlan) -> ModelConfig:
    """Return the configuration as its author wrote it, or the whole one if there is no text."""
    return plan.config if plan.source is None else plan.source.config


def _token_counter(plan: ModelPlan, version: int) -> TokenCounter | None:
    if OPENAI not in plan.config.parameters:
        return None
    from naiad.engine.loading.token_counting import read_token_counter

    return read_token_counter(plan.config, plan.entry.version_dirs[version], plan.entry.model_dir)


def _warm_up(context: ModelContext) -> Callable[[Instance, InstanceSpec], None] | None:
    if not context.config.model_warmup:
        return None
    from naiad.engine.loading.warmup import WarmUp

    return WarmUp(context).run


def _sequence_tensors(context: ModelContext) -> "SequenceTensors | None":
    """Return the transform for sequence requests; None for a model without extra tensors."""
    batching = context.config.sequence_batching
    if not (batching.control_input or batching.state):
        return None
    from naiad.engine.transforms.sequence_tensors import SequenceTensors

    return SequenceTensors(context.config, context.model_dir)


def _close(instances: Sequence[Instance], model: Model | None, resources: ModelResources | None) -> None:
    for instance in instances:
        instance.close()
    if model is not None:
        model.close()
    if resources is not None:
        resources.close()
