"""The example of docs/optimize.md as it is written there: train, optimize, export, analyze, serve and measure."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.server_process import serving

PAGE = (Path(__file__).parents[2] / "docs/optimize.md").read_text(encoding="utf-8")
SHORTER = {
    # On a machine with other work no winner may be proven.
    "optimize": "--candidates onnx-fp32 --seconds 0.1 --tuning-seconds 0 --accept onnx-fp32",
    # It misses the 20 ms of the page, too. The default mode computes for half a minute: tests/integration/
    # test_analyze_command.py has it, with a smaller model.
    "analyze": "--mode brute --seconds 0.1 --concurrency 2 --max-instances 1 --max-batch-size 2 --latency-budget 2s",
    "perf": "--measurement-interval 500",
}
"""Flags that make a step shorter, and change nothing else."""
LESS_TRAINING = {"range(60)": "range(25)", "1e-3": "5e-3", "[:1400]": "[:300]"}
"""Fewer pictures make a network that is good enough for a tenth of the CPU time: 0.87 of the tests are right."""
ENVIRONMENT = {**os.environ, "PATH": str(Path(sys.executable).parent)}
"""Without Chromium, whose PDF takes seconds."""
LIMIT_S = 600


def commands():
    example = PAGE.split("## From training to production")[1].split("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", example, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("naiad ")]
    return {shlex.split(line)[1]: shlex.split(line)[2:] for line in lines}


def naiad(folder, verb, arguments):
    command = [sys.executable, "-m", "naiad", verb, *arguments, *shlex.split(SHORTER.get(verb, ""))]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    script = re.findall(r"```python\n(import numpy.*?)```", PAGE, re.DOTALL)[0]
    for written, shorter in LESS_TRAINING.items():
        assert written in script
        script = script.replace(written, shorter)
    (folder / "train.py").write_text(script, encoding="utf-8")
    subprocess.run([sys.executable, "train.py"], cwd=folder, check=True, timeout=LIMIT_S)
    return folder


@pytest.mark.timeout(1200)
def test_example_of_the_page_runs(folder):
    steps = commands()
    assert list(steps) == ["optimize", "export", "analyze", "serve", "perf"]
    naiad(folder, "optimize", steps["optimize"])
    found = json.loads((folder / "optimization/result.json").read_text(encoding="utf-8"))
    outcomes = {each["candidate"]["name"]: each for each in found["outcomes"]}
    assert outcomes[found["winner"]]["status"] == "passed"
    assert outcomes[found["winner"]]["verdict"]["metric"] > 0.8
    (folder / "models").mkdir()
    naiad(folder, "export", steps["export"])
    naiad(folder, "analyze", steps["analyze"])
    served = [each for each in steps["serve"] if each not in ("--http-port", "8000")]
    with serving(
        folder / "server.log", *(each.replace("models", str(folder / "models")) for each in served)
    ) as server:
        measured = [each.replace("localhost:8000", server.http_url.removeprefix("http://")) for each in steps["perf"]]
        assert "throughput" in naiad(folder, "perf", measured).lower()
