"""One served model version: its state, the path of requests into it, and its life cycle."""

import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from naiad.backend.api import Instance, InstanceState, Model, RemoteInstance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.padding import read_padding
from naiad.core.environment.model_call import ModelCall
from naiad.core.environment.ports import Loop
from naiad.core.errors import ErrorCode, FailureReason, InferError, unavailable
from naiad.core.model import AdaptiveState
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.admission import CONFIGURED_BATCH_SIZE, Admission, AdmissionRules, LargeAdmission
from naiad.engine.instances.instance_resources import ModelResources
from naiad.engine.serving.decoupled import SLOW_CLIENT_S
from naiad.engine.serving.dispatch.dispatcher import Dispatcher
from naiad.engine.serving.dispatch.response_queue import OrderedResponseQueue, ResponseQueue
from naiad.engine.serving.dispatch.runners import InstanceRunner
from naiad.engine.serving.execution.executor import BatchExecutor
from naiad.engine.serving.execution.loop_runner import LoopRunner
from naiad.engine.serving.execution.thread_runner import ThreadRunner
from naiad.engine.serving.large_requests import MAX_ROWS, LargeRequest, can_split
from naiad.engine.serving.retirement import RetiredInstances
from naiad.engine.serving.served import Served
from naiad.engine.serving.suspects import Suspects
from naiad.options.execution_limits import DEFAULT_EXECUTE_TIMEOUT_S
from naiad.scheduler.api import Scheduler
from naiad.scheduler.rate_limiter import ResourceUsage
from naiad.telemetry.statistics.model_statistics import ModelStatistics

if TYPE_CHECKING:
    from naiad.engine.serving.execution.executor import BatchTransform
    from naiad.engine.transforms.sequence_tensors import SequenceTensors

_log = logging.getLogger(__name__)


class ServedModel(Served):
    """A loaded version that accepts requests until it is stopped.

    It admits requests and queues them at its dispatcher. Each instance has a runner, which takes batches from there:
    a thread for instances that block, the loop for instances in another process.
    """

    def __init__(  # noqa: PLR0913 - the parts that the loader has made
        self,
        *,
        name: str,
        version: int,
        config: ModelConfig,
        backend_model: Model,
        instances: Sequence[Instance],
        scheduler: Scheduler,
        statistics: ModelStatistics,
        loop: Loop,
        labels: Mapping[str, Sequence[str]] | None = None,
        sequence_tensors: "SequenceTensors | None" = None,
        resources: ModelResources | None = None,
        execute_timeout_s: float = DEFAULT_EXECUTE_TIMEOUT_S,
        refuse_after_deaths: int = 2,
        batch_size_origin: str = CONFIGURED_BATCH_SIZE,
        splits_requests: bool = False,
    ) -> None:
        """`sequence_tensors`: the controls and states of a sequence model, if any.

        `resources`: with a rate limiter, the resources of the instances. `execute_timeout_s`: after this time an
        execution without progress counts as hung; 0 for no limit. `refuse_after_deaths`: number of worker deaths
        after which a request that was executing each time is rejected; 0 for never. `batch_size_origin`: see
        `AdmissionRules`. `splits_requests`: whether requests of more rows than a batch are executed in parts.
        """
        is_decoupled = config.model_transaction_policy.decoupled
        super().__init__(name, str(version), config, statistics, is_decoupled=is_decoupled, labels=labels)
        self.backend_model = backend_model
        """Creates the instances, and owns their shared resources."""
        self.passive_instances: Sequence[Instance] = ()
        """Instances that live as long as the version, but get no requests."""
        self._scheduler = scheduler
        self._loop = loop
        is_splitting = splits_requests and not is_decoupled and not config.HasField("sequence_batching")
        self._rules = AdmissionRules(config, batch_size_origin, max_rows=MAX_ROWS if is_splitting else 0)
        self._resources = resources
        self._execute_timeout_s = execute_timeout_s
        asks_for_order = (
            config.dynamic_batching.preserve_ordering or config.sequence_batching.oldest.preserve_ordering
        )
        self.can_change_instances = not (asks_for_order or resources is not None)
        """Whether `change_instances` may be called."""
        self._retired: list[RetiredInstances] = []
        """Instances retired by earlier changes that may still have work."""
        self._ordered = OrderedResponseQueue(loop) if asks_for_order and len(instances) > 1 else None
        response_queue = self._ordered or ResponseQueue(loop)
        dispatcher: Callable[..., Dispatcher] = Dispatcher
        if scheduler.is_by_instance:
            # Most servers have no model with sequences.
            from naiad.engine.serving.dispatch.sequence_dispatcher import SequenceDispatcher

            dispatcher = functools.partial(SequenceDispatcher, sequence_tensors=sequence_tensors)
        self._dispatcher = dispatcher(
            config=config,
            scheduler=scheduler,
            statistics=statistics,
            response_queue=response_queue,
            loop=loop,
            resources=resources,
        )
        self._suspects = Suspects(name, refuse_after_deaths)
        if self._dispatcher.open_requests is not None:
            self._dispatcher.open_requests.suspects = self._suspects
        self._transforms: list[BatchTransform] = [] if sequence_tensors is None else [sequence_tensors]
        padding = read_padding(config)
        if padding is not None:
            from naiad.engine.transforms.padding import PaddedRequests

            self._transforms.append(PaddedRequests(config, padding, statistics.record_padding))
        self._executor = BatchExecutor(
            self._dispatcher,
            statistics=statistics,
            response_queue=response_queue,
            transforms=self._transforms,
            is_iterative=config.sequence_batching.iterative_sequence,
            suspects=self._suspects,
        )
        self._runner_count = len(instances)
        """Runners so far, also the retired ones: the number of the next one."""
        self._dispatcher.start([self._runner_for(index, instance) for index, instance in enumerate(instances)])

    def _runner_for(self, index: int, instance: Instance) -> InstanceRunner:
        if isinstance(instance, RemoteInstance):
            return LoopRunner(self._dispatcher, self._executor, instance, self._loop, index=index)
        name = f"{self.name}:{self.version}"
        return ThreadRunner(self._dispatcher, self._executor, instance, self._loop, index=index, name=name)

    # --- called on the event loop -------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Admit and queue a request. Raises InferError if it is rejected."""
        # hot: bench/micro_engine.py
        admission = request.header.admission
        if type(admission) is not Admission or admission.rules is not self._rules:
            admission = self._rules.admit(request)
            if type(admission) is LargeAdmission:
                self._submit_in_parts(request, admission)
                return
        if admission.strings or tuple(map(len, request.data)) != admission.data_sizes:
            self._rules.check_sizes(request, admission)
        request.batch_size = admission.batch_size
        request.shape_key = admission.shape_key
        if self._suspects.found:
            self._suspects.examine(request, time.monotonic_ns())
        call = request.call
        if call is not None:
            self._check_call(request, call)
        request.model = self
        self._dispatcher.enqueue(request)

    def _submit_in_parts(self, request: InferRequest, admission: LargeAdmission) -> None:
        """Submit a request with more rows than a batch may have. Raises InferError if it is rejected."""
        if not can_split(request):
            raise self._rules.too_many_rows(admission.batch_size)
        self._rules.check_sizes(request, admission)
        request.batch_size = admission.batch_size
        size = self.config.max_batch_size
        parts = LargeRequest(request, size, version=self.version, submit=self.submit, cancel=self.cancel)
        parts.start()

    def _check_call(self, request: InferRequest, call: ModelCall) -> None:
        """Raise InferError(UNAVAILABLE) for a call that needs resources which the calls before it hold until its
        response.
        """
        instances = self._candidates(request) if call.held else ()
        if instances and all(id(instance) in call.held for instance in instances):
            raise call.deadlock(
                request,
                f"the calls before it hold every instance of model '{self.name}' that could execute it; use more "
                "instances (instance_group), or a decoupled model whose execute returns before its calls end",
            )
        if self._ordered is not None and any(parent.model is self for parent in call.ancestors()):
            raise call.deadlock(
                request,
                f"its response would have to follow that of an earlier request of model '{self.name}', which makes "
                "the call (preserve_ordering)",
            )

    def _candidates(self, request: InferRequest) -> Sequence[Instance]:
        """Return the instances that could execute a request: for a live sequence, its own instance."""
        index = self._dispatcher.instance_of(request)
        if index is None:
            return self.instances
        runners = [*self._dispatcher.runners, *self._dispatcher.runners.leaving]
        return [runner.instance for runner in runners if runner.index == index]

    def cancel(self, request: InferRequest) -> bool:
        """Drop a queued request and return True; only mark an executing one."""
        if request.cancelled:
            return False
        request.cancelled = True
        was_queued = self._dispatcher.cancel(request)
        if not was_queued:
            self._mark(request)
        return was_queued

    def _mark(self, request: InferRequest) -> None:
        """Notify the instance of a request's cancellation."""
        # Leaving runners finish their executions.
        leaving = [runner.instance for runner in list(self._dispatcher.runners.leaving)]
        for instance in (*self.instances, *leaving):
            if isinstance(instance, RemoteInstance):
                instance.mark(request)

    def check(self, now_ns: int) -> None:
        """Fail hung executions and slow clients; called about once a second."""
        decoupled_responses = self._dispatcher.decoupled_responses
        for request in () if decoupled_responses is None else decoupled_responses.slow_clients(now_ns):
            self._give_up_client(request, SLOW_CLIENT_S)
        for runner in self._dispatcher.runners:
            if runner.instance.unavailable_reason:
                self._dispatcher.reject_unexecutable(runner)
            elif self._execute_timeout_s:
                self._check_execution(runner, now_ns)

    def _check_execution(self, runner: InstanceRunner, now_ns: int) -> None:
        batch = runner.executing
        if batch is None or not batch.exec_start_ns:
            return
        since_ns = batch.exec_start_ns
        decoupled_responses = self._dispatcher.decoupled_responses
        if decoupled_responses is not None:
            since_ns = max(since_ns, *map(decoupled_responses.progress_ns, batch.requests))
        if now_ns - since_ns < self._execute_timeout_s * 1e9:
            return
        text = (
            f"an execution of instance {runner.index} of model '{self.name}' made no progress for "
            f"{self._execute_timeout_s:g} s (--execute-timeout-secs)"
        )
        if runner.abort(InferError(ErrorCode.UNAVAILABLE, text, reason=FailureReason.BACKEND)):
            _log.error("%s; the instance gets no requests until it returns", text)

    def abort(self, reason: str) -> None:
        """Fail all queued and executing requests with UNAVAILABLE: the server exits. On the loop."""
        self._dispatcher.abort(reason)

    def _give_up_client(self, request: InferRequest, limit_s: float) -> None:
        error = unavailable(
            f"the client has not taken the responses of model '{self.name}' that wait for it for {limit_s:g} s"
        )
        response = InferResponse(ResponseHeader(self.name, self.version, ()), error=error)
        if self._dispatcher.decoupled_responses is not None:
            self._dispatcher.decoupled_responses.emit(request, response)
        request.cancelled = True
        self._mark(request)

    def is_waiting(self, request: InferRequest) -> bool:
        """Return whether a submitted request waits for an instance."""
        return request.queue is not None

    # --- called on any thread -----------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """Requests queued for an instance."""
        return self._scheduler.pending_count

    @property
    def oldest_ns(self) -> int:
        """Arrival of the oldest queued request; 0 for an empty queue."""
        return self._dispatcher.oldest_ns

    @property
    def in_flight_count(self) -> int:
        """Requests queued or executing."""
        return self._dispatcher.in_flight_count

    @property
    def adaptive_state(self) -> AdaptiveState | None:
        """State of an adaptive batcher; None with any other scheduler."""
        return self._dispatcher.adaptive_state

    @property
    def resource_usage(self) -> Sequence[ResourceUsage]:
        """With a rate limiter, the state of the resources of the instances."""
        return () if self._resources is None else self._resources.usage()

    @property
    def live_sequence_count(self) -> int:
        """Live sequences."""
        return self._scheduler.live_sequence_count

    def close_to_new_sequences(self) -> None:
        """Accept only requests of live sequences from now on, for a sequence model."""
        self._dispatcher.close_to_new_sequences()

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances of this version."""
        return self._dispatcher.runners.instances

    @property
    def busy_instances(self) -> Collection[int]:
        """The instances whose runners have a batch, and so are not on the list of idle ones."""
        idle = {id(runner.instance) for runner in self._dispatcher.runners.idle}
        return {id(instance) for instance in self.instances} - idle

    @property
    def takes_device_tensors(self) -> bool:
        """Whether requests and responses may have a `DeviceTensor`: nothing but the instances reads their bytes."""
        return not self._transforms and any(instance.device is not None for instance in self.instances)

    @property
    def health(self) -> str:
        """Empty while at least one instance can execute, otherwise the reason."""
        return self._dispatcher.runners.health

    @property
    def lost_reason(self) -> str:
        """Empty unless every instance has died too often and rejects requests; then the reason."""
        are_down = all(instance.state is InstanceState.DOWN for instance in self.instances)
        return self.health if are_down else ""

    def change_instances(self, instances: Sequence[Instance], config: ModelConfig) -> RetiredInstances | None:
        """Continue with these instances, some of which are active; return the retired ones, which the caller stops.

        Accepted requests stay queued for the remaining instances. Only while `can_change_instances`.
        """
        runner_of = {id(runner.instance): runner for runner in self._dispatcher.runners}
        for instance in instances:
            if id(instance) not in runner_of:
                # The next number, which identifies the instance in sequence schedulers.
                runner_of[id(instance)] = self._runner_for(self._runner_count, instance)
                self._runner_count += 1
        self.config = config
        leaving = self._dispatcher.replace_runners([runner_of[id(instance)] for instance in instances])
        if not leaving:
            return None
        retired = RetiredInstances(self._dispatcher, leaving)
        self._retired = [*(each for each in self._retired if not each.have_ended), retired]
        return retired

    def stop(self, timeout_s: float) -> bool:
        """Reject new requests, let the accepted ones finish, close the instances.

        Returns whether all requests finished within `timeout_s`; the unfinished ones fail with UNAVAILABLE. Blocks,
        so it is called on a loading thread or at shutdown.
        """
        deadline_s = time.monotonic() + timeout_s
        have_finished = self._dispatcher.stop(deadline_s)
        open_requests = self._dispatcher.open_requests
        if open_requests is not None and not open_requests.wait_closed(max(0.0, deadline_s - time.monotonic())):
            error = unavailable(f"model '{self.name}' was stopped before it had sent its final response")
            open_requests.abandon(InferResponse(ResponseHeader(self.name, self.version, ()), error=error))
            have_finished = False
        if self._resources is not None:
            self._resources.close()
        for retired in self._retired:
            retired.wait(deadline_s)
        for instance in (*self.instances, *self.passive_instances):
            instance.close()
        self.backend_model.close()
        return have_finished
