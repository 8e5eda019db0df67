"""Loads with a `config` by clients without permission, on a real server: every field of ModelConfig, one by one.

No load runs code of the client's choice, reads or writes a file of its choice, or takes more than the budget; each is
accepted or refused by the name of the field.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from naiad.config.changes.override import is_allowed
from naiad.config.forms.json_form import config_to_json
from naiad.config.forms.schema import INT_RANGES, is_map, is_message, is_repeated
from naiad.config.model_config_pb2 import ModelConfig
from support.config_fields import fields_of
from support.model_repository import write_identity, write_model
from support.server_process import ServerProcess, serving

SECRET = "the-secret-of-the-owner"
PYTHON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]) for tensor in tensors]
"""
TENSORS = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }
"""


ONE_VALUE = ("batch_output.kind", "instance_group.secondary_devices.kind")
"""An enumeration with one value, which is its default."""


class Scene:
    """A server without keys, and files beside its repository that no load may touch."""

    def __init__(self, server: ServerProcess, root: Path, outside: Path) -> None:
        self.server = server
        self.root = root
        self.outside = outside
        self.marker = outside / "marker"

    def load(self, name: str, config: ModelConfig | dict[str, Any]) -> tuple[int, str]:
        text = config_to_json(config).decode() if isinstance(config, ModelConfig) else json.dumps(config)
        body = {"parameters": {"config": text}}
        answer = self.server.post(f"/v2/repository/models/{name}/load", body)
        said = answer.json.get("error", "") if answer.body else ""
        assert SECRET not in said
        assert not self.marker.exists(), said
        return answer.status, said

    def config(self, name: str) -> Any:
        return self.server.get(f"/v2/models/{name}/config").json

    def processes(self) -> int:
        return len(psutil.Process(self.server.process.pid).children(recursive=True))

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.server.process.pid).memory_info().rss)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    base = tmp_path_factory.mktemp("overrides")
    root, outside = base / "models", base / "outside"
    (outside / "bin").mkdir(parents=True)
    for program in (outside / "program", outside / "bin" / "python"):
        program.write_text(f"#!/bin/sh\ntouch {outside / 'marker'}\n")
        program.chmod(0o755)
    (outside / "secret.txt").write_text(f"{SECRET}\n")
    write_identity(root, "identity")
    write_model(root, "python", f'backend: "python"\n{TENSORS}', {"1/model.py": PYTHON, "labels.txt": "a\nb\n"})
    flags = (f"--model-repository={root}", "--model-control-mode=explicit", "--load-model=*")
    with serving(base / "log", *flags) as server:
        yield Scene(server, root, outside)


def hostile(field: Any, outside: Path) -> Any:
    """Return the value of a field that would do the most harm."""
    if field.cpp_type == field.CPPTYPE_STRING:
        return str(outside / "secret.txt")
    if field.cpp_type == field.CPPTYPE_BOOL:
        return True
    if field.cpp_type == field.CPPTYPE_ENUM:
        return max(field.enum_type.values_by_number)
    return INT_RANGES[field.cpp_type][1] if field.cpp_type in INT_RANGES else 1e30


def set_field(message: Any, names: list[str], outside: Path) -> None:
    field = message.DESCRIPTOR.fields_by_name[names[0]]
    holder = getattr(message, field.name)
    if is_map(field):
        kind = field.message_type.fields_by_name["key"]
        key = "key" if kind.cpp_type == kind.CPPTYPE_STRING else 1
        value = field.message_type.fields_by_name["value"]
        if not is_message(value):
            holder[key] = hostile(value, outside)
        elif names == ["parameters"]:
            holder[key].string_value = str(outside / "secret.txt")
        else:
            set_field(holder[key], names[1:], outside)
    elif is_message(field):
        inner = holder.add() if is_repeated(field) else holder
        inner.SetInParent()
        if names[1:]:
            set_field(inner, names[1:], outside)
    elif is_repeated(field):
        holder.append(hostile(field, outside))
    else:
        setattr(message, field.name, hostile(field, outside))


def test_every_field_is_accepted_or_refused_by_name(scene: Scene) -> None:
    processes, resident = scene.processes(), scene.resident_bytes()
    files = sorted(path for path in scene.outside.rglob("*"))
    accepted, refused = [], []
    for path in fields_of():
        if path == "name":
            continue
        config = ModelConfig()
        set_field(config, path.split("."), scene.outside)
        status, said = scene.load("identity", config)
        if is_allowed(path) or path == "version_policy.all":
            # The table accepts it; the checks of a configuration and the budget have the last word.
            assert status in (200, 400), (path, said)
            accepted.append(path)
            scene.load("identity", {"backend": "identity"})
        else:
            assert status == 403, (path, status, said)
            assert path.split(".")[0] in said
            assert path.split(".")[-1] in said or path in ONE_VALUE
            refused.append(path)
        assert scene.processes() <= processes
    assert len(accepted) > 40
    assert len(refused) > 50
    assert scene.resident_bytes() - resident < 256 << 20
    assert sorted(path for path in scene.outside.rglob("*")) == files
    assert scene.server.get("/v2/health/ready").status == 200


@pytest.mark.parametrize(
    "parameters",
    [
        {"EXECUTION_ENV_PATH": "OUTSIDE"},
        {"EXECUTION_ENV_PATH": "OUTSIDE/secret.txt"},
        {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/../../outside"},
        {"EXECUTION_ENV_PATH": "OUTSIDE/secret.txt", "EXECUTION_ENV_PYTHON": "OUTSIDE/program"},
        {"EXECUTION_ENV_PYTHON": "OUTSIDE/program"},
        {"TRITON_BATCH_STRATEGY_PATH": "OUTSIDE/program.py"},
        {"sha256": "0" * 64},
        {"trusted_types": "os.system"},
        {"isolation": "process"},
        {"tensor_parallel_size": "64"},
        {"session.load_model_format": "ORT"},
        {"property.CACHE_DIR": "OUTSIDE"},
        {"CPU_EXTENSION_PATH": "OUTSIDE/library.so"},
        {"execute_timeout_s": "0"},
    ],
)
def test_parameters_of_the_owner_are_refused(scene: Scene, parameters: dict[str, str]) -> None:
    given = {key: {"string_value": text.replace("OUTSIDE", str(scene.outside))} for key, text in parameters.items()}
    status, said = scene.load("python", {"parameters": given})
    assert status == 403
    assert all(f'parameters["{key}"]' in said for key in parameters)
    assert "--allow-client-model-files=true" in said
    assert scene.server.get("/v2/models/python/ready").status == 200


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a compiler for a library")
def test_library_of_a_client_is_not_opened(scene: Scene) -> None:
    source, library = scene.outside / "library.c", scene.outside / "library.so"
    source.write_text(
        "#include <fcntl.h>\n"
        f'__attribute__((constructor)) void run(void) {{ open("{scene.marker}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    for name in (str(library), f"../../../outside/{library.name}", os.path.relpath(library, scene.root / "identity")):
        for model in ("identity", "python"):
            status, said = scene.load(model, {"model_operations": {"op_library_filename": [name]}})
            assert status == 403
            assert "model_operations.op_library_filename" in said


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"instance_group": [{"count": 2000}]}, "instance_group[0].count asks for 2000 instances"),
        ({"instance_group": [{"count": 10**6}]}, "--max-load-instances=1000000"),
        ({"instance_group": [{}] * 200}, "instance_group[0].count asks for 200 instances"),
        ({"instance_group": [{"count": 33}]}, "33 worker processes, the limit is 32"),
        ({"parameters": {"intra_op_thread_count": {"string_value": "4096"}}}, "asks for 4096 threads"),
        ({"sequence_batching": {"oldest": {"max_candidate_sequences": 2**31 - 1}}}, "_candidate_sequences asks for"),
        ({"max_batch_size": 2**31 - 1, "sequence_batching": {"direct": {}}}, "max_batch_size asks for 2147483647"),
        (
            {"model_warmup": [{"name": "w", "batch_size": 1, "inputs": {
                "IN": {"data_type": "TYPE_FP32", "dims": [10**9], "random_data": True}}}]},
            "model_warmup[0].inputs",
        ),
        ({"max_batch_size": 2**31 - 1, "model_warmup": [{"name": "w", "batch_size": 2**31 - 1}]}, "model_warmup[0]"),
        ({"model_warmup": [{"name": "w", "batch_size": 1, "count": 2**32 - 1}]}, "warm-up executions"),
    ],
)  # fmt: skip
def test_more_than_the_budget_is_refused(scene: Scene, config: dict[str, Any], words: str) -> None:
    processes, resident = scene.processes(), scene.resident_bytes()
    tensors = {key: scene.config("python")[key] for key in ("input", "output")}
    status, said = scene.load("python", {"max_batch_size": 4, **tensors, **config})
    assert status == 400
    assert words in said
    assert "--max-load-" in said
    assert scene.processes() == processes
    assert scene.resident_bytes() - resident < 64 << 20
    assert scene.server.get("/v2/models/python/ready").status == 200


def test_scheduling_is_changed_and_the_rest_stays(scene: Scene) -> None:
    changed = {
        "max_batch_size": 8,
        "dynamic_batching": {"max_queue_delay_microseconds": 100, "default_queue_policy": {"max_queue_size": 9}},
        "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}],
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],
    }
    assert scene.load("python", changed) == (200, "")
    config = scene.config("python")
    assert config["max_batch_size"] == 8
    assert config["instance_group"][0]["count"] == 2
    assert config["output"][0]["label_filename"] == "labels.txt", "the owner's"
    assert scene.load("python", config) == (200, ""), "what the server has said is no change"
    assert scene.load("python", {"name": "python", "backend": "python", "max_batch_size": 4})[0] == 200


def test_refused_override_leaves_the_model_as_it_was(scene: Scene) -> None:
    before = scene.config("python")
    assert scene.load("python", {"default_model_filename": "other.py"})[0] == 403
    assert scene.config("python") == before
    rows = {row["name"]: row for row in scene.server.post("/v2/repository/index", {}).json}
    assert rows["python"]["state"] == "READY"
    assert "reason" not in rows["python"] or not rows["python"]["reason"]


def test_override_needs_a_readable_configuration_of_the_owner(scene: Scene) -> None:
    path = scene.root / "python" / "config.pbtxt"
    text = path.read_text()
    path.write_text(text + "\nbroken {")
    try:
        status, said = scene.load("python", {"max_batch_size": 8})
        assert status == 403
        assert "config.pbtxt cannot be read" in said
    finally:
        path.write_text(text)
