"""The sessions of one version of an ONNX model: one for each place that its instances are at.

All CPU instances share one, so the weights are in memory once; those on other cores, or on a GPU, have another.
"""

import functools
import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from naiad.backend.api import InstanceSpec, Model, ModelContext
from naiad.backend.batch_trial import confirm_batching
from naiad.backend.cores import running_on
from naiad.backend.onnx.accelerators import CPU_PROVIDER, gpu_unsupported_reason
from naiad.backend.onnx.library import onnxruntime
from naiad.backend.onnx.load_advice import load_advice
from naiad.backend.onnx.prepared.preparation import open_prepared
from naiad.backend.onnx.session_options import (
    SessionPlan,
    ThreadPlan,
    asks_for_global_threads,
    inspection_options,
    plan_session,
    plan_threads,
    read_parameters,
)
from naiad.backend.onnx.zip_map import replace_zip_maps
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, internal
from naiad.core.tensor import Array, Shape
from naiad.options.host_policy import format_cores, policy_name

_log = logging.getLogger(__name__)

DATATYPES: Mapping[str, DataType] = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(bfloat16)": DataType.BF16,
    "tensor(string)": DataType.BYTES,
}
"""Name of a type in ONNX Runtime to datatype."""
_DICTIONARIES = re.compile(r"seq\(map\(.*\)\)")
"""The type of the outputs of ZipMap nodes."""
_EXTERNAL_DATA_DIRECTORY = "session.model_external_initializers_file_folder_path"
_ORT_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """Where a session computes."""

    gpu: int | None = None
    """None for the CPU."""
    cores: frozenset[int] = frozenset()
    """Cores of its host policy; empty for any."""


class OnnxSession:
    """An InferenceSession, what it says of the model, and how it is called."""

    def __init__(self, context: ModelContext, path: Path, plan: SessionPlan) -> None:
        opened = open_prepared(context, path, plan, lambda: open_session(context, path, plan))
        self.ort, self.labels, self.mapped_bytes = opened.session, opened.labels, opened.mapped_bytes
        self.signature: ModelSignature = read_signature(self.ort)
        self.run_options: Any = None
        if plan.run_entries:
            self.run_options = onnxruntime.RunOptions()
            for name, value in plan.run_entries.items():
                self.run_options.add_run_config_entry(name, value)
        # `InferenceSession.run` checks names and values on every call that admission has checked: 2 us of 8.
        direct = getattr(self.ort, "_sess", None)
        self.run = direct.run if direct is not None else self.ort.run

    def close(self) -> None:
        """Give the weights back at once; what the session said of the model stays.

        Headers of requests that were admitted hold the version that they were admitted to, until the next request.
        """
        self.ort = None
        self.run = refuse_to_run


_inspected = threading.local()
"""Its attribute `last` is what the thread has inspected last: `_settings`, and the session."""


def inspect_model(context: ModelContext, path: Path, default_instance_count: int) -> ModelSignature:
    """Return what a model file says of itself. Raises InferError.

    The session is opened as its instances will most likely need it, and kept for the next `OnnxSessions` of this
    thread: a model without a complete configuration is then read and optimised once.
    """
    _inspected.last = None
    groups = context.config.instance_group
    on_cpu = gpu_unsupported_reason() and all(group.kind != ModelInstanceGroup.KIND_GPU for group in groups)
    if on_cpu and not context.host_policies and not asks_for_global_threads(context.backend_config):
        try:
            count = sum(group.count for group in groups) or default_instance_count
            threads = plan_threads(read_parameters(context.config), context.usable_cores, count)
            session = OnnxSession(context, path, plan_session(context, threads))
        except InferError:
            pass  # loading reports it, after what the inspection finds
        else:
            _inspected.last = _settings(context, path, threads), session
            if context.config.max_batch_size:
                return session.signature
            return confirm_batching(context.name, session.signature, lambda inputs: _shapes(session, inputs))
    plan = SessionPlan(inspection_options(context), [(CPU_PROVIDER, {})])
    session, _ = open_session(context, path, plan)
    return read_signature(session)


def _shapes(session: OnnxSession, inputs: Mapping[str, Array]) -> dict[str, Shape]:
    """Execute a session, and return the shapes of its outputs. Raises what ONNX Runtime raises."""
    names = list(session.signature.outputs)
    found = session.ort.run(names, dict(inputs), session.run_options)
    return {name: np.shape(value) for name, value in zip(names, found, strict=True)}


def _take_inspected(settings: tuple[object, ...]) -> OnnxSession | None:
    """Return the session of the last inspection of this thread if it has these settings."""
    known, session = getattr(_inspected, "last", None) or (None, None)
    _inspected.last = None
    return session if known == settings else None


def _settings(context: ModelContext, path: Path, threads: ThreadPlan) -> tuple[object, ...]:
    """Return what makes two sessions of a model on the CPU the same."""
    config = context.config
    optimization = config.optimization
    return (
        *(context.name, context.version, path, threads, read_parameters(config), optimization.graph.level),
        optimization.execution_accelerators.SerializeToString(deterministic=True),
        list(config.model_operations.op_library_filename),
    )


class OnnxSessions(Model):
    """A version without its instances: opens their sessions, and closes them together."""

    def __init__(self, context: ModelContext, path: Path, *, has_global_threads: bool) -> None:
        """Open those that the configuration's instances need. Raises InferError."""
        self._context = context
        self._path = path
        self._has_global_threads = has_global_threads
        self._lock = threading.Lock()
        self._sessions: dict[SessionPlace, OnnxSession] = {}
        texts: list[str] = []
        for place in dict.fromkeys(place for place, _ in self._places()) or [SessionPlace()]:
            self._open(place)
            where = f", on cores {format_cores(place.cores)}" if place.cores else ""
            texts.append(f"{self.plan(place)}{where}")
        self.labels = next(iter(self._sessions.values())).labels
        for output, labels in self.labels.items():
            text = f"the dictionaries of output '{output}' are served as a FP32 matrix of {len(labels)} columns"
            _log.info("model '%s' version %d: %s", context.name, context.version, text)
        if not has_global_threads:
            for text in dict.fromkeys(texts):
                _log.info("model '%s' version %d: %s", context.name, context.version, text)

    @property
    def signature(self) -> ModelSignature:
        """What the model says of itself."""
        return next(iter(self._sessions.values())).signature

    def update_config(self, config: ModelConfig) -> None:
        """Take note of other instance groups."""
        self._context = replace(self._context, config=config)

    def find(self, spec: InstanceSpec) -> OnnxSession:
        """Return the session of an instance, opened now when an update has brought its host policy.

        Raises InferError.
        """
        gpu = spec.device_id if spec.kind == "KIND_GPU" else None
        place = SessionPlace(gpu, self._context.host_policies.get(spec.host_policy, frozenset()))
        with self._lock:
            return self._sessions[place] if place in self._sessions else self._open(place)

    def plan(self, place: SessionPlace) -> ThreadPlan:
        """Return how many threads a session has. Raises InferError(INVALID_ARG)."""
        context = self._context
        count = sum(count for other, count in self._places() if other.gpu is None and other.cores == place.cores)
        cores = min(context.usable_cores, len(place.cores) or context.usable_cores)
        return plan_threads(read_parameters(context.config), cores, count)

    def close(self) -> None:
        """Release all sessions."""
        for session in self._sessions.values():
            session.close()

    def _places(self) -> Iterator[tuple[SessionPlace, int]]:
        """Yield the places of the instances, and how many are there."""
        policies = self._context.host_policies
        for group in self._context.config.instance_group:
            is_on_gpu = group.kind == ModelInstanceGroup.KIND_GPU
            for device in group.gpus if is_on_gpu else (0,):
                cores = policies.get(policy_name(group, device), frozenset())
                yield SessionPlace(device if is_on_gpu else None, cores), group.count

    def _open(self, place: SessionPlace) -> OnnxSession:
        threads = self.plan(place)
        inspected = _take_inspected(_settings(self._context, self._path, threads))
        if inspected is not None and place == SessionPlace() and not self._has_global_threads:
            self._sessions[place] = inspected
            return inspected
        plan = plan_session(self._context, threads, gpu=place.gpu, has_global_threads=self._has_global_threads)
        # A session's threads run on the cores of the thread that opens it; all sessions share the global pool.
        with running_on(frozenset() if self._has_global_threads else place.cores):
            session = self._sessions[place] = OnnxSession(self._context, self._path, plan)
        return session


def open_session(context: ModelContext, path: Path, plan: SessionPlan) -> tuple[Any, Mapping[str, Sequence[str]]]:
    """Open a session, and return it with the labels in the model, by output.

    A model that returns dictionaries is opened again without its ZipMap nodes. Raises InferError(INTERNAL) with ONNX
    Runtime's reason.
    """
    try:
        session = _create_session(str(path), plan)
        if not any(_DICTIONARIES.fullmatch(output.type) for output in session.get_outputs()):
            return session, {}
        plain = replace_zip_maps(path.read_bytes())
        # A model in memory has no directory of its own.
        plan.options.add_session_config_entry(_EXTERNAL_DATA_DIRECTORY, str(path.parent))
        return _create_session(plain.data, plan), plain.labels
    except Exception as error:  # ONNX Runtime raises a different class for each status
        advice = load_advice(str(error))
        opening = f"model '{context.name}' version {context.version}: {path} cannot be loaded: "
        raise internal(f"{opening}{f'{advice}: ' if advice else ''}{ort_message(error)}") from error


def _create_session(model: str | bytes, plan: SessionPlan) -> Any:
    names = [name for name, _ in plan.providers]
    options = [dict(options) for _, options in plan.providers]
    session = onnxruntime.InferenceSession(model, plan.options, providers=names, provider_options=options)
    lost = [name for name in names if name not in session.get_providers()]
    if lost:
        # ONNX Runtime would go on with the next provider.
        raise RuntimeError(
            f"{lost[0]} could not be started; its libraries (CUDA, cuDNN, TensorRT, a driver) are missing or do not "
            "fit this onnxruntime"
        )
    return session


def refuse_to_run(*_: object) -> NoReturn:
    """Stand in for the `run` of a session that is closed."""
    raise RuntimeError("the session is closed")


def ort_message(error: Exception) -> str:
    """Return ONNX Runtime's text with Triton's beginning: `onnx runtime error 2: Got invalid dimensions ...`."""
    found = _ORT_ERROR.fullmatch(str(error))
    if found is None:
        return f"onnx runtime error: {error}"
    return f"onnx runtime error {found.group(1)}: {found.group(2).strip()}"


def read_signature(session: Any) -> ModelSignature:
    """Return the signature of the model of an InferenceSession; initializers with a name are optional inputs."""
    return ModelSignature(
        "ONNX",
        inputs=_tensors(session.get_inputs()),
        outputs=_tensors(session.get_outputs()),
        optional_inputs=_tensors(session.get_overridable_initializers()),
        may_lack_ranks=True,
    )


def _tensors(arguments: Sequence[Any]) -> dict[str, TensorSignature]:
    return {each.name: _tensor(each.name, each.type, tuple(each.shape or ())) for each in arguments}


@functools.lru_cache(maxsize=1024)
def _tensor(name: str, type_name: str, dims: tuple[int | str | None, ...]) -> TensorSignature:
    """Return the signature of a tensor; models of one kind share it."""
    return TensorSignature(name, DATATYPES.get(type_name), dims, type_name)
