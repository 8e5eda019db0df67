"""Clients that `naiad client-code` writes, checked by mypy and tsc, executed against a real server."""

import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from naiad.cli.client_code.client_code import run
from support.model_repository import write_model
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess, serving

ROOT = Path(__file__).resolve().parents[2]
TSC = ROOT / "dashboard" / "node_modules" / "typescript" / "bin" / "tsc"
NODE = shutil.which("node")
NAMES = {"INPUT0": "FP32", "INPUT1": "INT64", "INPUT2": "STRING", "INPUT3": "BOOL", "INPUT4": "FP16"}


def write_models(repository: Path) -> None:
    inputs = ", ".join(f'{{ name: "{n}" data_type: TYPE_{t} dims: [ -1 ] }}' for n, t in NAMES.items())
    tensors = f"input [ {inputs} ]\noutput [ {inputs.replace('INPUT', 'OUTPUT')} ]\n"
    write_model(repository, "all kinds", f'backend: "identity"\nmax_batch_size: 4\n{tensors}')
    write_model(repository, "repeat", 'backend: "repeat"\n')
    write_running_sum(repository, "sums", "direct { }")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("client_code")
    write_models(repository)
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={repository}") as running:
        yield running


@pytest.fixture(scope="module")
def modules(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a client of each model and language."""
    folder = tmp_path_factory.mktemp("modules")
    for model, language, name in (
        ("all kinds", "python", "all_kinds.py"),
        ("repeat", "python", "repeat_client.py"),
        ("sums", "python", "sums_client.py"),
        ("all kinds", "typescript", "all_kinds.ts"),
        ("sums", "typescript", "sums.ts"),
    ):
        arguments = [model, "-u", server.http_url, "--language", language, "-o", str(folder / name)]
        assert run(arguments) == 0
    return folder


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_python_modules_pass_mypy(modules: Path) -> None:
    # With the settings of the project, which are strict: its cache then has naiad and numpy already.
    files = [str(modules / f"{name}.py") for name in ("all_kinds", "repeat_client", "sums_client")]
    command = [sys.executable, "-m", "mypy", "--strict", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_python_client_calls_the_model(server: ServerProcess, modules: Path) -> None:
    module = load(modules / "all_kinds.py")
    arrays = {
        "input0": np.array([[1.5, 2]], np.float32),
        "input1": np.array([[1 << 60, -1]], np.int64),
        "input2": np.array([["é", "b"]], np.object_),
        "input3": np.array([[True, False]]),
        "input4": np.array([[0.5, 2]], np.float16),
    }
    with module.ModelClient(f"http://{server.http_url}") as client:
        outputs = client.infer(module.Inputs(**arrays))
    for number in (0, 1, 3, 4):
        np.testing.assert_array_equal(getattr(outputs, f"output{number}"), arrays[f"input{number}"])
    assert outputs.output2.tolist() == [["é".encode(), b"b"]]


def test_python_client_reads_streams(server: ServerProcess, modules: Path) -> None:
    module = load(modules / "repeat_client.py")

    async def read() -> list[int]:
        inputs = module.Inputs(
            in_=np.array([4, 5], np.int32), delay=np.zeros(2, np.uint32), wait=np.zeros(1, np.uint32)
        )
        async with module.ModelClient(f"grpc://{server.grpc_url}") as client:
            return [int(outputs.out[0]) async for outputs in client.stream(inputs)]

    assert asyncio.run(read()) == [4, 5]


def test_python_client_takes_sequences(server: ServerProcess, modules: Path) -> None:
    module = load(modules / "sums_client.py")
    inputs = module.Inputs(input=np.array([[2]], np.float32))

    async def add() -> list[float]:
        async with module.ModelClient(f"http://{server.http_url}") as client:
            first = await client.infer(inputs, sequence_id=7, sequence_start=True)
            last = await client.infer(inputs, sequence_id=7, sequence_end=True)
            return [float(outputs.output[0, 0]) for outputs in (first, last)]

    assert asyncio.run(add()) == [2, 4]


SCRIPT = """
import { ModelClient } from "./all_kinds.js";
import { ModelClient as Sums } from "./sums.js";
const sums = new Sums(process.argv[2]);
await sums.infer({ INPUT: [2] }, { sequence: { id: 9, start: true } });
const { OUTPUT } = await sums.infer({ INPUT: [3] }, { sequence: { id: 9, end: true } });
const client = new ModelClient(process.argv[2]);
const inputs = {
  INPUT0: [1.5, 2],
  INPUT1: { shape: [2, 1], data: [1n << 60n, -1n] },
  INPUT2: ["é", ""],
  INPUT3: [true, false],
  INPUT4: new Uint16Array([0x3c00, 1]),
};
const { OUTPUT0, OUTPUT1, OUTPUT2, OUTPUT3, OUTPUT4 } = await client.infer({ ...inputs, INPUT1: [1n << 60n, -1n] });
const failure = await client.infer(inputs).catch((error) => [error.name, error.status, error.message]);
const outputs = [OUTPUT0, OUTPUT1, OUTPUT2, OUTPUT3, OUTPUT4];
const shown = outputs.map(({ shape, data }) => [shape, Array.from(data, String)]);
console.log(JSON.stringify({ shown, failure, sum: OUTPUT.data[0] }));
"""


@pytest.mark.skipif(NODE is None or not TSC.exists(), reason="run `npm ci` in dashboard/ first")
def test_typescript_client_calls_the_model(server: ServerProcess, modules: Path) -> None:
    (modules / "package.json").write_text('{"type": "module"}')
    (modules / "main.js").write_text(SCRIPT)
    assert NODE is not None
    flags = ["--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes", "--target", "es2022"]
    flags += ["--module", "es2022", "--lib", "es2022,dom"]
    compiled = execute(NODE, str(TSC), *flags, "all_kinds.ts", "sums.ts", folder=modules)
    assert compiled == ""
    found = json.loads(execute(NODE, "main.js", f"http://{server.http_url}", folder=modules))
    assert found["shown"] == [
        [[1, 2], ["1.5", "2"]],
        [[1, 2], [str(1 << 60), "-1"]],
        [[1, 2], ["é", ""]],
        [[1, 2], ["true", "false"]],
        [[1, 2], ["15360", "1"]],
    ]
    assert found["sum"] == 5
    assert found["failure"][:2] == ["Error", 400]


def execute(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_command_says_what_it_cannot_write(server: ServerProcess, capsys: Any, tmp_path: Path) -> None:
    assert run(["nonesuch", "-u", server.http_url]) == 1
    assert "nonesuch" in capsys.readouterr().err
    assert run(["repeat", "-u", server.http_url, "-l", "typescript"]) == 1
    assert "use --language python" in capsys.readouterr().err
    assert run(["repeat", "-u", server.http_url, "-o", str(tmp_path / "no" / "file.py")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    write_models(tmp_path)
    assert run(["all kinds", "--model-repository", str(tmp_path)]) == 0
    assert 'MODEL = "all kinds"' in capsys.readouterr().out
