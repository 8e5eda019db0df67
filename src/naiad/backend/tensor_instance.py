"""The instance of a framework that computes on whole tensors: an assembler gathers and scatters, the adapter runs.

An adapter implements `run` and, if its framework can work on fixed buffers, `stage`.
"""

import abc
import time
from collections.abc import Mapping, Sequence, Set
from typing import Any, cast

from naiad.backend import device_tensors
from naiad.backend.api import Instance, ModelContext
from naiad.backend.assembler import BatchAssembler, BatchPlan, StagedRun
from naiad.backend.device_tensors import DLPackTensor, Tensor
from naiad.config.execution_tensors import execution_config
from naiad.core.batch import Batch
from naiad.core.device_tensor import Device
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Array, TensorSpec

_now_ns = time.monotonic_ns
_join = b"".join


class TensorInstance(Instance):
    """Gathers the inputs of a batch into one array each, calls `run`, and splits the outputs into responses."""

    executable: Any = None
    """What the framework runs: a function, a session. Other instances may share it; `close` forgets it."""

    def __init__(self, context: ModelContext, device: Device | None = None) -> None:
        """`device`: where `run_on_device` takes tensors; None for an instance without that method."""
        self._model_name = context.name
        self.device = device
        version = str(context.version)
        config = execution_config(context.config)
        self._assembler = BatchAssembler(config, context.name, version, self.to_host, device)
        self._table = self._assembler.table
        self._is_batching = self._table.is_batching
        self._may_stage = True
        self._error_header = ResponseHeader(context.name, version, ())
        # Looked up once: they are called for each batch.
        self._plans = self._assembler.plans
        self._gather, self._scatter = self._assembler.gather, self._assembler.scatter
        self._split = self._assembler.split

    def close(self) -> None:
        """Forget the executable, and staged runs, which hold what the framework has of it. See `Instance.close`."""
        self.executable = None
        self._plans.clear()

    @abc.abstractmethod
    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Tensor]:
        """Return one tensor per name in `output_names`, in that order.

        `inputs` has an array per configured input that the requests carry, batch dimension first if the model
        batches, with the model's own shape where the configuration has a `reshape`. Arrays are C-contiguous, aligned
        and often read-only; BYTES arrives as an object array of `bytes`.

        Returns numpy arrays, or tensors with `__dlpack__` and `__dlpack_device__`, which `to_host` makes arrays of.
        They must stay unchanged afterwards; BYTES is returned as an array of bytes or str.

        Raises InferError, with INVALID_ARG when the values of an input are at fault: then the requests of the batch
        are executed one by one, and only the faulty ones fail. Anything else that it raises is reported as a bug.
        """

    def run_into(
        self, inputs: dict[str, Array], output_names: Sequence[str], destinations: Mapping[str, memoryview]
    ) -> Sequence[Array] | None:
        """Do what `run` does, with outputs written to the client's memory, or return None where it cannot be done.

        `destinations` has writable memory for some of the outputs; each of them must be returned as an array at the
        beginning of its memory. After None, `run` is called with the same `inputs`: so it is after any failure
        here.
        """
        return None

    def run_on_device(
        self, inputs: dict[str, Any], output_names: Sequence[str], staying: Set[str]
    ) -> Sequence[Tensor]:
        """Do what `run` does with tensors that stay on `device`: of steps of ensembles, and in CUDA shared memory.

        Inputs may be DLPack tensors on `device`, C-contiguous and aligned, with the shapes that arrays would have.
        The model must not write to them: other steps read them. It has read them when this returns. Outputs in
        `staying` may be returned as such tensors, complete: no work on them is in progress. They need `shape` and
        `dtype` (numpy's name of the datatype) to remain there, and slicing for batches of several requests.
        """
        return self.run(inputs, output_names)

    def stage(self, inputs: Sequence[TensorSpec], output_names: Sequence[str]) -> StagedRun | None:
        """Return a run on fixed buffers for inputs of exactly these shapes, or None where `run` is better.

        The shape of every output must be known beforehand. When a staged run raises, `run` is called with the same
        inputs, and what that returns or raises counts.
        """
        return None

    @staticmethod
    def to_host(tensor: DLPackTensor) -> Array:
        """Return an output that is no array as one: without a copy where it is in host memory. Raises BufferError.

        Override it for a framework that copies from its device in another way than through DLPack.
        """
        return device_tensors.to_host(tensor)

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        """Execute `batch`; see `Instance.execute`."""
        # hot: bench/micro_tensor_instance.py
        requests = batch.requests
        count = len(requests)
        layout = requests[0].header.layout or requests[0].header
        plan = self._plans.get((layout, count))
        if plan is None or (count > 1 and [r.header.layout or r.header for r in requests].count(layout) != count):
            plan = self._find_plan(requests)
            if plan is None:
                return self._execute_mixed(batch)
        if plan.staged is not None and (responses := self._execute_staged(batch, plan, plan.staged)) is not None:
            return responses
        inputs = self._gather(plan, requests)
        if plan.is_large and all(array.flags.owndata for array in inputs.values()):
            # All of it was copied: the received message need not stay in memory while the model runs.
            requests[0].data = ()
        batch.compute_start_ns = _now_ns()
        if plan.has_destinations and (responses := self._execute_placed(batch, plan, inputs)) is not None:
            return responses
        try:
            tensors = self.run(inputs, plan.output_names)
        except InferError as error:
            if count > 1 and error.code is ErrorCode.INVALID_ARG:
                return self._execute_one_by_one(batch)
            raise
        batch.compute_end_ns = _now_ns()
        if plan.staged is not None:
            # It works, only not with the buffers: what `stage` knows of this model's outputs is wrong.
            plan.unstage()
            self._may_stage = False
        return self._scatter(plan, tensors)

    def _find_plan(self, requests: Sequence[InferRequest]) -> BatchPlan | None:
        plan = self._assembler.find_plan(requests)
        if plan is not None and not plan.was_staged:
            plan.was_staged = True
            self._try_to_stage(plan)
        return plan

    def _try_to_stage(self, plan: BatchPlan) -> None:
        specs = plan.input_specs() if self._may_stage else None
        staged = None if specs is None else self.stage(specs, plan.output_names)
        if staged is not None:
            self._assembler.learn_outputs(plan, staged.outputs)
            plan.targets = [(view, item[1]) for view, item in zip(staged.inputs, plan.inputs, strict=True)]
            plan.staged = staged

    def _execute_staged(self, batch: Batch, plan: BatchPlan, staged: StagedRun) -> Sequence[InferResponse] | None:
        requests = batch.requests
        try:
            if plan.count == 1:
                data = requests[0].data
                for target, position in plan.targets:
                    target[:] = data[position]
            else:
                for target, position in plan.targets:
                    target[:] = _join([r.data[position] for r in requests])
            batch.compute_start_ns = _now_ns()
            staged.run()
            batch.compute_end_ns = _now_ns()
        except Exception:  # the same batch is run without buffers at once, which shows the reason
            return None
        return self._split(plan, staged.outputs)  # learned when the plan was staged

    def _execute_placed(
        self, batch: Batch, plan: BatchPlan, inputs: dict[str, Array]
    ) -> Sequence[InferResponse] | None:
        """Execute a single request with outputs where the client wants them; None when that cannot be done."""
        # The plan is not for a header of devices, so that all of it is host memory.
        destinations = cast("Mapping[str, memoryview] | None", batch.requests[0].destinations)
        arrays = self.run_into(inputs, plan.output_names, destinations) if destinations else None
        if arrays is None or destinations is None:
            return None
        batch.compute_end_ns = _now_ns()
        (response,) = self._scatter(plan, arrays)
        pairs = zip(plan.output_names, response.data, strict=True)
        response.data = [b"" if name in destinations else data for name, data in pairs]
        return [response]

    def _execute_mixed(self, batch: Batch) -> Sequence[InferResponse]:
        """Execute requests that fit together but differ in rows, ragged shapes, order of inputs or outputs wanted."""
        plan = self._assembler.gather_mixed(batch.requests)
        if plan is None:
            return self._execute_one_by_one(batch)
        batch.compute_start_ns = _now_ns()
        try:
            if plan.is_on_device:
                tensors = self.run_on_device(plan.inputs, plan.output_names, plan.staying)
            else:
                tensors = self.run(plan.inputs, plan.output_names)
        except InferError as error:
            if error.code is ErrorCode.INVALID_ARG and len(batch.requests) > 1:
                return self._execute_one_by_one(batch)
            raise
        batch.compute_end_ns = _now_ns()
        responses = self._assembler.scatter_mixed(plan, tensors)
        if plan.staying:
            device_tensors.take_to_places(batch.requests, responses)
        return responses

    def _execute_one_by_one(self, batch: Batch) -> Sequence[InferResponse]:
        """Execute each request alone, so that only those fail whose inputs are refused."""
        start_ns = batch.compute_start_ns or _now_ns()
        responses: list[InferResponse] = []
        for request in batch.requests:
            single = Batch([request], request.batch_size, batch.release_reason)
            try:
                responses += self.execute(single)
            except InferError as error:
                if error.code is not ErrorCode.INVALID_ARG:
                    raise
                responses.append(InferResponse(self._error_header, error=error))
        batch.compute_start_ns = start_ns
        batch.compute_end_ns = _now_ns()
        return responses
