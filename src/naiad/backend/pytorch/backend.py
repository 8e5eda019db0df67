"""The PyTorch backend: TorchScript, torch.export, AOTInductor, and `nn.Module` classes."""

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import find_model_file
from naiad.backend.pytorch.formats import PyTorchFormat, detect_format
from naiad.backend.pytorch.instance import TorchInstance
from naiad.backend.pytorch.library import release, torch
from naiad.backend.pytorch.model_parameters import TorchOptions, read_options
from naiad.backend.pytorch.naming import bind_inputs, bind_outputs, check_texts, configured_tensors, name_tensors
from naiad.backend.pytorch.programs.aot_inductor import load_package
from naiad.backend.pytorch.programs.exported import (
    input_slots,
    inspect_exported,
    load_exported,
    max_rows,
    output_slots,
)
from naiad.backend.pytorch.programs.module import load_module, load_pickled
from naiad.backend.pytorch.programs.program import Program
from naiad.backend.pytorch.programs.torchscript import load_torchscript
from naiad.backend.pytorch.tensors import reason
from naiad.backend.signature import ModelSignature, SignatureCheck, completed
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.core.errors import InferError, invalid_argument, unavailable

_log = logging.getLogger(__name__)

FILENAMES = ("model.pt", "model.pt2", "model.py")


class PyTorchBackend(Backend):
    """Models that PyTorch executes."""

    name: ClassVar[str] = "pytorch"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from an archive of torch.export. Raises InferError."""
        config = context.config

        def read() -> ModelSignature:
            path, kind = find_model(context)
            if kind is not PyTorchFormat.EXPORTED:
                raise _cannot_complete(context, path, kind)
            exported = inspect_exported(context, path)
            inputs = name_tensors(config, "input", input_slots(exported))
            outputs = name_tensors(config, "output", output_slots(exported))
            return ModelSignature("torch.export", inputs, outputs, max_rows=max_rows(exported) or None)

        return completed(context, read)

    def gpu_unsupported_reason(self) -> str:
        """Return what the installed PyTorch, or the machine, lacks."""
        if torch.cuda.is_available():
            return ""
        return f"the installed torch {torch.__version__} finds no GPU: install a build for CUDA, and the driver"

    def load(self, context: ModelContext) -> Model:
        """Load the file for its first instance and hold the configuration against it. Raises InferError."""
        return PyTorchModel(context)


class PyTorchModel(Model):
    """One loaded version: a program for each instance, or for each device with ENABLE_WEIGHT_SHARING."""

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self._options = read_options(context)
        self._path, self._kind = find_model(context)
        _set_up_process(context, self._options)
        self._lock = threading.Lock()
        self._programs: dict[str, Program] = {}
        """By device: shared ones, or the first one before an instance takes it."""
        device = _first_device(context.config)
        program = self._programs[device] = open_program(context, self._path, self._kind, device, self._options)
        check(context, program)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with a program of its own, or a shared one. Raises InferError."""
        device = _device_of(spec.kind, spec.device_id)
        with self._lock:
            program = self._programs.pop(device, None)
            if program is None:
                program = open_program(self._context, self._path, self._kind, device, self._options)
            if self._options.shares_weights:
                self._programs[device] = program
        return TorchInstance(self._context, program, device, self._options)

    def update_config(self, config: ModelConfig) -> None:
        """Take note of other instance groups."""
        self._context = replace(self._context, config=config)
        self._options = read_options(self._context)

    def close(self) -> None:
        """Release the programs, and the memory of GPUs that no instance's `close` has released."""
        for program in self._programs.values():
            release(program.weights)
        self._programs.clear()


def find_model(context: ModelContext) -> tuple[Path, PyTorchFormat]:
    """Return the file of a version and what is in it. Raises InferError(INVALID_ARG).

    That is `model.py` with `runtime: "model.py"` (as in Triton), and where the other file has weights alone.
    """
    source = context.version_dir / "model.py"
    if context.config.runtime == source.name and source.is_file():
        wanted = context.config.default_model_filename
        if not wanted.endswith(".py"):
            return source, PyTorchFormat.SOURCE
    path = find_model_file(context, FILENAMES)
    try:
        kind = detect_format(path)
    except InferError as error:
        raise InferError(error.code, f"model '{context.name}' version {context.version}: {error.message}") from None
    if kind is PyTorchFormat.CHECKPOINT and path.with_suffix(".py").is_file():
        return path.with_suffix(".py"), PyTorchFormat.SOURCE
    return path, kind


def open_program(
    context: ModelContext, path: Path, kind: PyTorchFormat, device: str, options: TorchOptions
) -> Program:
    """Load a file on a device; empty for the device that the file names. Raises InferError."""
    if options.compile is not None and kind in (PyTorchFormat.TORCHSCRIPT, PyTorchFormat.AOT_INDUCTOR):
        raise invalid_argument(
            f"model '{context.name}': torch.compile has no effect on {kind.value}; remove the parameter "
            "'TORCH_COMPILE_OPTIONAL_PARAMETERS', or serve the model as a torch.export archive or as model.py"
        )
    try:
        return _open(context, path, kind, device, options)
    except torch.OutOfMemoryError as error:
        raise unavailable(
            f"model '{context.name}' version {context.version}: {device} has too little memory for {path}: "
            f"{reason(error)}; unload other models, use fewer instances, or a lower precision"
        ) from None


def _open(context: ModelContext, path: Path, kind: PyTorchFormat, device: str, options: TorchOptions) -> Program:
    if kind is PyTorchFormat.TORCHSCRIPT:
        return load_torchscript(context, path, device)
    if kind is PyTorchFormat.EXPORTED:
        return load_exported(context, path, device, options.compile)
    if kind is PyTorchFormat.AOT_INDUCTOR:
        return load_package(context, path, device)
    load = load_module if kind is PyTorchFormat.SOURCE else load_pickled
    return load(context, path, device, options)


def check(context: ModelContext, program: Program) -> None:
    """Hold the configuration against the program. Raises InferError."""
    config = execution_config(context.config)
    if program.arguments is not None:
        positions = bind_inputs(config, program.arguments)
        check_texts(config, positions, program.arguments)
        inputs = configured_tensors(positions, program.arguments)
        outputs = configured_tensors(bind_outputs(config, program.results), program.results or ())
        known = ModelConfig()
        known.CopyFrom(config)
        if not outputs:
            known.ClearField("output")
        strict = context.backend_config.get("strict-model-config", "false").lower() == "true"
        if inputs:
            SignatureCheck(known, ModelSignature("PyTorch", inputs, outputs), strict=strict).check()
    if 0 < program.max_rows < config.max_batch_size:
        raise invalid_argument(
            f"model '{context.name}': max_batch_size is {config.max_batch_size}, but the program is exported for at "
            f"most {program.max_rows} rows; write max_batch_size: {program.max_rows}, or export it with a larger "
            "torch.export.Dim"
        )


def _cannot_complete(context: ModelContext, path: Path, kind: PyTorchFormat) -> InferError:
    """Return the error for a file without datatypes and shapes, with the names that it has."""
    program = open_program(context, path, kind, "cpu", read_options(context))
    slots = program.arguments or ()
    inputs = ", ".join(slot.names[0] for slot in slots if slot.names) or "the keys of the dictionary"
    count = f"{len(program.results)}" if program.results is not None else "several"
    flags = ""
    if context.version_dir == context.model_dir:
        name = next((slot.names[0] for slot in slots if slot.names), "x")
        flags = f"name them with flags, such as --input {name}:FP32:-1,30 --output OUTPUT__0:FP32:-1,2; or "
    return invalid_argument(
        f"autofill failed for model '{context.name}': {path} is {kind.value}, which has no datatypes and shapes of "
        f"inputs and outputs; {flags}write them in {_config_place(context, path)}: 'input' ({inputs}) and 'output' "
        f"(OUTPUT__0, ...: {count}), each with data_type and dims, and max_batch_size if the first dimension is "
        "free; or export the model with torch.export.save, whose archives have them"
    )


def _config_place(context: ModelContext, path: Path) -> str:
    """Return where the configuration belongs; a file served without a model's directory needs one first."""
    if context.version_dir != context.model_dir:
        return "config.pbtxt"
    directory = context.model_dir / context.name
    return f"{directory}/config.pbtxt, with the file as {directory}/1/model{path.suffix.replace('.pth', '.pt')}"


def _first_device(config: ModelConfig) -> str:
    for group in config.instance_group:
        return _device_of(ModelInstanceGroup.Kind.Name(group.kind), next(iter(group.gpus), 0))
    return "cpu"


def _device_of(kind: str, number: int) -> str:
    """Return a device as PyTorch writes it; empty for KIND_MODEL, where the file determines it."""
    if kind == "KIND_GPU":
        return f"cuda:{number}"
    return "" if kind == "KIND_MODEL" else "cpu"


_process_lock = threading.Lock()
_interop_thread_count = 0


def _set_up_process(context: ModelContext, options: TorchOptions) -> None:
    """Apply the settings that PyTorch has for the process only."""
    global _interop_thread_count  # noqa: PLW0603 - PyTorch's own setting is global
    wanted = options.interop_thread_count
    with _process_lock:
        if wanted and not _interop_thread_count:
            # Triton: the first model with the parameter sets it.
            try:
                torch.set_num_interop_threads(wanted)
                _interop_thread_count = wanted
            except RuntimeError:
                _interop_thread_count = torch.get_num_interop_threads()
        if wanted and wanted != _interop_thread_count:
            _log.warning(
                "model '%s': INTER_OP_THREAD_COUNT %d is ignored, the process has %d already",
                context.name, wanted, _interop_thread_count,
            )  # fmt: skip
        flags = options.process_flags
        if "DISABLE_CUDNN" in flags:
            torch.backends.cudnn.enabled = not flags["DISABLE_CUDNN"]
        if "ENABLE_JIT_EXECUTOR" in flags:
            torch._C._jit_set_profiling_executor(flags["ENABLE_JIT_EXECUTOR"])
        if "ENABLE_JIT_PROFILING" in flags:
            torch._C._jit_set_profiling_mode(flags["ENABLE_JIT_PROFILING"])
