"""What the `config` of a load may change when its client has no permission for model files: one table.

A configuration names files, programs, libraries and environments, and it turns protections on. All of that belongs to
the owner of the repository. A client that may load models, but may not bring model files, changes how a model is
scheduled and nothing else: what `ALLOWED` and `ALLOWED_PARAMETERS` list. Every other field keeps the owner's value:
one that the override leaves out gets it, and one with another value is refused by name. So a field that is new in the
schema is the owner's until this table lists it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from naiad.config.backends import canonical_name
from naiad.config.forms.schema import Field, is_map, is_message, is_repeated
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.naiad_parameters import GOAL, SWITCH
from naiad.config.tensors.padding import CUT_PREFIX, PAD_BATCH, PAD_PREFIX
from naiad.core.errors import excerpt, permission_denied

ALLOWED: Mapping[str, str] = {
    # What a request has to look like; the backend compares it with the model.
    "": "name max_batch_size",
    "input": "name data_type format dims is_shape_tensor allow_ragged_batch optional is_non_linear_format_io",
    "input.reshape": "shape",
    "output": "name data_type dims is_shape_tensor is_non_linear_format_io",
    "output.reshape": "shape",
    "model_transaction_policy": "decoupled",
    # Which versions serve.
    "version_policy.latest": "num_versions",
    "version_policy.all": "",
    "version_policy.specific": "versions",
    # How requests wait and form batches.
    "dynamic_batching": (
        "preferred_batch_size max_queue_delay_microseconds preserve_ordering priority_levels default_priority_level"
    ),
    "dynamic_batching.default_queue_policy": (
        "timeout_action default_timeout_microseconds allow_timeout_override max_queue_size"
    ),
    "dynamic_batching.priority_queue_policy": (
        "timeout_action default_timeout_microseconds allow_timeout_override max_queue_size"
    ),
    "sequence_batching": "max_sequence_idle_microseconds",
    "sequence_batching.direct": "max_queue_delay_microseconds minimum_slot_utilization",
    "sequence_batching.oldest": (
        "max_candidate_sequences preferred_batch_size max_queue_delay_microseconds preserve_ordering"
    ),
    "ensemble_scheduling": "max_inflight_requests",
    # How many instances there are, within the budget of a load, and when they execute.
    "instance_group": "name kind count gpus profile passive",
    "instance_group.rate_limiter": "priority",
    "instance_group.rate_limiter.resources": "name global count",
    # Numbers and switches without a file.
    "optimization": "priority gather_kernel_buffer_threshold eager_batching",
    "optimization.graph": "level",
    "optimization.input_pinned_memory": "enable",
    "optimization.output_pinned_memory": "enable",
    "response_cache": "enable",
    # Samples of zeros and random numbers, within the budget of a load.
    "model_warmup": "name batch_size count",
    "model_warmup.inputs": "data_type dims zero_data random_data",
}
"""The fields that every client may change, by the path of their message; a message without fields may be set."""

THREADS = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "INTRA_OP_THREAD_COUNT",
    "INTER_OP_THREAD_COUNT",
    "NUM_THREADS",
    "NUM_INTEROP_THREADS",
    "INFERENCE_NUM_THREADS",
    "COMPILATION_NUM_THREADS",
    "NUM_STREAMS",
    "TF_NUM_INTRA_THREADS",
    "TF_NUM_INTER_THREADS",
    "num_threads",
    "nthread",
    "n_jobs",
)
"""Parameters with numbers of threads; the budget of a load bounds them."""
ALLOWED_PARAMETERS = frozenset(
    (*THREADS, SWITCH, GOAL, PAD_BATCH, "execution_mode", "threshold", "PERFORMANCE_HINT", "ENABLE_CPU_PINNING")
)
"""The `parameters` that every client may change."""
ALLOWED_PARAMETER_PREFIXES = (PAD_PREFIX, CUT_PREFIX)
_PARAMETERS = "parameters"

_LEAVES = frozenset(
    f"{message}.{name}" if message else name for message, names in ALLOWED.items() for name in names.split()
)
_MESSAGES = frozenset(
    ".".join(message.split(".")[:depth]) for message in ALLOWED for depth in range(1, message.count(".") + 2)
)
_MOST_NAMED = 10

Message = Any
"""A message of ModelConfig's schema; the published types of protobuf know no common reflection."""


def is_allowed(path: str) -> bool:
    """Return whether every client may change a field; the path has no indexes and no keys: `input.dims`."""
    return path in _LEAVES


def is_allowed_parameter(key: str) -> bool:
    """Return whether every client may change one of `parameters`."""
    return key in ALLOWED_PARAMETERS or key.startswith(ALLOWED_PARAMETER_PREFIXES)


def limited_override(override: ModelConfig, owner: ModelConfig, known: Iterable[ModelConfig] = ()) -> ModelConfig:
    """Return the override with the owner's values in all fields that are not in the table.

    `owner` is the configuration on disk, `known` are the same with what the server has completed: a value that
    equals one of theirs is no change. Raises InferError(PERMISSION_DENIED) that names every field with another value.
    """
    result = ModelConfig()
    result.CopyFrom(override)
    merge = _Merge()
    merge.message(result, [owner, *known], "", "")
    if merge.refused:
        shown = ", ".join(f"'{excerpt(place)}'" for place in merge.refused[:_MOST_NAMED])
        more = len(merge.refused) - _MOST_NAMED
        raise permission_denied(
            f"config override of model '{excerpt(override.name)}': {shown}{f' and {more} more' if more > 0 else ''}: "
            "only the owner of the repository sets this; leave it out to keep the owner's value, or write it in "
            "config.pbtxt. Clients may set it with an API key for the category 'model-repository' (--api-key-file), "
            "if that category is restricted (--http-restricted-api, --grpc-restricted-protocol), or if the server "
            "runs with --allow-client-model-files=true"
        )
    return result


class _Merge:
    """Walks an override beside the owner's configurations; the first of them is the one on disk."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def message(self, own: Message, owners: Sequence[Message], path: str, place: str) -> None:
        """Complete a message in place. `path` is that of the schema, `place` has indexes and keys as well."""
        for field in own.DESCRIPTOR.fields:
            inner_path = f"{path}.{field.name}" if path else field.name
            inner_place = f"{place}.{field.name}" if place else field.name
            if is_map(field):
                self._map(own, owners, field, inner_path, inner_place)
            elif is_message(field) and is_repeated(field):
                self._list(own, owners, field, inner_path, inner_place)
            elif is_message(field):
                self._singular(own, owners, field, inner_path, inner_place)
            elif not is_allowed(inner_path):
                self._value(own, owners, field, inner_path, inner_place)

    def _value(self, own: Message, owners: Sequence[Message], field: Field, path: str, place: str) -> None:
        value = getattr(own, field.name)
        if not _is_set(own, field):
            if owners and _is_set(owners[0], field) and _has_room(own, field):
                _copy(own, owners[0], field)
        elif not any(_same(path, value, getattr(owner, field.name)) for owner in owners):
            self.refused.append(place)

    def _singular(self, own: Message, owners: Sequence[Message], field: Field, path: str, place: str) -> None:
        inner_owners = [getattr(owner, field.name) for owner in owners if owner.HasField(field.name)]
        if own.HasField(field.name):
            inner = getattr(own, field.name)
            is_new = not inner_owners and path not in _MESSAGES
            if is_new and not inner.ByteSize() and field.containing_oneof is not None:
                self.refused.append(place)  # the message alone chooses
            self.message(inner, inner_owners, path, place)
            return
        if owners and owners[0].HasField(field.name) and _has_room(own, field):
            kept = type(inner_owners[0])()
            self.message(kept, inner_owners, path, place)
            if kept.ByteSize():
                getattr(own, field.name).CopyFrom(kept)

    def _list(self, own: Message, owners: Sequence[Message], field: Field, path: str, place: str) -> None:
        items = getattr(own, field.name)
        others = [getattr(owner, field.name) for owner in owners]
        if path not in _MESSAGES:
            if not items and others:
                items.extend(others[0])
            elif items and not any(list(items) == list(other) for other in others):
                self.refused += _changed_leaves(items, others, place) or [place]
            return
        named = [_by_name(other) for other in others]
        for index, item in enumerate(items):
            pairs = [_partner(item, index, other, names) for other, names in zip(others, named, strict=True)]
            self.message(item, [pair for pair in pairs if pair is not None], path, f"{place}[{index}]")

    def _map(self, own: Message, owners: Sequence[Message], field: Field, path: str, place: str) -> None:
        entries = getattr(own, field.name)
        others = [getattr(owner, field.name) for owner in owners]
        has_messages = is_message(field.message_type.fields_by_name["value"])
        for key in sorted(entries):
            inner_place = f'{place}["{key}"]' if isinstance(key, str) else f"{place}[{key}]"
            same_key = [other[key] for other in others if key in other]
            if path in _MESSAGES:
                self.message(entries[key], same_key, path, inner_place)
            elif not _is_listed_key(path, key) and entries[key] not in same_key:
                self.refused.append(inner_place)
        if path in _MESSAGES or not others:
            return
        for key in others[0]:
            if key in entries or _is_listed_key(path, key):
                continue
            if has_messages:
                entries[key].CopyFrom(others[0][key])
            else:
                entries[key] = others[0][key]


def _is_listed_key(path: str, key: object) -> bool:
    return path == _PARAMETERS and isinstance(key, str) and is_allowed_parameter(key)


def _is_set(message: Message, field: Field) -> bool:
    if field.containing_oneof is not None:
        return bool(message.HasField(field.name))
    value = getattr(message, field.name)
    return len(value) > 0 if is_repeated(field) else value != field.default_value


def _has_room(message: Message, field: Field) -> bool:
    """Return whether a field may be set without removing another choice of the override."""
    oneof = field.containing_oneof
    return oneof is None or message.WhichOneof(oneof.name) is None


def _copy(own: Message, owner: Message, field: Field) -> None:
    value = getattr(owner, field.name)
    if is_repeated(field):
        getattr(own, field.name).extend(value)
    else:
        setattr(own, field.name, value)


def _same(path: str, ours: object, owners: object) -> bool:
    if path == "backend":
        return canonical_name(str(ours)) == canonical_name(str(owners))
    return ours == owners


def _by_name(others: Any) -> Mapping[str, Message]:
    """Return the elements of a list by their name, the first of each; empty if they have no names."""
    has_names = bool(others) and "name" in others[0].DESCRIPTOR.fields_by_name
    return {other.name: other for other in reversed(others)} if has_names else {}


def _partner(item: Message, index: int, others: Any, named: Mapping[str, Message]) -> Message | None:
    """Return the owner's element of a list: the one of the same name, without a name the one at the same place."""
    same_place = others[index] if index < len(others) else None
    if "name" not in item.DESCRIPTOR.fields_by_name or not item.name:
        return same_place
    same_name = named.get(item.name)
    return same_place if same_name is None and same_place is not None and not same_place.name else same_name


def _changed_leaves(items: Any, others: Sequence[Any], place: str) -> list[str]:
    """Return the fields with values of those elements of a list that none of the owner's lists has at their place."""
    found: list[str] = []
    for index, item in enumerate(items):
        if not any(index < len(other) and other[index] == item for other in others):
            found += _leaves(item, f"{place}[{index}]") or [f"{place}[{index}]"]
    return found


def _leaves(message: Message, place: str) -> list[str]:
    found: list[str] = []
    for field, value in message.ListFields():
        inner = f"{place}.{field.name}"
        if is_map(field) and is_message(field.message_type.fields_by_name["value"]):
            parts = [(f'{inner}["{key}"]', value[key]) for key in sorted(value)]
        elif is_message(field) and not is_map(field):
            parts = (
                [(f"{inner}[{n}]", each) for n, each in enumerate(value)] if is_repeated(field) else [(inner, value)]
            )
        else:
            found.append(inner)
            continue
        for name, part in parts:
            found += _leaves(part, name) or [name]
    return found
