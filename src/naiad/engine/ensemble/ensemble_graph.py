"""The graph of an ensemble: its steps, the tensors that each one waits for, and how shapes pass between its members.

`find_members` resolves the configurations of the members, or raises the error of the ensemble.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from naiad.backend.tensor_layout import TensorConfig
from naiad.config.model_config_pb2 import ModelConfig, ModelEnsembling
from naiad.config.validate.ensemble import condition_of, tensors_read
from naiad.core.errors import ErrorCode, InferError, internal, invalid_argument
from naiad.core.model import IndexEntry, ModelState, model_key
from naiad.core.request import RequestedOutput
from naiad.core.tensor import Shape, TensorSpec
from naiad.engine.serving.served import ModelRouter

_FITTED_LIMIT = 1024
"""Limit of the cached specs of an input."""
_PLAN_LIMIT = 256
"""Limit of the cached plans for selections of outputs."""
DEFAULT_LIMIT = 64
"""Steps after a decoupled one that execute at a time; also the number of waiting steps that pauses its member."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """One input of a member and its ensemble tensor."""

    name: str
    tensor: str
    is_optional: bool
    rank: int
    """Dimensions of the member's input, its batch dimension included."""
    _fitted: dict[int, tuple[TensorSpec, TensorSpec]] = field(default_factory=dict, compare=False, repr=False)
    """By the identity of a spec: the spec, which stays alive, and the member's spec."""

    def fit(self, spec: TensorSpec, *, from_batching: bool, to_batching: bool) -> TensorSpec:
        """Return a tensor's spec for the member; the same object for the same spec."""
        known = self._fitted.get(id(spec))
        if known is not None:
            return known[1]
        shape = bridge(spec.shape, self.rank, from_batching=from_batching, to_batching=to_batching)
        fitted = TensorSpec(self.name, spec.datatype, shape)
        if len(self._fitted) >= _FITTED_LIMIT:
            self._fitted.clear()
        self._fitted[id(spec)] = (spec, fitted)
        return fitted


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One step: a member, its inputs and its outputs."""

    index: int
    model_name: str
    """Key of the member in the engine."""
    model_version: str
    """"" for the newest ready version."""
    inputs: Sequence[StepInput]
    outputs: Mapping[str, str]
    """Output of the member to ensemble tensor."""
    requested: Sequence[RequestedOutput]
    """Triton: a step requests only the outputs in its output_map."""
    condition: str
    """The ensemble tensor that decides whether it runs; "" for always."""
    is_decoupled: bool
    is_batching: bool
    tensors: frozenset[str]
    """The ensemble tensors that it waits for."""
    level: frozenset[int]
    """The decoupled steps that its responses derive from."""
    has_device_inputs: bool = False
    """Whether an input may be a `DeviceTensor`."""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The part of a graph that produces the outputs of a request."""

    outputs: Sequence[str]
    """In the order of the response."""
    steps: Sequence[EnsembleStep]
    following: Sequence[Sequence[EnsembleStep]]
    """By the index of each step: the steps of the plan that read its outputs."""
    output_level: frozenset[int]
    """The decoupled steps that the outputs derive from."""


class EnsembleGraph:
    """The steps of one ensemble, from its configuration and the configurations of its members."""

    def __init__(
        self, config: ModelConfig, members: Mapping[str, ModelConfig], device_steps: frozenset[int] = frozenset()
    ) -> None:
        """Raise InferError(INVALID_ARG) for conflicts with the members; the configuration itself is valid.

        `device_steps` are the indices of the steps whose members take and return tensors of devices.
        """
        self.name = config.name
        self.is_batching = config.max_batch_size > 0
        self._device_tensors = _device_tensors(config, device_steps)
        self.steps = self._with_levels([self._step(config, members, i) for i in range(len(_steps_of(config)))])
        self.is_decoupled = any(step.is_decoupled for step in self.steps)
        self._writers = {tensor: step for step in self.steps for tensor in step.outputs.values()}
        self.inputs = [tensor.name for tensor in config.input]
        self.outputs = [output.name for output in config.output]
        self.reshaped = {tensor.name: TensorConfig(tensor) for tensor in config.input if tensor.HasField("reshape")}
        """Inputs with another shape in the steps than for clients."""
        self._entered: dict[int, tuple[TensorSpec, TensorSpec]] = {}
        self._outputs = {output.name: TensorConfig(output) for output in config.output}
        self.output_ranks = {
            name: len(output.model_dims) + self.is_batching for name, output in self._outputs.items()
        }
        self.limit = config.ensemble_scheduling.max_inflight_requests
        """Maximum of requests of one step that execute at a time; 0 for any number."""
        self.pause_count = self.limit or DEFAULT_LIMIT
        self._check_decoupled()
        self._whole = self._plan(self.outputs, self.steps)
        self._plans: dict[tuple[str, ...], Subgraph] = {}

    def plan_for(self, requested: Sequence[RequestedOutput]) -> Subgraph:
        """Return the steps that the requested outputs need; the whole graph when none are named."""
        if not requested:
            return self._whole
        names = tuple([output.name for output in requested])
        plan = self._plans.get(names)
        if plan is None:
            if len(self._plans) >= _PLAN_LIMIT:
                self._plans.clear()
            plan = self._plans[names] = self._plan(names, self._steps_behind(names))
        return plan

    def _steps_behind(self, outputs: Sequence[str]) -> Sequence[EnsembleStep]:
        """Return the steps that write `outputs`, and the steps they depend on."""
        needed: set[int] = set()
        tensors = list(outputs)
        while tensors:
            writer = self._writers.get(tensors.pop())
            if writer is not None and writer.index not in needed:
                needed.add(writer.index)
                tensors += writer.tensors
        return [step for step in self.steps if step.index in needed]

    def _plan(self, outputs: Sequence[str], steps: Sequence[EnsembleStep]) -> Subgraph:
        following = [
            [reader for reader in steps if not reader.tensors.isdisjoint(step.outputs.values())]
            for step in self.steps
        ]
        return Subgraph(outputs, steps, following, self._level_of(outputs))

    def writer_of(self, tensor: str) -> tuple[EnsembleStep, str] | None:
        """Return the step that writes a tensor, and the output of its member; None for an input."""
        step = self._writers.get(tensor)
        if step is None:
            return None
        return step, next(output for output, written in step.outputs.items() if written == tensor)

    def enter(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of an input in the steps; the same object for the same spec."""
        config = self.reshaped.get(spec.name)
        if config is None:
            return spec
        known = self._entered.get(id(spec))
        if known is None:
            head = spec.shape[: int(self.is_batching)]
            shape = (*head, *config.to_model(spec.shape[len(head) :]))
            if len(self._entered) >= _FITTED_LIMIT:
                self._entered.clear()
            known = self._entered[id(spec)] = (spec, TensorSpec(spec.name, spec.datatype, shape))
        return known[1]

    def leave(self, name: str, shape: Shape) -> Shape:
        """Return the shape of an output for clients. Raises InferError(INTERNAL) if it does not fit."""
        config = self._outputs[name]
        if config.model_dims == config.dims:
            return shape
        head = shape[: int(self.is_batching)]
        tail = config.to_client(shape[len(head) :])
        if tail is None or math.prod(tail) != math.prod(shape[len(head) :]):
            raise internal(
                f"output '{name}' of ensemble '{self.name}' has the shape {list(shape)}, but its 'reshape' is "
                f"written for {list(config.model_dims)}"
            )
        return (*head, *tail)

    def _step(self, config: ModelConfig, members: Mapping[str, ModelConfig], index: int) -> EnsembleStep:
        step = _steps_of(config)[index]
        member = members[step.model_name]
        is_batching = member.max_batch_size > 0
        known = {tensor.name: tensor for tensor in member.input}
        condition = condition_of(config, step)
        return EnsembleStep(
            index=index,
            model_name=model_key(step.model_namespace, step.model_name),
            model_version=_version_of(step),
            inputs=[
                StepInput(name, tensor, known[name].optional, len(known[name].dims) + is_batching)
                for name, tensor in step.input_map.items()
            ],
            outputs=dict(step.output_map),
            requested=tuple(
                RequestedOutput(name, may_be_missing=True, stays_on_device=tensor in self._device_tensors)
                for name, tensor in step.output_map.items()
            ),
            condition=condition,
            is_decoupled=member.model_transaction_policy.decoupled,
            is_batching=is_batching,
            tensors=frozenset(tensors_read(config, step)),
            level=frozenset(),
            has_device_inputs=not self._device_tensors.isdisjoint(step.input_map.values()),
        )

    def _with_levels(self, steps: Sequence[EnsembleStep]) -> list[EnsembleStep]:
        """Return the steps with the decoupled steps that each derives from."""
        writers = {tensor: step for step in steps for tensor in step.outputs.values()}
        levels: dict[int, frozenset[int]] = {}

        def level_of(step: EnsembleStep) -> frozenset[int]:
            if step.index not in levels:
                before = [writers[tensor] for tensor in step.tensors if tensor in writers]
                levels[step.index] = frozenset().union(*(_level_behind(w, level_of(w)) for w in before))
            return levels[step.index]

        return [replace(step, level=level_of(step)) for step in steps]

    def _check_decoupled(self) -> None:
        for step in self.steps:
            self._check_chain(step.level, step.model_name)
        self._check_chain(self._level_of(self.outputs), self.name)

    def _level_of(self, outputs: Sequence[str]) -> frozenset[int]:
        """Return the decoupled steps that some outputs derive from."""
        writers = [self._writers[name] for name in outputs if name in self._writers]
        return frozenset[int]().union(*(_level_behind(step, step.level) for step in writers))

    def _check_chain(self, level: frozenset[int], model_name: str) -> None:
        for a in level:
            for b in level:
                if a != b and a not in self.steps[b].level and b not in self.steps[a].level:
                    names = sorted((self.steps[a].model_name, self.steps[b].model_name))
                    raise invalid_argument(
                        f"in ensemble {self.name}, step of model '{model_name}' receives inputs originated from "
                        f"different decoupled models: '{names[0]}' and '{names[1]}'"
                    )


def _steps_of(config: ModelConfig) -> Sequence[ModelEnsembling.Step]:
    return config.ensemble_scheduling.step


def _device_tensors(config: ModelConfig, device_steps: frozenset[int]) -> frozenset[str]:
    """Return the tensors of an ensemble that stay on their device: written and read by `device_steps` alone."""
    written: set[str] = set()
    elsewhere = {output.name for output in config.output}
    for index, step in enumerate(_steps_of(config)):
        elsewhere.add(condition_of(config, step))
        if index in device_steps:
            written.update(step.output_map.values())
        else:
            elsewhere.update(step.input_map.values())
    return frozenset(written - elsewhere)


def find_device_steps(config: ModelConfig, router: ModelRouter) -> frozenset[int]:
    """Return the indices of the steps whose members take and return tensors of devices. Raises InferError."""
    steps = _steps_of(config)
    members = [router.served(model_key(each.model_namespace, each.model_name), _version_of(each)) for each in steps]
    return frozenset(index for index, member in enumerate(members) if member.takes_device_tensors)


def _version_of(step: ModelEnsembling.Step) -> str:
    return "" if step.model_version < 0 else str(step.model_version)


def _level_behind(step: EnsembleStep, level: frozenset[int]) -> frozenset[int]:
    return level | {step.index} if step.is_decoupled else level


def bridge(shape: Shape, rank: int, *, from_batching: bool, to_batching: bool) -> Shape:
    """Return the member's shape of a tensor of `shape`.

    Triton: a batch of one loses its first dimension on the way into a member that does not batch, and a tensor of a
    member that does not batch gets a first dimension of one, if the number of dimensions requires it.
    """
    if from_batching and not to_batching and len(shape) == rank + 1 and shape[0] == 1:
        return shape[1:]
    if to_batching and not from_batching and len(shape) == rank - 1:
        return (1, *shape)
    return shape


def find_members(
    config: ModelConfig, router: ModelRouter, index: Callable[[], Sequence[IndexEntry]]
) -> dict[str, ModelConfig]:
    """Return the configurations of the models of all steps, by name. Raises InferError with Triton's texts.

    `index` returns the rows of the repository index, for the reason of a missing member.
    """
    members: dict[str, ModelConfig] = {}
    for step in config.ensemble_scheduling.step:
        try:
            member = router.served(model_key(step.model_namespace, step.model_name), _version_of(step))
        except InferError as error:
            raise _missing_member(config.name, step, index(), error) from None
        members[step.model_name] = member.config
    return members


def _missing_member(
    ensemble: str, step: ModelEnsembling.Step, index: Sequence[IndexEntry], error: InferError
) -> InferError:
    name = step.model_name
    key = model_key(step.model_namespace, name)
    rows = [row for row in index if row.name == key and row.version]
    if not rows:
        # Members load before their ensemble, so this one does not exist, although the server is still loading.
        is_loading = error.code is ErrorCode.UNAVAILABLE
        reason = f"Request for unknown model: '{name}' is not found" if is_loading else error.message
        return invalid_argument(
            f"ensemble {ensemble} contains models that are not available or ambiguous: {name}; {reason}"
        )
    opening = f"ensemble '{ensemble}' depends on '{name}'"
    if any(row.state is ModelState.READY for row in rows) and step.model_version >= 0:
        return invalid_argument(
            f"{opening} whose required version {step.model_version} is not loaded. {error.message}"
        )
    reason = next((row.reason for row in rows if row.reason), error.message)
    return invalid_argument(
        f"{opening} which has no loaded version. Model '{name}' loading failed with error: {reason}"
    )
