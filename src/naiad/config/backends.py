"""Table of all known backends: their model files, platforms, modules and pip extras.

Backends without a module are Triton's: their files are recognised, so that messages can name what is missing.
Installed packages may add a backend of any name (`naiad.backend.registry`). The modules are strings, because a server
imports only the backends that its models use; they are the only backends that the registry imports by a string.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """A file name that identifies the backend of a model."""

    filename: str
    backend: str
    platform: str = ""
    """Triton's `platform` for such files, empty if there is none."""


@dataclass(frozen=True, slots=True)
class KnownBackend:
    """One backend."""

    name: str
    files: Mapping[str, str]
    """File name to platform."""
    module: str = ""
    """`module:class` of the `Backend` class in this package, empty if it is not part of naiad."""
    extra: str = ""
    """Extra of the pip package `naiad` that installs its framework."""
    package: str = ""
    """Module of the framework, without which the backend cannot be imported."""
    aliases: Sequence[str] = ()
    """Further names that `backend` may have in a configuration."""
    runtimes: Sequence[str] = ()
    """Values of `runtime` that the class itself supports."""
    needs_process: bool = False
    """Whether its instances are in worker processes always: in the server they would hold up the event loop."""
    yields: bool = False
    """Whether a directory of its name in `--backend-directory` is executed in its place: Triton's own backend."""


KNOWN_BACKENDS: Sequence[KnownBackend] = (
    # First: the directory may have files of the names below, too.
    KnownBackend(
        "mlflow",
        {"MLmodel": ""},
        module="naiad.backend.mlflow.backend:MlflowBackend",
        extra="mlflow",
        package="mlflow",
    ),
    KnownBackend(
        "onnx_genai",
        {"genai_config.json": ""},
        module="naiad.backend.onnx_genai.backend:OnnxGenaiBackend",
        extra="genai",
        package="onnxruntime_genai",
        needs_process=True,
    ),
    KnownBackend(
        "tensorflow",
        {
            "model.savedmodel": "tensorflow_savedmodel",
            "model.graphdef": "tensorflow_graphdef",
            "model.keras": "",
            "model.h5": "",
        },
        module="naiad.backend.tensorflow.backend:TensorFlowBackend",
        extra="tensorflow",
    ),
    KnownBackend(
        "tensorrt",
        {"model.plan": "tensorrt_plan"},
        module="naiad.backend.tensorrt.backend:TensorRtBackend",
        extra="tensorrt",
        package="tensorrt",
    ),
    KnownBackend(
        "onnxruntime",
        {"model.onnx": "onnxruntime_onnx"},
        module="naiad.backend.onnx.backend:OnnxRuntimeBackend",
        extra="onnx",
        package="onnxruntime",
    ),
    KnownBackend(
        "openvino",
        {"model.xml": ""},
        module="naiad.backend.openvino.backend:OpenVinoBackend",
        extra="openvino",
        package="openvino",
    ),
    KnownBackend(
        "litert",
        {"model.tflite": ""},
        module="naiad.backend.litert.backend:LiteRtBackend",
        extra="litert",
        package="ai_edge_litert",
        aliases=("tflite",),
    ),
    KnownBackend(
        "jax",
        {"model.jaxexport": ""},
        module="naiad.backend.jax.backend:JaxBackend",
        extra="jax",
        package="jax",
    ),
    KnownBackend(
        "executorch",
        {"model.pte": ""},
        module="naiad.backend.executorch.backend:ExecuTorchBackend",
        extra="executorch",
        package="executorch",
    ),
    KnownBackend(
        "pytorch",
        {"model.pt": "pytorch_libtorch", "model.pt2": "torch_aoti"},
        module="naiad.backend.pytorch.backend:PyTorchBackend",
        extra="torch",
        package="torch",
        runtimes=("model.py",),
    ),
    KnownBackend("python", {"model.py": ""}, module="naiad.backend.python.backend:PythonBackend"),
    # After Python models, which may keep files of these names beside model.py.
    KnownBackend(
        "huggingface",
        {"model.safetensors": ""},
        module="naiad.backend.huggingface.backend:HuggingFaceBackend",
        extra="huggingface",
        package="transformers",
    ),
    KnownBackend(
        "llamacpp",
        {"model.gguf": ""},
        module="naiad.backend.llamacpp.backend:LlamaCppBackend",
        extra="llamacpp",
        package="xllamacpp",
    ),
    KnownBackend(
        "onnx_text",
        {},
        module="naiad.backend.onnx_text.backend:OnnxTextBackend",
        extra="tokenizers",
        package="tokenizers",
    ),
    KnownBackend(
        "onnx_decoder",
        {},
        module="naiad.backend.onnx_decoder.backend:OnnxDecoderBackend",
        extra="tokenizers",
        package="tokenizers",
    ),
    KnownBackend(
        "trees",
        {"xgboost.json": "", "xgboost.ubj": "", "model.txt": "", "checkpoint.tl": "", "xgboost.model": ""},
        module="naiad.backend.trees.backend:TreesBackend",
        extra="trees",
        aliases=("fil",),
    ),
    KnownBackend(
        "sklearn",
        {"model.joblib": "", "model.skops": "", "model.pkl": ""},
        module="naiad.backend.sklearn.backend:SklearnBackend",
        extra="sklearn",
    ),
    # Last: other models have files of this name, and are recognised by others beside it.
    KnownBackend(
        "vllm",
        {"model.json": ""},
        module="naiad.backend.vllm.backend:VllmBackend",
        package="vllm",
        needs_process=True,
        yields=True,
    ),
    KnownBackend("identity", {}, module="naiad.backend.identity:IdentityBackend"),
    KnownBackend("repeat", {}, module="naiad.backend.repeat:RepeatBackend"),
)

PYTHON_RUNTIME = "model.py"
"""Triton: the `runtime` of Python-based backends."""

PYTHON_BASED = "naiad.backend.python.backend:PythonBasedBackend"
"""`module:class` of the backend for a directory with a `model.py` that executes all models of that backend."""

ISOLATED = "naiad.backend.isolation.backend:IsolatedBackend"
"""`module:class` of the backend for models of any other backend with `isolation: process`."""

ISOLATION_ADAPTER = "naiad.backend.isolation.adapter:InstanceAdapter"
"""`module:class` that a worker process of an isolated model imports."""

TEMPLATE_TRIAL = "naiad.backend.llamacpp.template_trial:TemplateTrial"
"""`module:class` that the worker process imports in which chat templates of GGUF files are tried."""

FORMATS: Sequence[ModelFormat] = tuple(
    ModelFormat(filename, backend.name, platform)
    for backend in KNOWN_BACKENDS
    for filename, platform in backend.files.items()
)
"""Known files of a version directory, in search order."""

FILENAMES: frozenset[str] = frozenset(known.filename for known in FORMATS)

PLATFORM_BACKENDS: Mapping[str, str] = {known.platform: known.backend for known in FORMATS if known.platform}
"""Platform to backend. `ensemble` has none."""


def _by_name(value_of: Callable[[KnownBackend], str]) -> Mapping[str, str]:
    """Return a value of the backends that have it, by name and alias."""
    return {name: value_of(each) for each in KNOWN_BACKENDS if value_of(each) for name in (each.name, *each.aliases)}


BUILT_IN = _by_name(lambda backend: backend.module)
"""Backends of this package, by name and alias, to `module:class`."""

SERVABLE_FILENAMES: Sequence[str] = tuple(known.filename for known in FORMATS if known.backend in BUILT_IN)
"""Files for which this package has a backend."""

EXTRAS = _by_name(lambda backend: backend.extra)
"""Backend, by name and alias, to the extra that installs its framework."""

PACKAGES = _by_name(lambda backend: backend.package)
"""Backend, by name and alias, to the module of its framework."""

RUNTIMES: Mapping[str, Sequence[str]] = {backend.name: backend.runtimes for backend in KNOWN_BACKENDS}
"""Backend to the values of `runtime` that it supports itself."""

PROCESS_BACKENDS: frozenset[str] = frozenset(backend.name for backend in KNOWN_BACKENDS if backend.needs_process)
"""Backends whose instances are in worker processes always."""

YIELDING_BACKENDS: frozenset[str] = frozenset(backend.name for backend in KNOWN_BACKENDS if backend.yields)
"""Backends in whose place a Python-based one of their name is executed."""

_CANONICAL: Mapping[str, str] = {alias: backend.name for backend in KNOWN_BACKENDS for alias in backend.aliases}


def canonical_name(backend: str) -> str:
    """Return the name of the backend that `backend` is an alias of, otherwise `backend`."""
    return _CANONICAL.get(backend, backend)


def install_command(backend: str) -> str:
    """Return what installs the framework of a backend in `PACKAGES`."""
    return f"pip install 'naiad[{EXTRAS[backend]}]'" if backend in EXTRAS else f"pip install {PACKAGES[backend]}"


def filenames_of(backend: str) -> Sequence[str]:
    """Return the usual file names of a backend's models, the first one preferred."""
    name = canonical_name(backend)
    return [known.filename for known in FORMATS if known.backend == name]
