"""Each third-party library has owners, the folders and modules of src that may import it; OWNERS lists them.

The sources are read. An import outside of the owners fails this test, and so does a library without a line in OWNERS:
a new dependency adds its line here. A library that is not installed is checked like any other.
"""

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src"
MODELS = "naiad/tools/demo/models/"
"""Python models of the demos: the worker process of a model imports them, naiad does not."""

OPTIMIZE = "naiad/tools/optimize/converters/"
FORMATS = "naiad/tools/demo/formats/"

OWNERS: dict[str, tuple[str, ...]] = {
    # what the server needs
    "google.protobuf": (
        "naiad/config/forms/",
        "naiad/config/model_config_pb2.py",
        "naiad/protocol/",
        "naiad/tools/analyze/simulation/system_configuration.py",
        "naiad/tools/analyze/variants/manual.py",
    ),
    "hpack": ("naiad/wire/http2/",),
    "httptools": ("naiad/wire/",),
    "ml_dtypes": (
        "naiad/core/datatype.py",
        "naiad/bind/model_config/tensor.py",
        "naiad/tools/predict/sinks/texts.py",
    ),
    "numpy": (
        "naiad/backend/",
        "naiad/bind/",
        "naiad/cli/models/optimize.py",
        "naiad/client/",
        "naiad/config/tensors/padding.py",
        "naiad/core/",
        "naiad/engine/",
        "naiad/integrations/mlflow/",
        "naiad/protocol/",
        "naiad/telemetry/trace/",
        "naiad/testing/",
        "naiad/tools/",
        "naiad/wire/",
        "naiad/worker/",
    ),
    "orjson": (
        "naiad/cli/check/",
        "naiad/cli/inspect/",
        "naiad/config/changes/configuration_changes.py",
        "naiad/config/forms/",
        "naiad/frontend/clouds/multi_model.py",
        "naiad/frontend/rest/mcp/",
        "naiad/protocol/",
        "naiad/repository/cloud/",
        "naiad/telemetry/trace/",
        "naiad/tools/analyze/",
        "naiad/tools/consume/",
        "naiad/tools/predict/",
        "naiad/tools/values/",
    ),
    "simdjson": ("naiad/protocol/",),
    "uvloop": (
        "naiad/cli/perf/command.py",
        "naiad/server/",
        "naiad/tools/perf/generator/generator_process.py",
        "naiad/tools/predict/prediction.py",
    ),
    # what serves the models of a framework
    "ai_edge_litert": ("naiad/backend/litert/",),
    "executorch": ("naiad/backend/executorch/",),
    "h5py": ("naiad/backend/tensorflow/",),
    "jax": ("naiad/backend/jax/", FORMATS),
    "joblib": ("naiad/backend/sklearn/", FORMATS, OPTIMIZE),
    "keras": ("naiad/backend/tensorflow/", FORMATS),
    "lightgbm": ("naiad/backend/trees/", FORMATS, OPTIMIZE),
    "onnxruntime": ("naiad/backend/onnx/", OPTIMIZE),
    "onnxruntime_genai": ("naiad/backend/onnx_genai/",),
    "openvino": ("naiad/backend/openvino/", FORMATS, OPTIMIZE),
    "safetensors": ("naiad/backend/pytorch/",),
    "sklearn": ("naiad/backend/sklearn/", FORMATS),
    "skops": ("naiad/backend/sklearn/", FORMATS, OPTIMIZE),
    "tensorflow": ("naiad/backend/tensorflow/", FORMATS, OPTIMIZE),
    "tensorrt": ("naiad/backend/tensorrt/", OPTIMIZE),
    "vllm": ("naiad/backend/vllm/",),
    "xllamacpp": ("naiad/backend/llamacpp/",),
    "tokenizers": ("naiad/backend/texts/",),
    "torch": (
        "naiad/backend/executorch/",
        "naiad/backend/huggingface/",
        "naiad/backend/pytorch/",
        "naiad/worker/model_class.py",
        FORMATS,
        OPTIMIZE,
    ),
    "transformers": ("naiad/backend/huggingface/",),
    "treelite": ("naiad/backend/trees/", FORMATS, OPTIMIZE),
    "triton": ("naiad/backend/tensorflow/library.py",),
    "xgboost": ("naiad/backend/trees/", FORMATS, OPTIMIZE),
    # services and clouds
    "boto3": ("naiad/repository/cloud/",),
    "botocore": ("naiad/repository/cloud/",),
    "confluent_kafka": ("naiad/tools/consume/queues/kafka/",),
    "nats": ("naiad/tools/consume/queues/nats/",),
    "obstore": ("naiad/repository/cloud/",),
    "opentelemetry": ("naiad/telemetry/trace/span_export.py",),
    "pynvml": ("naiad/telemetry/metrics/gpus.py",),
    "redis": ("naiad/engine/cache/redis_store.py", "naiad/tools/consume/queues/redis_streams.py"),
    # other programs and formats of data
    "airflow": ("naiad/integrations/airflow/",),
    "mlflow": ("naiad/backend/mlflow/", "naiad/integrations/mlflow/"),
    "pandas": (
        "naiad/backend/mlflow/",
        "naiad/backend/sklearn/",
        "naiad/client/data_frames.py",
        "naiad/integrations/mlflow/",
    ),
    "PIL": ("naiad/protocol/pictures.py", "naiad/tools/demo/", "naiad/tools/perf/inputs/"),
    "pyarrow": ("naiad/tools/predict/sinks/", "naiad/tools/predict/sources/"),
    "ray": ("naiad/integrations/ray/", "naiad/tools/predict/distributed/ray_connection.py"),
    "starlette": ("naiad/integrations/ray/",),
    "yaml": ("naiad/tools/analyze/settings/",),
    # tools
    "cloudpickle": ("naiad/tools/optimize/sources/",),
    "matplotlib": ("naiad/tools/analyze/report/", "naiad/tools/measure/", "naiad/tools/optimize/report/"),
    "nncf": (OPTIMIZE,),
    "onnx": ("naiad/tools/demo/", OPTIMIZE, "naiad/tools/split/"),
    "onnxmltools": (OPTIMIZE,),
    "onnxruntime_extensions": (OPTIMIZE,),
    "onnxslim": (OPTIMIZE,),
    "optuna": ("naiad/tools/analyze/search/modes/optuna_mode.py",),
    "rich": ("naiad/cli/demo.py", "naiad/tools/demo/"),
    "skl2onnx": (OPTIMIZE,),
    "tritonclient": ("naiad/tools/demo/",),
}

NAMESPACES = {"google"}
"""Packages that several libraries share; the second part of the name is the library."""
LOADERS = {"import_module", "__import__"}
OWN = sys.stdlib_module_names | {"naiad", "triton_python_backend_utils"}


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return the third-party libraries that src imports, each with the modules that import it."""
    found = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(MODELS):
            for library in libraries_in(ast.parse(path.read_text(encoding="utf-8"))):
                found[library].add(name)
    return found


def libraries_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for module in modules_in(node):
            if (library := library_of(module)) not in OWN:
                yield library


def name_of(called: ast.expr) -> str:
    """Return the last part of the name of what is called; "" for what has none."""
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def modules_in(node: ast.AST) -> list[str]:
    """Return the modules that a node imports: of statements, and of calls like `import_module("rich")`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and name_of(node.func) in LOADERS:
        return [each.value for each in node.args[:1] if isinstance(each, ast.Constant)]
    return []


def library_of(module: str) -> str:
    first, *rest = module.split(".")
    return f"{first}.{rest[0]}" if first in NAMESPACES and rest else first


def is_owner(place: str, owner: str) -> bool:
    return place.startswith(owner) if owner.endswith("/") else place == owner


def test_libraries_are_imported_by_their_owners() -> None:
    strangers = [
        f"{place} imports {library}; only {', '.join(OWNERS[library])} may"
        for library, places in imports().items()
        if library in OWNERS
        for place in places
        if not any(is_owner(place, owner) for owner in OWNERS[library])
    ]
    assert not strangers, "\n".join(sorted(strangers))


def test_each_library_has_owners() -> None:
    found = imports()
    missing = [f"{library}, in {', '.join(sorted(found[library]))}" for library in sorted(found.keys() - OWNERS)]
    assert not missing, "add a line to OWNERS for " + "; ".join(missing)


def test_each_owner_imports_its_library() -> None:
    found = imports()
    idle = [
        f"{owner} does not import {library}"
        for library, owners in OWNERS.items()
        for owner in owners
        if not any(is_owner(place, owner) for place in found[library])
    ]
    assert not idle, "remove from OWNERS what it no longer needs: " + "; ".join(idle)


def test_imports_of_each_form_are_found() -> None:
    source = (
        "import rich.live\nfrom redis import asyncio\nfrom google.protobuf import message\nimport json, naiad.core\n"
        "def later():\n    import yaml as reader\n    importlib.import_module('onnx.helper')\n"
        "    __import__('torch')\n"
    )
    assert set(libraries_in(ast.parse(source))) == {"rich", "redis", "google.protobuf", "yaml", "onnx", "torch"}
