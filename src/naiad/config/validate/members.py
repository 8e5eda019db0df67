"""Checks of an ensemble against its members: names, datatypes and shapes of tensors between models."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from naiad.config.forms.findings import Findings
from naiad.config.forms.pbtxt.lexer import ParsedConfig, map_path
from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelEnsembling, ModelInput, ModelOutput
from naiad.config.problem import Problem, nearest


@dataclass(frozen=True, slots=True)
class _Inferred:
    """Datatype and shape of an ensemble tensor according to one model."""

    model_name: str
    is_batching: bool
    datatype: int
    dims: Sequence[int]

    @property
    def full_dims(self) -> list[int]:
        """The dims with the batch dimension."""
        return [-1, *self.dims] if self.is_batching else list(self.dims)


def ensemble_member_problems(
    config: ModelConfig, members: Mapping[str, ModelConfig], parsed: ParsedConfig | None = None
) -> list[Problem]:
    """Return the mismatches between an ensemble and its members; `members` has every available model by name.

    A member with unknown inputs or outputs (they are auto-completed) is not compared.
    """
    return _MemberChecks(Findings(config, parsed), members).run()


def has_decoupled_member(config: ModelConfig, members: Mapping[str, ModelConfig]) -> bool:
    """Return whether an ensemble is decoupled, as its members are. Triton ignores the ensemble's own policy."""
    steps = config.ensemble_scheduling.step
    return any(members[step.model_name].model_transaction_policy.decoupled for step in steps)


class _MemberChecks:
    """Checks the steps in order; the first model with a tensor determines what later ones must match."""

    def __init__(self, findings: Findings, members: Mapping[str, ModelConfig]) -> None:
        self._findings = findings
        self._members = members
        config = findings.config
        self._name = config.name
        own: Iterable[ModelInput | ModelOutput] = [*config.input, *config.output]
        self._tensors = {each.name: _of_ensemble(config, each) for each in own if each.dims}

    def run(self) -> list[Problem]:
        """Return all problems."""
        missing: list[str] = []
        for index, step in enumerate(self._findings.config.ensemble_scheduling.step):
            path = f"ensemble_scheduling.step[{index}]"
            member = self._members.get(step.model_name)
            if member is not None:
                self._check_batch_size(member, path)
                self._check_inputs(step, member, path)
                self._check_outputs(step, member, path)
            elif step.model_name and step.model_name not in missing:
                missing.append(step.model_name)
                self._findings.error_as_is(
                    f"ensemble {self._name} contains models that are not available or ambiguous: {step.model_name}",
                    f"{path}.model_name",
                    expected="one of " + ", ".join(sorted(self._members.keys() - {self._name})),
                    suggestion=nearest(step.model_name, self._members),
                )
        return self._findings.problems

    def _check_batch_size(self, member: ModelConfig, path: str) -> None:
        # Triton: members without batches may be part of an ensemble with batches, if the full shapes match.
        rows = self._findings.config.max_batch_size
        if 0 < member.max_batch_size < rows:
            self._findings.error_as_is(
                f"ensemble {self._name} allows maximum batch size {rows}, but it contains model {member.name} which "
                f"only allows maximum batch size to be {member.max_batch_size}",
                path,
                expected=f"max_batch_size of at most {member.max_batch_size}",
            )

    def _check_inputs(self, step: ModelEnsembling.Step, member: ModelConfig, path: str) -> None:
        known = {tensor.name: tensor for tensor in member.input}
        if not known:
            return
        opening = f"in ensemble {self._name}, "
        for key, tensor in sorted(step.input_map.items()):
            key_path = map_path(f"{path}.input_map", key)
            if key in known:
                self._check_fit(tensor, _of_member(member, known[key]), key_path)
                continue
            self._findings.error_as_is(
                f"{opening}ensemble tensor {tensor} is mapping to non-existing input {key} in model {member.name}",
                key_path,
                expected="one of " + ", ".join(known),
                suggestion=nearest(key, known),
            )
        for name in sorted(known.keys() - set(step.input_map)):
            if not known[name].optional:
                self._findings.error_as_is(
                    f"{opening}input {name} in model {member.name} is not mapped to any ensemble tensors",
                    f"{path}.input_map",
                    expected=f'an entry with key: "{name}"',
                )

    def _check_outputs(self, step: ModelEnsembling.Step, member: ModelConfig, path: str) -> None:
        known = {tensor.name: tensor for tensor in member.output}
        if not known:
            return
        for key, tensor in sorted(step.output_map.items()):
            key_path = map_path(f"{path}.output_map", key)
            if key in known:
                self._check_fit(tensor, _of_member(member, known[key]), key_path)
                continue
            self._findings.error_as_is(
                f"in ensemble {self._name}, ensemble tensor {tensor} is mapped from non-existing output {key} in "
                f"model {member.name}",
                key_path,
                expected="one of " + ", ".join(known),
                suggestion=nearest(key, known),
            )

    def _check_fit(self, tensor: str, found: _Inferred, path: str) -> None:
        """Compare a member's view of a tensor with the previous ones, in Triton's words."""
        if not found.dims:
            return
        first = self._tensors.setdefault(tensor, found)
        opening = f"in ensemble {self._name}, ensemble tensor {tensor}: "
        if first.datatype != found.datatype:
            before, here = DataType.Name(first.datatype), DataType.Name(found.datatype)
            self._findings.error_as_is(
                f"{opening}inconsistent data type: {before} is inferred from model {first.model_name} while {here} "
                f"is inferred from model {found.model_name}",
                path,
                expected=self._remedy(first, here),
            )
        if not _dims_fit(first.dims, found.dims) and not _dims_fit(first.full_dims, found.full_dims):
            before, here = _text(first.full_dims), _text(found.full_dims)
            wanted = found.dims if first.is_batching else found.full_dims
            self._findings.error_as_is(
                f"{opening}inconsistent shape: {before} is inferred from model {first.model_name} while {here} is "
                f"inferred from model {found.model_name}",
                path,
                expected=self._remedy(first, f"dims: {_text(wanted)}"),
            )

    def _remedy(self, first: _Inferred, wanted: str) -> str:
        if first.model_name == self._name:
            return f"{wanted} in the ensemble's own configuration"
        return "models that agree, or a step between them that converts"


def _of_ensemble(config: ModelConfig, tensor: ModelInput | ModelOutput) -> _Inferred:
    # Triton compares the shapes as the members see them.
    dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    return _Inferred(config.name, config.max_batch_size > 0, tensor.data_type, dims)


def _of_member(config: ModelConfig, tensor: ModelInput | ModelOutput) -> _Inferred:
    return _Inferred(config.name, config.max_batch_size > 0, tensor.data_type, tensor.dims)


def _text(dims: Sequence[int]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"


def _dims_fit(a: Sequence[int], b: Sequence[int]) -> bool:
    return len(a) == len(b) and all(x == y or -1 in (x, y) for x, y in zip(a, b, strict=True))
